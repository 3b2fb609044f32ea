"""How long one connection may keep the loop at a time, when it has more to do than one request.

Only this file decides it, for both transports.  A connection always gets to do one thing; what is
left after its slice waits for the next turn of the loop, behind whatever has arrived meanwhile.
Connections that are behind share one slice, so that many greedy ones keep the loop for hardly
longer than one does.
"""

from __future__ import annotations

from typing import Final

# What one connection gets of a turn when no other one is behind, and the least that it gets.
SLICE_NS_MAX: Final = 1_000_000
SLICE_NS_MIN: Final = 50_000


class LoopShares:
    """Counts the connections that are behind.

    >>> shares = LoopShares()
    >>> shares.slice_ns
    1000000
    >>> for _ in range(3): shares.fell_behind()
    >>> shares.slice_ns
    250000
    >>> shares.goes_on()
    >>> shares.slice_ns
    333333
    """

    __slots__ = ("_behind",)

    def __init__(self) -> None:
        self._behind = 0

    @property
    def slice_ns(self) -> int:
        """What a connection that begins now may take."""
        return max(SLICE_NS_MAX // (self._behind + 1), SLICE_NS_MIN)

    def fell_behind(self) -> None:
        """A connection has used up its slice, and has more to do."""
        self._behind += 1

    def goes_on(self) -> None:
        """One that was behind has its turn, or is gone."""
        self._behind -= 1
        assert self._behind >= 0
