"""Rule C1 of streams: age goes by arrival, whatever timestamps their writers give."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.engine.engine import Engine
from headrace.engine.topics.config import make_config
from headrace.storage.block import KIND_BYTES, Batch
from tests.support.engines import Start
from tests.support.seqs import seqs_read
from tests.support.stream_calls import create, write

TTL_MS = 1_000


def make(engine: Engine, clock: ManualClock, stamps: list[list[int]]) -> None:
    """A stream with an append at each millisecond."""
    create(engine, "t", config=make_config({"durability": "fsync", "ttl_ms": TTL_MS}))
    for given in stamps:
        batch = Batch([b"x"] * len(given), KIND_BYTES, timestamps=given)
        write(engine, "t", batch).result()
        clock.advance(1)


def in_files(engine: Engine, restart: Start, how: str) -> Engine:
    """The same engine with its records elsewhere."""
    if how == "memory":
        return engine
    engine = restart(engine)
    assert len(engine.state.topic("t").blocks) == 0
    return engine


@pytest.mark.parametrize("how", ["memory", "sealed"])
@pytest.mark.parametrize("stamps", [[[1], [2, 3], [4]], [[2**62], [2**62], [2**62 + 1]]])
def test_records_expire_by_arrival(
    engine: Engine, clock: ManualClock, restart: Start, how: str, stamps: list[list[int]]
) -> None:
    make(engine, clock, stamps)
    engine = in_files(engine, restart, how)
    everything = list(range(1, 1 + sum(map(len, stamps))))
    assert seqs_read(engine) == everything
    clock.advance(TTL_MS - len(stamps))  # the first is exactly as old as the TTL
    assert seqs_read(engine) == everything
    clock.advance(1)
    assert seqs_read(engine) == everything[1:]
    clock.advance(1)
    assert seqs_read(engine) == everything[-1:]
    clock.advance(1)
    assert seqs_read(engine) == []
    assert engine.streams.info("t").earliest_seq == everything[-1] + 1


def test_arrivals_are_kept_by_merges(engine: Engine, clock: ManualClock, restart: Start) -> None:
    make(engine, clock, [[1]])
    for stamp in range(2, 12):
        engine.checkpoint().result()
        write(engine, "t", Batch([b"x"], KIND_BYTES, timestamps=[stamp])).result()
        clock.advance(1)
    engine = in_files(engine, restart, "sealed")
    engine.checkpoint().result()
    clock.advance(TTL_MS - 5)
    assert seqs_read(engine) == [7, 8, 9, 10, 11]


def test_a_restart_changes_no_age(engine: Engine, clock: ManualClock, again: Start) -> None:
    make(engine, clock, [[1], [1], [1]])
    clock.advance(TTL_MS - 3)
    for left in ([1, 2, 3], [2, 3], [3], []):
        engine = again(engine)
        assert seqs_read(engine) == left
        clock.advance(1)


def test_what_is_young_is_not_looked_for_again(engine: Engine, clock: ManualClock) -> None:
    make(engine, clock, [[1], [1]])
    assert seqs_read(engine) == [1, 2]
    topic = engine.state.topic("t")
    now = clock.wall_ms()
    assert topic.is_young(now) and topic.oldest == (0, now - 2)
    assert not topic.is_young(now + TTL_MS)
    clock.advance(TTL_MS - 1)
    assert seqs_read(engine) == [2]
    assert topic.oldest == (1, now - 1)
    capped = make_config({"durability": "fsync", "ttl_ms": TTL_MS, "cap_records": 1})
    engine.streams.update("t", config=capped).result()
    write(engine, "t", b"y").result()
    assert seqs_read(engine) == [3]  # a cap does not go by age
