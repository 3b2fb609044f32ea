"""What may be appended: sizes, counts, names, caps and quotas, each refused with the way out.

Only this file says no to a batch for what it holds.  Nothing here changes anything, and every check
runs before anything is changed.  The order is that of the native API.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import le
from typing import Final

import msgspec

from headrace.core.errors import (
    BatchTooLarge,
    InvalidRequest,
    RecordTooLarge,
    Throttled,
    TopicFull,
)
from headrace.core.limits import (
    MIB,
    is_seq,
    own_topic_prefix,
    producer_id_bytes_max,
    seq_max,
    timestamp_max,
)
from headrace.core.settings import Settings
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.state import EngineState
from headrace.engine.streams.spec import StreamWrite
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.topic import Topic
from headrace.storage.block import (
    KIND_BYTES,
    KIND_COMMAND,
    KIND_JSON,
    KIND_MIXED,
    AnyBatch,
    Batch,
    ColumnBatch,
    JsonPayloads,
)

# How far commands may go beyond the quota of all topics: one of them may be what makes room.
COMMANDS_BYTES_BEYOND: Final = 1 * MIB
_KINDS = frozenset({KIND_JSON, KIND_BYTES, KIND_COMMAND})
_PAYLOAD_TYPES = frozenset({bytes, msgspec.Raw})
_META_TYPES = frozenset({bytes, msgspec.Raw, type(None)})


class Append(msgspec.Struct, frozen=True, gc=False):
    """The conditions of an append, beside its records."""

    config: TopicConfig | None = None
    create: bool | None = None
    idempotency_key: str | None = None
    producer: ProducerClaim | None = None
    expected_head_seq: int | None = None
    state: bytes | None = None  # dialect state, replaced in the same commit
    disable_backpressure: bool = False  # do not refuse it under pressure
    trusted: bool = False  # a copy of stored records: the limits of a request do not apply
    stream: StreamWrite | None = None  # of a dialect's append to a stream


PLAIN = Append()


# A batch, or one record that has nothing but data, as most appends do: JSON, or plain bytes.
Records = AnyBatch | msgspec.Raw | bytes
_RECORD: Final = (msgspec.Raw, bytes)


def rows_of(records: Records) -> int:
    """How many records there are."""
    return 1 if isinstance(records, _RECORD) else records.rows


def is_command(records: Records) -> bool:
    """Whether all records are commands of a dialect."""
    return isinstance(records, Batch) and records.kind == KIND_COMMAND


def check_batch(settings: Settings, batch: Records, how: Append) -> int:
    """Refuse what no topic could take; returns the bytes of data and meta."""
    if isinstance(batch, _RECORD):
        if how is not PLAIN:
            check_conditions(settings, how)
        size = len(batch)
        if size > settings.record_bytes_max:
            _check_largest(settings, size)
        return size
    if isinstance(batch, ColumnBatch):
        # Its records were checked as it was made (`arrow_batch.py`).
        if how is not PLAIN:
            check_conditions(settings, how)
        return batch.bytes
    if isinstance(batch, JsonPayloads):
        _check_count(settings, batch.rows)
        size = batch.bytes
        if size > settings.record_bytes_max:  # else no record is larger
            _check_largest(settings, max(map(len, batch.data)))
        if how is not PLAIN:
            check_conditions(settings, how)
        return size
    if how is not PLAIN and how.trusted:
        return _size(batch)
    data, kind, tags, nodes, metas, headers, kinds, stamps = batch
    if not isinstance(data, (list, tuple)):
        raise InvalidRequest(f"data is {type(data).__name__}", fix="send a list of bytes")
    _check_count(settings, len(data))
    size = _check_sizes(settings, batch)
    if kind not in _KINDS or kinds is not None:
        _check_kinds(batch)
    plain = tags is None and nodes is None and metas is None and headers is None
    if not plain or kinds is not None or stamps is not None:
        _check_columns(batch, settings.tag_bytes_max, settings.node_bytes_max)
    if how is not PLAIN:
        check_conditions(settings, how)
    return size


def _check_count(settings: Settings, count: int) -> None:
    if not count:
        raise InvalidRequest("an append without records", fix="send at least one record")
    if count > settings.records_per_append_max:
        raise BatchTooLarge(
            f"{count} records in one append",
            fix=f"send at most {settings.records_per_append_max} at a time",
            detail={"records": count, "max": settings.records_per_append_max},
        )


def _size(batch: Batch) -> int:
    metas = sum(len(meta) for meta in batch.metas if meta is not None) if batch.metas else 0
    return sum(map(len, batch.data)) + metas


def _check_sizes(settings: Settings, batch: Batch) -> int:
    if not _PAYLOAD_TYPES.issuperset(map(type, batch.data)):
        raise InvalidRequest("data is not bytes", fix="encode each payload first")
    if batch.metas is None:
        total = sum(map(len, batch.data))
        if total <= settings.record_bytes_max:
            return total  # so no record is larger
    sizes = list(map(len, batch.data))
    if batch.metas is not None:
        if not set(map(type, batch.metas)) <= _META_TYPES:
            raise InvalidRequest("meta is not bytes", fix="encode each meta first")
        metas = [0 if meta is None else len(meta) for meta in batch.metas]
        if max(metas, default=0) > settings.meta_bytes_max:
            raise InvalidRequest(
                f"meta of {max(metas)} bytes", fix=f"use at most {settings.meta_bytes_max}"
            )
        if len(metas) == len(sizes):
            sizes = list(map(int.__add__, sizes, metas))
    _check_largest(settings, max(sizes))
    return sum(sizes)


def _check_largest(settings: Settings, size: int) -> None:
    if size > settings.record_bytes_max:
        raise RecordTooLarge(
            f"a record of {size} bytes",
            fix=f"use at most {settings.record_bytes_max} bytes of data and meta",
            detail={"bytes": size, "max": settings.record_bytes_max},
        )


def _check_columns(batch: Batch, tag_bytes_max: int, node_bytes_max: int) -> None:
    count = len(batch.data)
    nodes = batch.nodes if not isinstance(batch.nodes, str) else None
    columns = {
        "tags": batch.tags,
        "nodes": nodes,
        "metas": batch.metas,
        "headers": batch.headers,
        "kinds": batch.kinds,
        "timestamps": batch.timestamps,
    }
    for name, values in columns.items():
        if values is None:
            continue
        if not isinstance(values, list | tuple | bytes):
            raise InvalidRequest(f"{name} is {values!r}", fix="send a list, one item a record")
        if len(values) != count:
            raise InvalidRequest(
                f"{len(values)} {name} for {count} records", fix="send one a record"
            )
    for tag in set(batch.tags or ()):
        if tag is not None:
            _check_text("tag", tag, tag_bytes_max)
    for node in {batch.nodes} if isinstance(batch.nodes, str) else set(nodes or ()):
        if node is not None:
            _check_text("node", node, node_bytes_max)
    if batch.timestamps is not None:
        _check_timestamps(batch.timestamps)
    for headers in batch.headers or ():
        for header in headers or ():
            _check_header(header)


def _check_kinds(batch: Batch) -> None:
    if batch.kind == KIND_MIXED and batch.kinds is not None:
        kinds = set(batch.kinds) if isinstance(batch.kinds, bytes) else {-1}
    else:
        kinds = {batch.kind} if batch.kinds is None else {-1}
    if not kinds <= _KINDS:
        raise InvalidRequest(
            f"kind {batch.kind!r} with kinds {batch.kinds!r}",
            fix="send one of the KIND values, or KIND_MIXED and a byte for each record",
        )


def _check_header(header: object) -> None:
    parts = header if isinstance(header, tuple) else ()
    if len(parts) != 2 or not all(isinstance(part, bytes) for part in parts):
        raise InvalidRequest(f"header {header!r}", fix="send a pair of bytes: name, value")


def _check_timestamps(stamps: Sequence[int]) -> None:
    if set(map(type, stamps)) != {int}:
        raise InvalidRequest("a timestamp is no number", fix="send milliseconds since 1970")
    first, last = stamps[0], stamps[-1]
    if not all(map(le, stamps, islice(stamps, 1, None))):
        raise InvalidRequest("a timestamp goes back", fix="send timestamps in ascending order")
    check_timestamp(first)
    check_timestamp(last)


def check_timestamp(value: object) -> None:
    """Refuse what cannot be the timestamp of a record."""
    if type(value) is not int or not 0 <= value <= timestamp_max:
        fix = f"send a number from 0 to {timestamp_max}"
        raise InvalidRequest(f"timestamp is {value!r}", fix=fix)


def check_conditions(settings: Settings, how: Append) -> None:
    """Refuse conditions that make no sense."""
    key, producer, expected, state = (
        how.idempotency_key, how.producer, how.expected_head_seq, how.state
    )  # fmt: skip
    if key is not None:
        _check_text("idempotency_key", key, settings.idempotency_key_bytes_max)
    if expected is not None:
        check_seq("expected_head_seq", expected)
    if state is not None and not isinstance(state, bytes):
        raise InvalidRequest(f"state is {state!r}", fix="send bytes")
    if producer is None:
        return
    if not isinstance(producer, ProducerClaim):
        raise InvalidRequest(f"producer is {producer!r}", fix="send a ProducerClaim")
    id, epoch, sequence = producer
    # Those of nearly all need no closer look.
    if type(id) is not str or not id.isascii() or not 0 < len(id) <= producer_id_bytes_max:
        _check_text("producer id", id, producer_id_bytes_max, low=1)
    if not (type(epoch) is int is type(sequence) and 0 <= (epoch | sequence) <= seq_max):
        check_seq("producer epoch", epoch)
        check_seq("producer sequence", sequence)


def _check_text(what: str, value: object, bytes_max: int, low: int = 0) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(f"{what} is {value!r}", fix="send a string")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} is not valid UTF-8", fix="send valid text") from None
    if not low <= length <= bytes_max:
        raise InvalidRequest(f"{what} has {length} bytes", fix=f"use {low} to {bytes_max}")


def check_seq(what: str, value: object) -> None:
    """Refuse what cannot be a seq, or any other number of that range."""
    if not is_seq(value):
        raise InvalidRequest(f"{what} is {value!r}", fix=f"send a number from 0 to {seq_max}")


def refuse_oversized(name: str, config: TopicConfig, rows: int, size: int) -> None:
    """A batch that a rejecting topic could not even take when empty."""
    over_bytes = config.cap_bytes and size > config.cap_bytes
    over_records = config.cap_records and rows > config.cap_records
    if over_bytes or over_records:
        raise RecordTooLarge(
            f"a batch of {rows} records and {size} bytes can never fit into {name!r}",
            fix="split the batch, or raise the cap",
            detail={"cap_records": config.cap_records, "cap_bytes": config.cap_bytes},
        )


def refuse_closed(topic: Topic) -> None:
    """Refuse records for a topic that is being deleted, and whose routers copy what it has."""
    raise Throttled(
        f"{topic.name!r} is being deleted",
        fix="send it again in a moment, to the topic that has this name then",
        detail={"topic": topic.name},
    )


def check_room(state: EngineState, topic: Topic, batch: Records, size: int) -> None:
    """Refuse a batch for which this topic, or the engine, has no room now.

    The caller has applied the topic's caps and TTL.
    """
    rows = rows_of(batch)
    config = topic.config
    if config.discard == "reject":
        refuse_oversized(topic.name, config, rows, size)
        records = topic.count + topic.staged_count + rows
        held = topic.bytes + topic.staged_bytes + size
        over_records = config.cap_records and records > config.cap_records
        over_bytes = config.cap_bytes and held > config.cap_bytes
        if over_records or over_bytes:
            raise TopicFull(
                f"{topic.name!r} is full",
                fix="delete records, or raise the cap",
                detail={
                    "topic": topic.name,
                    "cap_records": config.cap_records,
                    "cap_bytes": config.cap_bytes,
                    "head_seq": topic.head,
                    "earliest_seq": topic.earliest_seq,
                },
            )
    if not topic.name.startswith(own_topic_prefix):  # which have bounds of their own
        check_quota(state, size - (COMMANDS_BYTES_BEYOND if is_command(batch) else 0))
    if topic.staged + rows > seq_max:
        raise TopicFull(f"{topic.name!r} has no seq left", fix="delete and recreate the topic")


def check_quota(state: EngineState, size: int) -> None:
    """Raise if the live bytes of all topics leave no room for `size` more."""
    quota = state.settings.max_total_bytes
    if quota and state.totals.bytes + state.totals.staged_bytes + size > quota:
        raise Throttled(
            f"{state.totals.bytes} live bytes, {quota} allowed",
            fix="delete or expire records, or raise HEADRACE_MAX_TOTAL_BYTES",
            detail={"limit": "max_total_bytes", "max": quota},
        )
