"""What the index of a segment says of a row group's columns: offsets, runs, order of tags."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from struct import calcsize
from typing import Final, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from headrace.storage.segment.format import (
    Column,
)
from headrace.storage.segment.from_blocks import count_up

# Each row has five columns of 8 bytes and one of 1 besides what varies.
FIXED_ROW_BYTES = 41
# What a row takes beside its payload: these columns and the offset of its data.
ROW_AROUND_BYTES = FIXED_ROW_BYTES + 8
_CODES: Final[dict[str, Literal["Q", "q", "i", "I"]]] = {
    "uint64": "Q",
    "int64": "q",
    "int32": "i",
    "uint32": "I",
}


def ints(column: Column) -> list[int]:
    """The numbers of a column; Arrow's own list of 50,000 takes 20 ms, and the interpreter."""
    return numbers(column).tolist()


def numbers(column: Column) -> memoryview:
    """The numbers of a column where they lie.

    To pick a few of them by Arrow's `take` costs ten times as much, and far more the first time
    after other work.
    """
    assert not column.null_count
    code, buffer = _CODES[str(column.type)], column.buffers()[1]
    if buffer is None:
        return memoryview(b"").cast(code)
    width = calcsize(code)
    first = width * column.offset
    return memoryview(buffer).cast("B")[first : first + width * len(column)].cast(code)


def _offsets(column: Column) -> Column:
    """The count + 1 value offsets of a binary or text column, as int64."""
    wide = pa.types.is_large_binary(column.type)
    kind = pa.int64() if wide else pa.int32()
    offsets = pa.Array.from_buffers(
        kind, len(column) + 1, [None, column.buffers()[1]], offset=column.offset
    )
    return offsets if wide else offsets.cast(pa.int64())


def payload_offsets(batch: pa.RecordBatch) -> Column:
    """Data and meta bytes before each row, and after the last; not from zero in a slice."""
    offsets = _offsets(batch.column("data"))
    if "meta" in batch.schema.names:
        offsets = pc.add(offsets, _offsets(batch.column("meta")))
    return offsets


def row_offsets(batch: pa.RecordBatch) -> memoryview:
    """Bytes of all columns before each row, and after the last; not from zero in a slice."""
    total = pc.add(payload_offsets(batch), count_up(batch.num_rows + 1, FIXED_ROW_BYTES))
    for name in ("tag", "node"):
        if name in batch.schema.names:
            total = pc.add(total, _offsets(batch.column(name)))
    if "headers" in batch.schema.names:
        lists = cast(pa.ListArray, batch.column("headers"))  # type: ignore[type-arg]
        firsts = pa.Array.from_buffers(
            pa.int32(), len(lists) + 1, [None, lists.buffers()[1]], offset=lists.offset
        )
        pairs = cast(pa.StructArray, lists.values)
        for child in (pairs.field(0), pairs.field(1)):
            if len(child):
                total = pc.add(total, _offsets(child).take(firsts))
    buffer = total.buffers()[1]
    assert buffer is not None and total.offset == 0
    return memoryview(buffer).cast("q")[: len(total)]


def tagged_runs(batch: pa.RecordBatch, bounds: Sequence[int]) -> list[bool]:
    """For each run of rows between two bounds, whether one of them has a tag."""
    runs = len(bounds) - 1
    if "tag" not in batch.schema.names:
        return [False] * runs
    tags = batch.column("tag")
    if tags.null_count in (0, len(tags)):
        return [tags.null_count == 0] * runs
    seen = numbers(pc.cumulative_sum(tags.is_valid().cast(pa.int64())))
    counts = [0, *(seen[bound - 1] for bound in bounds[1:])]
    return [b > a for a, b in pairwise(counts)]


def tag_order(batch: pa.RecordBatch) -> Column:
    """The rows sorted by (topic, tag, row), untagged rows of a topic last."""
    table = batch.select(["topic_id", "tag"])
    # The sort is stable and puts nulls last.
    order = pc.sort_indices(table, sort_keys=[("topic_id", "ascending"), ("tag", "ascending")])
    return order.cast(pa.uint32())


def assert_ordered(batch: pa.RecordBatch, topic_ids: list[int], starts: list[int]) -> None:
    """Rows are in (topic_id, seq) order, each pair once, and ts never goes back in a topic."""
    assert all(a < b for a, b in pairwise(topic_ids)), "topics unordered"
    allowed = {start - 1 for start in starts}
    seqs, stamps = batch.column("seq"), batch.column("ts")
    for falls in (pc.less_equal(seqs[1:], seqs[:-1]), pc.less(stamps[1:], stamps[:-1])):
        if not falls.true_count:
            continue
        rows = ints(pc.indices_nonzero(falls))
        assert allowed.issuperset(rows), (batch.num_rows, rows[:4])
