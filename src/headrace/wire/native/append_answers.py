"""The answer to an append, as text: what its records were given, and how long it took."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.engine.appending.pending_append import Appended, PendingAppend, Times
from headrace.engine.topics.config import FSYNC
from headrace.wire.native.answers import encode

# Milliseconds for every microsecond up to here: to format a float takes several times as long as
# to look it up, and an answer has two of them, or three.
_MS_COUNT: Final = 10_000
_MS: Final = tuple(f"{us / 1000:.3f}" for us in range(_MS_COUNT))


class LogTimes(NamedTuple):
    """What all answers to one commit end with: how long the log took."""

    times: Times
    of: str | None  # the class of the topic
    body: str
    timing: str


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
    return LogTimes(times, durability, body, timing)


def given(pending: PendingAppend, with_seqs: bool) -> str:
    """The part of an answer that says what the records were given, up to the time it took."""
    topic, block = pending.topic, pending.block
    if topic is None or block is None or pending.repeats:
        return _given_before(pending.result(), with_seqs)
    first, last = block.first_seq, pending.head
    seqs = _seqs(first, last) if with_seqs else ""
    return (
        f',"first_seq":{first},"last_seq":{last}{seqs},"head_seq":{last},"count":{block.count},'
        f'"created":{"true" if pending.created else "false"},"deduped":false,'
        f'"epoch":{topic.epoch},"performance":{{"server_total_ms":'
    )


def _given_before(done: Appended, with_seqs: bool) -> str:
    """The same of an append that had been stored before."""
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
    listed = f"[{first}]" if first == last else encode([*range(first, last + 1)]).decode()
    return f',"seqs":{listed}'


def milliseconds(ns: int) -> str:
    """Nanoseconds as milliseconds.

    >>> milliseconds(1_234_567), milliseconds(12_345_678)
    ('1.234', '12.346')
    """
    us = ns // 1000
    return _MS[us] if us < _MS_COUNT else f"{ns / 1e6:.3f}"
