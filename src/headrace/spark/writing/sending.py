"""Chunks sent so that each is stored once: numbered by a producer, or under a key.

Only this file tells a repeat that is fine from one that is not: the server answers a repeat with
the seqs of what it has stored, while it remembers them, and these must be the rows that were sent
now.  So they are read back, which costs nothing where nothing is repeated.  And the last chunk that
is sent must be the last that the server has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from xxhash import xxh3_128_digest

from headrace.api.records import Appended, Producer
from headrace.client import Client
from headrace.core.clock import SystemClock
from headrace.core.errors import (
    BatchTooLarge,
    ConfigError,
    Forbidden,
    HeadraceError,
    InvalidRequest,
    PayloadTooLarge,
    PlanNotDeterministic,
    ProducerFenced,
    ProducerGap,
    RecordTooLarge,
    RowsRefused,
    TopicNotFound,
    WriteFenced,
)
from headrace.spark.writing.chunks import CHUNK_ROWS_MAX, Chunk

# Below this a call that is tried again once or twice may be stored twice.
WINDOW_MS_MIN: Final = 30_000
# A call under a key is given up so long before the topic may have forgotten the key.
WINDOW_MARGIN_MS: Final = 10_000

# Each costs a producer on the server, and a number here.
TOPICS_PER_TASK_MAX: Final = 10_000


class Sender(NamedTuple):
    """Under whose name chunks are sent.

    With `producer` the server remembers the last chunk for as long as the topic: a repeat is
    recognised however late it comes.  With `key` it remembers every chunk for the topic's window,
    and nothing for ever; chunks that may have been sent before, since `key_since_ms`, are refused
    if that is longer ago.  With neither each call is on its own.
    """

    producer: str | None = None
    epoch: int = 0
    key: str | None = None
    key_since_ms: int | None = None


class Sending:
    """The chunks of one task, to any number of topics."""

    def __init__(self, client: Client, sender: Sender, *, create: bool) -> None:
        self._client = client
        self._sender = sender
        self._create = None if create else False
        self._last: dict[str, Appended] = {}
        self._numbers: dict[str, int] = {}
        self._windows_ms: dict[str, int | None] = {}  # None: it is not known
        # Since when what comes next may have been sent before; chunks go out in one order, so that
        # nothing behind the first new one has.
        self._since_ms = sender.key_since_ms

    def send_all(self, chunks: Iterable[Chunk]) -> int:
        """Send each, in order; how many rows there were."""
        rows = 0
        for chunk in chunks:
            self.send(chunk)
            rows += chunk.rows.num_rows
        self.check_end()
        return rows

    def send(self, chunk: Chunk) -> Appended:
        """Send the next chunk of its topic, for as long as the client tries."""
        topic = chunk.topic
        number = self._numbers.get(topic, 0)
        if not number and len(self._numbers) >= TOPICS_PER_TASK_MAX:
            raise RowsRefused(
                f"a task writes to more than {TOPICS_PER_TASK_MAX} topics",
                fix="repartition by topic, so that each task has fewer of them",
            )
        if self._sender.key is not None:
            self._check_window(topic)
        try:
            answer = self._append(chunk, number)
        except ProducerFenced as fenced:
            raise _older(topic, self._sender, fenced) from None
        except ProducerGap as gap:
            raise _lost(topic, gap) from None
        except (BatchTooLarge, PayloadTooLarge, RecordTooLarge, InvalidRequest) as refused:
            if "expected" in refused.detail:  # of a producer whose newest append is of before
                raise _lost(topic, refused) from None
            raise RowsRefused(
                f"{topic!r} does not take a chunk of {chunk.rows.num_rows} rows and "
                f"{chunk.rows.nbytes} bytes: {refused.message}",
                fix=refused.fix,
                detail={**refused.detail, "code": refused.code},
            ) from None
        if answer.deduped:
            self._compare(chunk, answer)
        else:
            self._since_ms = None
        self._last[topic] = answer
        self._numbers[topic] = number + 1
        return answer

    def skip(self, topic: str) -> None:
        """The next chunk of a topic is known to be stored: it is not sent, and has its number."""
        self._numbers[topic] = self._numbers.get(topic, 0) + 1

    def check_end(self) -> None:
        """All is sent: the last of each topic must be what the server has last of this producer."""
        for topic, answer in self._last.items():
            now, before = self._numbers[topic], (answer.producer_seq or 0) + 1
            if now < before:
                what = f"a task has {now} chunks for {topic!r} now and had {before}"
                raise _differs(topic, what, now, before)

    def _check_window(self, topic: str) -> None:
        """Refuse to rely on keys that the topic has forgotten, or forgets at once."""
        if topic not in self._windows_ms:
            self._windows_ms[topic] = self._window_ms(topic)
        window_ms, since_ms = self._windows_ms[topic], self._since_ms
        if window_ms is None:
            return
        late = since_ms is not None and SystemClock().wall_ms() - since_ms > window_ms
        if late or window_ms < WINDOW_MS_MIN:
            why = "this task ran before, longer ago" if late else "a repeat may come later"
            raise ConfigError(
                f"{topic!r} knows a repeat for {window_ms} ms, and {why}: rows could be stored "
                "twice",
                fix="give the write a writeId, by which a repeat is known however late it comes, "
                "or raise idempotency_window_ms of the topic",
                detail={"topic": topic, "window_ms": window_ms},
            )

    def _window_ms(self, topic: str) -> int | None:
        try:
            config = self._client.topic(topic, touch=False).config
        except (Forbidden, TopicNotFound):
            return None
        return int(config["idempotency_window_ms"])

    def _append(self, chunk: Chunk, number: int) -> Appended:
        sender = self._sender
        producer = key = deadline_ms = None
        if sender.producer is not None:
            producer = Producer(sender.producer, sender.epoch, number)
        elif sender.key is not None:
            key = f"{sender.key}/{number}"
            deadline_ms = (self._windows_ms[chunk.topic] or WINDOW_MS_MIN) - WINDOW_MARGIN_MS
        return self._client.append_arrow(
            chunk.topic,
            chunk.rows,
            idempotency_key=key,
            producer=producer,
            create=self._create,
            deadline_ms=deadline_ms,
        )

    def _compare(self, chunk: Chunk, answer: Appended) -> None:
        """Refuse to go on behind rows that are not those which were sent for them."""
        topic, rows, stored = chunk.topic, chunk.rows.num_rows, answer.count
        if stored is None:
            return  # a number of long ago, which is known, and the seqs of its rows are not
        if rows != stored:
            what = f"a chunk for {topic!r} has {rows} rows now and had {stored}"
            raise _differs(topic, what, rows, stored)
        if self._stored_digest(topic, answer) not in (None, _digest(chunk.rows)):
            what = f"a chunk for {topic!r} has {rows} rows, and other ones than"
            raise _differs(topic, what, rows, stored)

    def _stored_digest(self, topic: str, answer: Appended) -> bytes | None:
        """Of the rows that stand for a repeat; None if they are gone, or not ours to read."""
        first, last, count = answer.first_seq, answer.last_seq, answer.count
        assert first is not None and last is not None and count is not None
        try:
            parts = list(stored_rows(self._client, topic, first, last))
        except (Forbidden, TopicNotFound):
            return None
        if sum(part.num_rows for part in parts) < count:
            return None
        return _digest(pa.concat_tables(part.select(["data"]) for part in parts))


def stored_rows(
    client: Client, topic: str, first: int, last: int, epoch: int | None = None
) -> Iterator[pa.Table]:
    """The records `first` to `last` in order, up to the first one that is not there any more."""
    at = first
    while at <= last:
        limit = min(last - at + 1, CHUNK_ROWS_MAX)
        page = client.diff_arrow(topic, at - 1, limit=limit, epoch=epoch)
        table, count = page.table, page.table.num_rows
        seqs = table.column("seq")
        if page.tombstone is not None or not count:
            return
        if (seqs[0].as_py(), seqs[count - 1].as_py()) != (at, at + count - 1):
            return
        yield table
        at += count


def _digest(rows: pa.Table) -> bytes:
    """Of the data, however it is cut and typed."""
    values = rows["data"].cast(pa.large_binary()).to_pylist()
    return xxh3_128_digest(msgspec.msgpack.encode(values))


def _differs(topic: str, what: str, now: int, stored: int) -> PlanNotDeterministic:
    difference = f"{what} when it was written before"
    return PlanNotDeterministic(
        f"{difference}: this query gives other rows when it runs again",
        fix="remove what differs from run to run (rand, current_timestamp in a UDF, an order "
        "that is not total), or write with mode=staged from the start: rows of this batch that "
        "are stored stay, so that it cannot change over half-way",
        detail={"topic": topic, "difference": difference, "now": now, "stored": stored},
    )


def _lost(topic: str, gap: HeadraceError) -> ProducerGap:
    return ProducerGap(
        f"{topic!r} has lost what this task wrote before: {gap.message}",
        fix="it was deleted meanwhile, or its class lost it in a crash; the task, or the query, "
        "has to run again",
        detail=gap.detail,
    )


def _older(topic: str, sender: Sender, fenced: ProducerFenced) -> WriteFenced:
    return WriteFenced(
        f"batch {sender.epoch} comes after batch {fenced.detail.get('epoch')} was written to "
        f"{topic!r} by {sender.producer!r}",
        fix="the checkpoint is older than what was written: start with a new checkpoint (or a new "
        "writeId, or a higher writeVersion); for a task that was given up it means nothing",
        detail={"topic": topic, "batch": sender.epoch, "written": fenced.detail.get("epoch")},
    )
