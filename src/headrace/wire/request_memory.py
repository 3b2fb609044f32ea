"""What clients send and no handler is done with: how many bytes of it, and how many there may be.

Bodies that arrive, wait for their turn or are worked on, and WebSocket messages of which only a
part has come.  All share one number, `request_memory_bytes_max`; what does not fit is refused.
"""

from __future__ import annotations

from typing import Final

from headrace.core.errors import Throttled

# Of a message that is arriving so much is not counted: most are smaller.
FREE_MESSAGE_BYTES: Final = 64 * 1024
# What a body that is arriving may hold, as a multiple of what it leaves to others.
SHARE_OF_REST: Final = 4


class Budget:
    """A number of bytes that all requests share.

    >>> budget = Budget(100)
    >>> budget.take(80), budget.take(30)
    (True, False)
    >>> budget.give(80)
    >>> budget.used, budget.taken
    (0, 80)
    """

    __slots__ = ("limit", "taken", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.taken = 0  # since the server began

    def take(self, amount: int) -> bool:
        """Take bytes if the limit allows it; whether it did."""
        if self.used + amount > self.limit:
            return False
        self.used += amount
        self.taken += amount
        return True

    def take_more(self, amount: int, held: int) -> bool:
        """Take more for a body that holds `held` already; whether the limit allows it.

        Beside others a body may hold `SHARE_OF_REST` times what it leaves, so that some large ones
        that never end do not keep small ones out.

        >>> budget = Budget(900)
        >>> budget.take(500), budget.take_more(300, 0), budget.take_more(60, 300)
        (True, True, False)
        >>> budget.take_more(60, 0)
        True
        """
        others = self.used - held
        if others and held + amount > SHARE_OF_REST * (self.limit - self.used - amount):
            return False
        return self.take(amount)

    def give(self, amount: int) -> None:
        """Give back bytes that were taken."""
        self.used -= amount
        assert self.used >= 0, self.used


def no_memory(bytes_max: int) -> Throttled:
    """The error when `request_memory_bytes_max` has no room for more of a body.

    >>> no_memory(1024).detail["limit"]
    'request_memory_bytes_max'
    """
    return Throttled(
        "too many large bodies arrive at once",
        fix="retry after a moment, or raise HEADRACE_REQUEST_MEMORY_BYTES_MAX",
        detail={"limit": "request_memory_bytes_max", "max": bytes_max},
    )
