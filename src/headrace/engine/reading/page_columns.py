"""Collecting a page as Arrow columns: the rules of `page_rows.py`, for many rows at a time.

Which records are in a page, where it ends and where the cursor is are exactly as for a page of
lists; only the form differs.  Blocks are gathered until the page is full, then turned into columns
at once; a filter is applied to columns, never to a row.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

from headrace.engine.reading.page_rows import Collector
from headrace.engine.topics.block_list import BlockList
from headrace.storage.block import Block
from headrace.storage.segment.from_blocks import Piece
from headrace.storage.segment.page_columns import (
    columns_of_blocks,
    columns_of_run,
    payload_bytes,
    without,
)
from headrace.storage.segment.run import Run


class ColumnCollector(Collector):
    """Columns taken so far, and how much more fits."""

    batches: list[pa.RecordBatch] = msgspec.field(default_factory=list)

    def take_run(self, run: Run, last: int, wait: bool) -> None:
        stop = run.row_of(last + 1, wait)
        start = run.row_of(self.cursor + 1, wait)
        while start < stop and not self.full:
            end = min(stop, start + self.left)
            end = fit(lambda a, b: run.size_of(a, b, wait), start, end, self.bytes_left)
            for batch in columns_of_run(run, start, end, wait):
                self._take(batch)
            start = end

    def take_batch(self, batch: pa.RecordBatch, size: int) -> None:
        self._take(batch)

    def take_blocks(self, blocks: BlockList, last: int) -> None:
        while not self.full:
            window = self.window(blocks)
            cursor = self.cursor
            self.take_window(window, last)
            if self.cursor == cursor:
                return

    def window(self, blocks: BlockList) -> list[Block]:
        """The blocks in memory that the rest of the page may need."""
        return blocks.since(self.cursor + 1, self.left)

    def take_window(self, window: list[Block], last: int) -> None:
        """Take from these blocks until they end, `last` is passed or the page is full."""
        while not self.full:
            pieces = self._gather(window, last)
            if not pieces:
                return
            for batch in columns_of_blocks(pieces):
                self._take(batch)
            window = window[len(pieces) - 1 :]

    def _gather(self, window: list[Block], last: int) -> list[Piece]:
        """What follows the cursor, as much as fits if all of it is wanted; at least a row."""
        pieces: list[Piece] = []
        rows, room = self.left, self.bytes_left
        cursor, topic_id = self.cursor, self.topic.id
        for block in window:
            if block.last_seq <= cursor:
                continue
            start = max(0, cursor + 1 - block.first_seq)
            stop = min(block.count, last - block.first_seq + 1, start + rows)
            if start >= stop:
                break
            size = block.size_of(start, stop)
            if size > room:
                stop = fit(block.size_of, start, stop, room)
                size = block.size_of(start, stop)
                if size <= room or not pieces:
                    pieces.append((topic_id, block, start, stop))
                break
            pieces.append((topic_id, block, start, stop))
            rows -= stop - start
            room -= size
            if not rows:
                break
        return pieces

    def _take(self, batch: pa.RecordBatch) -> None:
        """Take what is wanted of these rows, unless it does not fit any more."""
        if self.full:
            return
        seen = batch.num_rows
        last = int(batch.column("seq")[-1].as_py())
        batch = without(batch, self._holes, self.nodes)
        size = payload_bytes(batch)
        if size > self.bytes_left and self.batches:
            self.full = True
            return
        if batch.num_rows:
            self.batches.append(batch)
        self.scanned += seen
        self.cursor = last
        self.left -= batch.num_rows
        self.bytes_left -= size
        self.skip(seen - batch.num_rows)
        if self.left <= 0 or self.bytes_left <= 0:
            self.full = True


def fit(size_of: Callable[[int, int], int], start: int, stop: int, bytes_max: int) -> int:
    """The largest end such that rows start..end hold at most `bytes_max`; at least one row."""
    if size_of(start, stop) <= bytes_max:
        return stop
    low, high = start + 1, stop
    while low < high:
        middle = (low + high + 1) // 2
        if size_of(start, middle) <= bytes_max:
            low = middle
        else:
            high = middle - 1
    return low
