"""What the client sends to queues and gets back from them, as types; see `models.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.client.models import Record


class Job(Record, frozen=True, kw_only=True):
    """A claimed job: a record, and the lease under which it is held until `deadline`.

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


class Claimed(msgspec.Struct, frozen=True):
    """Jobs, ascending by seq, and how many more there are to claim."""

    topic: str
    jobs: list[Job] = msgspec.field(name="claimed")
    ready: int


class Acked(msgspec.Struct, frozen=True):
    """How many jobs are done; `skipped`: not held by this node, or not by this lease."""

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Nacked(msgspec.Struct, frozen=True):
    """How many jobs were given back; `skipped` as of `Acked`."""

    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Extended(msgspec.Struct, frozen=True):
    """Until when jobs are held now, by seq; `skipped` as of `Acked`."""

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]


class Redriven(msgspec.Struct, frozen=True):
    """What one step of a redrive did; `done`: there is nothing beyond `next_from_seq`."""

    topic: str
    moved: int
    skipped: int
    next_from_seq: int
    done: bool


class ClaimBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a claim."""

    node: str
    max: int = 1
    lease_ms: int | None = None


class HeldBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of an ack, a nack or an extend."""

    node: str
    seqs: list[int]
    lease_ids: list[str] | None = None
    delay_ms: int = 0
    lease_ms: int | None = None


class RedriveBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a redrive."""

    match: str | list[str] | None = None
    meta: Mapping[str, Any] | None = None
    limit: int | None = None
    to: str | None = None
    from_seq: int = 0
