"""Rows cut into chunks, the same ones however Spark has cut them into batches.

Exactly once rests on this: an attempt that sends the same rows again has to send the same chunks.
So where a chunk ends follows from the rows alone, by constants.  No row is touched in Python: a
few calls of Arrow for a batch, and a search for each cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import InvalidRequest
from headrace.core.limits import MIB

# Of one append.  Other numbers would be other chunks: a query that is in the middle of a batch when
# they change may write that batch twice.  Both are far below what a server takes by default, and a
# body of less than 8 MiB is not handed to another thread there.
CHUNK_ROWS_MAX: Final = 16_384
CHUNK_BYTES_MAX: Final = 4 * MIB

# Of the rows that a task holds while it sorts them by topic.
WINDOW_ROWS_MAX: Final = 262_144
WINDOW_BYTES_MAX: Final = 32 * MIB

# What a row costs beside its values, so that many empty ones are not for nothing.
ROW_BYTES: Final = 16

TOPIC: Final = "topic"


class Chunk(NamedTuple):
    """Rows of one append: columns `data`, and `tag`, `node`, `meta` where there are some."""

    topic: str
    rows: pa.Table


class Cutter:
    """Take batches in, give tables of bounded rows and bytes out; the last is what is left.

    A row that is larger than the bound is a table of its own.

    >>> cutter = Cutter(2, 1_000)
    >>> [table.num_rows for table in cutter.cut([pa.record_batch({"data": ["1", "2", "3"]})])]
    [2, 1]
    """

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def cut(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Every row of the batches, in their order."""
        for batch in batches:
            yield from self._add(batch)
        if self._held:
            yield self._take()

    def _add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        if not batch.num_rows:
            return
        ends = _ends(batch)
        start, before = 0, 0
        while start < batch.num_rows:
            room = self._bytes_max - self._bytes
            stop = bisect_right(ends, before + room, start, batch.num_rows)
            stop = min(stop, start + self._rows_max - self._rows)
            if stop == start and not self._rows:
                stop = start + 1
            if stop > start:
                self._held.append(batch.slice(start, stop - start))
                self._rows += stop - start
                self._bytes += ends[stop - 1] - before
                start, before = stop, ends[stop - 1]
            if start < batch.num_rows or self._rows == self._rows_max:
                yield self._take()

    def _take(self) -> pa.Table:
        table = pa.Table.from_batches(self._held)
        self._held, self._rows, self._bytes = [], 0, 0
        return table


def _ends(batch: pa.RecordBatch) -> memoryview:
    """Where each row ends if all were written one after the other."""
    nothing: Any = pa.scalar(0, pa.int64())
    sizes: Any = pa.repeat(pa.scalar(ROW_BYTES, pa.int64()), batch.num_rows)
    column: Any
    for column in batch.columns:
        lengths: Any = pc.binary_length(column).cast(pa.int64())
        sizes = pc.add(sizes, pc.fill_null(lengths, nothing))
    ends: Any = pc.cumulative_sum(sizes)
    return memoryview(ends.buffers()[1]).cast("q")


def chunks(batches: Iterable[pa.RecordBatch], topic: str | None) -> Iterator[Chunk]:
    """The chunks of a partition: all for `topic`, or each row for what its column `topic` says.

    In the second case the rows are taken by the window: within one they are put together by topic,
    topics in the order of their first row, and nothing waits for the next window.
    """
    checked = _without_nulls(batches)
    if topic is not None:
        for table in Cutter(CHUNK_ROWS_MAX, CHUNK_BYTES_MAX).cut(checked):
            yield Chunk(topic, table)
        return
    for window in Cutter(WINDOW_ROWS_MAX, WINDOW_BYTES_MAX).cut(checked):
        for name, rows in by_topic(window):
            for table in Cutter(CHUNK_ROWS_MAX, CHUNK_BYTES_MAX).cut(rows.to_batches()):
                yield Chunk(name, table)


def by_topic(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each topic, in order, without that column; topics by their first row.

    >>> rows = pa.table({"topic": ["b", "a", "b"], "data": ["1", "2", "3"]})
    >>> [(name, part["data"].to_pylist()) for name, part in by_topic(rows)]
    [('b', ['1', '3']), ('a', ['2'])]
    """
    topics: Any = rows.column(TOPIC).combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    rest = rows.drop_columns([TOPIC])
    if len(names) == 1:
        yield names[0], rest
        return
    # Numbers of a dictionary are given out by first appearance, and this sort is stable.
    order: Any = pc.sort_indices(topics.indices)
    together = rest.take(order)
    counts = dict(zip(*_columns(pc.value_counts(topics.indices)), strict=True))
    start = 0
    for number, name in enumerate(names):
        yield name, together.slice(start, counts[number])
        start += counts[number]


def _columns(counts: Any) -> tuple[list[int], list[int]]:
    return counts.field("values").to_pylist(), counts.field("counts").to_pylist()


def _without_nulls(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches as they are; a row without data or topic is refused by its place."""
    seen = 0
    for batch in batches:
        for name in ("data", TOPIC):
            column: Any = batch.column(name) if name in batch.schema.names else None
            if column is not None and column.null_count:
                at = seen + pc.index(column.is_null(), True).as_py()
                raise InvalidRequest(
                    f"row {at} of the partition (counted from 0) has no {name}",
                    fix=f"leave such rows out: .where('{name} IS NOT NULL')",
                    detail={"column": name, "row": at},
                )
        seen += batch.num_rows
        yield batch
