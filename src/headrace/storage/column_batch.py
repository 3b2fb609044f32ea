"""Arrow columns as the buffers of a block: how records get into the log without being looked at.

Only this file turns Arrow arrays into a `ColumnBatch`.  Offsets are shifted and null bits spread
by Arrow, values are taken as they lie, and the one copy is the one into the block.  The arrays have
been validated, with their contents: nothing here could tell a lie from an offset.

What a batch may hold is decided elsewhere (the engine's `arrow_batch.py`).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.storage.block import ABSENT, DENSE, NULLABLE, UNIFORM, ColumnBatch, EncodedColumn
from headrace.storage.fs import Buffer
from headrace.storage.rows import KIND_BYTES
from headrace.storage.segment.format import Column

# Offsets in a block have 32 bits, and Arrow's have a sign.
VALUES_BYTES_MAX = (1 << 31) - 1

_NOTHING: EncodedColumn = (ABSENT, b"", b"", b"")


def column_batch(
    data: Column,
    kind: int = KIND_BYTES,
    tags: Column | None = None,
    nodes: Column | None = None,
    metas: Column | None = None,
) -> ColumnBatch:
    """Put columns of binary or text together, one item a record; `data` has no null.

    >>> batch = column_batch(pa.array([b"a", b"bc"]), tags=pa.array(["x", None]))
    >>> batch.rows, batch.bytes, bytes(batch.data[3])
    (2, 3, b'abc')
    """
    assert len(data) and not data.null_count, (len(data), data.null_count)
    for column in (tags, nodes, metas):
        assert column is None or len(column) == len(data), (len(column), len(data))
    stored = dense(data)
    encoded_metas = _nullable(metas)
    return ColumnBatch(
        len(data),
        kind,
        len(stored[3]) + len(encoded_metas[3]),
        stored,
        _uniform(tags) or _nullable(tags),
        _uniform(nodes) or _nullable(nodes),
        encoded_metas,
    )


def dense(column: Column) -> EncodedColumn:
    """A column without nulls: 32-bit offsets from zero, and the values between first and last.

    >>> _, offsets, _, values = dense(pa.array([b"a", b"bc", b"d"])[1:])
    >>> offsets.cast("i").tolist(), bytes(values)
    ([0, 2, 3], b'bcd')
    """
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    buffers = column.buffers()
    count, width = len(column), 8 if wide else 4
    at = buffers[1]
    assert at is not None
    ends: Column = pa.Array.from_buffers(
        pa.int64() if wide else pa.int32(), count + 1, [None, at], offset=column.offset
    )
    low, high = ends[0].as_py(), ends[count].as_py()
    assert 0 <= low <= high <= VALUES_BYTES_MAX, (low, high)
    if low:
        ends = pc.subtract(ends, ends[0])
    if wide:
        ends, width = ends.cast(pa.int32()), 4
    values: Buffer = b"" if buffers[2] is None else memoryview(buffers[2])[low:high]
    return DENSE, _bytes_of(ends, width), b"", values


def _uniform(column: Column | None) -> EncodedColumn | None:
    """A column that says the same of every record, which is stored once; None for any other."""
    if column is None or column.null_count or not pc.all(pc.equal(column, column[0])).as_py():
        return None
    _, offsets, _, values = dense(column[:1])
    return UNIFORM, offsets, b"", values


def _nullable(column: Column | None) -> EncodedColumn:
    if column is None or column.null_count == len(column):
        return _NOTHING
    if not column.null_count:
        return dense(column)
    present = column.is_valid().cast(pa.uint8())
    # A null may hide bytes of its own, which must not be stored.
    _, offsets, _, values = dense(pc.fill_null(column, pa.scalar("", column.type)))
    return NULLABLE, offsets, _bytes_of(present, 1), values


def _bytes_of(numbers: Column, width: int) -> memoryview:
    """The memory of a column of numbers."""
    buffer = numbers.buffers()[1]
    assert buffer is not None
    start = width * numbers.offset
    return memoryview(buffer)[start : start + width * len(numbers)]
