"""Memory that is kept for the moment when there is none left.

A request for which there was no memory still has to be answered, and an answer takes a little.
Only this file holds that little.  It is given back to the process when memory runs out, and taken
again, once a second, when there is room for it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

RESERVE_BYTES: Final = 4 << 20


class MemoryReserve:
    """The reserve of one server.

    >>> reserve = MemoryReserve()
    >>> reserve.release(), reserve.release()
    (True, False)
    >>> reserve.restore()
    >>> reserve.release()
    True
    """

    def __init__(self) -> None:
        self._held: bytearray | None = None
        self.restore()

    def release(self) -> bool:
        """Give the memory back; return whether it was held until now."""
        held, self._held = self._held, None
        return held is not None

    def restore(self) -> None:
        """Take it again, if there is room for it."""
        if self._held is None:
            with suppress(MemoryError):
                self._held = bytearray(RESERVE_BYTES)
