"""The inputs of a merge: sealed files read front to back, and what of each topic is alive in them.

Only this file reads rows for a merge.  An input holds one row group in memory, and calls go forward
through it; what becomes of the rows is the business of `merge_run`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from headrace.storage.files.catalog import Liveness, live_rows_max
from headrace.storage.segment.format import FLAG_DENSE, FLAG_TAGS
from headrace.storage.segment.group_columns import ROW_AROUND_BYTES
from headrace.storage.segment.reader import Segment


# Not tracked by the collector: there is one for each topic of each input.
class Part(msgspec.Struct, frozen=True, order=True, gc=False):
    """The rows of one topic in one input that may be alive."""

    topic_id: int
    first_seq: int
    last_seq: int
    number: int  # of the input
    first_row: int
    rows: int
    bytes: int  # of payload, dead rows included
    live_size: int  # about what the live rows take in a file
    tagged: bool
    mixed: bool  # some of the rows are dead, and only their seqs can tell which


class MergeInput:
    """One file being read front to back."""

    def __init__(self, segment: Segment, liveness: Liveness) -> None:
        self.segment = segment
        self._directory = segment.directory()
        self._liveness = liveness
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._batch: pa.RecordBatch | None = None
        self._first_row = 0  # of the batch

    def parts(self, number: int) -> Iterator[Part]:
        """What is alive here, by topic; `number` is this input's."""
        d = self._directory
        for at, topic_id in enumerate(d.topic_ids):
            topic = self._liveness.get(topic_id)
            row, end = d.first_rows[at], d.first_rows[at + 1]
            first_seq, last_seq = d.first_seqs[at], d.last_seqs[at]
            size = d.payload_bytes[at]
            live = live_rows_max(first_seq, last_seq, end - row, topic)
            if not live:
                continue
            assert topic is not None and not self.segment.meta.tier, (topic_id, self.segment.meta)
            live_size = size * live // (end - row) + live * ROW_AROUND_BYTES
            tagged = bool(d.flags[at] & FLAG_TAGS)
            mixed = bool(topic.holes and topic.holes.range_cardinality(first_seq, last_seq + 1))
            if topic.earliest_seq > first_seq:
                if d.flags[at] & FLAG_DENSE:
                    row += topic.earliest_seq - first_seq
                    first_seq = topic.earliest_seq
                else:
                    mixed = True
            yield Part(
                topic_id, first_seq, last_seq, number, row, end - row, size, live_size,
                tagged, mixed,
            )  # fmt: skip

    def take(self, first_row: int, rows: int) -> Iterator[pa.RecordBatch]:
        """These rows, as they lie in row groups.  Calls must go forward through the file."""
        assert rows > 0, rows
        if self._batches is None:
            self._batches = self.segment.batches()
        while rows:
            batch = self._batch
            if batch is None or first_row >= self._first_row + batch.num_rows:
                self._first_row += 0 if batch is None else batch.num_rows
                batch = self._batch = next(self._batches)
                continue
            start = first_row - self._first_row
            assert start >= 0, (self.segment.meta.path, first_row, self._first_row)
            count = min(rows, batch.num_rows - start)
            yield batch.slice(start, count)
            first_row += count
            rows -= count
