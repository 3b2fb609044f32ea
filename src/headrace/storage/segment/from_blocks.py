"""Blocks of the log as columns of a segment.

`batch_of_blocks` is what a checkpoint does for every record it moves out of the log, so Python
works per block here and never per row, except in the optional columns of short blocks: one value a
block is spread over its rows, and the offsets of payloads are shifted, by Arrow.

It writes nothing: see `writer.py`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import sub
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.storage.block import (
    ABSENT,
    DENSE,
    HEADER_BYTES,
    KIND_MIXED,
    NULLABLE,
    UNIFORM,
    Block,
)
from headrace.storage.fs import Buffer
from headrace.storage.segment.format import OPTIONAL_COLUMNS, OPTIONAL_TYPES, Column, schema_of

Piece = tuple[int, Block, int, int]  # topic_id, block, start, stop

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_HEADER_WORDS = HEADER_BYTES // 8
# The columns of a block that has nothing but payloads: its offsets follow the header at once.
_PLAIN_MODES = bytes([DENSE, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, 0])
_PLAIN = {_PLAIN_MODES}
_MODES = slice(HEADER_BYTES - 8, HEADER_BYTES)
# Where in them the modes of these columns are.
_MODE_OF = {"tag": 1, "node": 2, "meta": 3, "headers": 4}
_TS_MODE = 6
# The optional columns of a block with at least this many rows are handed to Arrow as they lie.
ARROW_ROWS_MIN = 16


def optional_columns(blocks: Sequence[Block]) -> frozenset[str]:
    """The optional columns these blocks may have values in: what a writer must be told."""
    modes = _Headers(blocks).modes
    return frozenset(
        name for name, at in _MODE_OF.items() if any(mode[at] != ABSENT for mode in modes)
    )


class _Headers:
    """Fields of the headers of many blocks, as columns: one copy, then strides, all in C."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        joined = b"".join([block.raw[:HEADER_BYTES] for block in blocks])
        words = array("Q")
        words.frombytes(joined)
        self.kinds = joined[1::HEADER_BYTES]
        self.first_seqs = words[2::_HEADER_WORDS]
        self.ts = words[3::_HEADER_WORDS]
        self.arrived_ms = words[4::_HEADER_WORDS]
        self.modes = {_U64.pack(mode) for mode in set(words[7::_HEADER_WORDS])}
        if any(joined[2::HEADER_BYTES]):
            # Some share their bytes, so that only they themselves know their place.
            self.first_seqs = array("Q", [block.first_seq for block in blocks])
            self.ts = array("Q", [block.ts for block in blocks])
            self.arrived_ms = array("Q", [block.arrived_ms for block in blocks])


