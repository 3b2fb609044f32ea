"""What a long sweep may spend, and where its randomness starts."""

from __future__ import annotations

from typing import NamedTuple

# The part of the budget that sweeps may spend; the rest is for starting and finishing.
BUDGET_FRACTION = 0.9


class Sweep(NamedTuple):
    """What one long test may spend, and where its randomness starts."""

    seconds: float
    seed: int
