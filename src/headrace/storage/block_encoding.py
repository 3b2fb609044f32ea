"""Encoding records as a block: what an append hands over becomes columns in one run of bytes.

Only this file writes blocks; `block.py` knows the layout and reads it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from headrace.storage.block import (
    ABSENT,
    DENSE,
    ENTRY_APPEND,
    HEADER,
    HEADER_BYTES,
    KIND_JSON,
    NO_COLUMN,
    NULLABLE,
    SINGLE_AT,
    SINGLES,
    UNIFORM,
    Batch,
    Block,
    ColumnBatch,
    EncodedColumn,
    JsonPayloads,
    ends_of,
)
from headrace.storage.record_headers import encode_headers
from headrace.storage.rows import KIND_MIXED

# `HEADER` for a single record of nothing but data: all modes as one number, and two offsets.
_SINGLE = struct.Struct("<BBHIQQqqQIIQII")
_SHARED = b"\1\0"  # the flags of bytes that several blocks have, see `share`
_PADS = tuple(b"\0" * (-n % 8) for n in range(8))


class BlockPlace(NamedTuple):
    """What the header of a block says of where its records are, and of when they came."""

    topic_id: int
    first_seq: int
    ts: int
    arrived_ms: int
    reserved_to: int = 0


def _encode_values(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    return ends_of(values).tobytes(), b"".join(values)


def _encode_optional(values: Sequence[bytes | None] | None) -> EncodedColumn:
    if values is None:
        return NO_COLUMN
    if None not in values:
        offsets, joined = _encode_values(values)  # type: ignore[arg-type]
        return DENSE, offsets, b"", joined
    present = bytes([v is not None for v in values])
    if 1 not in present:
        return NO_COLUMN
    offsets, joined = _encode_values([v or b"" for v in values])
    return NULLABLE, offsets, present, joined


def _encode_texts(values: Sequence[str | None] | str | None) -> EncodedColumn:
    if values is None:
        return NO_COLUMN
    if isinstance(values, str):
        value = values.encode()
        return UNIFORM, array("I", (0, len(value))).tobytes(), b"", value
    return _encode_optional([None if v is None else v.encode() for v in values])


def encode_block(
    batch: Batch,
    topic_id: int,
    first_seq: int,
    ts: int,
    arrived_ms: int,
    reserved_to: int = 0,
    sidecar: bytes = b"",
) -> Block:
    """Build the block of a validated batch.  Work per record is C loops only."""
    data, kind, tags, nodes, metas, headers, kinds, stamps = batch
    count = len(data)
    assert count > 0 and first_seq > 0, (count, first_seq)
    plain = tags is None and nodes is None and metas is None and headers is None
    plain = plain and kinds is None and stamps is None
    if plain and count == 1:
        place = BlockPlace(topic_id, first_seq, ts, arrived_ms, reserved_to)
        return encode_single(data[0], kind, *place, sidecar)
    ends = ends_of(data)
    if plain:
        place = BlockPlace(topic_id, first_seq, ts, arrived_ms, reserved_to)
        return _encode_plain(data, ends, kind, place, sidecar)
    columns = (
        (DENSE, ends.tobytes(), b"", b"".join(data)),
        _encode_texts(batch.tags),
        _encode_texts(batch.nodes),
        _encode_optional(batch.metas),
        _encode_optional(
            None if batch.headers is None else [encode_headers(h) for h in batch.headers]
        ),
    )
    kinds = batch.kinds or b""
    stamps = b""
    if batch.timestamps is not None:
        stamps = array("q", batch.timestamps).tobytes()
        ts = batch.timestamps[-1]
    place = BlockPlace(topic_id, first_seq, ts, arrived_ms, reserved_to)
    return _assemble(count, batch.kind, columns, kinds, stamps, place, sidecar)


def encode_single(
    data: bytes,
    kind: int,
    topic_id: int,
    first_seq: int,
    ts: int,
    arrived_ms: int,
    reserved_to: int = 0,
    sidecar: bytes = b"",
) -> Block:
    """Build the block of one record that has nothing but data."""
    size = len(data)
    length = SINGLE_AT + size + len(sidecar)
    head = _SINGLE.pack(
        ENTRY_APPEND, kind, 0, length + (-length & 7), topic_id, first_seq, ts, arrived_ms,
        reserved_to, 1, len(sidecar), DENSE, 0, size,
    )  # fmt: skip
    raw = b"".join((head, data, sidecar, _PADS[length & 7]))
    return Block(raw, first_seq, 1, ts, arrived_ms, size, SINGLES.get(kind))


def encode_payloads(batch: JsonPayloads, place: BlockPlace, sidecar: bytes = b"") -> Block:
    """Build the block of several JSON records that have nothing but data."""
    assert batch.data and place.first_seq > 0, place
    return _encode_plain(batch.data, batch.ends, KIND_JSON, place, sidecar)


def _encode_plain(
    data: Sequence[bytes], ends: array[int], kind: int, place: BlockPlace, sidecar: bytes
) -> Block:
    topic_id, first_seq, ts, arrived_ms, reserved_to = place
    count, size = len(data), ends[-1]
    length = HEADER_BYTES + 4 * (count + 1) + size + len(sidecar)
    head = HEADER.pack(
        ENTRY_APPEND, kind, 0, length + (-length & 7), topic_id, first_seq, ts, arrived_ms,
        reserved_to, count, len(sidecar), DENSE, 0, 0, 0, 0, 0, 0, 0,
    )  # fmt: skip
    # One copy: a second one of a large batch costs as much as everything else here.
    raw = b"".join((head, ends, *data, sidecar, _PADS[length & 7]))
    return Block(raw, first_seq, count, ts, arrived_ms, size)


def encode_columns(batch: ColumnBatch, place: BlockPlace, sidecar: bytes = b"") -> Block:
    """Build the block of a validated batch of columns: one copy, and no work per record."""
    assert batch.rows > 0 and place.first_seq > 0, (batch.rows, place)
    columns = (batch.data, batch.tags, batch.nodes, batch.metas, NO_COLUMN)
    block = _assemble(batch.rows, batch.kind, columns, b"", b"", place, sidecar)
    assert block.bytes == batch.bytes, (block.bytes, batch.bytes)
    return block


def _assemble(
    count: int,
    kind: int,
    columns: tuple[EncodedColumn, ...],
    kinds: bytes,
    stamps: bytes,
    place: BlockPlace,
    sidecar: bytes,
) -> Block:
    """Lay the parts of a block out."""
    topic_id, first_seq, ts, arrived_ms, reserved_to = place
    parts = [stamps, *(c[1] for c in columns), *(c[2] for c in columns), kinds]
    parts += [*(c[3] for c in columns), sidecar]
    length = HEADER_BYTES + sum(map(len, parts))
    pad = _PADS[length & 7]
    header = HEADER.pack(
        ENTRY_APPEND, KIND_MIXED if kinds else kind, 0, length + len(pad), topic_id,
        first_seq, ts, arrived_ms, reserved_to, count, len(sidecar), *(c[0] for c in columns),
        DENSE if kinds else ABSENT, DENSE if stamps else ABSENT, 0,
    )  # fmt: skip
    raw = b"".join((header, *parts, pad))
    size = len(columns[0][3]) + len(columns[3][3])
    return Block(raw, first_seq, count, ts, arrived_ms, size)


def share(raw: bytes) -> bytes:
    """The bytes of a block for blocks of other topics, whose place and time are not in them.

    Only ever in memory: the log has entries of its own for such copies.
    """
    return b"".join((raw[:2], _SHARED, raw[4:8], bytes(40), raw[48:]))
