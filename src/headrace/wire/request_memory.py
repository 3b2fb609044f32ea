"""What clients send and no handler is done with: how many bytes of it, and how many there may be.

Bodies that arrive, wait for their turn or are worked on, and WebSocket messages of which only a
part has come.  All share one number, `request_memory_bytes_max`; what does not fit is refused.
"""

from __future__ import annotations

from typing import Final

from headrace.core.errors import Throttled

# Of a message that is arriving so much is not counted: most are smaller.
FREE_MESSAGE_BYTES: Final = 64 * 1024


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
