"""The rows of a page as Arrow columns: what a reader gets who asked for columns.

Only this file knows the columns of such a page.  Blocks of the log and runs of sealed files are
turned into the same columns, from their buffers, by a few calls for many rows; no row is touched
on its own.  Which rows a reader may see, and how many, is the engine's to say.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headrace.storage.block import Block, Rows
from headrace.storage.record_headers import Header
from headrace.storage.segment.columns import FIXED_WIDTHS
from headrace.storage.segment.columns import headers as headers_of_group
from headrace.storage.segment.format import HEADER_TYPE, Column
from headrace.storage.segment.from_blocks import Piece, batch_of_blocks, column_of_block
from headrace.storage.segment.run import Run

HEADERS = "headers"
# Signed, because few programs have unsigned columns; no seq comes near the sign.
_FIELDS: list[pa.Field[Any]] = [
    pa.field("seq", pa.int64(), nullable=False),
    pa.field("ts", pa.timestamp("ms", "UTC"), nullable=False),
    pa.field("kind", pa.int8(), nullable=False),
    pa.field("tag", pa.utf8()),
    pa.field("node", pa.utf8()),
    pa.field("meta", pa.binary()),
    pa.field(HEADERS, HEADER_TYPE),
    pa.field("data", pa.binary(), nullable=False),
]
PAGE_SCHEMA = pa.schema(_FIELDS)
OPTIONAL = ("tag", "node", "meta", HEADERS)
COLUMNS = frozenset(PAGE_SCHEMA.names)
# A block with at least this many rows becomes a batch of its own, which needs no copy.
LONG_ROWS_MIN = 256


class Source(Protocol):
    """Where verified bytes come from: a `Segment`, or what was fetched of one."""

    def read(self, offset: int, length: int, wait: bool = True) -> bytes | memoryview: ...
    def buffer(self, group: int, column: str, number: int) -> tuple[int, int]: ...


class _CopyingSource:
    """A source whose bytes are its reader's own."""

    __slots__ = ("_source", "buffer")

    def __init__(self, source: Source) -> None:
        self._source = source
        self.buffer = source.buffer

    def read(self, offset: int, length: int, wait: bool = True) -> bytes:
        return bytes(self._source.read(offset, length, wait))


def columns_of_blocks(pieces: Sequence[Piece]) -> list[pa.RecordBatch]:
    """Rows of blocks, in the order given: long ones where they lie, short ones put together."""
    batches = []
    for long, group in groupby(pieces, key=lambda piece: piece[3] - piece[2] >= LONG_ROWS_MIN):
        if long:
            batches += [
                page_of(_columns_of_block(*piece[1:]), piece[3] - piece[2]) for piece in group
            ]
            continue
        batch = batch_of_blocks(list(group))
        columns: dict[str, Column] = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["data"] = columns["data"].cast(pa.binary())
        batches.append(page_of(columns, batch.num_rows))
    return batches


def _columns_of_block(block: Block, start: int, stop: int) -> dict[str, Column]:
    count, first = stop - start, block.first_seq
    stamps, kinds = block.timestamps(start, stop), block.kinds(start, stop)
    offsets, values = block.data_buffers()
    # Offsets of a block have no sign, and Arrow's have: no block reaches it.
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    columns: dict[str, Column] = {
        "seq": pa.arange(first + start, first + stop),  # type: ignore[attr-defined]
        "ts": pa.repeat(pa.scalar(stamps, pa.int64()), count)
        if isinstance(stamps, int)
        else _numbers(pa.int64(), array("q", stamps).tobytes()),
        "kind": pa.repeat(pa.scalar(kinds, pa.int8()), count)
        if isinstance(kinds, int)
        else _numbers(pa.int8(), kinds),
        "data": pa.Array.from_buffers(pa.binary(), block.count, buffers)[start:stop],
    }
    for name in OPTIONAL:
        kind = PAGE_SCHEMA.field(name).type
        if name != HEADERS:
            columns[name] = column_of_block(block, name, start, stop, kind)
        elif (found := block.headers(start, stop)) is not None:
            columns[name] = headers_column(found)
    return columns


def headers_column(rows: Sequence[Sequence[Header] | None]) -> Column:
    """The headers of rows as one column.

    >>> headers_column([[(b"k", b"v")], None]).to_pylist()
    [[{'name': b'k', 'value': b'v'}], None]
    """
    pairs = [
        None if row is None else [{"name": name, "value": value} for name, value in row]
        for row in rows
    ]
    return pa.array(pairs, HEADER_TYPE)


def columns_of_run(run: Run, start: int, stop: int, wait: bool = True) -> list[pa.RecordBatch]:
    """Rows `start` to `stop` (exclusive) of a run: a batch for each row group they lie in."""
    batches = []
    for group, a, b in run.pieces(start, stop):
        columns = columns_of_group(run, group, a, b, start, run.segment, COLUMNS, wait)
        batches.append(page_of(columns, b - a))
        start += b - a
    return batches


