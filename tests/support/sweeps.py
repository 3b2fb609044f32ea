"""What a long sweep may spend, where its randomness starts, and when it counts as hanging."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import pytest

# The part of the budget that sweeps may spend; the rest is for starting and finishing.
BUDGET_FRACTION = 0.9
# What a sweep may take beyond its share, to end what it has begun on a busy machine.
HANG_SECONDS = 120
MINUTES_VARIABLE = "HEADRACE_TEST_MINUTES"
SEED_VARIABLE = "HEADRACE_TEST_SEED"


class Sweep(NamedTuple):
    """What one long test may spend, and where its randomness starts."""

    seconds: float
    seed: int


def share_of(items: list[pytest.Item]) -> Sweep:
    """What each long test of a run may spend: they run side by side on as many workers as there
    are, so that together they take about HEADRACE_TEST_MINUTES."""
    sweeps = sum(1 for item in items if item.get_closest_marker("long"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    rounds = max(1, math.ceil(sweeps / workers))
    minutes = float(os.environ.get(MINUTES_VARIABLE, "1"))
    seed = int(os.environ.get(SEED_VARIABLE, "1"))
    return Sweep(minutes * 60 * BUDGET_FRACTION / rounds, seed)


def is_sweep(item: pytest.Item) -> bool:
    return "sweep" in getattr(item, "fixturenames", ())


def bound_sweeps(items: list[pytest.Item]) -> None:
    """Have a sweep that hangs fail soon after its share.

    One whose work does not depend on its share has a timeout of its own.
    """
    seconds = share_of(items).seconds + HANG_SECONDS
    for item in items:
        if is_sweep(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(seconds))


def how_to_repeat(item: pytest.Item) -> str:
    seed = os.environ.get(SEED_VARIABLE, "1")
    return f"{SEED_VARIABLE}={seed} ./run test --long '{item.nodeid}'"
