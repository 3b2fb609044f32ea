"""Writers, tidiers and servers are killed at any time: every seq is in the lake exactly once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.client import Client
from headrace.core.errors import HeadraceError
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.compact import compact
from headrace.lake.writing.vacuum import vacuum
from headrace.lake.writing.verify import verify
from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT
from tests.support.lakes import Bench, accounted, gaps_in, rows_in
from tests.support.sealed_topics import SETTINGS, fill, rows_of
from tests.support.sweeps import Sweep

PROGRAM = "tests.support.lake_syncing"
TOPIC = "orders"


class World:
    """A directory that is served, a lake, and writers that are killed.

    `waits`: retention waits for the lake, so that nothing but what is deleted may be a gap.
    """

    def __init__(self, place: Path, seed: int, waits: bool) -> None:
        self._data = place / "data"
        self._lake = str(place / "lake")
        self._random = random.Random(seed)
        self._server = ServerProcess(self._data, **SETTINGS)
        self._count = 0
        self._waits = waits

    def close(self) -> None:
        self._server.kill()

    def round(self) -> None:
        """Some records come, some go, two writers run, and somebody dies."""
        chance = self._random
        with Client(self._server.url) as client:
            config = {"retain_until_archived": self._waits}
            client.put_topic(TOPIC, config)
            added = chance.randrange(200, 900)
            fill(client, TOPIC, added, self._count + 1)
            self._count += added
            client.delete_records(TOPIC, match=f"t{chance.randrange(10)}")
            if chance.random() < 0.5:
                client.put_topic(TOPIC, config | {"cap_records": chance.randrange(300, 2_000)})
        writers = [self._writer() for _ in range(chance.choice((1, 2)))]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"started\n"
        time.sleep(chance.random() * 0.4)
        dies = chance.choice(("writers", "server", "both"))
        if dies != "writers":
            self._server.kill()
        for writer in writers:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
        if dies != "writers":
            self._server = ServerProcess(self._data, **SETTINGS)

    def _writer(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", PROGRAM, self._server.url, self._lake, TOPIC, self._seed()],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )

    def _seed(self) -> str:
        return str(self._random.randrange(1 << 30))

    def check(self) -> None:
        """Bring the lake to the end, and look at all of it."""
        with Client(self._server.url) as client:
            bench = Bench(self._server, client, Lake(self._lake))
            result = bench.sync(TOPIC)
            assert result.error is None, result
            table = bench.table(TOPIC)
            assert accounted(table) == client.topic(TOPIC).head_seq >= self._count
            if self._random.random() < 0.5:
                compact(table.fresh(), run_inline)
                vacuum(table.fresh(), 0)
            found = verify(table.fresh(), run_inline, client, bench.connection)
            assert found.ok, found.findings
            assert found.source == "compared"
            self._check_rows(table)

    def _check_rows(self, table: Table) -> None:
        """Rows are what was written, also those that the server has forgotten."""
        written = rows_of(1, self._count).to_pylist()
        for row in rows_in(table):
            wanted = written[row["seq"] - 1]
            assert {name: row[name] for name in wanted} == wanted, row["seq"]
        if self._waits:
            assert {reason for _, _, reason in gaps_in(table)} <= {"delete"}


def run(place: Path, seed: int, rounds: int, waits: bool) -> None:
    world = World(place, seed, waits)
    try:
        for _ in range(rounds):
            world.round()
        world.check()
    finally:
        world.close()


def test_a_few_kills(tmp_path: Path) -> None:
    run(tmp_path, seed=7, rounds=3, waits=True)


@pytest.mark.long
def test_many_kills(tmp_path: Path, sweep: Sweep) -> None:
    ends = time.monotonic() + sweep.seconds
    seed = sweep.seed
    while time.monotonic() < ends:
        seed += 1
        try:
            run(tmp_path / str(seed), seed, rounds=6, waits=bool(seed % 2))
        except (AssertionError, HeadraceError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
