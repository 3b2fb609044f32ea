"""SQL over a lake, sweeping: whatever happened to a topic, every row is there once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.client import Client
from headrace.core.errors import HeadraceError
from headrace.lake.sql.frames import LakeArchiveTables
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.compact import compact
from headrace.spark.sql.tables import Tables
from headrace.spark.sql.topic_ends import Cut
from headrace.testing.process import ServerProcess
from tests.support.lakes import Bench
from tests.support.sealed_topics import fill, seal
from tests.support.sweeps import Sweep


def test_one_history(spark: SparkSession, sealing: ServerProcess, tmp_path: Path) -> None:
    run(spark, sealing, tmp_path, seed=3, steps=5)


@pytest.mark.long
def test_any_history_gives_every_row_once(
    spark: SparkSession, sealing: ServerProcess, tmp_path: Path, sweep: Sweep
) -> None:
    """Random appends, deletes, seals, syncs, compactions and caps, against a set of seqs."""
    ends, seed = time.monotonic() + sweep.seconds, sweep.seed
    while time.monotonic() < ends:
        seed += 1
        try:
            run(spark, sealing, tmp_path / str(seed), seed, steps=12)
        except (AssertionError, HeadraceError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def run(spark: SparkSession, server: ServerProcess, place: Path, seed: int, steps: int) -> None:
    with Client(server.url) as client:
        bench = Bench(server, client, Lake(str(place)))
        world = World(spark, bench, f"t-history-{seed}", random.Random(seed))
        for _ in range(steps):
            world.step()
            world.check()
        world.evict()


class World:
    """A topic, its lake, and what is alive of it."""

    def __init__(
        self, spark: SparkSession, bench: Bench, topic: str, chance: random.Random
    ) -> None:
        self._bench = bench
        self._client = bench.client
        self._topic = topic
        self._chance = chance
        history = LakeArchiveTables(spark, bench.lake)
        self._asked = Tables(spark, bench.connection, history, origins=True)
        self._head = 0
        self._alive: set[int] = set()
        self._append()

    def step(self) -> None:
        ways = (
            self._append, self._seal_and_sync, self._sync, self._delete, self._prefix,
            self._compact,
        )  # fmt: skip
        self._chance.choice(ways)()

    def _append(self) -> None:
        count = self._chance.randint(1, 400)
        fill(self._client, self._topic, count, self._head + 1)
        self._alive |= set(range(self._head + 1, self._head + count + 1))
        self._head += count

    def _seal_and_sync(self) -> None:
        seal(self._client, self._topic)
        self._sync()

    def _sync(self) -> None:
        assert self._bench.sync(self._topic).error is None

    def _delete(self) -> None:
        digit = self._chance.randint(0, 9)
        self._client.delete_records(self._topic, match=f"t{digit}")
        self._alive -= {n for n in self._alive if n % 10 == digit and n % 3}

    def _prefix(self) -> None:
        before = self._chance.randint(1, self._head // 2 + 1)
        self._client.delete_records(self._topic, before_seq=before)
        self._alive -= set(range(before))

    def _compact(self) -> None:
        if self._bench.lake.tables():
            compact(self._bench.table(self._topic), run_inline)

    def check(self) -> None:
        statement = f"select origin, collect_list(seq) from `{self._topic}` group by origin"
        with self._asked.query(statement) as (frame, cuts):
            parts = {origin: sorted(seqs) for origin, seqs in frame.collect()}
        cut: Cut = cuts[self._topic]
        assert (cut.head, cut.losses) == (self._head, [])
        assert sorted(seq for seqs in parts.values() for seq in seqs) == sorted(self._alive)
        assert all(seq <= cut.past_to for seq in parts.get("lake", []))
        assert all(seq > cut.past_to for name in parts.keys() - {"lake"} for seq in parts[name])

    def evict(self) -> None:
        """What retention takes stays, as far as the lake has it, and the rest is told."""
        self._client.put_topic(self._topic, {"cap_records": 10})
        self._client.append(self._topic, [1])
        self._head += 1
        self._alive.add(self._head)
        floor = self._client.segments(self._topic).floors.cap
        with self._asked.query(f"select seq from `{self._topic}`") as (frame, cuts):
            rows = [row[0] for row in frame.collect()]
        found = set(rows)
        lost = {n for loss in cuts[self._topic].losses for n in range(loss.first, loss.last + 1)}
        assert len(found) == len(rows) and not found & lost
        assert {n for n in found if n > floor} == {n for n in self._alive if n > floor}
        assert {n for n in self._alive if n <= floor} <= found | lost
