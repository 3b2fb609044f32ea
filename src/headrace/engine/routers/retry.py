"""Routers that could not place a record: when each of them is tried again.

Only this file has timers for that.  A router is tried after 50 ms, and twice as long each time, up
to five seconds; a reader who tries in between changes nothing about that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from headrace.core.clock import NS_PER_MS
from headrace.core.errors import HeadraceError
from headrace.engine.routers.selection import CLOSED, PRESSED
from headrace.engine.routers.state import BACK_OFF_MS_MIN, Router
from headrace.engine.state import EngineState

log = logging.getLogger("headrace.routers")


class Retries:
    """The routers that wait for their next try."""

    def __init__(self, state: EngineState, again: Callable[[Router], None]) -> None:
        self._state = state
        self._again = again
        self._waiting: dict[int, Router] = {}
        self._armed_ns = 0  # when the timer rings; 0: none is set

    def __len__(self) -> int:
        """Return how many routers have placed nothing since they failed."""
        return sum(router.live and router.failures > 0 for router in self._waiting.values())

    def add(self, routers: Iterable[Router], why: BaseException) -> None:
        """Have these routers, which could not place the next record, tried again later."""
        now_ns = self._state.clock.monotonic_ns()
        for router in routers:
            if not router.failures:
                log.info("router %r waits: %s", router.name, why)
            reason = str(why) if isinstance(why, HeadraceError) else "an internal error"
            router.back_off(now_ns, reason, pressed=why in (PRESSED, CLOSED))
            self._waiting[router.id] = router
            self._arm(router.retry_ns, now_ns)

    def _arm(self, at_ns: int, now_ns: int) -> None:
        if not self._armed_ns or at_ns < self._armed_ns:
            self._armed_ns = at_ns
            delay_ms = -(-max(0, at_ns - now_ns) // NS_PER_MS)
            self._state.runtime.later(delay_ms, lambda: self._ring(at_ns))

    def _ring(self, at_ns: int) -> None:
        if at_ns != self._armed_ns or self._state.closing:
            return  # another one was set for an earlier time
        now_ns = self._state.clock.monotonic_ns()
        self._armed_ns = next_ns = 0
        for router in list(self._waiting.values()):
            if router.live and router.blocked and router.retry_ns > now_ns:
                next_ns = min(next_ns or router.retry_ns, router.retry_ns)
                continue
            del self._waiting[router.id]
            if router.live and router.blocked:
                router.blocked = False
                self._again(router)
        if next_ns:
            # One timer for all that are due soon, not one for each of thousands.
            self._arm(max(next_ns, now_ns + BACK_OFF_MS_MIN * NS_PER_MS), now_ns)
