"""Turns of the loop for work that can wait: a little of each job, a millisecond at a time.

Only this file decides how long the fan-out to live readers may keep the loop.  Jobs take turns in
the order in which they asked; when the slice is used up, the rest goes on in the next turn, after
whatever arrived meanwhile.  `Visits` calls jobs back at given times, with one timer for all of
them: five thousand idle streams are five thousand entries in lists, not five thousand timers.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable

from headrace.core.clock import NS_PER_MS
from headrace.core.runtime import Runtime

log = logging.getLogger("headrace.live")

# How long one turn of the loop may be kept.
SLICE_NS = 1_000_000
# What a write costs later in the same turn, when the loop hands it to the kernel (measured: 6 to
# 9 µs for a short one).  Without it a slice of a millisecond would keep the loop for three.
WRITE_NS = 7_000
# Visits are made in steps of so many milliseconds: early by up to a step, never late.
VISIT_STEP_MS = 20


class Job:
    """Something that wants turns."""

    __slots__ = ("queued",)

    def __init__(self) -> None:
        self.queued = False

    def step(self) -> bool:
        """Do a little; whether there is more to do now."""
        raise NotImplementedError

    def broken(self) -> None:
        """A step failed for a reason of our own; give up."""


class Visited(Job):
    """A job that is also looked after from time to time."""

    __slots__ = ()

    def visit(self, now_ms: int) -> int | None:
        """Look after time-outs; when to be visited next, or None."""
        raise NotImplementedError


class Turns:
    """Jobs that wait for a turn.

    >>> from headrace.core.runtime import StepRuntime
    >>> class Hello(Job):
    ...     def step(self) -> bool:
    ...         print("hello")
    ...         return False
    >>> runtime = StepRuntime()
    >>> Turns(runtime, idle=lambda: None).enqueue(Hello())
    >>> runtime.run()
    hello
    """

    def __init__(self, runtime: Runtime, idle: Callable[[], None]) -> None:
        self.runtime = runtime
        self.monotonic_ns = runtime.clock.monotonic_ns
        self.deadline_ns = 0  # of this turn
        self.started_ms = self.now_ms  # when this turn began, or the last one
        self._idle = idle
        self._ready: deque[Job] = deque()
        self._asked = False

    @property
    def now_ms(self) -> int:
        """Milliseconds of the monotonic clock."""
        return self.monotonic_ns() // NS_PER_MS

    @property
    def over(self) -> bool:
        """Whether this turn's time is used up."""
        return self.monotonic_ns() >= self.deadline_ns

    def wrote(self) -> None:
        """A job has written to a transport."""
        self.deadline_ns -= WRITE_NS

    def enqueue(self, job: Job) -> None:
        """Give a job a turn soon, after those who asked before."""
        if not job.queued:
            job.queued = True
            self._ready.append(job)
            self.ask()

    def ask(self) -> None:
        """Have a turn soon, and `idle` called after it if nobody has anything to do."""
        if not self._asked:
            self._asked = True
            self.runtime.soon(self._turn)

    def _turn(self) -> None:
        ready = self._ready
        started_ns = self.monotonic_ns()
        self.deadline_ns = started_ns + SLICE_NS
        self.started_ms = started_ns // NS_PER_MS
        while ready:
            job = ready.popleft()
            job.queued = False
            try:
                more = job.step()
            except Exception:
                log.exception("a live reader failed")
                more = False
                job.broken()
            if more and not job.queued:
                job.queued = True
                ready.append(job)
            if self.over:
                break
        self._asked = False
        if ready:
            self.ask()
        else:
            self._idle()


class Visits(Job):
    """When to look after each job next."""

    __slots__ = ("_armed_for", "_due", "_steps", "_timers", "_turns")

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns
        self._steps: dict[int, list[Visited]] = {}
        self._timers: list[int] = []  # a heap of the steps that have visits
        self._armed_for: int | None = None
        self._due: list[Visited] = []

    def add(self, visited: Visited, due_ms: int) -> None:
        """Visit a job at a time of the monotonic clock, or up to a step earlier."""
        now_ms = self._turns.now_ms
        step = max(due_ms // VISIT_STEP_MS, now_ms // VISIT_STEP_MS + 1)
        waiting = self._steps.get(step)
        if waiting is not None:
            waiting.append(visited)
            return
        self._steps[step] = [visited]
        heapq.heappush(self._timers, step)
        self._arm(now_ms)

    def _arm(self, now_ms: int) -> None:
        first = self._timers[0]
        if self._armed_for is None or first < self._armed_for:
            self._armed_for = first
            self._turns.runtime.later(max(0, first * VISIT_STEP_MS - now_ms), self._ring)

    def _ring(self) -> None:
        self._armed_for = None
        self._turns.enqueue(self)

    def step(self) -> bool:
        now_ms, due = self._turns.now_ms, self._due
        while self._timers and self._timers[0] * VISIT_STEP_MS <= now_ms:
            due.extend(self._steps.pop(heapq.heappop(self._timers)))
        while due:
            visited = due.pop()
            try:
                next_ms = visited.visit(now_ms)
            except Exception:
                log.exception("a live reader failed")
                visited.broken()
                continue
            if next_ms is not None:
                self.add(visited, next_ms)
            if due and self._turns.over:
                return True
        if self._timers:
            self._arm(now_ms)
        return False
