"""What a figure and a goal are; the figures themselves stand in `figures.py` and `figures_http.py`.

A goal is computed from the measured values of the same run, so that "met" is never written down
anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

Values = Mapping[str, float]


class Goal(NamedTuple):
    """A bound on a figure; `bound` may depend on other figures of the run."""

    at_most: bool
    bound: Callable[[Values], float]
    text: str

    def met(self, value: float, values: Values) -> bool:
        limit = self.bound(values)
        return value <= limit if self.at_most else value >= limit


class Figure(NamedTuple):
    """One line of the report."""

    name: str
    case: str
    unit: str
    about: str
    goal: Goal | None = None

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit.endswith(("/s", "/CPU s"))


def at_most(bound: float) -> Goal:
    return Goal(True, lambda _: bound, f"<= {bound:,g}")


def at_least(bound: float) -> Goal:
    return Goal(False, lambda _: bound, f">= {bound:,.0f}")


def figures_of(case: str, *rows: tuple[str, str, str, Goal | None]) -> list[Figure]:
    """Rows of (name, unit, what it is, goal)."""
    return [Figure(name, case, unit, about, goal) for name, unit, about, goal in rows]
