"""The five examples on real Spark, all at once on one worker, each against a model's answer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.cli.main import main
from headrace.client import Client, Record
from headrace.pipelines import examples
from headrace.testing.process import ServerProcess
from tests.support.pipeline_workers import Watched, place_of, reports, until, working

MINUTE = timedelta(minutes=1)
Answer = Any


def time_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


def data_of(name: str, topic: str) -> list[dict[str, Any]]:
    return [draft.data for draft in examples.events(name)[topic]]


# The models: what each example comes to.  The last click is an hour later and ends all others.


def per_minute() -> Answer:
    times = [time_of(click["at"]) for click in data_of("per-minute", "example.clicks")]
    counted = Counter(time.strftime("%Y-%m-%dT%H:%M") for time in times if time != max(times))
    return dict(counted)


def sessions() -> Answer:
    by_user: dict[str, list[datetime]] = defaultdict(list)
    for click in data_of("sessions", "example.visits"):
        by_user[click["user"]].append(time_of(click["at"]))
    newest = max(max(times) for times in by_user.values())
    found = []
    for user, times in by_user.items():
        times.sort()
        groups = [[times[0]]]
        for time in times[1:]:
            if time - groups[-1][-1] < 5 * MINUTE:
                groups[-1].append(time)
            else:
                groups.append([time])
        found += [
            (user, group[0], group[-1] + 5 * MINUTE, len(group))
            for group in groups
            if group[-1] != newest
        ]
    return sorted(found)


def join() -> Answer:
    orders = {order["id"]: order for order in data_of("join", "example.orders")}
    found = []
    for payment in data_of("join", "example.payments"):
        order = orders[payment["order"]]
        if timedelta(0) <= time_of(payment["at"]) - time_of(order["at"]) <= 10 * MINUTE:
            customer = f"customer-{order['id'] % 5}"
            found.append((customer, order["id"], order["total"], payment["amount"]))
    return sorted(found)


def dedup() -> Answer:
    found = {one["id"]: one for one in data_of("dedup", "example.readings")}
    return sorted((one["sensor"], one["id"], one["value"]) for one in found.values())


def dead_letters() -> Answer:
    letters = examples.events("dead-letters")["example.jobs.dead"]
    counted = Counter(letter.meta["$dead_letter_from"] for letter in letters)
    return {queue: (count, 4) for queue, count in counted.items()}


# The same of what was written.


def wrote_per_minute(records: list[Record]) -> Answer:
    assert len({record.data["minute"] for record in records}) == len(records)
    return {record.data["minute"]: record.data["clicks"] for record in records}


def wrote_sessions(records: list[Record]) -> Answer:
    return sorted(
        (r.tag, time_of(r.data["began"]), time_of(r.data["ended"]), r.data["pages"])
        for r in records
    )


def wrote_join(records: list[Record]) -> Answer:
    return sorted((r.tag, r.data["order_id"], r.data["total"], r.data["paid"]) for r in records)


def wrote_dedup(records: list[Record]) -> Answer:
    return sorted((r.tag, r.data["id"], r.data["value"]) for r in records)


def wrote_dead_letters(records: list[Record]) -> Answer:
    """The last word of each queue."""
    return {r.tag: (r.data["jobs"], r.data["deliveries"]) for r in records}


EXPECTED: dict[str, tuple[Answer, Callable[[list[Record]], Answer]]] = {
    "per-minute": (per_minute(), wrote_per_minute),
    "sessions": (sessions(), wrote_sessions),
    "join": (join(), wrote_join),
    "dedup": (dedup(), wrote_dedup),
    "dead-letters": (dead_letters(), wrote_dead_letters),
}


@pytest.fixture
def declared(server: ServerProcess, client: Client) -> Iterator[list[str]]:
    """All examples, by the command that a user types."""
    for name in examples.NAMES:
        assert main(["pipelines", "example", name, "--url", server.url]) == 0
    yield [f"example.{name}" for name in examples.NAMES]
    for name in examples.NAMES:
        client.delete_pipeline(f"example.{name}")


def test_the_examples(
    spark: SparkSession,
    server: ServerProcess,
    client: Client,
    declared: list[str],
    tmp_path: Path,
) -> None:
    assert set(EXPECTED) == set(examples.NAMES)

    def written(name: str) -> list[Record]:
        topic = examples.declaration(name)["dest"]["topic"]
        if not any(found.topic == topic for found in client.topics(topic)):
            return []
        return [one for one in client.follow(topic, to_head=True) if isinstance(one, Record)]

    def done() -> bool:
        return all(len(read(written(name))) >= len(want) for name, (want, read) in EXPECTED.items())

    def heard() -> bool:
        """Of each pipeline a batch, by server-sent events, while they run."""
        said = {one["pipeline"] for one in watched.seen if one["batch"] is not None}
        return said >= set(declared)

    with working(spark, place_of(server.url, tmp_path)) as worker:
        until(lambda: [one for name in declared for one in reports(client, name)], "a report")
        watched = Watched(server, "_pipelines.progress")
        try:
            until(done, "all results")
            until(heard, "all reports")
            assert worker.running == sorted(declared)
        finally:
            watched.close()
    for name, (expected, read) in EXPECTED.items():
        assert read(written(name)) == expected, name