def without(
    batch: pa.RecordBatch, holes: BitMap64 | None, nodes: Collection[str]
) -> pa.RecordBatch:
    """The rows whose seq is no hole, and whose node is none of these."""
    seqs = batch.column("seq")
    if holes is not None and len(seqs):
        span = range(int(seqs[0].as_py()), int(seqs[-1].as_py()) + 1)
        dead = (holes & BitMap64(span)).to_array()
        if len(dead):
            gone = pa.Array.from_buffers(pa.int64(), len(dead), [None, pa.py_buffer(dead)])
            batch = batch.filter(pc.invert(pc.is_in(seqs, value_set=gone)))
    if nodes and batch.column("node").null_count < batch.num_rows:
        unwanted = pa.array(list(nodes), pa.utf8())
        batch = batch.filter(pc.invert(pc.is_in(batch.column("node"), value_set=unwanted)))
    return batch


def rows_of_page(batch: pa.RecordBatch) -> Rows:
    """The same rows as lists."""

    def listed(column: Any) -> list[Any]:
        return list(column.to_pylist())

    def optional(name: str) -> list[Any] | None:
        column = batch.column(name)
        return None if column.null_count == batch.num_rows else listed(column)

    kinds = listed(batch.column("kind"))
    return Rows(
        listed(batch.column("seq")),
        listed(batch.column("ts").cast(pa.int64())),
        listed(batch.column("data")),
        kinds[0] if kinds and kinds.count(kinds[0]) == len(kinds) else kinds,
        optional("tag"),
        optional("node"),
        optional("meta"),
        _header_pairs(batch.column(HEADERS)),
    )


def _header_pairs(column: Any) -> list[Sequence[Header] | None] | None:
    if column.null_count == len(column):
        return None
    return [
        None if row is None else [(pair["name"], pair["value"]) for pair in row]
        for row in column.to_pylist()
    ]


def payload_bytes(batch: pa.RecordBatch) -> int:
    """Data and meta bytes of these rows."""
    total = 0
    for name in ("data", "meta"):
        lengths: Any = batch.column(name)
        total += pc.sum(pc.binary_length(lengths)).as_py() or 0
    return total


def page_of(
    columns: dict[str, Column], count: int, schema: pa.Schema = PAGE_SCHEMA
) -> pa.RecordBatch:
    """What the schema says, out of columns of the same widths."""
    arrays = []
    for field in schema:
        column = columns.get(field.name)
        if column is None:
            column = pa.nulls(count, field.type)
        arrays.append(column if column.type == field.type else column.view(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def columns_of_group(
    run: Run,
    group: int,
    a: int,
    b: int,
    start: int,
    source: Source,
    names: Collection[str],
    wait: bool = True,
) -> dict[str, Column]:
    """These columns of rows `a` to `b` of one row group; `start` is the run's number of row `a`.

    A column that the file does not have is left out.
    """
    columns: dict[str, Column] = {}
    for name in names:
        kind = PAGE_SCHEMA.field(name).type
        if name == "seq" and run.dense:
            first = run.first_seq + start
            columns[name] = pa.arange(first, first + b - a)  # type: ignore[attr-defined]
        elif name in FIXED_WIDTHS:
            width = FIXED_WIDTHS[name]
            at, _ = source.buffer(group, name, 1)
            raw = source.read(at + width * a, width * (b - a), wait)
            columns[name] = _numbers(kind if name == "kind" else pa.int64(), raw)
        elif name == HEADERS and has_column(run, name):
            found = headers_of_group(_CopyingSource(source), group, a, b, wait)
            columns[name] = headers_column(found)
        elif has_column(run, name):
            columns[name] = _values(source, group, name, kind, a, b, wait)
    return columns


def has_column(run: Run, name: str) -> bool:
    """Whether any row of the run can have a value there."""
    if name not in OPTIONAL:
        return True
    return name in run.segment.columns() and (name != "tag" or run.has_tags)


def _numbers(kind: pa.DataType, raw: bytes | memoryview) -> Column:
    return pa.Array.from_buffers(kind, len(raw) * 8 // kind.bit_width, [None, pa.py_buffer(raw)])


def _values(
    source: Source, group: int, name: str, kind: pa.DataType, a: int, b: int, wait: bool
) -> Column:
    """A column of values of any length, nulls included."""
    skipped = a % 8  # null bits are read by the byte, so that the rows before come along
    a -= skipped
    bits = None
    at, length = source.buffer(group, name, 0)
    if length:
        bits = pa.py_buffer(source.read(at + a // 8, (b + 7) // 8 - a // 8, wait))
    width = offset_width(name)
    at, _ = source.buffer(group, name, 1)
    raw = source.read(at + width * a, width * (b - a + 1), wait)
    ends = _numbers(pa.int64() if width == 8 else pa.int32(), raw)
    low, high = ends[0].as_py(), ends[-1].as_py()
    if low:
        ends = pc.subtract(ends, ends[0])
    if width == 8:
        ends = ends.cast(pa.int32())
    at, _ = source.buffer(group, name, 2)
    values = pa.py_buffer(source.read(at + low, high - low, wait))
    buffers = [bits, ends.buffers()[1], values]
    return pa.Array.from_buffers(kind, b - a - skipped, buffers, offset=skipped)


def offset_width(name: str) -> int:
    """Bytes of one offset into the values of a column."""
    return 8 if name == "data" else 4
