"""Collecting what a topic does not hold any more, from where it is kept, too.

The rules of `page_rows.py` hold for these rows as well: none is skipped that was not deleted, and a
seq that no part accounts for is an error.  A loss ends the page: the reader is told of it first.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headrace.core.errors import LakeCorrupt
from headrace.engine.reading.page_columns import fit
from headrace.engine.reading.page_rows import Collector
from headrace.engine.removal.deleted_seqs import DeletedSeqs
from headrace.engine.topics.live_seqs import Lost
from headrace.storage.archive import ArchivedPart
from headrace.storage.segment.page_columns import payload_bytes


def take_parts(
    collector: Collector, parts: Iterator[ArchivedPart], gone: DeletedSeqs
) -> Lost | None:
    """Take until the parts end, or the page is full; or up to a loss, and say which.

    Off the loop.  `gone` is this reader's own, and what its rows' tags say is added to it; the
    collector has been frozen with its `seqs`.
    """
    for part in parts:
        if part.first != collector.cursor + 1 or part.last < part.first:
            raise LakeCorrupt(
                f"seqs {part.first} to {part.last} came after {collector.cursor}",
                fix="run `headrace lake verify`",
                detail={"topic": collector.topic.name, "first_seq": collector.cursor + 1},
            )
        if part.rows is None:
            return Lost(part.first, part.last, part.reason)
        if part.rows.num_rows:
            gone.add_tagged(part.rows)
            _take(collector, part.rows)
        if collector.full:
            return None
        collector.cursor = part.last
    return None


def _take(collector: Collector, rows: pa.RecordBatch) -> None:
    before = collector.scanned

    def size_of(start: int, stop: int) -> int:
        return payload_bytes(rows.slice(start, stop - start))

    start, count = 0, rows.num_rows
    while start < count and not collector.full:
        stop = fit(size_of, start, min(count, start + collector.left), collector.bytes_left)
        collector.take_batch(rows.slice(start, stop - start), size_of(start, stop))
        start = stop
    collector.elsewhere += collector.scanned - before
