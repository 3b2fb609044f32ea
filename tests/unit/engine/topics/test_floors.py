"""Rules B: two floors, tombstones with exact ranges and reasons, silence about deletes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page, Tombstone
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start
from tests.support.seqs import seqs_of_page

SMALL = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10)
START_MS = 1_700_000_000_000


def append_singly(engine: Engine, count: int, name: str = "t") -> None:
    for n in range(count):
        engine.append(name, [n]).result()


def read(engine: Engine, from_seq: int = 0, **how: object) -> Page:
    return engine.read("t", from_seq, **how).result()  # type: ignore[arg-type]


def told(page: Page) -> tuple[int, int, str] | None:
    stone = page.tombstone
    return None if stone is None else (stone.gap_from, stone.gap_to, stone.reason)


def everything_told(engine: Engine, cursor: int = 0) -> tuple[list[int], list[int]]:
    """(seqs delivered, seqs announced as lost) on the way from `cursor` to the head."""
    delivered: list[int] = []
    lost: list[int] = []
    while True:
        page = read(engine, cursor)
        stone = page.tombstone
        if stone is not None:
            lost += range(stone.gap_from, stone.gap_to + 1)
        delivered += seqs_of_page(page)
        assert page.next_from_seq >= cursor
        cursor = page.next_from_seq
        if page.caught_up:
            return delivered, lost


def test_b1_earliest_is_the_first_live_seq(engine: Engine) -> None:
    engine.put_topic("t").result()
    assert engine.topic("t").earliest_seq == 1
    append_singly(engine, 3)
    assert engine.topic("t").earliest_seq == 1
    engine.delete("t", before_seq=3).result()
    assert engine.topic("t").earliest_seq == 3


def test_b1_earliest_is_head_plus_one_when_nothing_lives(engine: Engine, again: Start) -> None:
    append_singly(engine, 3)
    engine.delete("t", before_seq=4).result()
    assert engine.topic("t").earliest_seq == 4
    engine = again(engine)
    state = engine.topic("t")
    assert (state.earliest_seq, state.head_seq, state.count, state.bytes) == (4, 3, 0, 0)


def test_b2_what_was_evicted_is_below_what_is_live(engine: Engine) -> None:
    engine.put_topic("t", {"cap_records": 3}).result()
    for n in range(20):
        engine.append("t", [n]).result()
        if n % 4 == 0:
            engine.delete("t", before_seq=engine.topic("t").earliest_seq + 1).result()
        stone = read(engine).tombstone
        if stone is not None:
            assert stone.earliest_seq <= engine.topic("t").earliest_seq


def test_b3_earliest_follows_the_highest_floor(engine: Engine, clock: ManualClock) -> None:
    engine.put_topic("t", {"cap_records": 4, "ttl_ms": 100}).result()
    append_singly(engine, 5)
    assert engine.topic("t").earliest_seq == 2
    engine.delete("t", before_seq=4).result()
    assert engine.topic("t").earliest_seq == 4
    clock.advance(101)
    assert engine.topic("t").earliest_seq == 6
    assert told(read(engine)) == (1, 5, "mixed")


def test_b4_a_cap_is_announced_with_its_exact_range(engine: Engine, again: Start) -> None:
    engine.put_topic("t", {"cap_records": 3}).result()
    append_singly(engine, 6)
    engine = again(engine)
    page = read(engine)
    assert page.tombstone == Tombstone(1, 3, "cap", earliest_seq=4, head_seq=6)
    assert page.tombstone.missed_estimate == 3
    assert seqs_of_page(page) == [4, 5, 6]
    assert told(read(engine, 1)) == (2, 3, "cap")
    assert told(read(engine, 2)) == (3, 3, "cap")


def test_b4_a_cursor_at_the_floor_gets_no_tombstone(engine: Engine, again: Start) -> None:
    engine.put_topic("t", {"cap_records": 3}).result()
    append_singly(engine, 6)
    engine = again(engine)
    page = read(engine, 3)
    assert page.tombstone is None and seqs_of_page(page) == [4, 5, 6]


def test_b4_a_ttl_is_announced(engine: Engine, clock: ManualClock, again: Start) -> None:
    engine.put_topic("t", {"ttl_ms": 100}).result()
    append_singly(engine, 2)
    clock.advance(101)
    append_singly(engine, 1)
    engine = again(engine)
    page = read(engine)
    assert told(page) == (1, 2, "ttl") and seqs_of_page(page) == [3]


def test_b5_a_deleted_prefix_is_silent(engine: Engine, again: Start) -> None:
    append_singly(engine, 6)
    engine.delete("t", before_seq=4).result()
    engine = again(engine)
    for cursor in (0, 1, 3):
        page = read(engine, cursor)
        assert page.tombstone is None and seqs_of_page(page) == [4, 5, 6]
    engine.delete("t", before_seq=7).result()
    page = read(engine)
    assert (page.tombstone, page.next_from_seq, page.caught_up) == (None, 6, True)


def test_b6_a_cap_after_a_delete_is_still_announced(engine: Engine, again: Start) -> None:
    engine.put_topic("t", {"cap_records": 3}).result()
    append_singly(engine, 3)
    engine.delete("t", before_seq=3).result()
    append_singly(engine, 4)
    engine = again(engine)
    page = read(engine)
    assert page.tombstone is not None and page.tombstone.reason == "cap"
    assert seqs_of_page(page) == [5, 6, 7]
    assert page.tombstone.gap_to == 4


def test_b7_one_tombstone_a_page_and_the_ranges_are_complete(
    engine: Engine, power_loss: Start
) -> None:
    """A page tells one range; reading on tells every other, whatever was deleted between."""
    append_singly(engine, 3)
    engine = power_loss(engine)
    first_head = engine.topic("t").head_seq
    append_singly(engine, 3)
    engine = power_loss(engine, "all")
    head = engine.topic("t").head_seq
    delivered, lost = everything_told(engine)
    assert sorted(delivered + lost) == list(range(1, head + 1))
    assert set(delivered) >= {first_head + 1, first_head + 2, first_head + 3}


@pytest.mark.parametrize("recovered_again", [False, True])
def test_b7_a_delete_between_two_crash_ranges_hides_neither(
    engine: Engine, power_loss: Start, kill: Start, recovered_again: bool
) -> None:
    append_singly(engine, 1)
    engine = power_loss(engine, "all")
    append_singly(engine, 3)
    alive = [record.seq for record in read(engine, engine.topic("t").head_seq - 3).records]
    engine = power_loss(engine, "all")
    head = engine.topic("t").head_seq
    engine.delete("t", before_seq=alive[-1] + 1).result()
    if recovered_again:
        engine.checkpoint().result()
        engine = kill(engine)
    delivered, lost = everything_told(engine)
    assert delivered == []
    assert set(range(1, head + 1)) - set(lost) <= {1, *alive}


def test_b7_ephemeral_losses_of_two_restarts_are_all_told(engine: Engine, restart: Start) -> None:
    engine.append("t", [0] * 5, config={"durability": "ephemeral"}).result()
    engine = restart(engine)
    engine.append("t", [0] * 3).result()
    engine = restart(engine)
    delivered, lost = everything_told(engine)
    assert (delivered, lost) == ([], list(range(1, engine.topic("t").head_seq + 1)))


def test_b8_floors_survive_a_relaxed_cap(engine: Engine, again: Start) -> None:
    engine.put_topic("t", {"cap_records": 2}).result()
    append_singly(engine, 6)
    engine.put_topic("t", {"cap_records": 100}).result()
    engine = again(engine)
    page = read(engine)
    assert told(page) == (1, 4, "cap") and seqs_of_page(page) == [5, 6]
    engine.put_topic("t").result()
    engine = again(engine)
    assert seqs_of_page(read(engine)) == [5, 6]


def test_b8_floors_survive_a_rewound_clock(
    engine: Engine, clock: ManualClock, kill: Start, restart: Start
) -> None:
    engine.put_topic("t", {"ttl_ms": 100}).result()
    append_singly(engine, 3)
    clock.advance(101)
    assert engine.topic("t").earliest_seq == 4
    engine = kill(engine, clock=ManualClock(START_MS))
    assert (engine.topic("t").earliest_seq, engine.topic("t").count) == (4, 0)
    engine = restart(engine, clock=ManualClock(START_MS - 1_000_000))
    assert told(read(engine)) == (1, 3, "ttl")


@pytest.mark.parametrize("mode", ["none", "prefix", "all"])
def test_b8_a_ttl_floor_that_was_answered_survives_power_loss_with_a_rewound_clock(
    engine: Engine, clock: ManualClock, power_loss: Start, mode: str
) -> None:
    """C6: the floor is durable before an answer relies on it."""
    engine.put_topic("t", {"ttl_ms": 100, "durability": "fsync"}).result()
    append_singly(engine, 3)
    clock.advance(101)
    assert read(engine).records == []
    engine.runtime.run()  # type: ignore[attr-defined]
    engine = power_loss(engine, mode, clock=ManualClock(START_MS))
    assert (engine.topic("t").earliest_seq, engine.topic("t").count) == (4, 0)


@given(st.integers(2, 8), st.integers(1, 7), st.integers(6, 20))
def test_b9_deleted_records_do_not_count_towards_the_cap(cap: int, gone: int, more: int) -> None:
    engine = Engine(SimDisk(), StepRuntime(ManualClock()), SMALL, random=SeededRandom(1))
    engine.recover()
    engine.put_topic("t", {"cap_records": cap}).result()
    append_singly(engine, cap - 1)
    engine.delete("t", before_seq=min(gone, cap - 1) + 1).result()
    left = engine.topic("t").count
    for n in range(cap - left):
        engine.append("t", [n]).result()
        assert engine.state.topic("t").cap_floor == 0, "nothing was over the cap yet"
    append_singly(engine, more)
    assert engine.topic("t").count == cap
    engine.abandon()


def test_b10_the_gap_ends_at_the_involuntary_floor(engine: Engine) -> None:
    engine.put_topic("t", {"cap_records": 4}).result()
    append_singly(engine, 6)
    engine.delete("t", before_seq=5).result()
    page = read(engine)
    assert told(page) == (1, 2, "cap")
    assert page.tombstone is not None and page.tombstone.earliest_seq == 3
    assert page.earliest_seq == 5 and seqs_of_page(page) == [5, 6]


def test_the_reason_is_of_what_reaches_the_gap(engine: Engine, clock: ManualClock) -> None:
    engine.put_topic("t", {"cap_records": 4, "ttl_ms": 100}).result()
    append_singly(engine, 6)  # cap floor 2
    clock.advance(101)
    append_singly(engine, 1)  # ttl floor 6
    assert told(read(engine, 0)) == (1, 6, "mixed")
    assert told(read(engine, 2)) == (3, 6, "ttl")
