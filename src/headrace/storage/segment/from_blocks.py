"""Blocks of the log as columns of a segment.

`BlockRows` is what a checkpoint does for every record it moves out of the log, so Python works per
block here and never per row, except in the optional columns of short blocks.  What the headers of
blocks say is cut out of them by strides, one value a block is spread over its rows, and the offsets
of payloads are shifted, by Arrow.

It writes nothing: see `writer.py`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain, repeat
from operator import sub
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.storage.block import (
    ABSENT,
    DENSE,
    HEADER_BYTES,
    KIND_MIXED,
    NULLABLE,
    SINGLE_AT,
    UNIFORM,
    Block,
)
from headrace.storage.fs import Buffer
from headrace.storage.segment.format import OPTIONAL_COLUMNS, OPTIONAL_TYPES, Column, schema_of

Piece = tuple[int, Block, int, int]  # topic_id, block, start, stop


# Not tracked by the collector: there is one for each topic of a checkpoint.
class BlockRun(msgspec.Struct, frozen=True, gc=False):
    """Blocks of one topic, one after the other, but for some rows at the start of the first."""

    topic_id: int
    blocks: Sequence[Block]
    skipped: int = 0

    @property
    def rows_max(self) -> int:
        """At least as many as there are rows: all seqs from the first one to the last."""
        return self.blocks[-1].last_seq - self.blocks[0].first_seq + 1 - self.skipped


_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# Of each block the header and the two offsets that follow it in a block of nothing but payloads.
_HEAD_BYTES = SINGLE_AT
_HEAD_WORDS = _HEAD_BYTES // 8
_HEAD_HALVES = _HEAD_BYTES // 4
# The columns of a block that has nothing but payloads: its offsets follow the header at once.
_PLAIN_MODES = bytes([DENSE, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, 0])
_PLAIN = {_PLAIN_MODES}
_MODES = slice(HEADER_BYTES - 8, HEADER_BYTES)
# Where in them the modes of these columns are.
_MODE_OF = {"tag": 1, "node": 2, "meta": 3, "headers": 4}
_TS_MODE = 6
# The optional columns of a block with at least this many rows are handed to Arrow as they lie.
ARROW_ROWS_MIN = 16
# Payloads of this many bytes are joined from where they lie; a copy of fewer is cheaper.
VIEW_BYTES_MIN = 2048


def optional_columns(blocks: Sequence[Block]) -> frozenset[str]:
    """The optional columns these blocks may have values in: what a writer must be told."""
    return _optional_of(_Headers(blocks, [block.raw for block in blocks]).modes)


def _optional_of(modes: set[bytes]) -> frozenset[str]:
    return frozenset(
        name for name, at in _MODE_OF.items() if any(mode[at] != ABSENT for mode in modes)
    )


class _Headers:
    """Fields of the headers of many blocks, as columns: one copy, then strides, all in C."""

    def __init__(self, blocks: Sequence[Block], raws: Sequence[bytes]) -> None:
        head = slice(_HEAD_BYTES)
        joined = b"".join([raw[head] for raw in raws])
        words, halves = array("Q"), array("I")
        words.frombytes(joined)
        halves.frombytes(joined)
        self.kinds = joined[1::_HEAD_BYTES]
        self.first_seqs = words[2::_HEAD_WORDS]
        self.ts = words[3::_HEAD_WORDS]
        self.arrived_ms = words[4::_HEAD_WORDS]
        self.counts = halves[12::_HEAD_HALVES]
        self.single_sizes = halves[17::_HEAD_HALVES]  # of the payload, in plain blocks of one row
        self.modes = {_U64.pack(mode) for mode in set(words[7::_HEAD_WORDS])}
        if any(joined[2::_HEAD_BYTES]):
            # Some share their bytes, so that only they themselves know their place.
            self.first_seqs = array("Q", [block.first_seq for block in blocks])
            self.ts = array("Q", [block.ts for block in blocks])
            self.arrived_ms = array("Q", [block.arrived_ms for block in blocks])


class BlockRows:
    """Rows of many blocks, in the order given, about to become a record batch.

    Made from runs of whole blocks, which is how a checkpoint has them, or from pieces of blocks.
    """

    def __init__(self, topic_ids: array[int], blocks: Sequence[Block]) -> None:
        assert blocks, "a record batch needs at least one block"
        self._topic_ids = topic_ids
        self._blocks = blocks
        self._raws = [block.raw for block in blocks]
        self._headers = headers = _Headers(blocks, self._raws)
        self._starts: array[int] | None = None  # None: every block from its first row
        self._stops = headers.counts

    @property
    def count(self) -> int:
        """How many rows these are."""
        return sum(self._stops) - (sum(self._starts) if self._starts is not None else 0)

    @classmethod
    def of_runs(cls, runs: Sequence[BlockRun]) -> BlockRows:
        """All rows of these runs."""
        topic_ids = array("Q")
        for run in runs:
            topic_ids.extend(repeat(run.topic_id, len(run.blocks)))
        blocks = list(chain.from_iterable([run.blocks for run in runs]))
        rows = cls(topic_ids, blocks)
        if any(run.skipped for run in runs):
            starts = array("I", bytes(4 * len(blocks)))
            at = 0
            for run in runs:
                starts[at] = run.skipped
                at += len(run.blocks)
            rows._starts = starts
        return rows

    @classmethod
    def of_pieces(cls, pieces: Sequence[Piece]) -> BlockRows:
        """These parts of blocks."""
        rows = cls(array("Q", [piece[0] for piece in pieces]), [piece[1] for piece in pieces])
        rows._starts = array("I", [piece[2] for piece in pieces])
        rows._stops = array("I", [piece[3] for piece in pieces])
        return rows

    @property
    def optional(self) -> frozenset[str]:
        """The optional columns that may have values."""
        return _optional_of(self._headers.modes)

    def batch(self) -> pa.RecordBatch:
        """The rows as a record batch; without optional columns in which every value is null."""
        headers, modes = self._headers, self._headers.modes
        counts = self._stops
        if self._starts is not None:
            counts = array("I", map(sub, self._stops, self._starts))
        ends = array("i", accumulate(counts))
        assert min(counts) > 0, "a piece without rows"
        expand = _Expander(ends)
        if expand.single and self._starts is None:
            seqs = _array_of(pa.uint64(), headers.first_seqs)
        else:
            seqs = _seqs(headers.first_seqs, self._stops, ends, expand)
        columns = {
            "topic_id": expand("Q", pa.uint64(), self._topic_ids),
            "seq": seqs,
            "ts": self._timestamps(expand),
            "arrived_ms": expand("Q", pa.int64(), headers.arrived_ms),
            "append_first_seq": expand("Q", pa.uint64(), headers.first_seqs),
            "kind": self._kinds(expand),
            "data": self._payloads(expand),
        }
        if modes != _PLAIN:
            columns |= self._optional_arrays()
        schema = schema_of(columns.keys() & OPTIONAL_COLUMNS, tag_order=False)
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _bounds(self) -> zip[tuple[Block, int, int]]:
        """Each block with its first row and the one after its last."""
        return zip(self._blocks, self._starts or repeat(0), self._stops, strict=False)

    def _timestamps(self, expand: _Expander) -> Column:
        if all(mode[_TS_MODE] == ABSENT for mode in self._headers.modes):
            return expand("Q", pa.int64(), self._headers.ts)
        values = array("q")
        for block, start, stop in self._bounds():
            stamps = block.timestamps(start, stop)
            values.extend([stamps] * (stop - start) if isinstance(stamps, int) else stamps)
        return _array_of(pa.int64(), values)

    def _kinds(self, expand: _Expander) -> Column:
        kinds = self._headers.kinds
        if KIND_MIXED not in kinds:
            return expand("B", pa.uint8(), kinds)
        values = array("B")
        for block, start, stop in self._bounds():
            kind = block.kinds(start, stop)
            values.extend([kind] * (stop - start) if isinstance(kind, int) else kind)
        return _array_of(pa.uint8(), values)

    def _payloads(self, expand: _Expander) -> Column:
        """The data column: values joined once, offsets of blocks shifted to where theirs begin."""
        headers = self._headers
        if headers.modes == _PLAIN and expand.single and max(headers.counts) == 1:
            return _single_payloads(self._raws, headers.single_sizes)
        values: list[Buffer] = []
        starts: list[Buffer] = []  # of each row, relative to its block
        bases = []  # what to add to them, for each block
        at = 0
        u32 = _U32.unpack_from
        for block, start, stop in self._bounds():
            raw = block.raw
            if raw[_MODES] != _PLAIN_MODES:
                offsets, payload = block.data_buffers()
                low, high = u32(offsets, 4 * start)[0], u32(offsets, 4 * stop)[0]
                starts.append(offsets[4 * start : 4 * stop])
                values.append(payload[low:high])
            else:
                first = HEADER_BYTES + 4 * start
                last = HEADER_BYTES + 4 * stop
                low, high = u32(raw, first)[0], u32(raw, last)[0]
                payload_at = HEADER_BYTES + 4 * (block.count + 1)
                starts.append(raw[first:last])
                from_, to = payload_at + low, payload_at + high
                large = high - low >= VIEW_BYTES_MIN
                values.append(memoryview(raw)[from_:to] if large else raw[from_:to])
            bases.append(at - low)
            at += high - low
        joined = b"".join(values)
        assert len(joined) == at, (len(joined), at)
        relative = _array_of_u32(b"".join(starts))
        offsets_array = pc.add(relative.cast(pa.int64()), expand("q", pa.int64(), bases))
        offsets_array = pa.concat_arrays([offsets_array, pa.array([at], pa.int64())])
        buffers = [None, offsets_array.buffers()[1], pa.py_buffer(joined)]
        return pa.Array.from_buffers(pa.large_binary(), expand.rows, buffers)

    def _optional_arrays(self) -> dict[str, Column]:
        """The optional columns that have a value in at least one of these rows."""
        columns = {}
        for name in self.optional:
            column = self._optional_array(name)
            if column.null_count < len(column):
                columns[name] = column
        return columns

    def _optional_array(self, name: str) -> Column:
        kind, read = OPTIONAL_TYPES[name], _READERS[name]
        chunks: list[Column] = []
        values: list[object] = []
        for block, start, stop in self._bounds():
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


def batch_of_blocks(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """Rows of many blocks as one record batch, in the order given."""
    return BlockRows.of_pieces(pieces).batch()


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


def _single_payloads(raws: Sequence[bytes], sizes: array[int]) -> Column:
    """The data column of plain blocks of one record: two offsets a block, then the payload."""
    at = SINGLE_AT
    values = [raw[at : at + size] for raw, size in zip(raws, sizes, strict=True)]
    ends = array("q", accumulate(sizes, initial=0))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.large_binary(), len(raws), buffers)


def _array_of_u32(raw: bytes) -> Column:
    return pa.Array.from_buffers(pa.uint32(), len(raw) // 4, [None, pa.py_buffer(raw)])


_READERS = {
    "tag": Block.tags,
    "node": Block.nodes,
    "meta": Block.metas,
    "headers": Block.headers,
}


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
