"""Whether something goes on fast enough, for who looks at it now and then.

Only this file says what too slow means: in each stretch of the time that is allowed, as many bytes
have to move as the minimum rate asks of that time, and at least one.  So a byte now and then keeps
nothing alive, what came fast at first buys no rest later, and a steady sender above the rate is
never late, however the looks fall.  It has no clock and no timer: it compares what it is shown with
what it was shown before.
"""

from __future__ import annotations

from typing import Literal

Late = Literal["", "timeout", "rate"]


def least_bytes(allowed_ms: int, per_second_min: int) -> int:
    """How many bytes have to move in the time that is allowed.

    >>> least_bytes(30_000, 256), least_bytes(30_000, 0)
    (7680, 1)
    """
    return max(1, allowed_ms * per_second_min // 1_000)


class Pace:
    """What the last looks saw of something that has to go on.

    >>> pace = Pace()
    >>> [pace.look("a body", moved, at_ms, 1_000, 10) for moved, at_ms in ((0, 0), (9, 900))]
    ['', '']
    >>> pace.look("a body", 10, 1_000, 1_000, 10)  # as much as has to come in a second
    ''
    >>> pace.look("a body", 19, 2_001, 1_000, 10), pace.look("another", 19, 9_000, 1_000, 10)
    ('rate', '')
    >>> pace.look("another", 19, 10_001, 1_000, 10)
    'timeout'
    """

    __slots__ = ("_moved", "_since_ms", "_what")

    def __init__(self) -> None:
        self._what: object = None  # what goes on; None: nothing is waited for
        self._moved = 0
        self._since_ms = 0

    def rest(self) -> None:
        """Wait for nothing: what is looked at next begins then."""
        self._what = None

    def since(self, what: object, moved: int, now_ms: int, least: int) -> int:
        """Return since when fewer than `least` bytes have moved of what goes on."""
        if what != self._what or moved - self._moved >= least:
            self._what, self._moved, self._since_ms = what, moved, now_ms
        return self._since_ms

    def look(
        self, what: object, moved: int, now_ms: int, allowed_ms: int, per_second_min: int = 0
    ) -> Late:
        """Return whether it is too late, and how: "timeout" if nothing moved, "rate" if too little.

        `moved` counts the bytes of `what` so far; another `what` begins anew.
        """
        since_ms = self.since(what, moved, now_ms, least_bytes(allowed_ms, per_second_min))
        if now_ms - since_ms <= allowed_ms:
            return ""
        return "timeout" if moved == self._moved else "rate"
