"""Answers that clients have not taken yet: how many bytes, and how large the next ones may be.

A client may ask for a page of megabytes and never read it.  Pages are cut shorter while many such
answers are pending: a cursor makes every shorter page a whole answer, so nothing is refused.
"""

from __future__ import annotations

# Pages are not cut shorter than this.
PAGE_BYTES_MIN = 64 * 1024


class ResponseMemory:
    """Bytes of answers in memory, counted by the transports.

    >>> memory = ResponseMemory(32 << 20)
    >>> memory.fit(8 << 20) >> 20
    8
    >>> memory.used = 31 << 20
    >>> memory.fit(8 << 20) >> 10
    256
    """

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def fit(self, asked: int) -> int:
        """Return how many bytes a page may have of which `asked` were asked for."""
        if self.used < self.limit // 4:
            return asked
        return min(asked, max(PAGE_BYTES_MIN, (self.limit - self.used) // 4))
