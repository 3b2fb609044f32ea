"""Rules C: TTL and caps, exact on the next access, from memory and from sealed files."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import RecordTooLarge, Throttled, TopicFull
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start
from tests.support.seqs import seqs_read

SMALL = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10)


def sealed_only(engine: Engine, restart: Start) -> Engine:
    """Everything in files, nothing in memory."""
    engine = restart(engine)
    assert len(engine.state.topic("t").blocks) == 0
    return engine


# TTL


@pytest.mark.parametrize("sealed", [False, True])
def test_c1_a_record_expires_when_it_is_older_than_the_ttl(
    engine: Engine, clock: ManualClock, restart: Start, sealed: bool
) -> None:
    engine.append("t", [b"12345"], config={"ttl_ms": 1_000}).result()
    clock.advance(1)
    engine.append("t", [b"678"]).result()
    if sealed:
        engine = sealed_only(engine, restart)
    clock.advance(999)  # exactly as old as the TTL: still live
    assert (engine.topic("t").count, engine.topic("t").bytes, seqs_read(engine)) == (2, 8, [1, 2])
    clock.advance(1)
    state = engine.topic("t")
    assert (state.count, state.bytes, state.earliest_seq, seqs_read(engine)) == (1, 3, 2, [2])
    clock.advance(1)
    state = engine.topic("t")
    assert (state.count, state.bytes, state.earliest_seq, state.head_seq) == (0, 0, 3, 2)


def test_c1_expiry_shows_in_every_kind_of_access(engine: Engine, clock: ManualClock) -> None:
    """C5: no sweep is needed, each access applies the TTL first."""
    names = ["state", "list", "read", "delete", "put", "append"]
    for name in names:
        engine.append(name, [1, 2], config={"ttl_ms": 10}).result()
    clock.advance(11)
    assert engine.topic("state").count == 0
    assert {info.count for info in engine.topics("list")} == {0}
    assert engine.read("read").result().records == []
    assert engine.delete("delete", before_seq=3).result().deleted == 0
    engine.put_topic("put", {"ttl_ms": 10_000}).result()
    assert engine.topic("put").count == 0
    engine.append("append", [3]).result()
    assert seqs_read(engine, name="append") == [3]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(0, 200), st.booleans())
def test_c1_the_boundary_is_found_wherever_it_is(
    pauses: list[int], ttl_ms: int, checkpoint: bool
) -> None:
    clock = ManualClock(0)
    engine = Engine(SimDisk(), StepRuntime(clock), SMALL, random=SeededRandom(1))
    engine.recover()
    stamps = []
    for n, pause in enumerate(pauses):
        clock.advance(pause)
        stamps.append(engine.append("t", [n]).result().ts)
        if checkpoint and n % 7 == 3:
            engine.checkpoint().result()
            engine.state.forget_blocks(engine.state.topic("t"))
    engine.put_topic("t", {"ttl_ms": max(1, ttl_ms)}).result()
    live = [n + 1 for n, ts in enumerate(stamps) if clock.wall_ms() - ts <= max(1, ttl_ms)]
    assert seqs_read(engine) == live
    assert engine.topic("t").count == len(live)
    engine.abandon()


def test_c1_client_timestamps_count(engine: Engine, clock: ManualClock) -> None:
    now = clock.wall_ms()
    engine.append(
        "t",
        Batch([b"1", b"2", b"3"], timestamps=[now - 50, now - 5, now]),
        config={"ttl_ms": 20},
    ).result()
    assert seqs_read(engine) == [2, 3]
    clock.advance(16)
    assert seqs_read(engine) == [3]


@pytest.mark.parametrize("jump_ms", [3_600_000, 315_360_000_000, -3_600_000, -315_360_000_000])
def test_c1_a_wall_clock_jump_never_evicts_by_itself(
    engine: Engine, clock: ManualClock, jump_ms: int
) -> None:
    engine.append("t", [1, 2], config={"ttl_ms": 1_000}).result()
    clock.jump(jump_ms)
    assert engine.topic("t").count == 2
    clock.advance(1_001)
    assert engine.topic("t").count == 0


# Caps


def test_c2_six_writes_into_a_cap_of_three(engine: Engine, again: Start) -> None:
    engine.put_topic("t", {"cap_records": 3}).result()
    for n in range(6):
        engine.append("t", [n]).result()
    for _ in range(2):
        state = engine.topic("t")
        assert (state.head_seq, state.count, state.earliest_seq, state.bytes) == (6, 3, 4, 3)
        engine = again(engine)


def test_c2_a_batch_above_the_cap_evicts_part_of_itself(engine: Engine, again: Start) -> None:
    engine.append("t", [0] * 10, config={"cap_records": 4}).result()
    engine = again(engine)
    assert seqs_read(engine, from_seq=6) == [7, 8, 9, 10]
    assert engine.topic("t").count == 4


@pytest.mark.parametrize("sealed", [False, True])
def test_c3_a_byte_cap_evicts_the_oldest_until_it_fits(
    engine: Engine, restart: Start, sealed: bool
) -> None:
    sizes = [30, 10, 40, 5, 20]
    for size in sizes:
        engine.append("t", [b"x" * size]).result()
    if sealed:
        engine = sealed_only(engine, restart)
    for cap, expected in (
        (105, [1, 2, 3, 4, 5]),
        (104, [2, 3, 4, 5]),
        (65, [3, 4, 5]),
        (25, [4, 5]),
    ):
        engine.put_topic("t", {"cap_bytes": cap}).result()
        assert seqs_read(engine) == expected
        assert engine.topic("t").bytes == sum(sizes[seq - 1] for seq in expected)


def test_c3_a_record_above_the_byte_cap_leaves_nothing(engine: Engine) -> None:
    engine.append("t", [b"x" * 50], config={"cap_bytes": 10}).result()
    state = engine.topic("t")
    assert (state.head_seq, state.count, state.bytes, state.earliest_seq) == (1, 0, 0, 2)


def test_c3_either_cap_triggers(engine: Engine) -> None:
    engine.put_topic("t", {"cap_records": 3, "cap_bytes": 20}).result()
    for size in (1, 1, 1, 1):
        engine.append("t", [b"x" * size]).result()
    assert seqs_read(engine, from_seq=1) == [2, 3, 4]
    engine.append("t", [b"x" * 19]).result()
    assert seqs_read(engine, from_seq=3) == [4, 5]


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 12)),
            st.tuples(st.just("delete"), st.integers(0, 30), st.just(0)),
            st.tuples(st.just("seal"), st.just(0), st.just(0)),
        ),
        max_size=30,
    ),
    st.integers(0, 6),
    st.integers(0, 40),
)
def test_c3_counts_are_exact(
    steps: list[tuple[str, int, int]], cap_records: int, cap_bytes: int
) -> None:
    engine = Engine(SimDisk(), StepRuntime(ManualClock()), SMALL, random=SeededRandom(1))
    engine.recover()
    engine.put_topic("t", {"cap_records": cap_records, "cap_bytes": cap_bytes}).result()
    live: dict[int, int] = {}
    head = 0
    for what, a, b in steps:
        if what == "append":
            engine.append("t", [b"x" * (b + i) for i in range(a)]).result()
            for i in range(a):
                head += 1
                live[head] = b + i
            while cap_records and len(live) > cap_records:
                del live[min(live)]
            while cap_bytes and sum(live.values()) > cap_bytes:
                del live[min(live)]
        elif what == "delete":
            engine.delete("t", before_seq=a).result()
            live = {seq: size for seq, size in live.items() if seq >= a}
        else:
            engine.checkpoint().result()
            engine.state.forget_blocks(engine.state.topic("t"))
        state = engine.topic("t")
        assert (state.head_seq, state.count, state.bytes) == (head, len(live), sum(live.values()))
        assert state.earliest_seq == min(live, default=head + 1)
    floor = engine.state.topic("t").evict_floor
    assert seqs_read(engine, from_seq=floor) == sorted(live)
    engine.abandon()


# Reject


def test_c4_reject_refuses_what_does_not_fit_and_changes_nothing(
    engine: Engine, again: Start
) -> None:
    engine.append("t", [1, 2], config={"cap_records": 3, "discard": "reject"}).result()
    refused = engine.append("t", [3, 4])
    assert isinstance(refused.error, TopicFull)
    assert refused.error.code == "topic_full" and refused.error.fix
    assert refused.error.detail == {
        "topic": "t", "cap_records": 3, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1,
    }  # fmt: skip
    engine = again(engine)
    assert (engine.topic("t").head_seq, seqs_read(engine)) == (2, [1, 2])
    assert engine.append("t", [3]).result().first_seq == 3
    assert isinstance(engine.append("t", [4]).error, TopicFull)


def test_c4_room_freed_by_a_delete_is_used_again(engine: Engine) -> None:
    engine.append("t", [1, 2], config={"cap_records": 2, "discard": "reject"}).result()
    assert isinstance(engine.append("t", [3]).error, TopicFull)
    engine.delete("t", before_seq=2).result()
    assert engine.append("t", [3]).result().first_seq == 3
    assert isinstance(engine.append("t", [4]).error, TopicFull)


def test_c4_room_freed_by_the_ttl_is_used_again(engine: Engine, clock: ManualClock) -> None:
    config = {"cap_bytes": 4, "discard": "reject", "ttl_ms": 10}
    engine.append("t", [b"1234"], config=config).result()
    assert isinstance(engine.append("t", [b"5"]).error, TopicFull)
    clock.advance(11)
    assert engine.append("t", [b"5678"]).result().first_seq == 2


def test_c4_a_batch_that_can_never_fit_is_too_large(engine: Engine) -> None:
    config = {"cap_records": 2, "cap_bytes": 10, "discard": "reject"}
    for records in ([1, 2, 3], [b"x" * 11]):
        refused = engine.append("t", records, config=config)
        assert isinstance(refused.error, RecordTooLarge)
    assert engine.topics() == []
    engine.append("t", [b"x" * 10], config=config).result()


def test_c4_appends_in_flight_count(engine: Engine) -> None:
    engine.put_topic("t", {"cap_records": 2, "discard": "reject"}).result()
    tickets = [engine.append("t", [n]) for n in range(4)]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert [t.error is None for t in tickets] == [True, True, False, False]
    assert engine.topic("t").count == 2


# Quota


def test_c8_the_quota_counts_live_bytes_of_all_topics(start: Start, clock: ManualClock) -> None:
    engine = start(max_total_bytes=20)
    engine.append("a", [b"x" * 12]).result()
    engine.append("b", [b"x" * 8], config={"ttl_ms": 10}).result()  # equal to the quota is fine
    refused = engine.append("b", [b"x"])
    assert isinstance(refused.error, Throttled)
    assert refused.error.detail == {"limit": "max_total_bytes", "max": 20}
    assert refused.error.retryable
    assert engine.topic("b").head_seq == 1
    assert engine.append("c", [b"x"]).error is not None
    assert [info.topic for info in engine.topics()] == ["a", "b"]


def test_c8_the_total_falls_with_eviction_delete_and_topic_delete(
    start: Start, clock: ManualClock, kill: Start
) -> None:
    engine = start(max_total_bytes=30)
    engine.append("ttl", [b"x" * 10], config={"ttl_ms": 10}).result()
    engine.append("cap", [b"x" * 5, b"x" * 5], config={"cap_records": 2}).result()
    engine.append("del", [b"x" * 10]).result()
    assert engine.append("new", [b"x"]).error is not None
    clock.advance(11)
    assert engine.topic("ttl").count == 0
    engine.append("cap", [b"x" * 10]).result()  # 5 + 10 live, 5 evicted
    engine.delete("del", before_seq=2).result()
    engine = kill(engine)
    assert engine.append("new", [b"x" * 16]).error is not None
    engine.append("new", [b"x" * 15]).result()
    engine.delete_topic("cap").result()
    engine.append("new", [b"x" * 15]).result()
    assert engine.append("new", [b"x"]).error is not None


def test_c8_a_quota_holds_for_appends_in_flight(start: Start) -> None:
    engine = start(max_total_bytes=10)
    engine.put_topic("t").result()
    tickets = [engine.append("t", [b"xxxx"]) for _ in range(4)]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert [t.error is None for t in tickets] == [True, True, False, False]


def test_c7_files_of_evicted_records_are_reclaimed(engine: Engine) -> None:
    """Whole files, at a checkpoint; the numbers are exact long before."""
    disk = engine.state.fs
    engine.append("t", [b"x" * 1_000] * 50).result()
    engine.checkpoint().result()
    assert any(disk.listdir("segments"))
    engine.put_topic("t", {"cap_records": 1}).result()
    assert engine.topic("t").bytes == 1_000
    for _ in range(4):
        engine.append("t", [b"y"]).result()
        engine.checkpoint().result()
    size = sum(len(data) for path, data in disk.contents().items() if "segments" in path)
    assert size < 50_000
