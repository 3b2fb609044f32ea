"""The commands of `GET /v0/ws`; `request_id` is any JSON value, which is given back as it came."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from headrace.api.base import NULL, Unsigned
from headrace.api.records import AppendBody
from headrace.api.watch import TopicStart, WatchBody


class Subscribe(WatchBody, frozen=True, tag_field="op", tag="subscribe", kw_only=True):
    """Follow topics: one, or a map of them."""

    request_id: Raw = NULL
    topic: str | None = None
    from_seq: Unsigned | None = None
    tail: bool | None = None
    epoch: Unsigned | None = None
    lenient: bool | None = None

    @property
    def start(self) -> TopicStart:
        """Where to begin in `topic`."""
        return TopicStart(self.from_seq, self.tail, self.epoch)


class Unsubscribe(msgspec.Struct, frozen=True, tag_field="op", tag="unsubscribe"):
    """Follow topics no longer."""

    request_id: Raw = NULL
    topic: str | None = None
    topics: list[str] | None = None


class Publish(AppendBody, frozen=True, tag_field="op", tag="publish", kw_only=True):
    """Append records to a topic."""

    topic: str
    request_id: Raw = NULL
    return_seqs: bool | None = None


class Ping(msgspec.Struct, frozen=True, tag_field="op", tag="ping"):
    """Ask for an answer."""

    request_id: Raw = NULL


class Unknown(msgspec.Struct, frozen=True):
    """A command that is not one of these."""

    request_id: Raw = NULL


Command = Subscribe | Unsubscribe | Publish | Ping
