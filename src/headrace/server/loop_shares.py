"""How long connections may keep the loop that have more to do than one request.

Only this file decides it, for both transports.  A connection always gets to do one thing when
something arrives; what is left after its slice waits in a queue with what others have left, behind
whatever arrives meanwhile.  Of that queue a turn of the loop does a millisecond, so that many
greedy connections keep the loop for hardly longer than one does.  What waits here is load like what
waits in the engine, so it is counted for the governor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from headrace.core.runtime import Runtime, Thunk

# What a turn gives to those that are behind, and one connection if it is alone.
SLICE_NS_MAX: Final = 1_000_000
# The least that a connection is given, if others are behind.
SLICE_NS_MIN: Final = 50_000
# Connections whose requests are counted: several times what is a full load with one request each.
COUNTED_MAX: Final = 1_024


class LoopShares:
    """The connections that are behind, in the order in which they fell behind."""

    __slots__ = ("_behind", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._behind: deque[tuple[Thunk, Callable[[], int]]] = deque()

    @property
    def slice_ns(self) -> int:
        """What a connection that begins now may take."""
        return max(SLICE_NS_MAX // (len(self._behind) + 1), SLICE_NS_MIN)

    def waiting_requests(self) -> int:
        """Return how many requests have arrived and wait for their connection to go on."""
        return sum(waiting() for _, waiting in islice(self._behind, COUNTED_MAX))

    def go_on_later(self, thunk: Thunk, waiting: Callable[[], int]) -> None:
        """Let a connection that has used up its slice go on, when those before it have.

        `waiting` says how many of its requests wait for that.
        """
        self._behind.append((thunk, waiting))
        if len(self._behind) == 1:
            self._runtime.soon(self._run)

    def _run(self) -> None:
        behind, now_ns = self._behind, self._runtime.clock.monotonic_ns
        until_ns = now_ns() + SLICE_NS_MAX
        # Whoever falls behind again waits for the next turn; one goes on however late it is.
        left = len(behind)
        try:
            while left:
                behind[0][0]()
                behind.popleft()
                left -= 1
                if now_ns() > until_ns:
                    break
        except BaseException:
            behind.popleft()
            raise
        finally:
            if behind:
                self._runtime.soon(self._run)
