"""Queues: claims of jobs, and what becomes of them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType, field

from headrace.api.base import Answer, Body, Match, Unsigned, documented
from headrace.api.records import Record


class ClaimBody(Body, frozen=True):
    """Who claims, and how much."""

    node: str
    max: Unsigned | None = None
    lease_ms: Unsigned | None = None


class AckBody(Body, frozen=True):
    """Jobs that are done."""

    node: str
    seqs: list[Unsigned]
    lease_ids: list[str] | None = None


class NackBody(Body, frozen=True):
    """Jobs to give back."""

    node: str
    seqs: list[Unsigned]
    lease_ids: list[str] | None = None
    delay_ms: Unsigned | None = None


class ExtendBody(Body, frozen=True, kw_only=True):
    """Jobs to hold longer."""

    node: str
    seqs: list[Unsigned]
    lease_ids: list[str] | None = None
    lease_ms: Unsigned


class RedriveBody(Body, frozen=True):
    """Which dead letters go back to the queues they came from."""

    match: Match | None = None
    meta: dict[str, Any] | None = None
    limit: Unsigned | None = None
    to: str | None = None
    from_seq: Unsigned | None = None


class JobOut(msgspec.Struct, gc=False):
    """One job, as whoever claimed it sees it.

    A payload that was appended as bytes is a base64 string, and `meta` says so with
    `"$encoding":"base64"`.
    """

    # The order in which the server writes the keys, which `Job` does not have to have.
    seq: Annotated[int, Meta(ge=1)] = field(name="$seq")
    lease_id: Annotated[str, Meta(description="Names this lease in an ack, nack or extend.")]
    deadline: Annotated[int, Meta(description="The last millisecond of the lease.")]
    ts: int = field(name="$ts")
    deliveries: Annotated[int, Meta(ge=1, description="How often it was claimed, with this one.")]
    data: Annotated[Raw, Meta(description="As it was appended; bytes as base64, see `meta`.")]
    tag: str | UnsetType = field(name="$tag", default=UNSET)
    meta: Raw | UnsetType = UNSET


class Job(Record, frozen=True, kw_only=True):
    """A `JobOut` as a client reads it: a record, and its lease, which lasts until `deadline`.

    >>> sent = b'{"$seq":1,"$ts":5,"data":7,"lease_id":"lease_a","deadline":9,"deliveries":1}'
    >>> msgspec.json.decode(sent, type=Job)
    Job(seq=1, data=7, lease_id='lease_a', deadline=9, deliveries=1)
    """

    lease_id: str
    deadline: int
    deliveries: int

    def __repr__(self) -> str:
        names = ("seq", "data", "lease_id", "deadline", "deliveries")
        return f"Job({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class Claimed(Answer, frozen=True):
    """Jobs, ascending by seq; none is an answer too."""

    schema_name: ClassVar[str] = "ClaimAnswer"
    added_fields: ClassVar[dict[str, type]] = {"count": int, **Answer.added_fields}

    topic: str
    jobs: Annotated[list[Job], documented(list[JobOut])] = field(name="claimed")
    ready: int  # how many more there are to claim


class Acked(Answer, frozen=True):
    """How many jobs are done; `skipped` are those that the node does not hold."""

    schema_name: ClassVar[str] = "AckAnswer"

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Nacked(Answer, frozen=True):
    """How many jobs were given back; `skipped` are those that the node does not hold."""

    schema_name: ClassVar[str] = "NackAnswer"

    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Extended(Answer, frozen=True):
    """Until when jobs are held now, by seq; `skipped` are those that the node does not hold."""

    schema_name: ClassVar[str] = "ExtendAnswer"

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]


class Redriven(Answer, frozen=True):
    """What one step moved; unless it is `done`, go on with `next_from_seq` as `from_seq`."""

    schema_name: ClassVar[str] = "RedriveAnswer"

    topic: str
    moved: int
    skipped: Annotated[int, Meta(description="Looked at, and not asked for or nowhere to go.")]
    next_from_seq: int
    done: bool
