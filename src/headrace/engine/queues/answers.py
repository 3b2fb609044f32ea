"""What a queue answers, and how a lease is written: plain values for whoever speaks to a client."""

from __future__ import annotations

import msgspec

from headrace.core import limits
from headrace.core.errors import InvalidRequest
from headrace.engine.topic import Topic

LEASE_PREFIX = "lease_"


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


def parse_lease_id(text: str) -> int | None:
    """A lease id as it was given out; the empty string stands for none.

    >>> parse_lease_id("lease_00000000000000ff"), parse_lease_id("")
    (255, None)
    """
    if text == "":
        return None
    digits = text[len(LEASE_PREFIX) :] if isinstance(text, str) else ""
    # What `int` takes beyond digits is no lease id.
    if text[: len(LEASE_PREFIX)] == LEASE_PREFIX and len(digits) <= 16 and digits.isalnum():
        try:
            return int(digits, 16)
        except ValueError:
            pass
    raise InvalidRequest(f"lease id {text!r}", fix="send the lease_id of a claim")


def counts_of(topic: Topic) -> tuple[int, int]:
    queue = topic.queue
    if queue is None:
        return topic.count, 0
    return queue.ready(topic.count), queue.in_flight


def check_ms(what: str, value: int) -> int:
    if not limits.is_seq(value):
        raise InvalidRequest(f"{what} is {value!r}", fix="send a number of milliseconds")
    return value


def clamped_lease(lease_ms: int) -> int:
    return min(max(check_ms("lease_ms", lease_ms), limits.lease_ms_min), limits.lease_ms_max)
