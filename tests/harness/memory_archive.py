"""An archive in memory, for tests: what a lake keeps of topics, without one.

It reads a topic as a lake's writer does and never forgets a row.  What is in it outlives a crash of
the engine, as a lake does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from headrace.core.errors import LakeCorrupt
from headrace.engine.engine import Engine
from headrace.storage.archive import ArchivedPart, ArchivedTopic
from headrace.storage.block import Record
from headrace.storage.segment.page_columns import PAGE_SCHEMA

DELETED = "delete"


class _Life(NamedTuple):
    """One life of a topic: every seq up to a mark is a row, or why it is none."""

    rows: dict[int, Record]
    gaps: dict[int, str]

    @property
    def mark(self) -> int:
        return len(self.rows) + len(self.gaps)


class MemoryHistory:
    """Keeps what topics were told to have archived.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory, Engine.open(directory) as engine:
    ...     history = MemoryHistory()
    ...     engine.read_archive_from(history)
    ...     config = {"cap_records": 1, "cold_reads": "lake"}
    ...     _ = engine.append("t", [1, 2], config=config).result()
    ...     history.archive(engine, "t")
    ...     _ = engine.append("t", [3, 4]).result()
    ...     page = engine.read("t").result()
    >>> [record.data for record in page.records], page.lake
    ([b'2'], 1)
    """

    def __init__(self) -> None:
        self.lives: dict[tuple[int, int], _Life] = {}
        self.refusal: Exception | None = None  # what every read fails with

    def life(self, topic_id: int, epoch: int) -> _Life:
        return self.lives.setdefault((topic_id, epoch), _Life({}, {}))

    def take(self, engine: Engine, name: str, to_seq: int | None = None) -> int:
        """Bring in what a topic has up to a seq; returns up to where all of it is here."""
        topic = engine.state.topic(name)
        life = self.life(topic.id, topic.epoch)
        end = topic.head if to_seq is None else min(to_seq, topic.head)
        while life.mark < end:
            page = engine.read(name, life.mark, limit=end - life.mark).result()
            last = min(page.next_from_seq, end)
            told = page.tombstone
            records = {record.seq: record for record in page.records}
            for seq in range(life.mark + 1, last + 1):
                if seq in records:
                    life.rows[seq] = records[seq]
                elif told is not None and told.gap_from <= seq <= told.gap_to:
                    life.gaps[seq] = told.reason
                else:
                    life.gaps[seq] = DELETED
        return life.mark

    def archive(self, engine: Engine, name: str, to_seq: int | None = None) -> None:
        """The same, and the topic hears of it."""
        mark = self.take(engine, name, to_seq)
        engine.archives.told(name, engine.state.topic(name).epoch, mark).result()

    def parts(self, kept: ArchivedTopic, first: int, last: int) -> Iterator[ArchivedPart]:
        """See `Archive.parts`."""
        if self.refusal is not None:
            raise self.refusal
        life = self.life(kept.topic_id, kept.epoch)
        while first <= last:
            part = _part(life, first, last)
            yield part
            first = part.last + 1


def _part(life: _Life, first: int, last: int) -> ArchivedPart:
    """Rows up to the next loss, or that loss."""
    records: list[Record] = []
    for seq in range(first, last + 1):
        record, reason = life.rows.get(seq), life.gaps.get(seq)
        if record is not None:
            records.append(record)
        elif reason is None:
            raise LakeCorrupt(f"seq {seq} is not here", fix="", detail={"first_seq": seq})
        elif reason != DELETED:
            if seq == first:
                while seq < last and life.gaps.get(seq + 1) == reason:
                    seq += 1
                return ArchivedPart(first, seq, None, reason)
            return ArchivedPart(first, seq - 1, _page(records))
    return ArchivedPart(first, last, _page(records))


def _page(records: list[Record]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{name: getattr(record, name) for name in PAGE_SCHEMA.names} for record in records],
        schema=PAGE_SCHEMA,
    )
