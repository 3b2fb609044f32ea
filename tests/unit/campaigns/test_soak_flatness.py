"""A leak is noticed among noise, and what only looks like one is not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.campaigns.soak import restart_times
from tests.campaigns.soaking.flatness import BOUNDS, MIB, Life, Sample, slope

HOUR = 3600


def lived(resident: Callable[[float], float], seconds: int = HOUR, began: float = 0.0) -> Life:
    """A life in which everything but memory stays as it was."""
    life = Life(began)
    for second in range(0, seconds, 2):
        life.add(Sample(began + second, (resident(second), 50, 9, 100, 20.0 * MIB)))
    return life


def noise(seed: int) -> Callable[[], float]:
    """Up to 8 MiB more or less than there is."""
    chance = random.Random(seed)
    return lambda: chance.uniform(-8, 8) * MIB


def test_flat_memory_is_flat() -> None:
    jitter = noise(1)
    life = lived(lambda second: 100 * MIB + jitter())
    assert not life.wrong()
    assert abs(life.rises()["resident MiB"]) < 0.5


def test_a_leak_is_noticed() -> None:
    jitter = noise(2)
    life = lived(lambda second: 100 * MIB + second / 600 * 2 * MIB + jitter())
    [finding] = life.wrong()
    assert "resident MiB of the server rise by" in finding


def test_what_is_filled_in_the_warm_up_is_no_leak() -> None:
    life = lived(lambda second: min(second, 500) * MIB / 5)
    assert not life.wrong()


def test_a_spike_is_no_leak() -> None:
    def resident(second: float) -> float:
        return (400 if 3000 < second < 3400 else 100) * MIB

    assert not lived(resident).wrong()


def test_a_short_life_says_nothing() -> None:
    assert not lived(lambda second: second * MIB, seconds=900).wrong()


@pytest.mark.parametrize("place", range(len(BOUNDS)))
def test_each_measure_is_judged(place: int) -> None:
    bound = BOUNDS[place]
    life = Life(7.0)
    for second in range(0, HOUR, 2):
        values = [100.0 * MIB] * len(BOUNDS)
        values[place] += 1.5 * bound.rise_max * bound.unit * second / 600
        life.add(Sample(7.0 + second, tuple(values)))
    [finding] = life.wrong()
    assert bound.name in finding


def test_a_long_life_keeps_few_samples() -> None:
    life = lived(lambda second: second, seconds=30 * HOUR)
    assert len(life.warm) < Life.POINTS_MAX
    assert life.rises()["resident MiB"] * MIB == pytest.approx(600, rel=0.01)


def test_the_slope_is_that_of_most_points() -> None:
    assert slope([(0, 0), (1, 2), (2, 4), (3, 600), (4, 8)]) == pytest.approx(2.0)
    assert slope([(0, 1.0)]) == 0.0


def test_the_server_ends_in_the_first_third_only() -> None:
    assert restart_times(HOUR) == [600.0, 1200.0]
    assert restart_times(24 * HOUR) == [900.0 * n for n in range(1, 33)]
