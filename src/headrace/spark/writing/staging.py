"""Staged writes: rows wait in a topic of their own until one attempt of a batch is chosen.

For plans that give other rows when they run again.  Tasks append to the staging topic, each attempt
its own rows.  When all are done, one record there says which ranges of it are the batch: the
*decision*. There is one decision for a batch, because it has a producer's number; an attempt that
comes later with another one publishes what stands.  Then the ranges are copied to their topics, in
chunks that follow from the decision, under numbers again; the decider's next record says that it is
done, and what lies below that is deleted.  So a crash anywhere leaves either no decision, and the
next attempt is as good, or one that can be carried out again from the start, or a note that it was.
Rows that are gone without that note are an error.

Nothing else removes staged rows: those of failed attempts go with the next batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from xxhash import xxh3_64_hexdigest

from headrace.api.records import Appended, Producer
from headrace.client import Client
from headrace.core.errors import (
    Forbidden,
    HeadraceError,
    ProducerFenced,
    StagedRowsLost,
    TopicNotFound,
    Unreachable,
    WriteFenced,
)
from headrace.core.limits import reserved_topic_prefixes
from headrace.spark.options import STAGED
from headrace.spark.writing.chunks import CHUNK_BYTES_MAX, CHUNK_ROWS_MAX, Chunk, Cutter
from headrace.spark.writing.sending import Sender, Sending, stored_rows

# Ranges in one record of a decision: with the longest names it stays below what a record may have.
RANGES_PER_RECORD_MAX: Final = 512
# A decision that a power failure took back would be made again, for other rows, after some of the
# first ones were published.
CONFIG: Final = {"durability": "fsync"}


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
    epoch: int | None = None  # of the staging topic; None: nothing was staged
    ranges: list[Range] = field(default_factory=list)


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """Part of a decision: which ranges are the batch, in the order of its partitions.

    Or, with `published`, the note that it was carried out.
    """

    batch: int
    text: bool = False
    ranges: list[Range] = []
    epoch: int | None = None
    published: bool = False


def _as_native(topic: str) -> str:
    """A topic's name, or for a stream's, which may have any characters, one that stands for it.

    >>> _as_native("orders"), _as_native("ds:logs/eu")
    ('orders', 'ds.3fa9a5a12d1b9c0a')
    """
    if not topic.startswith(reserved_topic_prefixes):
        return topic
    return f"{topic[:2]}.{xxh3_64_hexdigest(topic.encode())}"


class Staging:
    """The staging topic of one query, for one batch."""

    def __init__(
        self,
        client: Client,
        base: str,
        query: str,
        batch: int,
        *,
        create: bool,
        destination: str | None = None,
    ) -> None:
        self._client = client
        self._query = query
        self._batch = batch
        self._create = create
        # Begins as the destination does, for a key that may only use names with a prefix.  It is of
        # one query, and of one destination of it: another one would delete what this one has
        # staged, and take its decision for its own.
        ending = f"-{_as_native(destination)}" if destination else ""
        self.name = f"{base}{STAGED}{query}{ending}"

    def step(self, name: str) -> None:
        """What comes next: a subclass may stop here, as a crash would."""

    def stage(self, chunks: Iterable[Chunk], partition: int, *, text: bool) -> Staged:
        """Append the rows of one attempt."""
        staged = Staged(self._query, self._batch, partition, text)
        # Each attempt on its own: what an earlier one has staged stays unused.
        sending = Sending(self._client, Sender(), create=False)
        for topic, rows in chunks:
            if staged.epoch is None:
                staged.epoch = self._open()
            answer = sending.send(Chunk(self.name, rows))
            first, last = answer.first_seq, answer.last_seq
            assert first is not None and last is not None  # it was appended just now
            staged.ranges.append(Range(topic, first, last))
        if staged.epoch is not None and staged.epoch != self._epoch():
            raise self._lost(staged.ranges[0].first)
        return staged

    def commit(self, messages: Iterable[Staged], *, remove: bool = False) -> None:
        """Decide that these attempts are the batch, unless that is decided, and carry it out.

        With `remove` nobody will come back to it, and the staging topic is deleted.
        """
        self.step("decide")
        decision = self._decide(self._choice(messages))
        if decision is not None:
            self.step("publish")
            self._publish(decision)
            self.step("note")
        at = self._append([Decision(self._batch, published=True)], 1).first_seq
        assert at is not None  # it is the newest of its producer
        self.step("clean")
        if remove:
            self.remove()
        else:
            self._clean(at)
        self.step("done")

    def remove(self) -> None:
        """Delete the staging topic, or leave it behind, where it is only in the way."""
        with contextlib.suppress(HeadraceError):
            self._client.delete_topic(self.name)

    def _open(self) -> int | None:
        """The epoch of the staging topic, which is there from now on."""
        try:
            return self._epoch()
        except TopicNotFound:
            pass
        try:
            self._client.put_topic(self.name, CONFIG)
        except Forbidden:  # without the scope admin it is as any topic that an append creates
            self._client.append(self.name, [Decision(self._batch)])
        return self._epoch()

    def _epoch(self) -> int | None:
        return self._client.topic(self.name, touch=False).epoch

    def _choice(self, messages: Iterable[Staged]) -> Decision:
        """What these attempts would have the batch be."""
        ordered = sorted(messages, key=lambda message: message.partition)
        ranges = [one for message in ordered for one in message.ranges]
        epochs = {message.epoch for message in ordered if message.ranges}
        if len(epochs) > 1:  # the topic was created again, and some rows went with the first
            raise self._lost(ranges[0].first)
        if not ranges:
            self._open()
        text = any(message.text for message in ordered)
        return Decision(self._batch, text, ranges, epochs.pop() if epochs else None)

    def _decide(self, choice: Decision) -> Decision | None:
        """The decision that stands; None if it is noted that it was carried out."""
        ranges = choice.ranges
        parts = [
            msgspec.structs.replace(choice, ranges=ranges[start : start + RANGES_PER_RECORD_MAX])
            for start in range(0, max(1, len(ranges)), RANGES_PER_RECORD_MAX)
        ]
        answer = self._append(parts, 0)
        if not answer.deduped:
            return choice
        if answer.producer_seq:  # of the note
            return None
        first, count = answer.first_seq, answer.count
        assert first is not None and count is not None  # it is the newest of its producer
        parts = self._decided(first, count)
        whole = [one for part in parts for one in part.ranges]
        return msgspec.structs.replace(parts[0], ranges=whole)

    def _append(self, parts: Sequence[Decision], number: int) -> Appended:
        """Append what the decider says first (0) or second (1) of this batch."""
        producer = Producer(f"spark-decide:{self._query}", self._batch, number)
        try:
            return self._client.append(self.name, parts, producer=producer)
        except ProducerFenced as fenced:
            raise WriteFenced(
                f"batch {self._batch} comes after batch {fenced.detail.get('epoch')} was decided",
                fix="the checkpoint is older than what was written: start with a new checkpoint",
                detail={"topic": self.name, "batch": self._batch},
            ) from None

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

    def _publish(self, decision: Decision) -> None:
        sender = Sender(f"spark-publish:{self._query}", self._batch)
        sending = Sending(self._client, sender, create=self._create)
        by_topic: dict[str, list[Range]] = {}
        for one in decision.ranges:
            by_topic.setdefault(one.topic, []).append(one)
        for topic, ranges in by_topic.items():
            rows = self._read(ranges, decision)
            for table in Cutter(CHUNK_ROWS_MAX, CHUNK_BYTES_MAX).cut(rows):
                sending.send(Chunk(topic, table))
                self.step("published a chunk")
        sending.check_end()

    def _read(self, ranges: Iterable[Range], decision: Decision) -> Iterator[pa.RecordBatch]:
        for _, at, last in ranges:
            for table in stored_rows(self._client, self.name, at, last, decision.epoch):
                yield from _columns(table, decision.text).to_batches()
                at += table.num_rows
            if at <= last:
                raise self._lost(at)

    def _clean(self, at: int) -> None:
        """Delete what is below the note, which itself stays until the next one is written."""
        try:
            self._client.delete_records(self.name, before_seq=at)
        except Unreachable:
            return  # the next batch deletes it

    def _lost(self, at: int) -> StagedRowsLost:
        return StagedRowsLost(
            f"{self.name!r} has no record {at}, which batch {self._batch} needs",
            fix="somebody deleted it, or its topic, or gave that a cap or a TTL, which it must not "
            "have; if the task or the query fails again with this, start with a new "
            "checkpoint after what was last published",
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
