"""Bands: priorities, weights, order within a band, aging, and what is held back."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.scheduling.bands import (
    AGE_CAP_MS,
    AGED_PER_MS,
    AGING_TICK_MS,
    BANDS,
    COST_MAX,
    CREDIT_NS,
    TOP,
    WEIGHTS,
    Bands,
    age_boost,
    band_of,
)
from headrace.engine.scheduling.priority import FORGOTTEN_MS, effective_priority
from headrace.engine.topics.config import TopicConfig

# A priority in the middle of each band.
MIDDLE = (-500, 100, 300, 600, 900)


@pytest.mark.parametrize(
    ("idle_s", "priority"),
    [(0, 500), (15, 354), (30, 250), (60, 125), (90, 63), (120, 31), (299, 0), (300, 0)],
)
def test_g1_a_priority_halves_every_thirty_seconds(idle_s: int, priority: int) -> None:
    assert effective_priority(TopicConfig(), idle_s * 1_000) == priority


def test_g1_what_was_set_counts_and_is_clamped() -> None:
    assert effective_priority(TopicConfig(priority=-7), 0) == -7
    assert effective_priority(TopicConfig(priority=99_999), None) == 1_000
    assert effective_priority(TopicConfig(priority=-99_999), None) == -1_000
    assert effective_priority(TopicConfig(auto_priority=False), 0) == 0
    assert effective_priority(TopicConfig(), FORGOTTEN_MS) == 0
    assert effective_priority(TopicConfig(), None) == 0


def test_g2_a_wait_adds_a_hundred_a_second_up_to_a_thousand() -> None:
    assert [age_boost(ms) for ms in (-5, 0, 10, 5_000, 10_000, 10_001)] == [
        0, 0, 1, 500, 1_000, 1_000,
    ]  # fmt: skip


def test_g4_bands_and_weights() -> None:
    edges = (-1_000, -1, 0, 249, 250, 499, 500, 749, 750, 1_000)
    assert [band_of(priority) for priority in edges] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert WEIGHTS == (1, 1, 2, 4, 8)


def filled(count: int, bands: Bands[tuple[int, int]] | None = None) -> Bands[tuple[int, int]]:
    """So many in each band, added at time 0."""
    bands = bands or Bands()
    for number in range(count):
        for band in range(BANDS):
            bands.add((band, number), MIDDLE[band], 0)
    return bands


def test_g4_in_a_round_each_band_is_served_as_often_as_its_weight() -> None:
    bands = filled(100)
    for _ in range(5):
        served = Counter(taken[0] for _ in range(sum(WEIGHTS)) if (taken := bands.take()))
        assert served == dict(enumerate(WEIGHTS))


def test_g4_first_come_first_served_within_a_band() -> None:
    bands = filled(20)
    order: list[list[int]] = [[] for _ in range(BANDS)]
    while (taken := bands.take()) is not None:
        order[taken[0]].append(taken[1])
    assert order == [list(range(20))] * BANDS
    assert bands.served_total == [20] * BANDS


def test_a_band_without_work_leaves_its_share_to_the_others_and_saves_nothing() -> None:
    bands: Bands[str] = Bands()
    for _ in range(50):
        bands.add("low", 0, 0)
    assert [bands.take() for _ in range(20)] == ["low"] * 20
    for _ in range(50):
        bands.add("high", 900, 0)
    served = Counter(bands.take() for _ in range(9))
    assert served["high"] <= WEIGHTS[TOP], "it has no more than one round's credit"
    assert served["low"] >= 1


def test_a_service_that_takes_long_costs_its_band_more() -> None:
    bands: Bands[str] = Bands()
    for _ in range(200):
        bands.add("low", 0, 0)
        bands.add("high", 900, 0)
    served: Counter[str] = Counter()
    for _ in range(90):
        taken = bands.take()
        assert taken is not None
        served[taken] += 1
        bands.charge(8 * CREDIT_NS if taken == "low" else 0)
    # A ninth of all services by weight; each of them pays for seven more.
    assert served["low"] <= 2


def test_what_one_service_costs_is_bounded() -> None:
    bands: Bands[int] = Bands()
    for number in range(3):
        bands.add(number, 0, 0)
    bands.take()
    bands.charge(10**12)
    assert bands._credit[1] >= -COST_MAX
    assert bands.take() == 1, "nobody else is ready, so nobody has to wait"


def test_what_a_band_owes_is_bounded_however_long_it_was_alone() -> None:
    """Else it would starve, when others come, for as long as it had been served."""
    bands: Bands[str] = Bands()
    bands.add("high", 900, 0)
    for _ in range(1_000):
        assert bands.take() == "high"
        bands.charge(8 * CREDIT_NS)
        bands.add("high", 900, 0)
    for _ in range(200):
        bands.add("low", 0, 0)
    served = [bands.take() for _ in range(2 + COST_MAX // WEIGHTS[TOP])]
    assert "high" in served


def test_what_a_band_owes_is_forgotten_when_nobody_waits() -> None:
    bands: Bands[str] = Bands()
    bands.add("low", 0, 0)
    bands.take()
    bands.charge(8 * CREDIT_NS)
    assert bands.take() is None
    for _ in range(50):
        bands.add("low", 0, 0)
        bands.add("high", 900, 0)
    served = Counter(bands.take() for _ in range(WEIGHTS[TOP] + 1))
    assert served == {"high": WEIGHTS[TOP], "low": 1}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 40), min_size=BANDS, max_size=BANDS),
    st.lists(st.integers(0, 40), max_size=30),
)
def test_g4_no_band_starves_whatever_services_cost(costs: list[int], before: list[int]) -> None:
    """Every band always has work: each is served again before all have paid what they owe."""
    bands: Bands[int] = Bands()
    for cost in before:  # some history
        bands.add(2, MIDDLE[2], 0)
        bands.take()
        bands.charge(cost * CREDIT_NS)
    for band in range(BANDS):
        for _ in range(3):
            bands.add(band, MIDDLE[band], 0)
    waiting = [0] * BANDS
    rounds_max = [COST_MAX // weight + 2 for weight in WEIGHTS]
    for _ in range(2_000):
        taken = bands.take()
        assert taken is not None
        bands.charge(costs[taken] * CREDIT_NS)
        bands.add(taken, MIDDLE[taken], 0)
        waiting = [0 if band == taken else wait + 1 for band, wait in enumerate(waiting)]
        for band, wait in enumerate(waiting):
            assert wait <= rounds_max[band] * sum(WEIGHTS), (band, wait)


def test_g2_who_waits_moves_up_and_keeps_his_place_in_time() -> None:
    bands: Bands[str] = Bands()
    bands.add("old", 0, 0)
    for number in range(100):
        bands.add(f"new {number}", 900, 7_400)
    bands.age(7_450)
    assert bands.depths == [0, 0, 0, 1, 100], "745 is just below the top"
    bands.age(7_500)
    assert bands.depths == [0, 0, 0, 0, 101]
    bands._serving, bands._credit = TOP, [0, 0, 0, 0, 1]
    assert bands.take() == "old", "it has waited longest of those in the top band"


def test_g4_aging_is_looked_at_in_ticks() -> None:
    bands: Bands[str] = Bands()
    bands.age(1_000)
    bands.add("old", 249, 1_000 - AGING_TICK_MS)
    bands.age(1_000 + AGING_TICK_MS - 1)
    assert bands.depths[1] == 1
    bands.age(1_000 + AGING_TICK_MS)
    assert bands.depths[2] == 1


@pytest.mark.parametrize("priority", [-1_000, -251, -1, 0, 300, 1_000])
def test_g4_nobody_waits_more_than_ten_seconds_for_the_top_band(priority: int) -> None:
    bands: Bands[str] = Bands()
    bands.add("job", priority, 0)
    bands.age(AGE_CAP_MS)
    assert bands.depths == [0, 0, 0, 0, 1]


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_g2_everybody_waits_where_his_wait_has_led_him(data: st.DataObject) -> None:
    """Against the plain rule: at a tick each is in the band of his priority and his wait."""
    bands: Bands[int] = Bands()
    waiting: dict[int, tuple[int, int]] = {}  # priority, since
    now_ms = 0
    for number in range(data.draw(st.integers(1, 40))):
        now_ms += data.draw(st.sampled_from((0, 1, 50, 51, 700, 2_600)))
        priority = data.draw(st.integers(-1_000, 1_000))
        bands.add(number, priority, now_ms)
        waiting[number] = (priority, now_ms)
        if data.draw(st.booleans()) and (taken := bands.take()) is not None:
            del waiting[taken]
        now_ms += AGING_TICK_MS
        bands.age(now_ms)
        expected = [0] * BANDS
        for priority, since_ms in waiting.values():
            waited_ms = now_ms - since_ms
            old = waited_ms >= AGE_CAP_MS
            expected[TOP if old else band_of(priority + age_boost(waited_ms))] += 1
        assert bands.depths == expected
        assert len(bands) == len(waiting) == bands.ready


def test_aging_takes_a_small_part_of_the_time_however_many_wait() -> None:
    bands: Bands[int] = Bands()
    bands.age(1_000)
    count = 2 * AGING_TICK_MS * AGED_PER_MS
    for number in range(count):
        bands.add(number, 249, 1_000)
    bands.age(1_000 + AGING_TICK_MS)
    assert bands.depths[1] == count, "not at every tick"
    bands.age(1_000 + 2 * AGING_TICK_MS)
    assert bands.depths[2] == count


def test_g5_the_bottom_band_gets_no_credit_while_it_is_held() -> None:
    bands = filled(10)
    bands.hold(True, 0)
    served = []
    while (taken := bands.take()) is not None:
        served.append(taken[0])
    assert 0 not in served and len(served) == 40
    assert (len(bands), bands.ready) == (10, 0)
    assert [item for item, _ in bands.held()] == [(0, number) for number in range(10)]
    bands.hold(False, 0)
    assert bands.ready == 10 and list(bands.held()) == []
    assert [bands.take() for _ in range(11)] == [*((0, n) for n in range(10)), None]


def test_g5_a_short_wait_does_not_undo_a_hold_and_ten_seconds_do() -> None:
    bands: Bands[str] = Bands()
    bands.hold(True, 0)
    bands.add("job", -1, 0)
    bands.age(AGE_CAP_MS - AGING_TICK_MS)
    assert bands.take() is None
    bands.age(AGE_CAP_MS)
    assert bands.take() == "job"


def test_g5_background_work_goes_one_band_down_but_is_never_held() -> None:
    bands: Bands[int] = Bands()
    bands.hold(True, 0)
    for band in range(1, BANDS):
        bands.add(band, MIDDLE[band], 0, lowered=True)
    assert bands.depths == [0, 2, 1, 1, 0]
    assert bands.ready == 4
    bands.add(9, -500, 0, lowered=True)
    assert bands.depths[0] == 1, "of a negative priority it is held like anything else"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-1_000, 1_000), st.integers(0, 2_000)), max_size=60),
    st.booleans(),
)
def test_everybody_is_served_exactly_once(added: list[tuple[int, int]], lowered: bool) -> None:
    bands: Bands[int] = Bands()
    now_ms = 0
    taken: list[int] = []
    for number, (priority, later_ms) in enumerate(added):
        now_ms += later_ms
        bands.age(now_ms)
        bands.hold(number % 7 == 3, now_ms)
        bands.add(number, priority, now_ms, lowered=lowered)
        if number % 3 == 2 and (one := bands.take()) is not None:
            taken.append(one)
            bands.charge(number * 50_000)
    bands.hold(False, now_ms)
    while (one := bands.take()) is not None:
        taken.append(one)
    assert sorted(taken) == list(range(len(added)))
    assert len(bands) == 0


@settings(deadline=None, max_examples=30)
@given(st.integers(-1_000, 1_000))
def test_g4_the_longest_wait_is_bounded_however_busy_the_top_is(priority: int) -> None:
    """A flood of the top band, one service a millisecond: who waits is served soon after 10 s."""
    bands: Bands[str] = Bands()
    bands.add("patient", priority, 0)
    for now_ms in range(1, 2 * AGE_CAP_MS):
        bands.add("flood", 1_000, now_ms)
        bands.age(now_ms)
        if bands.take() == "patient":
            break
    assert now_ms <= AGE_CAP_MS + AGING_TICK_MS
