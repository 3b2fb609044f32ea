"""A worker that takes over from another one, on real Spark: nothing is lost or counted twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.client import Client, Draft, Record
from headrace.pipelines.worker.worker import Limits, Worker
from headrace.testing.process import ServerProcess
from tests.support.pipeline_workers import WAIT_SECONDS, all_records, place_of, until

LEASE_MS = 4_000


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
