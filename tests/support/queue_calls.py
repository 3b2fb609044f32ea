"""What the tests of queues share: short names for what they do all the time."""

from __future__ import annotations

from typing import Any

from headrace.engine.engine import Engine
from headrace.engine.queues.answers import Acked, Claimed, Job
from headrace.storage.block import Batch


def make(engine: Engine, name: str = "jobs", **config: Any) -> None:
    engine.put_topic(name, {"type": "queue", **config}).result()


def add(engine: Engine, count: int, name: str = "jobs", first: int = 1, **columns: Any) -> None:
    """Append jobs whose data is their number."""
    data = [b"%d" % number for number in range(first, first + count)]
    engine.append(name, Batch(data, **columns)).result()


def claim(
    engine: Engine, count: int = 1, node: str = "a", lease_ms: int | None = None, name: str = "jobs"
) -> list[Job]:
    return claimed(engine, count, node, lease_ms, name).jobs


def claimed(
    engine: Engine, count: int = 1, node: str = "a", lease_ms: int | None = None, name: str = "jobs"
) -> Claimed:
    return engine.queues.claim(name, node, count, lease_ms).result()


def ack(engine: Engine, jobs: list[Job], node: str = "a", name: str = "jobs") -> Acked:
    seqs, ids = [job.seq for job in jobs], [job.lease_id for job in jobs]
    return engine.queues.ack(name, node, seqs, ids).result()


def counts(engine: Engine, name: str = "jobs") -> tuple[int, int, int, int]:
    """ready, in flight, delayed, dead lettered"""
    found = engine.queues.counts(name)
    return found.ready, found.in_flight, found.delayed, found.dead_lettered


def contents(engine: Engine, name: str) -> list[bytes]:
    found: list[bytes] = []
    cursor = 0
    while True:
        page = engine.read(name, cursor, limit=100_000, bytes_max=1 << 30).result()
        found += [record.data for record in page.records]
        if page.caught_up:
            return found
        cursor = page.next_from_seq
