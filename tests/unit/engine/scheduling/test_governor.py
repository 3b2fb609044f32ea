"""The governor: pressure from load, and every rung of the ladder up and down."""

from __future__ import annotations

import pytest

from headrace.engine.scheduling.governor import (
    COALESCE_ABOVE,
    COALESCE_MS_MAX,
    DEFER_ABOVE,
    DEFER_AFTER_MS,
    DEFER_UNTIL_BELOW,
    DEPTH_FULL,
    LATENCY_FULL_MS,
    LOOK_MS,
    SMOOTHING,
    WIDEN_ABOVE,
    WINDOW_MS_MAX,
    Governor,
    Load,
    coalesce_ms,
    window_ms,
)

FULL = Load(depth=DEPTH_FULL, latency_ms=LATENCY_FULL_MS, busy=1.0)
LITTLE = 0.01


def test_g5_pressure_is_zero_without_load_and_one_with_all_of_it() -> None:
    governor = Governor()
    assert governor.look(Load(), 0) == 0.0
    for look in range(60):
        governor.look(FULL, look * LOOK_MS)
    assert governor.pressure == pytest.approx(1.0)
    assert all(governor.rungs().values())


@pytest.mark.parametrize(
    "load", [Load(busy=1.0), Load(depth=10**6), Load(latency_ms=10**6)], ids=str
)
def test_g5_no_signal_alone_is_an_overload(load: Load) -> None:
    governor = Governor()
    for look in range(60):
        governor.look(load, look * LOOK_MS)
    assert governor.pressure <= 0.5
    assert not governor.deferring and not governor.shedding


def test_a_busy_loop_that_answers_at_once_pays_nothing() -> None:
    governor = Governor()
    for look in range(60):
        governor.look(Load(depth=1, latency_ms=0.05, busy=1.0), look * LOOK_MS)
    assert governor.rungs() == {"coalesce": False, "widen": False, "defer": False, "shed": False}


def test_g5_latency_is_smoothed() -> None:
    governor = Governor()
    governor.look(Load(latency_ms=LATENCY_FULL_MS), 0)
    assert governor.latency == pytest.approx(SMOOTHING)
    governor.look(Load(), LOOK_MS)
    assert governor.latency == pytest.approx(SMOOTHING * (1 - SMOOTHING))


def test_a_loop_that_waits_for_a_processor_is_busy() -> None:
    governor = Governor()
    for look in range(60):
        governor.look(Load(busy=0.2, late=True), look * LOOK_MS)
    assert governor.busy == pytest.approx(1.0)
    for look in range(60):
        governor.look(Load(busy=0.2), look * LOOK_MS)
    assert governor.busy == pytest.approx(0.2)


def test_g5_coalescing_grows_from_zero_to_twenty_milliseconds() -> None:
    assert coalesce_ms(COALESCE_ABOVE) == 0
    assert coalesce_ms(1.0) == COALESCE_MS_MAX == 20
    windows = [coalesce_ms(step / 100) for step in range(101)]
    assert windows == sorted(windows)
    assert coalesce_ms(0.3) > 0


def test_g5_the_commit_window_is_a_line_from_half_to_ten_milliseconds() -> None:
    assert window_ms(WIDEN_ABOVE) == 0
    assert window_ms(1.0) == WINDOW_MS_MAX == 10
    assert window_ms(0.5) == pytest.approx(0.5 + 9.5 * 0.5)


def test_g5_the_ladder_up_and_down_in_order() -> None:
    governor = Governor()
    now_ms = 0
    seen = []
    steps = [*range(101), *range(100, -1, -1)]
    for step in steps:
        for _ in range(DEFER_AFTER_MS // LOOK_MS + 1):
            now_ms += LOOK_MS
            governor.set_pressure(step / 100, now_ms)
        standing = tuple(rung for rung, stands in governor.rungs().items() if stands)
        if not seen or seen[-1] != standing:
            seen.append(standing)
    up = [(), ("coalesce",), ("coalesce", "widen"), ("coalesce", "widen", "defer"),
          ("coalesce", "widen", "defer", "shed")]  # fmt: skip
    assert seen == [*up, *reversed(up[:-1])]
    assert set(governor.entered_total.values()) == {1}


def test_g5_deferral_needs_a_sustained_pressure() -> None:
    governor = Governor()
    governor.set_pressure(DEFER_ABOVE + LITTLE, 0)
    governor.set_pressure(DEFER_ABOVE + LITTLE, DEFER_AFTER_MS - 1)
    assert not governor.deferring
    governor.set_pressure(DEFER_ABOVE, DEFER_AFTER_MS)
    governor.set_pressure(DEFER_ABOVE + LITTLE, DEFER_AFTER_MS + 1)
    assert not governor.deferring, "it was interrupted, so it begins anew"
    governor.set_pressure(DEFER_ABOVE + LITTLE, 2 * DEFER_AFTER_MS + 1)
    assert governor.deferring


def test_g5_deferral_ends_only_below_its_lower_bound() -> None:
    governor = Governor()
    governor.set_pressure(1.0, 0)
    governor.set_pressure(1.0, DEFER_AFTER_MS)
    assert governor.deferring
    for pressure in (DEFER_ABOVE - LITTLE, DEFER_UNTIL_BELOW, DEFER_ABOVE, DEFER_UNTIL_BELOW):
        governor.set_pressure(pressure, 10_000)
        assert governor.deferring
    governor.set_pressure(DEFER_UNTIL_BELOW - LITTLE, 10_000)
    assert not governor.deferring
    governor.set_pressure(DEFER_ABOVE, 20_000)
    governor.set_pressure(DEFER_ABOVE, 30_000)
    assert not governor.deferring, "not before it is above the upper bound again"
