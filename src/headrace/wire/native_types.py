"""The bodies of the native API as types: what requests may hold, and what answers do.

Only this file names JSON keys of request bodies.  Payloads stay `Raw`: nobody parses them.  The
types are also where `/openapi.json` comes from, so a description here is one that users read.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, field

from headrace.engine.topic_config import TopicConfig

U32_MAX = (1 << 32) - 1
Unsigned = Annotated[int, Meta(ge=0)]
Unsigned32 = Annotated[int, Meta(ge=0, le=U32_MAX)]
_ABSENT = Raw()


class RecordIn(msgspec.Struct, gc=False):
    """One record to append."""

    data: Annotated[Raw, Meta(description="Any JSON; it comes back byte for byte.")]
    tag: Annotated[str | None, Meta(description="A key to delete by, up to 256 bytes.")] = None
    node: Annotated[str | None, Meta(description="Who wrote it; readers may leave it out.")] = None
    meta: Annotated[
        Raw, Meta(description="A small JSON value, mostly an object, beside the data.")
    ] = _ABSENT


class AppendBody(msgspec.Struct, gc=False):
    """Records to append, all or none."""

    records: list[RecordIn]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: Raw = _ABSENT
    disable_backpressure: bool | None = None
    expected_head_seq: Unsigned | None = None


class AppendAnswer(msgspec.Struct):
    """What an append was given."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    epoch: int
    performance: Performance
    seqs: list[int] | msgspec.UnsetType = msgspec.UNSET


class DiffBody(msgspec.Struct, gc=False):
    """Where to read and how much.  At most one of from_seq, from_ts and last."""

    from_seq: Unsigned | None = None
    limit: Unsigned32 | None = None
    node: str | list[str] | None = None
    include_tags: bool | None = None
    include_meta: bool | None = None
    wait_ms: Unsigned32 | None = None
    max_batch_bytes: Unsigned | None = None
    epoch: Unsigned | None = None
    from_ts: Unsigned | None = None
    last: Unsigned | None = None


class RecordOut(msgspec.Struct):
    """One record, as a reader sees it.

    A payload that was appended as bytes (an Arrow column `binary`) is a base64 string, and `meta`
    says so with `"$encoding":"base64"`.
    """

    seq: Annotated[int, Meta(ge=1)] = field(name="$seq")
    ts: int = field(name="$ts")
    data: Annotated[Raw, Meta(description="As it was appended; bytes as base64, see `meta`.")]
    node: str | msgspec.UnsetType = field(name="$node", default=msgspec.UNSET)
    tag: str | msgspec.UnsetType = field(name="$tag", default=msgspec.UNSET)
    meta: Annotated[
        Raw | msgspec.UnsetType,
        Meta(
            description='As it was appended. `"$encoding":"base64"` is added where `data` is bytes '
            "in base64; a meta that is no object is `$meta` beside it then."
        ),
    ] = msgspec.UNSET


class TombstoneOut(msgspec.Struct):
    """Records that are gone without anybody having asked for it."""

    gap_from: int
    gap_to: int
    reason: Literal["cap", "ttl", "mixed", "recreated", "source_trim", "crash"]
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class DiffAnswer(msgspec.Struct):
    """A page of records."""

    topic: str
    epoch: int
    records: list[RecordOut]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: TombstoneOut | None
    lag: int
    performance: Performance


class DeleteBody(msgspec.Struct):
    """What to delete: below a seq, by tag, or both at once."""

    before_seq: Unsigned | None = None
    match: str | list[str] | None = None


class DeleteAnswer(msgspec.Struct):
    """How many records went, and what is left."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
    performance: Performance


class ArchivedBody(msgspec.Struct):
    """Up to which seq a topic is kept elsewhere, too."""

    epoch: Unsigned
    to_seq: Unsigned


class ArchivedAnswer(msgspec.Struct):
    """The watermark that holds now."""

    topic: str
    epoch: int
    archived_seq: int
    head_seq: int
    performance: Performance


class PutAnswer(msgspec.Struct):
    """A topic's config as it is now."""

    topic: str
    created: bool
    epoch: int
    config: TopicConfig
    performance: Performance


class QueueState(msgspec.Struct):
    """The jobs of a queue."""

    ready: int
    in_flight: int
    dead_lettered: int
    unreadable: int | msgspec.UnsetType = msgspec.UNSET


class StateAnswer(msgspec.Struct):
    """The state of one topic."""

    topic: str
    type: Literal["log", "queue"]
    epoch: int
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    performance: Performance
    queue: QueueState | msgspec.UnsetType = msgspec.UNSET
    archived_seq: Annotated[
        int | msgspec.UnsetType,
        Meta(description="Up to here records are kept elsewhere, too; absent: nobody said so yet."),
    ] = msgspec.UNSET
    overtaken_seq: Annotated[
        int | msgspec.UnsetType,
        Meta(
            description="The last record that a cap or the TTL took before it was archived, "
            "because more than `retain_bytes_max` was held back; absent: none was."
        ),
    ] = msgspec.UNSET


class ListedTopic(msgspec.Struct):
    """A topic in a list."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    epoch: int


class ListAnswer(msgspec.Struct):
    """A page of topics, by name."""

    topics: list[ListedTopic]
    performance: Performance
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET


class TopicDeletedAnswer(msgspec.Struct):
    """Whether there was a topic to delete."""

    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: Performance


class Performance(msgspec.Struct):
    """What the server spent, in milliseconds."""

    server_total_ms: float
    wal_append_ms: float | msgspec.UnsetType = msgspec.UNSET
    fsync_ms: float | msgspec.UnsetType = msgspec.UNSET
    throttle_wait_ms: Annotated[
        float | msgspec.UnsetType,
        Meta(description="How long a busy server made it wait on purpose; absent: not at all."),
    ] = msgspec.UNSET
    records_scanned: int | msgspec.UnsetType = msgspec.UNSET
    cold_segments_read: int | msgspec.UnsetType = msgspec.UNSET
    lake_records_read: Annotated[
        int | msgspec.UnsetType,
        Meta(description="Of the records scanned, those that only the lake has; absent: none."),
    ] = msgspec.UNSET


class ErrorBody(msgspec.Struct):
    """What went wrong, and what to do next."""

    code: str
    message: str
    detail: dict[str, object] | msgspec.UnsetType = msgspec.UNSET


class ErrorAnswer(msgspec.Struct):
    """Every refusal has this form."""

    error: ErrorBody
