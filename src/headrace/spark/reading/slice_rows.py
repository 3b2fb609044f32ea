"""The live rows of a slice of a sealed file, counted: none is passed over in silence."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headrace.spark.read_failures import not_accounted
from headrace.spark.reading.parts import FileSlice
from headrace.spark.reading.pushdown import Filters
from headrace.storage.segment.page_columns import has_column, without
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.run import Run, run_of
from headrace.storage.segment.scan import Group, groups_of


def live_rows(
    segment: Segment, part: FileSlice, needs: Collection[str], filters: Filters | None = None
) -> Iterator[pa.RecordBatch]:
    """These columns of the slice, a batch for each row group; `seq` is always among them.

    With filters, rows may be missing that do not pass them.
    """
    topic, _, first, last = part.span
    dead = BitMap64.deserialize(part.dead) if part.dead else None
    run = run_of(segment, part.topic_id)
    found = 0
    if run is not None:
        start, stop = run.row_of(first), run.row_of(last + 1)
        if filters is not None and filters.on_ts:
            start = max(start, run.row_at_ts(filters.ts_first))
            stop = max(start, min(stop, run.row_at_ts(filters.ts_last + 1)))
            # What the time leaves out needs no accounting; which rows those are follows from seqs.
            first = max(first, _seq_from(run, start))
            last = min(last, _seq_from(run, stop) - 1)
        for group in groups_of(run, start, stop):
            batch, count = _live(run, group, frozenset(needs) | {"seq"}, dead, filters)
            found += count
            if batch is not None and batch.num_rows:
                yield batch
    expected = max(0, last - first + 1)
    if dead is not None and expected:
        expected -= dead.range_cardinality(first, last + 1)
    if found != expected:
        raise not_accounted(topic, first, last, found, expected)


def _live(
    run: Run,
    group: Group,
    names: frozenset[str],
    dead: BitMap64 | None,
    filters: Filters | None,
) -> tuple[pa.RecordBatch | None, int]:
    """Rows of a row group that are to be seen, and how many are alive."""
    if filters is None or not filters.on_tags:
        batch = without(group.columns(names), dead, ())
        return batch, batch.num_rows
    # Tags first: where none matches the data need not be read.
    looked = group.columns({"seq", "tag"} if has_column(run, "tag") else {"seq"})
    alive = without(looked, dead, ())
    if "tag" not in looked.schema.names:
        return None, alive.num_rows
    mask = filters.tag_mask(looked.column("tag"))
    if not pc.any(mask).as_py():
        return None, alive.num_rows
    return without(group.columns(names).filter(mask), dead, ()), alive.num_rows


def _seq_from(run: Run, row: int) -> int:
    """The seq of a row; one beyond the last where there is no such row."""
    if row >= run.count:
        return run.last_seq + 1
    return run.first_seq + row if run.dense else run.rows(row, row + 1).seqs[0]
