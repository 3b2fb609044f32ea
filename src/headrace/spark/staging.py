"""Staged writes: rows wait in a topic of their own until one attempt of a batch is chosen.

For plans that give other rows when they run again.  Tasks append to the staging topic, each attempt
anew.  When all are done, one record there says which ranges of it are the batch: the *decision*.
There is one decision for a batch, because it has a producer's number; whoever comes later with
another one publishes what stands.  Then the ranges are copied to their topics, in chunks that
follow from the decision, under numbers again; and what lies below the decision is deleted, in one
step.  So a crash anywhere leaves either no decision, and the next attempt is as good, or one that
can be carried out again from the start.  Rows below a decision that are gone were published.

Nothing else removes staged rows: those of failed attempts go with the next batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from headrace.client import Client
from headrace.client.models import Producer
from headrace.core.errors import ProducerFenced, StagedRowsLost, Unreachable, WriteFenced
from headrace.spark.chunks import CHUNK_BYTES_MAX, CHUNK_ROWS_MAX, Chunk, Cutter
from headrace.spark.sending import Sender, Sending

# Ranges in one record of a decision: with the longest names it stays below what a record may have.
RANGES_PER_RECORD_MAX: Final = 2_048
READ_ROWS_MAX: Final = CHUNK_ROWS_MAX


class Range(NamedTuple):
    """Staged rows `first` to `last` are for `topic`."""

    topic: str
    first: int
    last: int


@dataclass
class Staged(WriterCommitMessage):
    """What one attempt of a task has staged."""

    query: str
    batch: int
    partition: int
    text: bool  # `data` is JSON text, not bytes
    ranges: list[Range] = field(default_factory=list)


class Decision(msgspec.Struct, frozen=True):
    """Part of a decision: which ranges are the batch, in the order of its partitions."""

    batch: int
    text: bool
    ranges: list[Range]


class Staging:
    """The staging topic of one query, for one batch."""

    def __init__(self, client: Client, base: str, query: str, batch: int, *, create: bool) -> None:
        self._client = client
        self._query = query
        self._batch = batch
        self._create = create
        # Begins as the destination does, for a key that may only use names with a prefix.  It is of
        # one query: another one would delete what this one has staged.
        self.name = f"{base}.staged-{query}"

    def step(self, name: str) -> None:
        """What comes next: a subclass may stop here, as a crash would."""

    def stage(self, chunks: Iterable[Chunk], partition: int, *, text: bool) -> Staged:
        """Append the rows of one attempt."""
        staged = Staged(self._query, self._batch, partition, text)
        # Each attempt on its own: what an earlier one has staged stays unused.
        sending = Sending(self._client, Sender(), create=True)
        for topic, rows in chunks:
            answer = sending.send(Chunk(self.name, rows))
            staged.ranges.append(Range(topic, answer.first_seq, answer.last_seq))
        return staged

    def commit(self, messages: Iterable[Staged]) -> None:
        """Decide that these attempts are the batch, unless that is decided, and carry it out."""
        ordered = sorted(messages, key=lambda message: message.partition)
        ranges = [one for message in ordered for one in message.ranges]
        text = any(message.text for message in ordered)
        self.step("decide")
        at, decision = self._decide(text, ranges)
        self.step("publish")
        if not self._is_published(decision.ranges):
            self._publish(decision)
        self.step("clean")
        self._clean(at)
        self.step("done")

    def remove(self) -> None:
        """Delete the staging topic: nobody will come back to this batch."""
        try:
            self._client.delete_topic(self.name)
        except Unreachable:
            return  # it is published; what is left behind is only in the way

    def _decide(self, text: bool, ranges: Sequence[Range]) -> tuple[int, Decision]:
        """The decision that stands, and the seq of its first record."""
        parts = [
            Decision(self._batch, text, list(ranges[start : start + RANGES_PER_RECORD_MAX]))
            for start in range(0, max(1, len(ranges)), RANGES_PER_RECORD_MAX)
        ]
        producer = Producer(f"spark-decide:{self._query}", self._batch, 0)
        try:
            answer = self._client.append(self.name, parts, producer=producer)
        except ProducerFenced as fenced:
            raise WriteFenced(
                f"batch {self._batch} comes after batch {fenced.detail.get('epoch')} was decided",
                fix="the checkpoint is older than what was written: start with a new checkpoint",
                detail={"topic": self.name, "batch": self._batch},
            ) from None
        if answer.deduped:
            parts = self._decided(answer.first_seq, answer.count)
        whole = [one for part in parts for one in part.ranges]
        return answer.first_seq, Decision(self._batch, parts[0].text, whole)

    def _decided(self, first: int, count: int) -> list[Decision]:
        parts: list[Decision] = []
        at = first
        while len(parts) < count:
            page = self._client.diff(self.name, at - 1, limit=count - len(parts))
            found = [msgspec.json.decode(record.raw, type=Decision) for record in page.records]
            if not found or page.records[0].seq != at:
                raise self._lost(at)
            parts += found
            at += len(found)
        return parts

    def _is_published(self, ranges: Sequence[Range]) -> bool:
        """Only `_clean` deletes, all at once, and only what was published."""
        if not ranges:
            return True
        earliest = self._client.topic(self.name, touch=False).earliest_seq
        return max(one.last for one in ranges) < earliest

    def _publish(self, decision: Decision) -> None:
        sender = Sender(f"spark-publish:{self._query}", self._batch)
        sending = Sending(self._client, sender, create=self._create)
        by_topic: dict[str, list[Range]] = {}
        for one in decision.ranges:
            by_topic.setdefault(one.topic, []).append(one)
        for topic, ranges in by_topic.items():
            rows = self._read(ranges, decision.text)
            for table in Cutter(CHUNK_ROWS_MAX, CHUNK_BYTES_MAX).cut(rows):
                sending.send(Chunk(topic, table))
                self.step("published a chunk")
        sending.check_end()

    def _read(self, ranges: Iterable[Range], text: bool) -> Iterator[pa.RecordBatch]:
        for _, first, last in ranges:
            at = first
            while at <= last:
                limit = min(last - at + 1, READ_ROWS_MAX)
                table = self._client.diff_arrow(self.name, at - 1, limit=limit).table
                count = table.num_rows
                seqs = table.column("seq")
                if not count or (seqs[0].as_py(), seqs[count - 1].as_py()) != (at, at + count - 1):
                    raise self._lost(at)
                yield from _columns(table, text).to_batches()
                at += count

    def _clean(self, at: int) -> None:
        """Delete what is below the decision, which itself stays until the next one is done."""
        try:
            self._client.delete_records(self.name, before_seq=at)
        except Unreachable:
            return  # the next batch deletes it

    def _lost(self, at: int) -> StagedRowsLost:
        return StagedRowsLost(
            f"{self.name!r} has no record {at}, which batch {self._batch} needs",
            fix="somebody deleted it, or the topic has a cap or a TTL, which it must not have; "
            "start with a new checkpoint after what was last published",
            detail={"topic": self.name, "seq": at},
        )


def _columns(table: pa.Table, text: bool) -> pa.Table:
    """The columns of an append, from those of a read."""
    data = table.column("data")
    columns = {"data": data.cast(pa.utf8()) if text else data}
    for name in ("tag", "node", "meta"):
        column = table.column(name)
        if column.null_count < len(column):
            columns[name] = column
    return pa.table(columns)
