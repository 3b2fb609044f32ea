"""Turns of the loop for work that can wait: a little of each job, a millisecond at a time.

Only this file decides how long the fan-out to live readers, and background work, may keep the loop.
A few jobs take turns in the order in which they asked.  When there are many, or the slice was used
up, they are ranked (`bands.py`), and the rest goes on in the next turn, after whatever arrived
meanwhile.  Under pressure, which `throttle.py` knows of, wakes are put together for some
milliseconds, and the least valuable jobs are held back.

`Visits` calls jobs back at given times, with one timer for all of them: five thousand idle streams
are five thousand entries in lists, not five thousand timers.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable

from headrace.core.clock import NS_PER_MS
from headrace.core.runtime import Runtime
from headrace.engine.scheduling.bands import AGE_CAP_MS, Bands
from headrace.engine.scheduling.priority import PRIORITY_MAX

log = logging.getLogger("headrace.live")

# How long one turn of the loop may be kept.
SLICE_NS = 1_000_000
# What a write costs that the loop hands to the kernel later in the same turn (measured: 6 to 9 µs
# for a short one).  Without it a slice of a millisecond would keep the loop for three.
WRITE_NS = 7_000
# What a copy costs later in the same turn, when its log entry is written and it becomes visible.
SETTLE_NS = 1_200
# Visits are made in steps of this length: early by up to a step, never late.
VISIT_STEP_MS = 20
# About as many jobs as a slice can serve: among fewer the order does not matter.
UNRANKED_MAX = 64
# Longer waits count as this: ten times the latency ceiling says no more than the ceiling.
WAIT_NS_MAX = 50 * NS_PER_MS


class Job:
    """Work that is done in turns of the loop."""

    __slots__ = ("queued",)
    # Background work, which goes one band down when work has to be put off.
    background = False

    def __init__(self) -> None:
        self.queued = False

    @property
    def priority(self) -> int:
        """How soon it is to be served when there is more to do than a turn can; see `bands.py`."""
        return PRIORITY_MAX

    def step(self) -> bool:
        """Do a little; return whether there is more to do now."""
        raise NotImplementedError

    def broken(self) -> None:
        """Give up: a step raised an error."""

    def held(self, ms_max: int) -> None:
        """Hear that it waits until the pressure falls, or for `ms_max` at most."""


class Visited(Job):
    """A job that is also looked after from time to time."""

    __slots__ = ()

    def visit(self, now_ms: int) -> int | None:
        """Look after time-outs; return when to be visited next, or None."""
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

    def __init__(self, runtime: Runtime, idle: Callable[[], None] | None = None) -> None:
        self.runtime = runtime
        self.monotonic_ns = runtime.clock.monotonic_ns
        self.deadline_ns = 0  # of this turn
        self.started_ms = self.now_ms  # when this turn began, or the last one
        self.when_idle = [] if idle is None else [idle]
        self._arrived: deque[Job] = deque()  # not ranked
        self._ranked: Bands[Job] = Bands()
        self._behind = False  # the last turn left jobs over
        self._resumed_ms = 0  # when jobs were last held back no longer
        self._asked = False
        self._asked_ns = 0
        # What the throttle sets, and reads.
        self.coalesce_ms = 0
        self._coalesced: list[Job] = []  # wait for more to do
        self._told_held: set[tuple[int, int]] = set()  # ids of jobs, since when they wait
        self.coalesced_total = 0
        self.unranked_total = 0
        self._waited_ns = 0
        self._waits = 0

    @property
    def now_ms(self) -> int:
        """Milliseconds of the monotonic clock."""
        return self.monotonic_ns() // NS_PER_MS

    @property
    def over(self) -> bool:
        """Return whether this turn's time is used up."""
        return self.monotonic_ns() >= self.deadline_ns

    @property
    def left_ns(self) -> int:
        """What is left of this turn's time, less than nothing if it is used up."""
        return self.deadline_ns - self.monotonic_ns()

    def wrote(self, writes: int = 1) -> None:
        """Charge this turn for writes that it has still to make."""
        self.deadline_ns -= writes * WRITE_NS

    def staged(self, copies: int) -> None:
        """Charge this turn for copies of records that were staged."""
        self.deadline_ns -= copies * SETTLE_NS

    def enqueue(self, job: Job) -> None:
        """Give a job a turn soon, after the jobs before it or by its rank."""
        if not job.queued:
            job.queued = True
            self._arrived.append(job)
            self.ask()

    def wake(self, job: Job) -> None:
        """Give a job a turn that, under pressure, may wait a little for more to do."""
        if not self.coalesce_ms:
            self.enqueue(job)
        elif not job.queued:
            job.queued = True
            self.coalesced_total += 1
            self._coalesced.append(job)
            if len(self._coalesced) == 1:
                self.runtime.later(self.coalesce_ms, self._release_coalesced)

    def _release_coalesced(self) -> None:
        """Give the jobs that waited for more to do their turns."""
        self._arrived.extend(self._coalesced)
        self._coalesced.clear()
        self.ask()

    def ask(self) -> None:
        """Have a turn soon, and `when_idle` called after it if no job is left."""
        if not self._asked:
            self._asked = True
            self._asked_ns = self.monotonic_ns()
            self.runtime.last(self._turn)  # requests of the same turn, and their answers, first

    def _turn(self) -> None:
        arrived, ranked = self._arrived, self._ranked
        started_ns = self.monotonic_ns()
        self.deadline_ns = started_ns + SLICE_NS
        self.started_ms = started_ns // NS_PER_MS
        self._note_wait(started_ns - self._asked_ns)
        if self._behind or len(arrived) > UNRANKED_MAX or ranked.holding:
            self._serve_by_rank()
        else:
            while arrived:
                job = arrived.popleft()
                job.queued = False
                if self._step(job) and not job.queued:
                    job.queued = True
                    arrived.append(job)
                self.unranked_total += 1
                if self.over:
                    break
        self._asked = False
        self._behind = bool(arrived) or ranked.ready > 0
        if self._behind:
            self.ask()
        else:
            for idle in self.when_idle:
                idle()

    def _step(self, job: Job) -> bool:
        """Run one step of a job; return whether it has more to do."""
        try:
            return job.step()
        except Exception:
            log.exception("a job of the loop failed: %s", type(job).__name__)
            job.broken()
            return False

    # By rank

    def _serve_by_rank(self) -> None:
        ranked, now_ms = self._ranked, self.started_ms
        self._rank_arrived()
        ranked.age(now_ms)
        began_ns = self.monotonic_ns()
        while (job := ranked.take()) is not None:
            self._note_ranked_wait(began_ns // NS_PER_MS)
            job.queued = False
            more = self._step(job)
            ended_ns = self.monotonic_ns()
            ranked.charge(ended_ns - began_ns)
            if more and not job.queued:
                job.queued = True
                self._rank(job)
            if self._arrived:
                self._rank_arrived()
            if ended_ns >= self.deadline_ns:
                break
            began_ns = ended_ns

    def _rank_arrived(self) -> None:
        arrived = self._arrived
        while arrived:
            self._rank(arrived.popleft())

    def _rank(self, job: Job) -> None:
        lowered = job.background and self._ranked.holding
        self._ranked.add(job, job.priority, self.started_ms, lowered=lowered)

    # What the throttle does and asks

    @property
    def deferring(self) -> bool:
        """Whether the least valuable work is put off."""
        return self._ranked.holding

    def defer(self, deferring: bool) -> None:
        """Put off the least valuable work, or put it off no longer."""
        now_ms = self.now_ms
        self._told_held.clear()
        self._ranked.hold(deferring, now_ms)
        if not deferring:
            self._resumed_ms = now_ms
        self._behind = True
        self.ask()

    def look_after_held(self) -> None:
        """Tell each job that is held back, once, and serve those that have waited too long."""
        now_ms, told = self.now_ms, self._told_held
        self._ranked.age(now_ms)
        # A job that was served meanwhile and is held again waits since then, and is told again.
        self._told_held = held = set()
        for job, since_ms in self._ranked.held():
            wait = (id(job), since_ms)
            held.add(wait)
            if wait not in told:
                self._tell_held(job, max(since_ms + AGE_CAP_MS - now_ms, 0))
        self.ask()

    def _tell_held(self, job: Job, ms_max: int) -> None:
        try:
            job.held(ms_max)
        except Exception:
            log.exception("a job of the loop failed: %s", type(job).__name__)
            job.broken()

    @property
    def depth(self) -> int:
        """Jobs that wait for a turn, and may have one."""
        return len(self._arrived) + self._ranked.ready

    @property
    def bands(self) -> Bands[Job]:
        """The ranked jobs, for metrics."""
        return self._ranked

    def _note_wait(self, ns: int) -> None:
        self._waited_ns += ns if ns < WAIT_NS_MAX else WAIT_NS_MAX
        self._waits += 1

    def _note_ranked_wait(self, now_ms: int) -> None:
        """Note the wait of the job taken last, except where it was held back on purpose.

        Else putting work off would raise the pressure that puts it off.
        """
        since_ms = self._ranked.taken_since_ms
        if not self._ranked.holding or now_ms - since_ms < AGE_CAP_MS:
            self._note_wait((now_ms - max(since_ms, self._resumed_ms)) * NS_PER_MS)

    def mean_wait_ns(self) -> int:
        """Return how long jobs waited, on average since the last call."""
        mean = self._waited_ns // self._waits if self._waits else 0
        self._waited_ns = self._waits = 0
        return mean


class Visits(Job):
    """The times at which jobs are visited next."""

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
