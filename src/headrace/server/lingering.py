"""The end of a connection whose client may still be sending.

A socket that is closed with unread bytes resets the connection, and the client may then never see
why it was closed.  So both transports send their last bytes and the end, read and drop what still
arrives for a moment, and close then.  Only this file says how long, and how much.
"""

from __future__ import annotations

import asyncio
from typing import Final

LINGER_MS: Final = 1_000
LINGER_BYTES_MAX: Final = 16 << 20


def linger(transport: asyncio.Transport, last: bytes) -> None:
    """Send the last bytes and the end of this direction, and close after `LINGER_MS`."""
    if not transport.is_closing():
        transport.write(last)
        if transport.can_write_eof():
            transport.write_eof()
    asyncio.get_running_loop().call_later(LINGER_MS / 1_000, transport.abort)


class Discarder:
    """Counts what is read and dropped, and closes a connection that sends too much of it."""

    __slots__ = ("_dropped_bytes",)

    def __init__(self) -> None:
        self._dropped_bytes = 0

    def drop(self, data: bytes, transport: asyncio.Transport | None) -> None:
        """Drop what a client sent after its connection was given up."""
        self._dropped_bytes += len(data)
        if self._dropped_bytes > LINGER_BYTES_MAX and transport is not None:
            transport.abort()
