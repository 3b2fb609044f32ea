"""What a queue answers, as plain values."""

from __future__ import annotations

import msgspec

from headrace.engine.topics.topic import Topic


class Job(msgspec.Struct, frozen=True, gc=False):
    """One claimed job."""

    seq: int
    lease_id: str
    deadline: int
    ts: int
    deliveries: int
    data: bytes
    tag: str | None = None
    meta: bytes | None = None
    kind: int = 0


class Claimed(msgspec.Struct, frozen=True):
    """Jobs, ascending by seq, and what is left."""

    topic: str
    jobs: list[Job]
    ready: int
    in_flight: int


class Acked(msgspec.Struct, frozen=True):
    """How many jobs are done; `skipped`: not held by this node, or not by this lease."""

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int
    sync_ns: int = 0


class Nacked(msgspec.Struct, frozen=True):
    """How many jobs were given back."""

    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Extended(msgspec.Struct, frozen=True):
    """Until when the jobs are held now."""

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]


class Holder(msgspec.Struct, frozen=True):
    """Who holds a job, by which lease, until when."""

    node: str
    lease_id: int
    deadline: int


class QueueCounts(msgspec.Struct, frozen=True):
    """A queue at a glance; jobs on their way out are in no count of jobs."""

    ready: int
    in_flight: int
    delayed: int
    dead_lettered: int
    unreadable: int = 0  # their records are damaged: passed over, and tried again every minute


def counts_of(topic: Topic) -> tuple[int, int]:
    """Return how many jobs of a queue are ready, and how many are in flight."""
    queue = topic.queue
    if queue is None:
        return topic.count, 0
    return queue.ready(topic.count), queue.in_flight
