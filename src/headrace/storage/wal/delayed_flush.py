"""A flush of the log that waits on purpose, for appends that come faster than they are sealed.

Only this file knows how long what is pending has waited.  Who decides how long it should is
`engine/scheduling/governor.py`.
"""

from __future__ import annotations

from headrace.core.clock import NS_PER_MS
from headrace.core.runtime import Runtime, Thunk


class DelayedFlush:
    """Puts off the flush of one shard.

    >>> from headrace.core.clock import ManualClock
    >>> from headrace.core.runtime import StepRuntime
    >>> clock = ManualClock()
    >>> runtime = StepRuntime(clock)
    >>> delayed = DelayedFlush(runtime, lambda: print("flushed"))
    >>> delayed.within(20)
    >>> clock.advance(19); runtime.run()
    >>> clock.advance(1); runtime.run()
    flushed
    """

    __slots__ = ("_due_ns", "_flush", "_runtime", "_since_ns")

    def __init__(self, runtime: Runtime, flush: Thunk) -> None:
        self._runtime = runtime
        self._flush = flush  # does nothing if nothing is pending
        self._since_ns: int | None = None  # when the first came that waits
        self._due_ns = 0

    def within(self, delay_ms: int) -> None:
        """Flush so long after the first of what is pending came, with all that came until then.

        Of several delays the longest counts.  Whoever asks for a flush has it all written at once.
        """
        if self._since_ns is None:
            self._since_ns = self._runtime.clock.monotonic_ns()
            self._runtime.later(delay_ms, self._at_last)
        self._due_ns = max(self._due_ns, self._since_ns + delay_ms * NS_PER_MS)

    def end(self) -> None:
        """Flush what waits when the turn ends."""
        if self._since_ns is not None:
            self._runtime.soon(self._flush)

    def _at_last(self) -> None:
        left_ns = self._due_ns - self._runtime.clock.monotonic_ns()
        if left_ns > 0:
            self._runtime.later(-(-left_ns // NS_PER_MS), self._at_last)
            return
        self._since_ns, self._due_ns = None, 0
        self._flush()
