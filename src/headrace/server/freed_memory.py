"""Memory that large bodies have let go: kept for the next one, or given back to the system.

An answer of some 100 KiB that is asked for and given back each time costs more than what fills it:
the system clears every page of it again.  `keep_freed_blocks` has the C library keep that much.

The C library keeps what is freed below something that is still in use: after eight senders of
60 MB at once a server of 98 MB stayed at 250 to 370 MB.  `malloc_trim` gives it back.  Only this
file calls it: once a second at most, after `LET_GO_BYTES_MIN` of bodies, and not in the middle of
more of them, which would need the same memory again.

It holds up the loop for 0.1 to 0.2 ms for each MiB that it gives back; docs/internals/server.md has
the figures, and why a thread of its own would not change them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# Less than this is not worth a call.
LET_GO_BYTES_MIN: Final = 32 << 20
# More than this in a second, and it is not over yet.
REST_BYTES_MAX: Final = 8 << 20
# Blocks up to this size are taken from the heap, at whose end twice as much may be free.
KEPT_BYTES: Final = 8 << 20

# Not every C library has it: musl does not.
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def keep_freed_blocks() -> None:
    """Have blocks of up to `KEPT_BYTES` come from memory that others have left.

    Up to some size glibc gives a block from its heap, beyond it one of its own that goes back to
    the system at once.  That size begins at 128 KiB, and is raised to that of the largest block
    that was ever let go: here is one.  Other libraries take no notice.
    """
    with suppress(MemoryError):
        bytearray(KEPT_BYTES)


def trim_heap() -> None:
    """Give the system what the C library keeps for later, if it can be told to."""
    if _malloc_trim is not None:
        with suppress(MemoryError):  # for its argument
            _malloc_trim(0)


class FreedMemory:
    """Has the heap trimmed after large bodies.

    >>> freed = FreedMemory(lambda: print("trimmed"))
    >>> freed.look(arrived=60 << 20, held=0)
    >>> freed.look(arrived=60 << 20, held=0)
    trimmed
    >>> freed.look(arrived=60 << 20, held=0)
    """

    def __init__(self, trim: Callable[[], None] = trim_heap) -> None:
        self._trim = trim
        self._trimmed_at = 0  # how many bytes had been let go then
        self._seen = 0  # how many had arrived when it looked last

    def look(self, arrived: int, held: int) -> None:
        """Once a second: trim the heap if that is worth it.

        `arrived` are the bytes of all bodies since the server began; `held` of them still are.
        """
        seen, self._seen = self._seen, arrived
        let_go = arrived - held
        if let_go - self._trimmed_at >= LET_GO_BYTES_MIN and arrived - seen <= REST_BYTES_MAX:
            self._trimmed_at = let_go
            self._trim()
