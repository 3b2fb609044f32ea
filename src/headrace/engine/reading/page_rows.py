"""Collecting the rows of a page: how many still fit, which are left out, where the cursor is.

Only this file turns blocks and sealed runs into the rows of an answer.  A record is never skipped
unless it is dead or of a node the reader asked not to see; a record that should be in a file and is
not is an error, never a shorter answer.  A collector may work in the reader lane: then it sees the
topic as it was when it was handed over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, Self

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from headrace.core.errors import SegmentCorrupt
from headrace.engine.topics.block_list import BlockList
from headrace.engine.topics.topic import Topic
from headrace.storage.block import Block, Rows, single_rows
from headrace.storage.files.catalog import runs_in
from headrace.storage.segment.page_columns import rows_of_page
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.run import Run

# A page that leaves out almost everything it meets ends after this many rows, and says how far it
# came: a filter must not hold the loop thread.
SKIPPED_ROWS_MIN = 10_000
SKIPPED_ROWS_PER_ROW = 10
# Blocks that are looked at together: beyond, what a stretch costs would follow what is behind it.
STRETCH_BLOCKS_MAX = 1024
_FIRST_SEQ: Final = attrgetter("first_seq")


class ReadRequest(NamedTuple):
    """Where to read, and how much.  At most one of from_seq, from_ts and last is given."""

    from_seq: int = 0
    limit: int = 256
    bytes_max: int = 1 << 20
    nodes: Collection[str] = ()
    epoch: int | None = None
    from_ts: int | None = None
    last: int | None = None
    columns: bool = False  # as Arrow columns, not as lists


class Collector(msgspec.Struct, eq=False):
    """Rows taken so far, and how much more fits."""

    topic: Topic
    cursor: int
    limit: int  # of rows, in all
    left: int  # of them
    bytes_left: int
    nodes: Collection[str]  # records of these are left out
    full: bool
    rows: list[Rows] = msgspec.field(default_factory=list)
    scanned: int = 0
    cold: int = 0  # of those, the ones in the cold tier
    elsewhere: int = 0  # and the ones that only the lake has
    _skipped: int = 0  # and the ones that are left out
    _frozen: BitMap64 | None = None
    _base: int = 0

    @classmethod
    def begin(cls, topic: Topic, cursor: int, request: ReadRequest) -> Self:
        """Collect what a request asks for, from behind a cursor."""
        limit = request.limit
        nodes = request.nodes and (request.nodes if topic.config.dedupe_node else ())
        return cls(topic, cursor, limit, limit, request.bytes_max, nodes, not limit)

    def freeze(self, gone: BitMap64 | None = None) -> None:
        """From here to `thaw` another thread collects: it sees the holes as they are now.

        `gone` are its own, in place of those of the topic.
        """
        if gone is None:
            holes = self.topic.holes
            gone = holes.copy() if holes is not None else BitMap64()
        self._frozen = gone
        self._base = self.topic.base

    def thaw(self) -> None:
        self._frozen = None

    @property
    def _holes(self) -> BitMap64 | None:
        return self._frozen if self._frozen is not None else self.topic.holes

    def live_between(self, first: int, last: int) -> int:
        """Live records with first <= seq <= last, as this thread sees them."""
        if self._frozen is None:
            return self.topic.live_between(first, last)
        first = max(first, self._base + 1)
        return max(0, last + 1 - first - self._frozen.range_cardinality(first, last + 1))

    def take_run(self, run: Run, last: int, wait: bool) -> None:
        """Take from a sealed run until it ends, `last` is passed, or the page is full."""
        stop = run.row_of(last + 1, wait)
        start = run.row_of(self.cursor + 1, wait)
        while start < stop and not self.full:
            end = min(stop, start + self.left)
            end = run.fit(start, end, max(self.bytes_left, 0), wait)
            self._add(run.rows(start, end, wait), run.size_of(start, end, wait))
            start = end

    def take_batch(self, batch: pa.RecordBatch, size: int) -> None:
        """Take rows that have the columns of a page; `size` are their bytes."""
        self._add(rows_of_page(batch), size)

    def take_blocks(self, blocks: BlockList, last: int) -> None:
        """Take from memory until `last` is passed or the page is full."""
        while not self.full:
            # A block has at least one record, so more of them are never needed at a time.
            wanted = self.left
            window = blocks.since(self.cursor + 1, wanted)
            if not window:
                return
            index = 0
            count = stop = len(window)
            if window[-1].first_seq > last:
                stop = bisect_right(window, last, key=_FIRST_SEQ)
            while index < stop and not self.full:
                block = window[index]
                if block.is_single:
                    most = min(self.left, STRETCH_BLOCKS_MAX)
                    index += self._take_singles(window[index : min(stop, index + most)])
                else:
                    self._take_block(block, last)
                    index += 1
            if index < count or count < wanted:  # there are no more blocks
                return

    def _take_singles(self, blocks: list[Block]) -> int:
        """Take a stretch of one-record blocks at once; returns how many these are."""
        rows, size = single_rows(blocks, self.bytes_left)
        if rows is None:
            if self.rows:
                self.full = True
                return 0
            rows, size = single_rows(blocks[:1], blocks[0].bytes)  # however large: there is one
            assert rows is not None
        count = len(rows.data)
        self._add(rows, size)
        return count

    def _take_block(self, block: Block, last: int) -> None:
        first = block.first_seq
        start, stop = self.cursor + 1 - first, block.count
        if start < 0:
            start = 0
        if first + stop > last + 1:
            stop = last + 1 - first
        while start < stop and not self.full:
            left = self.left
            end = stop if stop - start <= left else start + left
            size = block.size_of(start, end)
            if size > self.bytes_left:
                end = fit_rows(block, start, end, self.bytes_left)
                size = block.size_of(start, end)
            self._add(block.rows(start, end), size)
            start = end

    def _add(self, rows: Rows, size: int) -> None:
        """Take rows; `size` is exact where nothing is filtered out."""
        seen = taken = len(rows.data)
        last = rows.seqs[-1]
        holes = self.topic.holes if self._frozen is None else self._frozen
        if (holes is not None or self.nodes) and self._filtered(rows, holes):
            live = self._wanted(rows, holes)
            taken = len(live)
            self.skip(seen - taken)
            if not taken:
                self.scanned += seen
                self.cursor = last
                return
            if taken < seen:
                rows = rows.pick(live)
            size = _size(rows)
        if size > self.bytes_left and self.rows:
            self.full = True
            return
        self.rows.append(rows)
        self.scanned += seen
        self.cursor = last
        self.left = left = self.left - taken
        self.bytes_left = room = self.bytes_left - size
        if left <= 0 or room <= 0:
            self.full = True

    def skip(self, count: int) -> None:
        """Leave rows out, which ends the page once they are too many."""
        self._skipped += count
        if self._skipped >= max(SKIPPED_ROWS_MIN, SKIPPED_ROWS_PER_ROW * self.limit):
            self.full = True

    def _filtered(self, rows: Rows, holes: BitMap64 | None) -> bool:
        if self.nodes and rows.nodes is not None:
            return True
        return holes is not None and bool(holes.range_cardinality(rows.seqs[0], rows.seqs[-1] + 1))

    def _wanted(self, rows: Rows, gone: BitMap64 | None) -> list[int]:
        holes = gone or ()
        nodes = self.nodes
        columns = rows.nodes if nodes and rows.nodes is not None else None
        if columns is None:
            return [i for i, seq in enumerate(rows.seqs) if seq not in holes]
        return [
            i
            for i, (seq, node) in enumerate(zip(rows.seqs, columns, strict=True))
            if seq not in holes and node not in nodes
        ]


def _size(rows: Rows) -> int:
    total = sum(map(len, rows.data))
    if rows.metas is not None:
        total += sum(len(meta) for meta in rows.metas if meta is not None)
    return total


def fit_rows(block: Block, start: int, stop: int, bytes_max: int) -> int:
    """The largest end such that rows start..end hold at most `bytes_max`; at least one row."""
    low, high = start + 1, stop
    while low < high:
        middle = (low + high + 1) // 2
        if block.size_of(start, middle) <= bytes_max:
            low = middle
        else:
            high = middle - 1
    return low


def take_runs(
    collector: Collector, files: Sequence[Segment], owner_id: int, last: int, wait: bool
) -> None:
    """Take sealed rows up to `last` that are of this topic, or of one that it descends from.

    Rows that should be there and are not are an error.
    """
    for run in runs_in(files, owner_id, wait):
        if run.first_seq > last or collector.full:
            break
        if run.last_seq > collector.cursor:
            _refuse_missing(collector, files, run.first_seq - 1)
            before = collector.scanned
            collector.take_run(run, last, wait)
            if run.segment.meta.tier:
                collector.cold += collector.scanned - before
    if not collector.full:
        _refuse_missing(collector, files, last)
        collector.cursor = max(collector.cursor, last)


def _refuse_missing(collector: Collector, files: Sequence[Segment], last: int) -> None:
    first = collector.cursor + 1
    if first > last or not collector.live_between(first, last):
        return
    problems = [file.problem for file in files if file.problem is not None]
    why = problems[0].message if problems else "no file has them"
    raise SegmentCorrupt(
        f"seqs {first} to {last} of {collector.topic.name!r} cannot be read: {why}",
        fix="run `headrace check`, then restore the file from a backup or the cold tier",
        detail={"topic": collector.topic.name, "first_seq": first, "last_seq": last},
    )
