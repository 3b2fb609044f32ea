"""Deadlines of many waiting requests, by one timer.

A long poll that is answered early cancels its deadline.  A deadline is met within `STEP_MS`, never
early.
"""

from __future__ import annotations

import logging

from headrace.core.runtime import Runtime, Thunk

log = logging.getLogger("headrace.wire")

STEP_MS = 5


class Deadline:
    """One deadline; `thunk` is None once it was called or cancelled."""

    __slots__ = ("thunk",)

    def __init__(self, thunk: Thunk) -> None:
        self.thunk: Thunk | None = thunk

    def cancel(self) -> None:
        self.thunk = None


class Deadlines:
    """Deadlines by the step in which they fall."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._steps: dict[int, list[Deadline]] = {}
        self._next = 0  # the first step that has not been looked at
        self._running = False

    def add(self, delay_ms: int, thunk: Thunk) -> Deadline:
        """Call `thunk` in `delay_ms` or a little later."""
        deadline = Deadline(thunk)
        now_ms = self._now_ms()
        step = (now_ms + delay_ms) // STEP_MS + 1
        self._steps.setdefault(step, []).append(deadline)
        if not self._running:
            self._running = True
            self._next = now_ms // STEP_MS
            self._runtime.later(STEP_MS, self._run)
        return deadline

    def _now_ms(self) -> int:
        return self._runtime.clock.monotonic_ns() // 1_000_000

    def _run(self) -> None:
        now = self._now_ms() // STEP_MS
        for step in range(self._next, now + 1):
            for deadline in self._steps.pop(step, ()):
                thunk, deadline.thunk = deadline.thunk, None
                try:
                    if thunk is not None:
                        thunk()
                except Exception:  # the others have to hear, too
                    log.exception("a request failed at its deadline")
        self._next = now + 1
        self._running = bool(self._steps)
        if self._running:
            self._runtime.later(STEP_MS, self._run)
