"""Workers that die and workers that take over, on real Spark: nothing is lost or counted twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.client import Client, Draft, Record
from headrace.pipelines.worker import Limits, Worker
from headrace.testing.process import ServerProcess
from tests.conftest import Sweep
from tests.spark.pipeline_help import WAIT_SECONDS, all_records, place_of, until

LEASE_MS = 4_000
KILLS = 3


@pytest.fixture
def pipelines(client: Client, topic: str) -> Iterator[tuple[str, str]]:
    """Two over one topic: totals by tag, which keep state, and each record's own number."""
    sources = [{"topic": topic, "alias": "events"}]
    names = f"{topic}.totals", f"{topic}.each"
    client.put_topic(topic)
    client.put_pipeline(
        names[0],
        {
            "sources": sources,
            "sql": "select tag, count(*) as n, sum(data:n::bigint) as sum from events group by tag",
            "dest": {"topic": f"{names[0]}.out"},
            "output_mode": "update",
        },
    )
    client.put_pipeline(
        names[1],
        {
            "sources": sources,
            "sql": "select seq as source_seq, data:n::bigint as n from events",
            "dest": {"topic": f"{names[1]}.out"},
        },
    )
    yield names
    for name in names:
        client.delete_pipeline(name)


class Events:
    """What was appended, and what should come of it."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client, self.topic = client, topic
        self.count = 0

    def append(self, count: int) -> None:
        numbers = range(self.count, self.count + count)
        self.client.append(self.topic, [Draft({"n": n}, tag=f"t{n % 3}") for n in numbers])
        self.count += count

    def check_arrived(self, totals: str, each: str) -> None:
        """Wait for everything, and see that it came once."""
        expected = Counter(f"t{n % 3}" for n in range(self.count))

        def last() -> dict[str | None, int]:
            seen: dict[str | None, int] = {}
            if not any(found.topic == totals for found in self.client.topics(totals)):
                return seen
            for record in self.client.follow(totals, to_head=True):
                assert isinstance(record, Record)
                assert record.data["n"] > seen.get(record.tag, 0), "a total came twice"
                seen[record.tag] = record.data["n"]
            return seen

        until(lambda: len(all_records(self.client, each)) >= self.count, "each record")
        until(lambda: sum(last().values()) >= self.count, "all totals")
        assert last() == expected
        found = [(row["source_seq"], row["n"]) for row in all_records(self.client, each)]
        assert sorted(found) == [(n + 1, n) for n in range(self.count)]


def test_another_worker_goes_on(
    spark: SparkSession,
    server: ServerProcess,
    client: Client,
    topic: str,
    pipelines: tuple[str, str],
    tmp_path: Path,
) -> None:
    """One of two workers stops in the middle of everything and says nothing."""
    totals, each = pipelines
    events = Events(client, topic)
    events.append(30)
    with Client(server.url, deadline_ms=0) as first, Client(server.url, deadline_ms=0) as second:
        place, limits = place_of(server.url, tmp_path), Limits(4, LEASE_MS)
        dies = Worker(spark, first, "dies", place, limits)
        lives = Worker(spark, second, "lives", place, limits)

        def turns() -> bool:
            dies.turn()
            lives.turn()
            assert not set(dies.running) & set(lives.running), "two workers run one pipeline"
            return len(all_records(client, f"{each}.out")) > 0

        until(turns, "the first rows")
        had = dies.running
        assert had == [each, totals], "the other one had no chance"
        for holding in dies._held.values():
            holding.run.end(at_once=True)  # and nobody gives it back
        events.append(30)
        stop = threading.Event()
        thread = threading.Thread(target=lives.run, args=(stop,), daemon=True)
        thread.start()
        try:
            until(lambda: lives.running == had, "the other worker has them")
            events.check_arrived(f"{totals}.out", f"{each}.out")
            assert {client.pipeline(name).worker for name in pipelines} == {"lives"}
        finally:
            stop.set()
            thread.join(WAIT_SECONDS)
        assert lives.running == [] and not thread.is_alive()


class WorkerProcess:
    """`headrace pipelines run` as a process of its own."""

    def __init__(self, url: str, directory: Path, number: int) -> None:
        self.log = directory / f"worker-{number}.log"
        words = [
            "pipelines",
            "run",
            "--url",
            url,
            "--lease",
            f"{LEASE_MS}ms",
            "--node",
            f"w{number}",
        ]
        words += ["--checkpoints", str(directory / "checkpoints"), "--master", "local[2,4]"]
        with open(self.log, "wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace", *words],
                stderr=stderr,
                stdout=subprocess.PIPE,
                start_new_session=True,  # so that a kill reaches Java and its Python workers too
                env=os.environ,
            )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        code = self.process.wait(120)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.mark.long
def test_a_worker_is_killed_again_and_again(
    server: ServerProcess,
    client: Client,
    topic: str,
    pipelines: tuple[str, str],
    sweep: Sweep,
    tmp_path: Path,
) -> None:
    totals, each = pipelines
    events = Events(client, topic)
    running: list[WorkerProcess] = []
    try:
        for number in range(KILLS):
            running.append(WorkerProcess(server.url, tmp_path, number))
            seen = len(all_records(client, f"{each}.out"))
            events.append(20)
            until(
                lambda seen=seen: len(all_records(client, f"{each}.out")) > seen,
                f"rows by worker {number}",
            )
            # Somewhere in the batches that follow.
            for _ in range((sweep.seed * 7 + number * 3) % 5):
                events.append(20)
                time.sleep(0.2)
            running.pop().kill()
        running.append(WorkerProcess(server.url, tmp_path, KILLS))
        events.append(20)
        events.check_arrived(f"{totals}.out", f"{each}.out")
        last = running.pop()
        assert last.stop() == 0, last.log.read_text()
        assert client.pipeline(totals).worker is None, "it was given back"
    finally:
        for process in running:
            process.kill()
