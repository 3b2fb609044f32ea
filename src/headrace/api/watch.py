"""Watches: what to follow over many topics, and where each of them begins."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from headrace.api.base import LEFT_OUT, Answer, Body, Nodes, Unsigned, Unsigned32


class TopicStart(Body, frozen=True):
    """Where to begin in one topic."""

    from_seq: Annotated[
        Unsigned | None, Meta(description="Records after this seq; 0 is from the first.")
    ] = None
    tail: Annotated[bool | None, Meta(description="Only records that are yet to come.")] = None
    epoch: Annotated[
        Unsigned | None, Meta(description="The topic's epoch that `from_seq` belongs to.")
    ] = None


class WatchBody(Body, frozen=True):
    """What to watch, and how to show it.  A name that ends in `*` is a pattern."""

    topics: dict[str, TopicStart | None] | None = None
    boxes: dict[str, TopicStart | None] | None = None
    node: Nodes | None = None
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


class WatchedTopic(msgspec.Struct, frozen=True):
    """Where a watch begins in one topic."""

    from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int


class WatchCreated(Answer, frozen=True):
    """A watch session; open `stream_url` for its events."""

    schema_name: ClassVar[str] = "WatchAnswer"

    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]
    truncated: Annotated[
        bool, LEFT_OUT, Meta(description="Its patterns match more topics than are listed.")
    ] = False
