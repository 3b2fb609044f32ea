"""The governor: computes pressure from load, and from pressure the measures to take (rungs).

Only this file knows the thresholds.  Pressure is a number from 0 to 1 made of three signals: how
much is ready and waits, how long it waits, and how busy the loop is.  No signal alone is an
overload: a loop that is busy all the time and answers at once has no reason to be slower.  What
pressure leads to, in this order: deliveries are put together, a sync waits for more to join it, the
least valuable work is put off, and at last appends are refused.  All of it costs time and nothing
else: no record is lost, and no read is wrong.

Everything here is pure: time and load are arguments.  `throttle.py` measures, and does what this
file says.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# How often the governor looks.
LOOK_MS: Final = 100

# When a signal counts as full.  One loop serves everything, so there is one worker.
WORKERS: Final = 1
DEPTH_FULL: Final = 256 * WORKERS  # takes about as long to serve as the latency ceiling
LATENCY_FULL_MS: Final = 5.0
# What a full signal is worth; together they are 1, the last rung.
DEPTH_WEIGHT: Final = 0.3
LATENCY_WEIGHT: Final = 0.5
BUSY_WEIGHT: Final = 0.2
# The weight of a look against those before it.
SMOOTHING: Final = 0.3

# The rungs.
COALESCE_ABOVE: Final = 0.2
COALESCE_MS_MAX: Final = 20
WIDEN_ABOVE: Final = 0.4
WINDOW_MS_MIN: Final = 0.5
WINDOW_MS_MAX: Final = 10.0
DEFER_ABOVE: Final = 0.8
DEFER_AFTER_MS: Final = 500
DEFER_UNTIL_BELOW: Final = 0.6
SHED_FROM: Final = 0.95
RETRY_AFTER_MS: Final = 500

# Beside the rungs, for appends that come faster than they are sealed: from this share of the memory
# for what is not sealed, they wait for the log, the longer the less memory is left.
WAIT_ABOVE_MEMORY: Final = 0.6
WRITE_WAIT_MS_MAX: Final = 1_000
SEALED_PER_SECOND: Final = 64 << 20  # bytes, until it has been measured

RUNGS: Final = ("coalesce", "widen", "defer", "shed")

assert abs(DEPTH_WEIGHT + LATENCY_WEIGHT + BUSY_WEIGHT - 1) < 1e-9
assert BUSY_WEIGHT <= COALESCE_ABOVE, "a busy loop alone is no reason to be slower"
assert COALESCE_ABOVE < WIDEN_ABOVE < DEFER_UNTIL_BELOW < DEFER_ABOVE < SHED_FROM <= 1


class Load(NamedTuple):
    """What was measured since the last look."""

    # Topics that wait for their delivery, appends for the log, and requests for their turn.
    depth: float = 0.0
    latency_ms: float = 0.0  # from being ready to being served, on average
    busy: float = 0.0  # share of the time that the loop's thread was at work
    late: bool = False  # the look itself came late: the loop was at work, or had no processor


def coalesce_ms(pressure: float) -> int:
    """Return how long deliveries of a topic are put together.

    >>> [coalesce_ms(pressure) for pressure in (0, 0.2, 0.4, 0.6, 1)]
    [0, 0, 5, 10, 20]
    """
    share = (pressure - COALESCE_ABOVE) / (1 - COALESCE_ABOVE)
    return round(COALESCE_MS_MAX * max(share, 0.0))


def window_ms(pressure: float) -> float:
    """Return how long a sync waits for more appends to join it.

    >>> [window_ms(pressure) for pressure in (0, 0.4, 0.5, 1)]
    [0.0, 0.0, 5.25, 10.0]
    """
    if pressure <= WIDEN_ABOVE:
        return 0.0
    return WINDOW_MS_MIN + (WINDOW_MS_MAX - WINDOW_MS_MIN) * pressure


def write_wait_ms(memory: float, size: int, sealed_per_second: float) -> int:
    """Return how long appends of `size` bytes wait for the log to be written.

    `memory` is the share that is taken by what is not sealed.  In the middle between where waiting
    begins and where appends are refused they wait for as long as it takes to seal as much.

    >>> [write_wait_ms(memory, 1 << 20, 1 << 25) for memory in (0.5, 0.6, 0.7, 0.8, 0.9, 1)]
    [0, 0, 10, 31, 94, 1000]
    """
    over = (memory - WAIT_ABOVE_MEMORY) / (1 - WAIT_ABOVE_MEMORY)
    if over <= 0:
        return 0
    if over >= 1:
        return WRITE_WAIT_MS_MAX
    seconds = size / sealed_per_second * over / (1 - over)
    return min(round(seconds * 1000), WRITE_WAIT_MS_MAX)


class Governor:
    """The pressure of one engine, and which rungs are in use.

    >>> governor = Governor()
    >>> governor.look(Load(busy=1.0), now_ms=0), governor.coalesce_ms
    (0.2, 0)
    """

    def __init__(self) -> None:
        self.pressure = 0.0
        self.depth = 0.0  # the signals, each from 0 to 1
        self.latency = 0.0
        self.busy = 0.0
        self.latency_ms = 0.0  # smoothed
        self._late = 0.0  # the share of late looks, smoothed
        self.deferring = False
        self._high_since_ms: int | None = None
        self.entered_total = dict.fromkeys(RUNGS, 0)
        self._standing = dict.fromkeys(RUNGS, False)

    def look(self, load: Load, now_ms: int) -> float:
        """Take a measurement into account; return the pressure."""
        self.latency_ms += (load.latency_ms - self.latency_ms) * SMOOTHING
        self._late += (load.late - self._late) * SMOOTHING
        self.depth = _share(load.depth, DEPTH_FULL)
        self.latency = _share(self.latency_ms, LATENCY_FULL_MS)
        # On an overloaded machine a loop that waits for its processor counts as busy.
        self.busy = max(_share(load.busy, 1.0), self._late)
        pressure = (
            DEPTH_WEIGHT * self.depth + LATENCY_WEIGHT * self.latency + BUSY_WEIGHT * self.busy
        )
        self.set_pressure(min(pressure, 1.0), now_ms)
        return self.pressure

    def set_pressure(self, pressure: float, now_ms: int) -> None:
        """Set the pressure, and the rungs that follow from it."""
        assert 0.0 <= pressure <= 1.0, pressure
        self.pressure = pressure
        if pressure <= DEFER_ABOVE:
            self._high_since_ms = None
        elif self._high_since_ms is None:
            self._high_since_ms = now_ms
        if self.deferring:
            self.deferring = pressure >= DEFER_UNTIL_BELOW
        elif self._high_since_ms is not None:
            self.deferring = now_ms - self._high_since_ms >= DEFER_AFTER_MS
        for rung, stands in self.rungs().items():
            self.entered_total[rung] += stands and not self._standing[rung]
            self._standing[rung] = stands

    @property
    def coalesce_ms(self) -> int:
        """How long deliveries of a topic are put together; 0: not at all."""
        return coalesce_ms(self.pressure)

    @property
    def window_ms(self) -> float:
        """How long a sync waits for more to join it; 0: not at all."""
        return window_ms(self.pressure)

    @property
    def shedding(self) -> bool:
        """Whether appends to a log that is full are refused: the last resort."""
        return self.deferring and self.pressure >= SHED_FROM

    def rungs(self) -> dict[str, bool]:
        """Return which rungs are in use."""
        stands = (self.coalesce_ms > 0, self.window_ms > 0, self.deferring, self.shedding)
        return dict(zip(RUNGS, stands, strict=True))


def _share(value: float, full: float) -> float:
    return min(max(value / full, 0.0), 1.0)
