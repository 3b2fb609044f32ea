"""Engine time follows monotonic time only; chance repeats from its seed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.clock import (
    WALL_JUMP_MS_MIN,
    EngineClock,
    ManualClock,
    Random,
    SeededRandom,
    SystemClock,
    SystemRandom,
)

HOUR_MS = 3_600_000
TEN_YEARS_MS = 10 * 365 * 24 * HOUR_MS


def test_the_system_clock_moves_forward() -> None:
    clock = SystemClock()
    first = clock.monotonic_ns()
    assert clock.monotonic_ns() >= first
    assert clock.wall_ms() > 1_700_000_000_000


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, TEN_YEARS_MS, -TEN_YEARS_MS])
def test_a_jump_of_the_wall_clock_is_reported_once_and_never_used(jump_ms: int) -> None:
    clock = ManualClock(wall_ms=TEN_YEARS_MS * 2)
    engine = EngineClock(clock)
    clock.advance(10)
    clock.jump(jump_ms)
    assert engine.now_ms() == TEN_YEARS_MS * 2 + 10
    assert engine.wall_offset_ms() == jump_ms
    assert engine.check_jump() == jump_ms
    assert engine.check_jump() is None
    clock.jump(-jump_ms)
    assert engine.check_jump() == -jump_ms
    assert engine.now_ms() == TEN_YEARS_MS * 2 + 10


def test_a_drift_is_reported_once_it_adds_up_to_a_minute() -> None:
    clock = ManualClock()
    engine = EngineClock(clock)
    clock.jump(WALL_JUMP_MS_MIN)
    assert engine.check_jump() is None
    clock.jump(1)
    assert engine.check_jump() == WALL_JUMP_MS_MIN + 1


@given(st.lists(st.tuples(st.integers(0, HOUR_MS), st.integers(-TEN_YEARS_MS, TEN_YEARS_MS))))
def test_engine_time_is_start_plus_what_passed(steps: list[tuple[int, int]]) -> None:
    clock = ManualClock(wall_ms=1_000)
    engine = EngineClock(clock)
    passed = 0
    for advance_ms, wall_ms in steps:
        clock.advance(advance_ms)
        clock.set_wall(wall_ms)
        passed += advance_ms
        assert engine.now_ms() == 1_000 + passed
    assert engine.monotonic_ns() == passed * 1_000_000


@pytest.mark.parametrize("source", [SystemRandom(), SeededRandom(1)], ids=["system", "seeded"])
def test_chance_has_the_width_it_says(source: Random) -> None:
    assert 0 <= source.u32() < 1 << 32
    assert 0 <= source.u64() < 1 << 64
    assert len(source.bytes(16)) == 16
    assert source.bytes(16) != source.bytes(16)


def test_a_seed_repeats() -> None:
    first, again, other = SeededRandom(3), SeededRandom(3), SeededRandom(4)
    taken = [(r.u32(), r.u64(), r.bytes(5)) for r in (first, again, other)]
    assert taken[0] == taken[1] != taken[2]
