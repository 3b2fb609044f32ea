"""When the kernel takes more for a connection, for who writes past its transport.

Only this file asks the loop about a socket that has a transport.  The loop refuses such a
descriptor, so it is asked about a duplicate, which is closed with the answer: a connection ends
only when the last descriptor of it is closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

# The loop says nothing of a socket that has failed, so who waits tries again after this.
TRY_AGAIN_SECONDS: Final = 1.0


class SocketRoom:
    """One answer that is sent past its transport."""

    __slots__ = ("_loop", "_socket", "_timer", "waits")

    def __init__(self, descriptor: int) -> None:
        self._loop = asyncio.get_running_loop()
        # The kind of socket matters to nobody: nothing is done with it but to wait.
        self._socket = socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM)
        self._timer: asyncio.TimerHandle | None = None
        self.waits = False

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call once there is room, or a second later, in place of what was to be called before."""
        self._stop()
        self.waits = True
        self._loop.add_writer(self._socket, self._ready, go_on)
        self._timer = self._loop.call_later(TRY_AGAIN_SECONDS, self._ready, go_on)

    def _ready(self, go_on: Callable[[], None]) -> None:
        self._stop()
        go_on()

    def _stop(self) -> None:
        if self.waits:
            self.waits = False
            self._loop.remove_writer(self._socket)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Wait no more, and let go of the socket."""
        self._stop()
        self._socket.close()
