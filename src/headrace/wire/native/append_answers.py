"""The answer to an append: what its records were given, how long it took, and its count."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.engine.appending.pending_append import Appended, PendingAppend, Times
from headrace.engine.topics.config import FSYNC
from headrace.metrics.requests import Metrics
from headrace.wire.native.answers import milliseconds
from headrace.wire.native.number_list import listed


class LogTimes(NamedTuple):
    """What all answers to one commit end with: how long the log took."""

    body: str
    timing: str


NOTHING_SAID: Final = LogTimes("", "")


def log_times(times: Times, durability: str | None) -> LogTimes:
    """What all answers to a commit of this class end with."""
    wal = milliseconds(times.write_ns)
    fsync = milliseconds(times.sync_ns) if durability == FSYNC and times.sync_ns else "0.0"
    waited = waited_timing = ""
    if times.window_ns:
        waited = f',"throttle_wait_ms":{milliseconds(times.window_ns)}'
        waited_timing = f", throttle_wait;dur={milliseconds(times.window_ns)}"
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


def answer_body(
    pending: PendingAppend, begins: str, with_seqs: bool, total: str, said: LogTimes
) -> bytes:
    """The answer to an append that took `total` milliseconds; `begins` is all up to the name."""
    topic, block = pending.topic, pending.block
    if topic is None or block is None:
        given = _given_before(pending.result(), with_seqs)
        return f"{begins}{given}{total}{said.body}".encode()
    first, last, seqs = block.first_seq, str(pending.head), ""
    if block.count == 1:
        start = last
        if with_seqs:
            seqs = f',"seqs":[{last}]'
    else:
        start = str(first)
        if with_seqs:
            seqs = _seqs(first, pending.head)
    return (
        f'{begins},"first_seq":{start},"last_seq":{last}{seqs},"head_seq":{last},'
        f'"count":{block.count},"created":{"true" if pending.created else "false"},'
        f'"deduped":false,"epoch":{topic.epoch},"performance":{{"server_total_ms":{total}'
        f"{said.body}"
    ).encode()


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
