"""Chunks sent so that each is stored once: numbered by a producer, or under a key.

Only this file tells a repeat that is fine from one that is not: the server answers a repeat with
what it has stored, and that must be as many rows as were sent now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from headrace.client import Client
from headrace.client.models import Appended, Producer
from headrace.core.errors import (
    BatchTooLarge,
    InvalidRequest,
    PayloadTooLarge,
    PlanNotDeterministic,
    ProducerFenced,
    ProducerGap,
    RecordTooLarge,
    RowsRefused,
    WriteFenced,
)
from headrace.spark.chunks import Chunk

# Each costs a producer on the server, and a number here.
TOPICS_PER_TASK_MAX: Final = 10_000


class Sender(NamedTuple):
    """Under whose name chunks are sent.

    With `producer` the server remembers the last chunk for as long as the topic: a repeat is
    recognised however late it comes.  With `key` it remembers every chunk for the topic's window,
    and nothing for ever.  With neither each call is on its own.
    """

    producer: str | None = None
    epoch: int = 0
    key: str | None = None


class Sent(NamedTuple):
    """What a chunk was sent as, and what was said to it."""

    rows: int
    answer: Appended


class Sending:
    """The chunks of one task, to any number of topics."""

    def __init__(self, client: Client, sender: Sender, *, create: bool) -> None:
        self._client = client
        self._sender = sender
        self._create = None if create else False
        self._last: dict[str, Sent] = {}
        self._numbers: dict[str, int] = {}

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
        try:
            answer = self._append(chunk, number)
        except ProducerFenced as fenced:
            raise _older(topic, self._sender, fenced) from None
        except ProducerGap as gap:
            raise ProducerGap(
                f"{topic!r} has lost what this task wrote before: {gap.message}",
                fix="it was deleted meanwhile, or its class lost it in a crash; the task, or the "
                "query, has to run again",
                detail=gap.detail,
            ) from None
        except (BatchTooLarge, PayloadTooLarge, RecordTooLarge, InvalidRequest) as refused:
            raise RowsRefused(
                f"{topic!r} does not take a chunk of {chunk.rows.num_rows} rows and "
                f"{chunk.rows.nbytes} bytes: {refused.message}",
                fix=refused.fix,
                detail={**refused.detail, "code": refused.code},
            ) from None
        sent = Sent(chunk.rows.num_rows, answer)
        self._check(topic, sent)
        self._last[topic] = sent
        self._numbers[topic] = number + 1
        return answer

    def check_end(self) -> None:
        """All is sent: the last of each topic must be what the server has last of this producer."""
        for topic, sent in self._last.items():
            if sent.answer.deduped:
                _compare(topic, sent)

    def _append(self, chunk: Chunk, number: int) -> Appended:
        sender = self._sender
        producer = key = None
        if sender.producer is not None:
            producer = Producer(sender.producer, sender.epoch, number)
        elif sender.key is not None:
            key = f"{sender.key}/{number}"
        return self._client.append_arrow(
            chunk.topic, chunk.rows, idempotency_key=key, producer=producer, create=self._create
        )

    def _check(self, topic: str, sent: Sent) -> None:
        """Compare a repeat where it can be told which chunk the answer is about.

        A producer's repeat is answered with its newest append.  If the chunk after it was new, then
        that was this one; as long as they are repeats, another attempt may be ahead of us.
        """
        if self._sender.producer is None:
            if sent.answer.deduped:
                _compare(topic, sent)
            return
        before = self._last.get(topic)
        if before is not None and before.answer.deduped and not sent.answer.deduped:
            _compare(topic, before)


def _compare(topic: str, sent: Sent) -> None:
    if sent.rows != sent.answer.count:
        raise PlanNotDeterministic(
            f"a chunk for {topic!r} has {sent.rows} rows now and had {sent.answer.count} when it "
            "was written before: this query gives other rows when it runs again",
            fix="set option mode=staged, or remove what differs from run to run (rand, "
            "current_timestamp in a UDF, an order that is not total)",
            detail={"topic": topic, "rows": sent.rows, "stored": sent.answer.count},
        )


def _older(topic: str, sender: Sender, fenced: ProducerFenced) -> WriteFenced:
    return WriteFenced(
        f"batch {sender.epoch} comes after batch {fenced.detail.get('epoch')} was written to "
        f"{topic!r} by {sender.producer!r}",
        fix="the checkpoint is older than what was written: start with a new checkpoint (or a new "
        "writeId, or a higher writeVersion); for a task that was given up it means nothing",
        detail={"topic": topic, "batch": sender.epoch, "written": fenced.detail.get("epoch")},
    )
