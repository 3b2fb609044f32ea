"""Topics whose records lie in sealed files, made by a real server, for tests of reading them."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from headrace.client import Client
from headrace.core.clock import NS_PER_MS, SystemClock
from headrace.spark.options import Connection, SourceOptions
from headrace.spark.reading.spans import Span

# Checkpoints follow each other closely, and few rows are enough for a file of a topic's own.
SETTINGS: dict[str, str | int] = {"checkpoint_age_ms": 50, "segment_max_events": 1_000}
SEALED_WITHIN_MS = 60_000
LOOK_SECONDS = 0.02


def rows_of(first: int, count: int) -> pa.Table:
    """Records with everything a record can have, and with less."""
    seqs = range(first, first + count)
    return pa.table(
        {
            "data": pa.array([b"%d\x00\xff" % n * (n % 7) for n in seqs], pa.binary()),
            "tag": pa.array([None if n % 3 == 0 else f"t{n % 10}" for n in seqs], pa.string()),
            "node": pa.array([f"n{n % 2}" if n % 5 else None for n in seqs], pa.string()),
            "meta": pa.array([f'{{"n":{n}}}' if n % 4 else None for n in seqs], pa.string()),
        }
    )


def fill(client: Client, topic: str, count: int, start: int = 1, size: int = 1_000) -> None:
    for first in range(start, start + count, size):
        client.append_arrow(topic, rows_of(first, min(size, start + count - first)))


def seal(client: Client, topic: str) -> None:
    """Wait until no record of the topic is outside of files."""
    deadline_ns = SystemClock.monotonic_ns() + SEALED_WITHIN_MS * NS_PER_MS
    while True:
        found = client.segments(topic)
        client.release_pin(topic, found.pin)
        if found.tail_from_seq > found.head_seq:
            return
        assert SystemClock.monotonic_ns() < deadline_ns, "the server does not seal"
        # A checkpoint that comes by age needs something to happen, and one needs the processor.
        client.append("sealing", [1])
        time.sleep(LOOK_SECONDS)


def span_of(client: Client, topic: str) -> Span:
    state = client.topic(topic)
    return Span(topic, state.epoch or 0, 1, state.head_seq)


def options_of(url: str, topic: str, **more: Any) -> SourceOptions:
    return SourceOptions(Connection(url), topics=(topic,), **more)
