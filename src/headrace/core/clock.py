"""Time and chance: the only file that reads a clock or asks for random bytes.

Everything else takes a `Clock` or a `Random`, so that a test can run a month in a second and
repeat a failure from its seed.  The rule it owns: engine time is the wall clock at start plus
monotonic time since, so that nobody who sets the clock can expire or reorder records.  It does not
sleep and does not schedule; that is the event loop's work.
"""

from __future__ import annotations

import os
import random
import time
from typing import Protocol

WALL_JUMP_MS_MIN = 60_000
NS_PER_US = 1_000
NS_PER_MS = 1_000_000


class Clock(Protocol):
    """Where time comes from."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as the machine believes; may jump either way."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds from an arbitrary start; never goes back."""
        ...

    def thread_ns(self) -> int:
        """Nanoseconds of CPU time that the calling thread has used."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // NS_PER_MS

    monotonic_ns = staticmethod(time.monotonic_ns)
    thread_ns = staticmethod(time.thread_time_ns)


class ManualClock:
    """A clock that moves only when told to.

    >>> clock = ManualClock(wall_ms=1_000)
    >>> clock.advance(250)
    >>> clock.wall_ms(), clock.monotonic_ns()
    (1250, 250000000)
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ns = 0
        self._thread_ns = 0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def thread_ns(self) -> int:
        return self._thread_ns

    def work(self, ms: int) -> None:
        """Let the thread have used `ms` milliseconds; no time passes."""
        self._thread_ns += ms * NS_PER_MS

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass, on both clocks."""
        assert ms >= 0, ms
        self._wall_ms += ms
        self._monotonic_ns += ms * NS_PER_MS

    def jump(self, ms: int) -> None:
        """Move the wall clock alone, as an operator or a time service would."""
        self._wall_ms += ms

    def set_wall(self, wall_ms: int) -> None:
        """Set the wall clock alone."""
        self._wall_ms = wall_ms


class EngineClock:
    """Engine time: wall clock at start plus monotonic time since.

    >>> clock = ManualClock(wall_ms=1_000)
    >>> engine = EngineClock(clock)
    >>> clock.advance(5)
    >>> clock.jump(3_600_000)
    >>> engine.now_ms(), engine.check_jump(), engine.check_jump()
    (1005, 3600000, None)
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Read at every append, so without a method between.
        self.monotonic_ns = clock.monotonic_ns
        # What makes engine time, in nanoseconds since 1970, of monotonic time.
        self._base_ns = clock.wall_ms() * NS_PER_MS - clock.monotonic_ns()
        self._offset_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since 1970 by engine time."""
        return (self.monotonic_ns() + self._base_ns) // NS_PER_MS

    def wall_offset_ms(self) -> int:
        """How far the wall clock is ahead of engine time; shown to operators, never acted on."""
        return self._clock.wall_ms() - self.now_ms()

    def check_jump(self) -> int | None:
        """How far the wall clock jumped since the last report, when by more than a minute.

        A drift is a jump too once it has added up to that much.
        """
        offset_ms = self.wall_offset_ms()
        jump_ms = offset_ms - self._offset_ms
        if abs(jump_ms) <= WALL_JUMP_MS_MIN:
            return None
        self._offset_ms = offset_ms
        return jump_ms


class Random(Protocol):
    """Where chance comes from: salts, identifiers, jitter."""

    def u32(self) -> int: ...
    def u64(self) -> int: ...
    def bytes(self, count: int) -> bytes: ...


class SystemRandom:
    """The kernel's generator: nobody can predict it."""

    def u32(self) -> int:
        return int.from_bytes(os.urandom(4), "little")

    def u64(self) -> int:
        return int.from_bytes(os.urandom(8), "little")

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)


class SeededRandom:
    """The same sequence for the same seed.

    >>> SeededRandom(7).u64() == SeededRandom(7).u64()
    True
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def u32(self) -> int:
        return self._random.getrandbits(32)

    def u64(self) -> int:
        return self._random.getrandbits(64)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)
