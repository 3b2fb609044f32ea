"""What a read answers: a page of records, and the loss that is announced before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from headrace.storage.block import Record, Rows

if TYPE_CHECKING:
    from headrace.engine.reading.recent_pages import RecentRows


class Tombstone(NamedTuple):
    """Seqs gap_from..gap_to are gone, and no request removed them."""

    gap_from: int
    gap_to: int
    reason: str
    earliest_seq: int
    head_seq: int

    @property
    def missed_estimate(self) -> int:
        return self.gap_to - self.gap_from + 1


class Page(msgspec.Struct, frozen=True):
    """What one read gives: columns in `rows`, or `records` one by one.

    A read that asked for columns has them in `batches`, and no `rows`.
    """

    topic: str
    epoch: int
    rows: Sequence[Rows]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    scanned: int
    cold: int = 0  # of those scanned, the ones that the cold tier holds
    batches: Sequence[pa.RecordBatch] = ()  # see storage/segment/page_columns.py
    lake: int = 0  # of those scanned, the ones that only the lake has
    recent: RecentRows | None = None  # the same rows, if others may be given them, too

    @property
    def records(self) -> list[Record]:
        return [record for rows in self.rows for record in rows.records()]

    @property
    def count(self) -> int:
        if len(self.rows) == 1 and not self.batches:
            return len(self.rows[0].data)
        count = 0
        for rows in self.rows:
            count += len(rows.data)
        for batch in self.batches:
            count += batch.num_rows
        return count

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq
