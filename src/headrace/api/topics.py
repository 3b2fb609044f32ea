"""Topics: their settings and state, lists of them, and what is archived of them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from headrace.api.base import LEFT_OUT, Answer, Body, Unsigned, documented

# The settings of a topic, whose type is the engine's `TopicConfig`.  The server ignores other
# fields of a config; the client refuses them as slips.
CONFIG_FIELDS: Final = (
    "type",
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "discard",
    "durable",
    "durability",
    "priority",
    "auto_priority",
    "auto_create",
    "idempotency_window_ms",
    "dedupe_node",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
    "dead_letter",
    "leases_durable",
    "retain_until_archived",
    "retain_bytes_max",
    "cold_reads",
)

# A config as it is echoed: every field, with the value that holds now.
EchoedConfig = Annotated[dict[str, Any], documented("TopicConfig")]


class Put(Answer, frozen=True):
    """A topic's config as it is now."""

    schema_name: ClassVar[str] = "PutAnswer"

    topic: str
    created: bool
    config: EchoedConfig
    epoch: Annotated[int | None, documented(int)] = None


class QueueCounts(msgspec.Struct, frozen=True):
    """The jobs of a queue."""

    schema_name: ClassVar[str] = "QueueState"

    ready: int
    in_flight: int
    dead_lettered: int
    unreadable: Annotated[int, LEFT_OUT] = 0  # their records are damaged


class TopicStream(msgspec.Struct, frozen=True, omit_defaults=True):
    """What another protocol has made of a topic: a stream."""

    schema_name: ClassVar[str] = "StreamState"

    dialect: str  # "ds" of Durable Streams
    content_type: str  # as it was given when the stream was created
    closed: bool  # nothing is appended any more
    forked_from: Annotated[
        str | None,
        LEFT_OUT,
        Meta(description="The topic of the stream that it begins with; absent: it is no fork."),
    ] = None
    ttl_s: Annotated[
        int | None,
        LEFT_OUT,
        Meta(description="It expires when nobody has used it for this number of seconds."),
    ] = None
    expires: Annotated[str | None, LEFT_OUT, Meta(description="It expires then (RFC 3339).")] = None


_STREAM: Final = Meta(description="Absent: the topic is no stream.")


class TopicState(Answer, frozen=True):
    """The state of one topic."""

    schema_name: ClassVar[str] = "StateAnswer"

    topic: str
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: EchoedConfig
    effective_priority: int
    type: Literal["log", "queue"] = "log"
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    epoch: Annotated[int | None, documented(int)] = None
    queue: Annotated[QueueCounts | None, LEFT_OUT] = None  # None for a log
    archived_seq: Annotated[
        int,
        LEFT_OUT,
        Meta(description="Up to here records are kept elsewhere, too; absent: nobody said so yet."),
    ] = 0
    overtaken_seq: Annotated[
        int,
        LEFT_OUT,
        Meta(
            description="The last record that a cap or the TTL took before it was archived, "
            "because more than `retain_bytes_max` was held back; absent: none was."
        ),
    ] = 0
    stream: Annotated[TopicStream | None, LEFT_OUT, _STREAM] = None


class TopicSummary(msgspec.Struct, frozen=True):
    """A topic in a list."""

    schema_name: ClassVar[str] = "ListedTopic"

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    epoch: Annotated[int | None, documented(int)] = None
    stream: Annotated[TopicStream | None, LEFT_OUT, _STREAM] = None


class TopicPage(Answer, frozen=True):
    """A page of topics, by name."""

    schema_name: ClassVar[str] = "ListAnswer"

    topics: list[TopicSummary]
    next_cursor: Annotated[str | None, LEFT_OUT] = None  # None on the last page


class TopicDeleted(Answer, frozen=True):
    """Whether there was a topic to delete."""

    schema_name: ClassVar[str] = "TopicDeletedAnswer"

    topic: str
    deleted: bool
    routers_removed: list[str]


class ArchivedBody(Body, frozen=True):
    """Up to which seq a topic is kept elsewhere, too."""

    epoch: Unsigned
    to_seq: Unsigned


class ArchivedTo(Answer, frozen=True):
    """The watermark that holds now."""

    schema_name: ClassVar[str] = "ArchivedAnswer"

    topic: str
    epoch: int
    archived_seq: int
    head_seq: int