def batch_of_blocks(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """Rows of many blocks as one record batch, in the order given.

    Python works per piece, never per row, except where short pieces have optional columns.
    Optional columns in which every value would be null are left out.
    """
    assert pieces, "a record batch needs at least one piece"
    topic_ids, blocks, starts, stops = zip(*pieces, strict=True)
    counts = array("i", map(sub, stops, starts))
    ends = array("i", accumulate(counts))
    assert min(counts) > 0, "a piece without rows"
    headers = _Headers(blocks)
    modes = headers.modes
    expand = _Expander(ends)
    columns = {
        "topic_id": expand("Q", pa.uint64(), topic_ids),
        "seq": _seqs(headers.first_seqs, stops, ends, expand),
        "ts": _timestamps(pieces, headers, expand),
        "arrived_ms": expand("Q", pa.int64(), headers.arrived_ms),
        "append_first_seq": expand("Q", pa.uint64(), headers.first_seqs),
        "kind": _kinds(pieces, headers.kinds, expand),
        "data": _payloads(pieces, blocks, expand, modes),
    }
    if modes != _PLAIN:
        columns |= _optional_arrays(pieces)
    schema = schema_of(columns.keys() & OPTIONAL_COLUMNS, tag_order=False)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _seqs(firsts: array[int], stops: Sequence[int], ends: array[int], expand: _Expander) -> Column:
    """Each row's seq: what its piece starts at, plus how far into the piece it is."""
    # Unsigned arithmetic wraps, so that a start below the row number comes out right.
    bases = [
        (first + stop - end) & 0xFFFF_FFFF_FFFF_FFFF
        for first, stop, end in zip(firsts, stops, ends, strict=True)
    ]
    return pc.add(expand("Q", pa.uint64(), bases), count_up(ends[-1]).cast(pa.uint64()))


class _Expander:
    """Turns one value a piece into one value a row."""

    def __init__(self, ends: array[int]) -> None:
        self.rows = ends[-1]
        self.single = self.rows == len(ends)
        self._ends = _array_of(pa.int32(), ends)

    def __call__(self, code: str, kind: pa.DataType, values: Sequence[int]) -> Column:
        if not isinstance(values, array):
            values = array(code, values)
        one_a_piece = _array_of(kind, values)
        if self.single:
            return one_a_piece
        ends = self._ends
        runs = pa.RunEndEncodedArray.from_arrays(ends, one_a_piece)  # type: ignore[call-overload]
        rows: Column = pc.run_end_decode(runs)  # type: ignore[attr-defined]
        return rows


def _array_of(kind: pa.DataType, values: array[int] | bytes) -> Column:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def count_up(count: int, step: int = 1) -> Column:
    """The numbers 0, step, 2 * step, ... as int64."""
    numbers: Column = pa.arange(0, count * step, step)  # type: ignore[attr-defined]
    return numbers


def _timestamps(pieces: Sequence[Piece], headers: _Headers, expand: _Expander) -> Column:
    if all(mode[_TS_MODE] == ABSENT for mode in headers.modes):
        return expand("Q", pa.int64(), headers.ts)
    values = array("q")
    for _, block, start, stop in pieces:
        stamps = block.timestamps(start, stop)
        values.extend([stamps] * (stop - start) if isinstance(stamps, int) else stamps)
    return _array_of(pa.int64(), values)


def _kinds(pieces: Sequence[Piece], kinds: bytes, expand: _Expander) -> Column:
    if KIND_MIXED not in kinds:
        return expand("B", pa.uint8(), kinds)
    values = array("B")
    for _, block, start, stop in pieces:
        kind = block.kinds(start, stop)
        values.extend([kind] * (stop - start) if isinstance(kind, int) else kind)
    return _array_of(pa.uint8(), values)


def _payloads(
    pieces: Sequence[Piece], blocks: Sequence[Block], expand: _Expander, modes: set[bytes]
) -> Column:
    """The data column: values joined once, offsets of blocks shifted to where theirs begin."""
    if expand.single and modes == _PLAIN and max([block.count for block in blocks]) == 1:
        return _single_payloads(blocks)
    values: list[Buffer] = []
    starts: list[Buffer] = []  # of each row, relative to its block
    bases = []  # what to add to them, for each piece
    at = 0
    u32 = _U32.unpack_from
    for _, block, start, stop in pieces:
        raw = block.raw
        if raw[_MODES] != _PLAIN_MODES:
            offsets, payload = block.data_buffers()
            low, high = u32(offsets, 4 * start)[0], u32(offsets, 4 * stop)[0]
            starts.append(offsets[4 * start : 4 * stop])
            values.append(payload[low:high])
        elif block.count == 1:
            low, high = 0, block.bytes
            starts.append(b"\0\0\0\0")
            values.append(raw[HEADER_BYTES + 8 : HEADER_BYTES + 8 + high])
        else:
            first = HEADER_BYTES + 4 * start
            last = HEADER_BYTES + 4 * stop
            low, high = u32(raw, first)[0], u32(raw, last)[0]
            payload_at = HEADER_BYTES + 4 * (block.count + 1)
            starts.append(raw[first:last])
            values.append(raw[payload_at + low : payload_at + high])
        bases.append(at - low)
        at += high - low
    joined = b"".join(values)
    assert len(joined) == at, (len(joined), at)
    relative = _array_of_u32(b"".join(starts))
    offsets_array = pc.add(relative.cast(pa.int64()), expand("q", pa.int64(), bases))
    offsets_array = pa.concat_arrays([offsets_array, pa.array([at], pa.int64())])
    buffers = [None, offsets_array.buffers()[1], pa.py_buffer(joined)]
    return pa.Array.from_buffers(pa.large_binary(), expand.rows, buffers)


def _single_payloads(blocks: Sequence[Block]) -> Column:
    """The data column of plain blocks of one record: one offset a block, then the payload."""
    at = HEADER_BYTES + 8
    values = [block.raw[at : at + block.bytes] for block in blocks]
    ends = array("q", accumulate(map(len, values), initial=0))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.large_binary(), len(blocks), buffers)


def _array_of_u32(raw: bytes) -> Column:
    return pa.Array.from_buffers(pa.uint32(), len(raw) // 4, [None, pa.py_buffer(raw)])


def _optional_arrays(pieces: Sequence[Piece]) -> dict[str, Column]:
    """The optional columns that have a value in at least one of these rows."""
    columns = {}
    for name in optional_columns([piece[1] for piece in pieces]):
        column = _optional_array(name, pieces)
        if column.null_count < len(column):
            columns[name] = column
    return columns


_READERS = {
    "tag": Block.tags,
    "node": Block.nodes,
    "meta": Block.metas,
    "headers": Block.headers,
}


def _optional_array(name: str, pieces: Sequence[Piece]) -> Column:
    kind, read = OPTIONAL_TYPES[name], _READERS[name]
    chunks: list[Column] = []
    values: list[object] = []
    for _, block, start, stop in pieces:
        if stop - start < ARROW_ROWS_MIN or name == "headers":
            values += read(block, start, stop) or [None] * (stop - start)
            continue
        if values:
            chunks.append(pa.array(values, kind))
            values = []
        chunks.append(column_of_block(block, name, start, stop, kind))
    if values:
        chunks.append(pa.array(values, kind))
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def column_of_block(block: Block, name: str, start: int, stop: int, kind: Any) -> Column:
    """An optional column of a block, its offsets and values where they lie."""
    mode, offsets, present, values = block.column_buffers(_MODE_OF[name])
    if mode == ABSENT:
        nothing: Column = pa.nulls(stop - start, kind)
        return nothing
    if mode == UNIFORM:
        one: Any = pa.scalar(bytes(values), pa.binary()).cast(kind)
        same: Column = pa.repeat(one, stop - start)
        return same
    bits = None
    if mode == NULLABLE:
        flags = pa.Array.from_buffers(pa.uint8(), block.count, [None, pa.py_buffer(present)])
        bits = flags.cast(pa.bool_()).buffers()[1]
    # Arrow's offsets have a sign, which no length of a block reaches.
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(values)]
    column: Column = pa.Array.from_buffers(kind, block.count, buffers)[start:stop]
    return column
