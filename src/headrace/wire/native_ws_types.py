"""The commands of `GET /v0/ws` as types.

Only this file names their JSON keys.  `request_id` is any JSON value; it is given back as it came.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from headrace.wire.native_live_types import TopicStart, WatchBody
from headrace.wire.native_types import AppendBody, Unsigned

NULL: Final = Raw(b"null")


class Subscribe(WatchBody, tag_field="op", tag="subscribe", kw_only=True):
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


class Unsubscribe(msgspec.Struct, tag_field="op", tag="unsubscribe"):
    """Follow topics no longer."""

    request_id: Raw = NULL
    topic: str | None = None
    topics: list[str] | None = None


class Publish(AppendBody, tag_field="op", tag="publish", kw_only=True):
    """Append records to a topic."""

    topic: str
    request_id: Raw = NULL
    return_seqs: bool | None = None


class Ping(msgspec.Struct, tag_field="op", tag="ping"):
    """Ask for an answer."""

    request_id: Raw = NULL


class Unknown(msgspec.Struct):
    """A command that is not one of these."""

    request_id: Raw = NULL


Command = Subscribe | Unsubscribe | Publish | Ping
