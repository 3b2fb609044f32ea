"""What the process knows about itself, as metrics: stalls of the loop, collections, memory, CPU.

Only this file measures stalls of the loop: a timer is due every `TICK_MS`, and is late by the time
that the loop was busy with something else.  A stall shows as at least its length less one tick.
"""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from headrace.core.runtime import Runtime
from headrace.core.telemetry import LATENCY_NS, SECONDS_PER_NS, Histogram
from headrace.metrics.requests import Metrics

TICK_MS: Final = 20
# The longest of the last minute is kept as the longest of each of its seconds.
MINUTE_SECONDS: Final = 60
NS_PER_SECOND: Final = 1_000_000_000
GENERATIONS: Final = 3


class Longest:
    """The largest value of the last minute.

    >>> longest = Longest()
    >>> longest.note(5, now_ns=0)
    >>> longest.note(3, now_ns=30 * 10**9)
    >>> longest.value(now_ns=59 * 10**9), longest.value(now_ns=75 * 10**9)
    (5, 3)
    """

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()  # [second, longest in it], at most 61

    def note(self, value: int, now_ns: int) -> None:
        second = now_ns // NS_PER_SECOND
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] = max(self._seconds[-1][1], value)
        else:
            self._seconds.append([second, value])
            self._forget(second)

    def value(self, now_ns: int) -> int:
        self._forget(now_ns // NS_PER_SECOND)
        return max((longest for _, longest in self._seconds), default=0)

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - MINUTE_SECONDS:
            self._seconds.popleft()


class LoopWatch:
    """Measures how late a timer of the loop is."""

    def __init__(self, runtime: Runtime, histogram: Histogram) -> None:
        self._runtime = runtime
        self._histogram = histogram
        self._due_ns = 0
        self._stopped = False
        self.longest = Longest()

    def start(self) -> None:
        self._due_ns = self._runtime.clock.monotonic_ns() + TICK_MS * 1_000_000
        self._runtime.later(TICK_MS, self._tick)

    def stop(self) -> None:
        self._stopped = True

    def _tick(self) -> None:
        if self._stopped:
            return
        now_ns = self._runtime.clock.monotonic_ns()
        late_ns = max(0, now_ns - self._due_ns)
        self._histogram.observe(late_ns)
        self.longest.note(late_ns, now_ns)
        self.start()


class CollectorWatch:
    """Measures the pauses of the garbage collector; at most one may be started in a process."""

    def __init__(self, runtime: Runtime, histograms: list[Histogram]) -> None:
        assert len(histograms) == GENERATIONS
        self._clock = runtime.clock
        self._histograms = histograms
        self._started_ns = 0
        self.longest = Longest()

    def start(self) -> None:
        gc.callbacks.append(self._heard)

    def stop(self) -> None:
        gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, info: Mapping[str, int]) -> None:
        now_ns = self._clock.monotonic_ns()
        if phase == "start":
            self._started_ns = now_ns
        else:
            self._histograms[info["generation"]].observe(now_ns - self._started_ns)
            self.longest.note(now_ns - self._started_ns, now_ns)


class ProcessWatch:
    """Everything here that has to be started and stopped."""

    def __init__(self, loop: LoopWatch, collector: CollectorWatch) -> None:
        self.loop = loop
        self.collector = collector

    def start(self) -> None:
        self.loop.start()
        self.collector.start()

    def stop(self) -> None:
        self.loop.stop()
        self.collector.stop()


def watch_process(
    metrics: Metrics, runtime: Runtime, resident_bytes: Callable[[], int]
) -> ProcessWatch:
    """Register the figures of the process; the answer is to be started on the loop thread."""
    registry, clock = metrics.registry, runtime.clock
    late = registry.histogram(
        "headrace_loop_stall_seconds",
        f"How late a timer of the loop was that is due every {TICK_MS} ms.",
        LATENCY_NS,
        SECONDS_PER_NS,
    )
    loop = LoopWatch(runtime, late)
    registry.gauge(
        "headrace_loop_stall_longest_seconds",
        "The longest of these in the last minute.",
        lambda: loop.longest.value(clock.monotonic_ns()) * SECONDS_PER_NS,
    )
    pauses = registry.histograms(
        "headrace_gc_pause_seconds",
        "Garbage collections, by generation.",
        ("generation",),
        LATENCY_NS,
        SECONDS_PER_NS,
    )
    collector = CollectorWatch(runtime, [pauses.of(str(n)) for n in range(GENERATIONS)])
    registry.gauge(
        "headrace_gc_pause_longest_seconds",
        "The longest collection of the last minute.",
        lambda: collector.longest.value(clock.monotonic_ns()) * SECONDS_PER_NS,
    )
    registry.gauge("headrace_process_resident_bytes", "Memory in use.", resident_bytes)
    registry.read_counter(
        "headrace_process_cpu_seconds_total", "CPU time of all threads.", _cpu_seconds
    )
    return ProcessWatch(loop, collector)


def _cpu_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system
