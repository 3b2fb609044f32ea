"""The answer to an append: what its records were given, how long it took, and its count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from headrace.engine.appending.pending_append import Appended, PendingAppend, Times
from headrace.engine.topics.config import FSYNC
from headrace.metrics.requests import Metrics
from headrace.wire.exchange import JSON, WholeAnswer
from headrace.wire.native.answers import MILLISECONDS, SERVER_TIMING, milliseconds
from headrace.wire.native.number_list import listed


class LogTimes(NamedTuple):
    """What all answers to one commit end with: how long the log took."""

    body: str
    timing: str


NOTHING_SAID: Final = LogTimes("", "")


def log_times(times: Times, durability: str | None) -> LogTimes:
    """What all answers to a commit of this class end with."""
    sync_ns, write_ns, window_ns = times
    wal = MILLISECONDS[write_ns // 1_000]
    fsync = milliseconds(sync_ns) if sync_ns and durability == FSYNC else "0.0"
    waited = waited_timing = ""
    if window_ns:
        waited = f',"throttle_wait_ms":{milliseconds(window_ns)}'
        waited_timing = f", throttle_wait;dur={milliseconds(window_ns)}"
    body = f',"wal_append_ms":{wal},"fsync_ms":{fsync}{waited}}}}}'
    timing = f", wal_append;dur={wal}, fsync;dur={fsync}{waited_timing}"
    return LogTimes(body, timing)


class AppendCounts:
    """Appends of one class that were answered together."""

    __slots__ = ("bytes", "durations_ns", "records")

    def __init__(self) -> None:
        self.records: list[int] = []  # of each
        self.durations_ns: list[int] = []
        self.bytes = 0  # of all


# By the class of their topics; None: the topic is gone by now, and they are not counted.
CountedAppends = dict[str | None, AppendCounts]


def count_appends(metrics: Metrics, counted: CountedAppends) -> None:
    """Count appends that were answered."""
    for durability, counts in counted.items():
        if durability is not None:
            metrics.appended_all(
                durability, "native", counts.records, counts.bytes, counts.durations_ns
            )


_EXCHANGE: Final = itemgetter(0)  # of an answer
_BODY: Final = attrgetter("body")


class AppendHead:
    """What the head of an append says."""

    __slots__ = ("begins", "conditional", "name", "with_seqs")

    def __init__(self, name: str, begins: str, *, conditional: bool, with_seqs: bool) -> None:
        self.name = name
        self.begins = begins  # the answer, up to the name
        self.conditional = conditional  # its headers have conditions
        self.with_seqs = with_seqs


class StoredAnswers:
    """Answers to appends of one commit, to topics of one class."""

    __slots__ = ("_durability", "answers", "created", "durations_ns", "records", "said")

    def __init__(self, durability: str | None, times: Times) -> None:
        assert durability is not None  # as every topic has one
        self._durability = durability
        self.said = log_times(times, durability)
        self.answers: list[WholeAnswer] = []
        self.created: list[WholeAnswer] = []  # those whose topics the append made
        self.records: list[int] = []  # of each append
        self.durations_ns: list[int] = []

    def send(self, metrics: Metrics) -> None:
        """Answer the requests, and count them."""
        answers, created = self.answers, self.created
        size = sum(map(len, map(_BODY, map(_EXCHANGE, answers + created if created else answers))))
        if answers:
            answers[0][0].answer_all(answers, SERVER_TIMING)
        for exchange, body, timing in created:
            exchange.answer(201, body, JSON, ((SERVER_TIMING, timing),))
        metrics.appended_all(self._durability, "native", self.records, size, self.durations_ns)


def stored_answers(
    appends: Sequence[PendingAppend], now_ns: int
) -> tuple[Iterable[StoredAnswers], list[PendingAppend]]:
    """The answers to appends that were stored together; and the appends that have another one."""
    of_classes: dict[str | None, StoredAnswers] = {}
    others: list[PendingAppend] = []
    durability: str | None = None
    for pending in appends:
        exchange, head = pending.caller
        topic, block = pending.topic, pending.block
        if topic is None or block is None or pending.error is not None or exchange.answered:
            others.append(pending)
            continue
        try:
            if topic.config.durability != durability:
                durability = topic.config.durability
                if durability not in of_classes:
                    of_classes[durability] = StoredAnswers(durability, pending.times)
                of_class = of_classes[durability]
                ends, timing = of_class.said
                records, durations_ns = of_class.records, of_class.durations_ns
            ns = now_ns - exchange.started_ns
            total, last = MILLISECONDS[ns // 1_000], str(pending.head)
            if block.count == 1 and head.with_seqs:  # nearly always
                given = f'{last},"last_seq":{last},"seqs":[{last}],"head_seq":{last},"count":1'
            else:
                given = _given(block.first_seq, pending.head, block.count, head.with_seqs)
            text = (
                f'{head.begins},"first_seq":{given},"created":'
                f'{"true" if pending.created else "false"},"deduped":false,"epoch":{topic.epoch},'
                f'"performance":{{"server_total_ms":{total}{ends}'
            )
            answer = exchange, text.encode(), f"total;dur={total}{timing}".encode()
            (of_class.created if pending.created else of_class.answers).append(answer)
            records.append(block.count)
            durations_ns.append(ns)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the client hears of it
            exchange.fail(failure)
    return of_classes.values(), others


def _given(first: int, last: int, count: int, with_seqs: bool) -> str:
    """What was given to an append, behind the name of the first field."""
    seqs = _seqs(first, last) if with_seqs else ""
    return f'{first},"last_seq":{last}{seqs},"head_seq":{last},"count":{count}'


def repeat_body(pending: PendingAppend, head: AppendHead, total: str, said: LogTimes) -> bytes:
    """The answer to an append that had been stored before."""
    before = _given_before(pending.result(), head.with_seqs)
    return f"{head.begins}{before}{total}{said.body}".encode()


def published(pending: PendingAppend, with_seqs: bool) -> str:
    """What was given to an append over a WebSocket, whose answers have other fields."""
    block = pending.block
    if block is None:
        done = pending.result()
        first, last, head, count = done.first_seq, done.last_seq, done.head_seq, done.count
        # Only a producer's repeat may have none, and nobody publishes as one.
        assert first is not None and last is not None
        created, deduped = "false", "true"
    else:
        first, last, head, count = block.first_seq, pending.head, pending.head, block.count
        created, deduped = "true" if pending.created else "false", "false"
    seqs = _seqs(first, last) if with_seqs else ',"seqs":null'
    return (
        f',"first_seq":{first},"last_seq":{last}{seqs},"head_seq":{head},"count":{count},'
        f'"created":{created},"deduped":{deduped},"performance":{{"server_total_ms":'
    )


def _given_before(done: Appended, with_seqs: bool) -> str:
    """What was given to an append that had been stored before, up to the time it took."""
    first, last = done.first_seq, done.last_seq
    if first is None or last is None:  # a producer's repeat whose seqs are forgotten
        given = f',"head_seq":{done.head_seq}'
    else:
        seqs = _seqs(first, last) if with_seqs else ""
        given = (
            f',"first_seq":{first},"last_seq":{last}{seqs},"head_seq":{done.head_seq},'
            f'"count":{done.count}'
        )
    if done.producer_sequence is not None:
        given += f',"producer_seq":{done.producer_sequence}'
    return (
        f'{given},"created":false,"deduped":true,"epoch":{done.epoch},'
        '"performance":{"server_total_ms":'
    )


def _seqs(first: int, last: int) -> str:
    """The seqs that an append was given."""
    return f',"seqs":[{listed(first, last)}]'
