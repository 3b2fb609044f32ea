"""What the outlets of both transports do alike: tell a handler once that its client left.

A handler knows its outlet and the outlet knows its handler.  Such circles are collected very rarely
here, so an outlet that is over forgets its handler; only this file says when.
"""

from __future__ import annotations

import logging

from headrace.wire.exchange import Outlet

log = logging.getLogger("headrace.server")


class TransportOutlet(Outlet):
    """The body of an answer that is not there as a whole."""

    __slots__ = ("_closed", "_moved", "_stuck_since_ms")

    def __init__(self) -> None:
        super().__init__()
        self._closed = False
        self._stuck_since_ms = -1  # since when there has been no room, and nothing was taken
        self._moved = (0, 0)  # what said then how much had been taken

    def _stuck_since(self, moved: tuple[int, int], now_ms: int) -> int:
        """Return since when a client that leaves no room has taken nothing.

        `moved` changes with what it takes.
        """
        if self._stuck_since_ms < 0 or moved != self._moved:
            self._stuck_since_ms = now_ms
            self._moved = moved
        return self._stuck_since_ms

    def lost(self) -> None:
        """End the answer, because the client left."""
        if self._closed:
            return
        self._closed = True
        callback = self.on_closed
        self.on_room = self.on_closed = self.on_data = None
        try:
            if callback is not None:
                callback()
        except Exception:  # there may be others behind this one
            log.exception("%s failed when its client left", self._path)
        finally:
            self._left()

    def close(self) -> None:
        if self._closed:
            return
        self._finish()
        self._closed = True
        self.on_room = self.on_closed = self.on_data = None
        self._ended()

    @property
    def _path(self) -> str:
        """The path of the request, for the log."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Send what ends the answer."""
        raise NotImplementedError

    def _ended(self) -> None:
        """Tell the exchange that its handler ended the answer."""
        raise NotImplementedError

    def _left(self) -> None:
        """Tell the exchange that its client left."""
        raise NotImplementedError
