"""What a queue answers, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import msgspec

from headrace.engine.queues.requests import lease_ids
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


class JobColumns(NamedTuple):
    """Records of jobs as parallel columns, in ascending seq; absent columns are None."""

    seqs: list[int]
    stamps: Sequence[int]
    data: Sequence[bytes]
    kinds: int | Sequence[int]  # one int where all are the same
    tags: Sequence[str | None] | None = None
    metas: Sequence[bytes | None] | None = None

    def part(self, start: int, stop: int) -> JobColumns:
        """Return the rows from `start` up to `stop`."""
        kinds, tags, metas = self.kinds, self.tags, self.metas
        return JobColumns(
            self.seqs[start:stop],
            self.stamps[start:stop],
            self.data[start:stop],
            kinds if isinstance(kinds, int) else kinds[start:stop],
            None if tags is None else tags[start:stop],
            None if metas is None else metas[start:stop],
        )

    def pick(self, positions: Sequence[int]) -> JobColumns:
        """Return the rows at these positions, in order."""
        kinds, tags, metas = self.kinds, self.tags, self.metas
        return JobColumns(
            [self.seqs[at] for at in positions],
            [self.stamps[at] for at in positions],
            [self.data[at] for at in positions],
            kinds if isinstance(kinds, int) else [kinds[at] for at in positions],
            None if tags is None else [tags[at] for at in positions],
            None if metas is None else [metas[at] for at in positions],
        )


class Leased(NamedTuple):
    """The jobs that a claim got, and the lease that they share."""

    token: int
    deadline: int
    deliveries: Sequence[int]  # of each, with this one
    rows: JobColumns

    @property
    def lease_ids(self) -> list[str]:
        return lease_ids(self.token, self.rows.seqs)

    @property
    def jobs(self) -> list[Job]:
        """Return them one by one."""
        rows, none = self.rows, repeat(None)
        kinds = repeat(rows.kinds) if isinstance(rows.kinds, int) else rows.kinds
        return list(
            map(
                Job, rows.seqs, self.lease_ids, repeat(self.deadline), rows.stamps,
                self.deliveries, rows.data, rows.tags or none, rows.metas or none, kinds,
            )
        )  # fmt: skip


class Claimed(msgspec.Struct, frozen=True):
    """Jobs, ascending by seq, and what was left when they were leased."""

    topic: str
    ready: int
    in_flight: int
    leased: Leased | None = None  # None: no job

    @property
    def jobs(self) -> list[Job]:
        """Return the jobs one by one."""
        return [] if self.leased is None else self.leased.jobs


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
