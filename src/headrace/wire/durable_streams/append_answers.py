"""The answers to appends: those of a commit are formatted together, by their form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Final

from headrace.engine.appending.pending_append import Appended, PendingAppend
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.streams.spec import Position
from headrace.metrics.requests import Metrics
from headrace.wire.durable_streams.errors import (
    CLOSED,
    NEXT_OFFSET,
    PRODUCER_EPOCH,
    PRODUCER_SEQ,
)
from headrace.wire.durable_streams.offsets import offset_text
from headrace.wire.exchange import EmptyAnswer, Header

_OFFSET: Final = b"%b: %%016d_%%016d\r\n" % NEXT_OFFSET  # as `offset_text` writes it
_NUMBERS: Final = b"%b: %%d\r\n%b: %%d\r\n" % (PRODUCER_EPOCH, PRODUCER_SEQ)
_CLOSED: Final = b"%b: %b\r\n" % CLOSED
# Status and header lines, by whether a producer wrote, and two more where the stream was closed.
_FORMS: Final = (
    (204, _OFFSET),
    (200, _OFFSET + _NUMBERS),
    (204, _OFFSET + _CLOSED),
    (200, _OFFSET + _NUMBERS + _CLOSED),
)
_EXCHANGE: Final = itemgetter(0)  # of an answer
_BODY: Final = attrgetter("body")


class StoredAnswers:
    """Answers to appends that were stored together, in topics of one class."""

    __slots__ = ("_durability", "durations_ns", "forms", "records")

    def __init__(self, durability: str | None) -> None:
        assert durability is not None  # as every topic has one
        self._durability = durability
        self.forms = tuple(list[EmptyAnswer]() for _ in _FORMS)
        self.records: list[int] = []  # of each append
        self.durations_ns: list[int] = []

    def send(self, metrics: Metrics, dialect: str) -> None:
        """Answer the requests, and count them."""
        size = 0
        for (status, lines), answers in zip(_FORMS, self.forms, strict=True):
            if answers:
                size += sum(map(len, map(_BODY, map(_EXCHANGE, answers))))
                answers[0][0].answer_empty(answers, status, lines)
        metrics.appended_all(self._durability, dialect, self.records, size, self.durations_ns)


def stored_answers(
    appends: Sequence[PendingAppend], now_ns: int
) -> tuple[Iterable[StoredAnswers], list[PendingAppend]]:
    """The answers to appends that were stored together; and the appends that have another one."""
    of_classes: dict[str | None, StoredAnswers] = {}
    others: list[PendingAppend] = []
    durability: str | None = None
    for pending in appends:
        exchange, head = pending.caller
        topic, block, claim = pending.topic, pending.block, pending.how.producer
        if topic is None or block is None or pending.error is not None or exchange.answered:
            others.append(pending)
            continue
        try:
            if topic.config.durability != durability:
                durability = topic.config.durability
                if durability not in of_classes:
                    of_classes[durability] = StoredAnswers(durability)
                of_class = of_classes[durability]
                forms, records, durations_ns = (
                    of_class.forms, of_class.records, of_class.durations_ns
                )  # fmt: skip
            values: tuple[int, ...] = (topic.epoch, pending.head)
            form = 2 if head.closes else 0
            if claim is not None:
                values += claim[1:]
                form += 1
            forms[form].append((exchange, values))
            records.append(block.count)
            durations_ns.append(now_ns - exchange.started_ns)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the client hears of it
            exchange.fail(failure)
    return of_classes.values(), others


def repeat_headers(done: Appended, claim: ProducerClaim, tail: Position | None) -> list[Header]:
    """The headers of the answer to what a producer had sent before; `tail` of a closed stream."""
    highest = done.producer_sequence
    headers = [
        (PRODUCER_EPOCH, b"%d" % claim.epoch),
        (PRODUCER_SEQ, b"%d" % (claim.sequence if highest is None else highest)),
    ]
    if tail is not None:
        headers += ((NEXT_OFFSET, offset_text(tail)), CLOSED)
    return headers


def closed_headers(claim: ProducerClaim | None, tail: Position) -> list[Header]:
    """The headers of the answer to a close without a record."""
    headers = [(NEXT_OFFSET, offset_text(tail)), CLOSED]
    if claim is not None:
        headers.append((PRODUCER_EPOCH, b"%d" % claim.epoch))
        headers.append((PRODUCER_SEQ, b"%d" % claim.sequence))
    return headers
