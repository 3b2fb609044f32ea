"""How many jobs of all queues together are delivered and not done, and how many may be.

Only this file refuses a claim because of what other queues have delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.core.errors import Throttled

if TYPE_CHECKING:
    from headrace.engine.state import EngineState

# How often the jobs of all queues are counted while they are about as many as there may be.
COUNT_AGAIN_MS = 100


class JobsOut:
    """How many jobs of all queues may be delivered and not done.

    They are counted only where there might be too many: until then it is enough to know how many
    there are at most, which is as many as there were and all that were taken since.
    """

    def __init__(self, state: EngineState, count: Callable[[], int]) -> None:
        self._clock = state.clock
        self._max = state.settings.all_jobs_out_max
        self._count = count
        self._at_most = 0
        self._counted_ms: int | None = None

    def room(self, wanted: int) -> int:
        """Return how many more may be delivered, or that `wanted` may."""
        if self._counted_ms is not None and self._at_most + wanted <= self._max:
            return wanted
        now_ms = self._clock.now_ms()
        if self._counted_ms is None or abs(now_ms - self._counted_ms) >= COUNT_AGAIN_MS:
            self._counted_ms = now_ms
            self._at_most = self._count()
        return min(wanted, max(0, self._max - self._at_most))

    def took(self, count: int) -> None:
        """Count jobs that were taken to be delivered."""
        self._at_most += count

    def refusal(self) -> Throttled | None:
        """Return why no job is delivered; None: not because of the others."""
        if self._at_most < self._max:
            return None
        return Throttled(
            f"{self._at_most} jobs of all queues are delivered and not done",
            fix="acknowledge jobs, or raise HEADRACE_ALL_JOBS_OUT_MAX",
            detail={"limit": "all_jobs_out_max", "max": self._max},
        )
