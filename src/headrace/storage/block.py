"""A block: the records of one append, as columns in one run of bytes.

Only this file and `block_encoding.py`, which writes it, know the layout of an append entry
(docs/formats/wal.md).  The same bytes are what the write-ahead log stores, what memory keeps and
what a checkpoint reads, so that nothing is converted, and no record is touched on its own, between
a request and the sealed file.

`Block` is what the engine keeps; what a caller hands in is in `record_batches.py`, and `Rows` (in
`rows.py`) is what a read gives out.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import msgspec

from headrace.storage.record_batches import ABSENT as ABSENT
from headrace.storage.record_batches import DENSE as DENSE
from headrace.storage.record_batches import NO_COLUMN as NO_COLUMN
from headrace.storage.record_batches import NULLABLE as NULLABLE
from headrace.storage.record_batches import UNIFORM as UNIFORM
from headrace.storage.record_batches import AnyBatch as AnyBatch
from headrace.storage.record_batches import Batch as Batch
from headrace.storage.record_batches import ColumnBatch as ColumnBatch
from headrace.storage.record_batches import EncodedColumn as EncodedColumn
from headrace.storage.record_batches import JsonPayloads as JsonPayloads
from headrace.storage.record_batches import ends_of as ends_of
from headrace.storage.record_batches import json_payloads as json_payloads
from headrace.storage.record_headers import Header, decode_headers
from headrace.storage.rows import KIND_BYTES as KIND_BYTES
from headrace.storage.rows import KIND_COMMAND as KIND_COMMAND
from headrace.storage.rows import KIND_JSON as KIND_JSON
from headrace.storage.rows import KIND_MIXED as KIND_MIXED
from headrace.storage.rows import Record as Record
from headrace.storage.rows import Rows as Rows

ENTRY_APPEND = 1

#   type kind flags length | topic_id first_seq ts arrived_ms reserved_to | count sidecar | modes
HEADER = struct.Struct("<BBHIQQqqQII8B")
HEADER_BYTES = 64
assert HEADER.size == HEADER_BYTES

_U32 = struct.Struct("<I")
Blob = bytes  # Block has a field named `bytes`, which hides the type inside that class
# What a block in memory takes beside its bytes: the objects around them and its place in a list.
BLOCK_OBJECTS_BYTES = 208
DATA_ONLY = bytes(7)  # the modes of all columns but the data, in most blocks
SINGLE_AT = HEADER_BYTES + 8  # where the data of a single record starts, after two offsets


class _Column(NamedTuple):
    mode: int
    offsets: int  # where the u32 offsets start
    present: int  # where the presence bytes start (NULLABLE only)
    values: int  # where the values start


_Layout = tuple[_Column, ...]
# The layouts of singles, that is of blocks with one record that is nothing but data: all of a kind
# have the same one, by which a stretch of them is told.  It has the data column only.
SINGLES: Final[dict[int, _Layout]] = {
    kind: (_Column(DENSE, HEADER_BYTES, SINGLE_AT, SINGLE_AT),)
    for kind in (KIND_JSON, KIND_BYTES, KIND_COMMAND)
}


class Block(msgspec.Struct, gc=False, eq=False):
    """The records of one append.  Immutable; `raw` is the append entry of the log.

    Not tracked by the collector: there are millions of them, and none is part of a cycle.
    """

    raw: Blob
    first_seq: int
    count: int
    ts: int  # of the last record; every record's unless a ts column is there
    arrived_ms: int
    bytes: int  # data + meta bytes: what caps and quotas count
    _layout: _Layout | None = None  # of a single; of a block with more than data, once asked for

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    @property
    def topic_id(self) -> int:
        return int.from_bytes(self.raw[8:16], "little")

    @property
    def reserved_to(self) -> int:
        return int.from_bytes(self.raw[40:48], "little")

    @property
    def kind(self) -> int:
        return self.raw[1]

    @property
    def has_sidecar(self) -> bool:
        return self.raw[52:56] != b"\0\0\0\0"

    @property
    def sidecar(self) -> Blob:
        """Producer, idempotency and dialect state committed with these records."""
        length = int.from_bytes(self.raw[52:56], "little")
        if not length:
            return b""
        end = self._values_end()
        return self.raw[end : end + length]

    # Columns

    def _columns(self) -> _Layout:
        layout = self._layout
        if layout is None:
            layout = self._layout = _parse_layout(self.raw, self.count)
        elif len(layout) == 1:  # a single stays one, whatever it was asked for
            return _parse_layout(self.raw, self.count)
        return layout

    def _data_at(self) -> tuple[int, int]:
        """Where the offsets and the values of the data column start."""
        if self.raw[57:64] == DATA_ONLY:
            return HEADER_BYTES, HEADER_BYTES + 4 * (self.count + 1)
        column = self._columns()[0]
        return column.offsets, column.values

    def _values_end(self) -> int:
        last = self._columns()[4]
        # The headers column is the last one with values; its start is right even when absent.
        return last.values + _values_length(self.raw, last, self.count)

    def data(self, start: int, stop: int) -> list[Blob]:
        """Payloads of rows `start` to `stop` (exclusive)."""
        raw = self.raw
        offsets, base = self._data_at()
        ends = struct.unpack_from(f"<{stop - start + 1}I", raw, offsets + 4 * start)
        return [raw[base + a : base + b] for a, b in pairwise(ends)]

    @property
    def is_single(self) -> bool:
        """Whether the block is one record that is nothing but data."""
        layout = self._layout
        return layout is not None and len(layout) == 1

    def data_buffers(self) -> tuple[memoryview, memoryview]:
        """(u32 offsets of count + 1 items, values), without a copy."""
        view = memoryview(self.raw)
        offsets, values = self._data_at()
        (length,) = _U32.unpack_from(self.raw, offsets + 4 * self.count)
        return view[offsets : offsets + 4 * (self.count + 1)], view[values : values + length]

    def column_buffers(self, which: int) -> tuple[int, memoryview, memoryview, memoryview]:
        """Mode, offsets, presence and values of an optional column, by number, without a copy."""
        view = memoryview(self.raw)
        mode, offsets, present, values = self._columns()[which]
        items = 1 if mode == UNIFORM else self.count
        length = _values_length(self.raw, self._columns()[which], self.count)
        return (
            mode,
            view[offsets : offsets + 4 * (items + 1)],
            view[present : present + self.count],
            view[values : values + length],
        )

    def _optional(self, which: int, start: int, stop: int) -> list[Blob | None] | None:
        column = self._columns()[which]
        raw, base = self.raw, column.values
        if column.mode == ABSENT:
            return None
        if column.mode == UNIFORM:
            length = _values_length(raw, column, self.count)
            return [raw[base : base + length]] * (stop - start)
        ends = struct.unpack_from(f"<{stop - start + 1}I", raw, column.offsets + 4 * start)
        values: list[Blob | None] = [raw[base + a : base + b] for a, b in pairwise(ends)]
        if column.mode == NULLABLE:
            present = raw[column.present + start : column.present + stop]
            return [v if p else None for v, p in zip(values, present, strict=True)]
        return values

    def _texts(self, which: int, start: int, stop: int) -> list[str | None] | None:
        values = self._optional(which, start, stop)
        return None if values is None else [None if v is None else v.decode() for v in values]

    def tags(self, start: int, stop: int) -> list[str | None] | None:
        return self._texts(1, start, stop)

    def nodes(self, start: int, stop: int) -> list[str | None] | None:
        return self._texts(2, start, stop)

    def metas(self, start: int, stop: int) -> list[Blob | None] | None:
        return self._optional(3, start, stop)

    def headers(self, start: int, stop: int) -> list[Sequence[Header] | None] | None:
        values = self._optional(4, start, stop)
        return None if values is None else [decode_headers(v) for v in values]

    @property
    def has_tags(self) -> bool:
        return self.raw[57] != ABSENT

    def kinds(self, start: int, stop: int) -> int | Blob:
        if self.raw[1] != KIND_MIXED:
            return self.raw[1]
        at = self._columns()[5].values
        return self.raw[at + start : at + stop]

    def timestamps(self, start: int, stop: int) -> int | Sequence[int]:
        if self.raw[62] == ABSENT:
            return self.ts
        return struct.unpack_from(f"<{stop - start}q", self.raw, HEADER_BYTES + 8 * start)

    def ts_at(self, row: int) -> int:
        if self.raw[62] == ABSENT:
            return self.ts
        value: int = struct.unpack_from("<q", self.raw, HEADER_BYTES + 8 * row)[0]
        return value

    def size_of(self, start: int, stop: int) -> int:
        """Data and meta bytes of rows `start` to `stop` (exclusive), without reading them."""
        if start == 0 and stop == self.count:
            return self.bytes
        total = self._span(self._data_at()[0], start, stop)
        if self.raw[59] != ABSENT:
            total += self._span(self._columns()[3].offsets, start, stop)
        return total

    def _span(self, offsets: int, start: int, stop: int) -> int:
        (a,) = _U32.unpack_from(self.raw, offsets + 4 * start)
        (b,) = _U32.unpack_from(self.raw, offsets + 4 * stop)
        return int(b) - int(a)

    def rows(self, start: int, stop: int) -> Rows:
        """Rows `start` to `stop` (exclusive) as columns."""
        assert 0 <= start <= stop <= self.count, (start, stop, self.count)
        first = self.first_seq
        rows = Rows(
            range(first + start, first + stop),
            self.timestamps(start, stop),
            self.data(start, stop),
            self.kinds(start, stop),
            append_firsts=first,
        )
        if self.raw[57:61] != b"\0\0\0\0":
            rows.tags = self.tags(start, stop)
            rows.nodes = self.nodes(start, stop)
            rows.metas = self.metas(start, stop)
            rows.headers = self.headers(start, stop)
        return rows


def single_rows(blocks: list[Block], bytes_max: int) -> tuple[Rows | None, int]:
    """The singles of one kind at the beginning as columns, as many as `bytes_max` allows.

    Returns how many bytes they have, too; None if not even the first one fits.  The blocks are gone
    through together: what is done for each record here is done for each of a page, and pages have
    thousands.
    """
    layout = blocks[0]._layout
    for block in blocks:
        if block._layout is not layout:
            blocks = blocks[: blocks.index(block)]
            break
    sizes = [block.bytes for block in blocks]
    size = sum(sizes)
    if size > bytes_max:
        ends = list(accumulate(sizes))
        count = bisect_right(ends, bytes_max)
        if not count:
            return None, 0
        blocks, size = blocks[:count], ends[count - 1]
    first, count = blocks[0].first_seq, len(blocks)
    seqs: Sequence[int] = range(first, first + count)
    if blocks[-1].first_seq != first + count - 1:  # there are seqs between them that none has
        seqs = [block.first_seq for block in blocks]
    stamps = [block.ts for block in blocks]
    data = [block.raw[SINGLE_AT : SINGLE_AT + block.bytes] for block in blocks]
    return Rows(seqs, stamps, data, blocks[0].raw[1], append_firsts=seqs), size


def _values_length(raw: bytes, column: _Column, count: int) -> int:
    if column.mode == ABSENT:
        return 0
    items = 1 if column.mode == UNIFORM else count
    (length,) = _U32.unpack_from(raw, column.offsets + 4 * items)
    return int(length)


def _parse_layout(raw: bytes, count: int) -> _Layout:
    """Where each column lies.  Order: ts, offsets, presence, kinds, values, sidecar, padding."""
    modes = raw[56:64]
    at = HEADER_BYTES
    if modes[6] == DENSE:
        at += 8 * count
    offsets, present = [0] * 5, [0] * 5
    for i in range(5):
        offsets[i] = at
        if modes[i] != ABSENT:
            at += 4 * (2 if modes[i] == UNIFORM else count + 1)
    for i in range(5):
        present[i] = at
        if modes[i] == NULLABLE:
            at += count
    kinds_at = at
    if modes[5] == DENSE:
        at += count
    columns = []
    for i in range(5):
        column = _Column(modes[i], offsets[i], present[i], at)
        at += _values_length(raw, column, count)
        columns.append(column)
    columns.append(_Column(modes[5], 0, 0, kinds_at))
    return tuple(columns)


def single_layout(raw: bytes, count: int) -> _Layout | None:
    """The layout of a block if it is a single; None: it is parsed when it is asked for."""
    return SINGLES.get(raw[1]) if count == 1 and raw[57:64] == DATA_ONLY else None


def append_seqs(raw: bytes) -> tuple[int, int, int]:
    """The first and the last seq of an append entry, and up to where it reserves."""
    fields = HEADER.unpack_from(raw)
    return fields[5], fields[5] + fields[9] - 1, fields[8]


def decode_block(raw: bytes) -> Block:
    """The block of an append entry whose checksum has been verified."""
    fields = HEADER.unpack_from(raw)
    count = fields[9]
    assert fields[0] == ENTRY_APPEND and count > 0, fields
    block = Block(raw, fields[5], count, fields[6], fields[7], 0, single_layout(raw, count))
    block.bytes = block._span(block._data_at()[0], 0, count)
    if fields[14] != ABSENT:
        block.bytes += block._span(block._columns()[3].offsets, 0, count)
    return block
