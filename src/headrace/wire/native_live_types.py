"""The bodies of the watch as types; those of the WebSocket are in `native_ws_types.py`.

Only this file names JSON keys of `POST /v0/watch`.  The types are also where `/openapi.json` comes
from, so a description here is one that users read.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.wire.native_types import Performance, Unsigned, Unsigned32


class TopicStart(msgspec.Struct):
    """Where to begin in one topic."""

    from_seq: Annotated[
        Unsigned | None, Meta(description="Records after this seq; 0 is from the first.")
    ] = None
    tail: Annotated[bool | None, Meta(description="Only records that are yet to come.")] = None
    epoch: Annotated[
        Unsigned | None, Meta(description="The topic's epoch that `from_seq` belongs to.")
    ] = None


class WatchBody(msgspec.Struct):
    """What to watch, and how to show it.  A name that ends in `*` is a pattern."""

    topics: dict[str, TopicStart | None] | None = None
    boxes: dict[str, TopicStart | None] | None = None
    node: str | list[str] | None = None
    limit: Unsigned32 | None = None
    max_batch_bytes: Unsigned | None = None
    heartbeat_ms: Unsigned | None = None
    include_meta: bool | None = None
    include_tags: bool | None = None
    include_data: bool | None = None
    consistency: Literal["eventual", "strong"] | None = None
    cursor: Annotated[
        str | None, Meta(description="The last id of an earlier stream, to go on from there.")
    ] = None


class WatchedTopic(msgspec.Struct):
    """Where a watch begins in one topic."""

    from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int


class WatchAnswer(msgspec.Struct):
    """A watch session; open `stream_url` for its events."""

    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]
    performance: Performance
