"""The bodies of queues as types: what claims, acks and the like may hold, and what answers do.

Only this file names their JSON keys.  The types are also where `/openapi.json` comes from, so a
description here is one that users read.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType, field

from headrace.wire.native_types import Performance, Unsigned


class ClaimBody(msgspec.Struct):
    """Who claims, and how much."""

    node: str
    max: Unsigned | None = None
    lease_ms: Unsigned | None = None


class AckBody(msgspec.Struct):
    """Jobs that are done."""

    node: str
    seqs: list[Unsigned]
    lease_ids: list[str] | None = None


class NackBody(msgspec.Struct):
    """Jobs to give back."""

    node: str
    seqs: list[Unsigned]
    delay_ms: Unsigned | None = None
    lease_ids: list[str] | None = None


class ExtendBody(msgspec.Struct):
    """Jobs to hold longer."""

    node: str
    seqs: list[Unsigned]
    lease_ms: Unsigned
    lease_ids: list[str] | None = None


class RedriveBody(msgspec.Struct):
    """Which dead letters go back to the queues they came from."""

    match: str | list[str] | None = None
    meta: dict[str, Any] | None = None
    limit: Unsigned | None = None
    to: str | None = None
    from_seq: Unsigned | None = None


class JobOut(msgspec.Struct, gc=False):
    """One job, as whoever claimed it sees it.

    A payload that was appended as bytes is a base64 string, and `meta` says so with
    `"$encoding":"base64"`.
    """

    seq: Annotated[int, Meta(ge=1)] = field(name="$seq")
    lease_id: Annotated[str, Meta(description="Names this lease in an ack, nack or extend.")]
    deadline: Annotated[int, Meta(description="The last millisecond of the lease.")]
    ts: int = field(name="$ts")
    deliveries: Annotated[int, Meta(ge=1, description="How often it was claimed, with this one.")]
    data: Annotated[Raw, Meta(description="As it was appended; bytes as base64, see `meta`.")]
    tag: str | UnsetType = field(name="$tag", default=UNSET)
    meta: Raw | UnsetType = UNSET


class ClaimAnswer(msgspec.Struct):
    """Jobs, ascending by seq; none is an answer too."""

    topic: str
    claimed: list[JobOut]
    count: int
    ready: int
    performance: Performance


class AckAnswer(msgspec.Struct):
    """How many jobs are done; `skipped` are those that the node does not hold."""

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class NackAnswer(msgspec.Struct):
    """How many jobs were given back; `skipped` are those that the node does not hold."""

    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class ExtendAnswer(msgspec.Struct):
    """Until when jobs are held now, by seq; `skipped` are those that the node does not hold."""

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[str, int]
    performance: Performance


class RedriveAnswer(msgspec.Struct):
    """What one step moved; unless it is `done`, go on with `next_from_seq` as `from_seq`."""

    topic: str
    moved: int
    skipped: Annotated[int, Meta(description="Looked at, and not asked for or nowhere to go.")]
    next_from_seq: int
    done: bool
    performance: Performance
