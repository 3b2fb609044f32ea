"""What the outlets of both transports do alike: who takes too little, and who has left.

A handler knows its outlet and the outlet knows its handler.  Such circles are collected very rarely
here, so an outlet that is over forgets its handler; only this file says when.
"""

from __future__ import annotations

import logging

from headrace.core.pace import Pace, least_bytes
from headrace.core.settings import Settings
from headrace.wire.exchange import Outlet

log = logging.getLogger("headrace.server")


class TransportOutlet(Outlet):
    """The body of an answer that is not there as a whole."""

    __slots__ = ("_closed", "_taking", "_taking_least")

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._closed = False
        self._taking: Pace | None = None  # while there is no room
        self._taking_least = least_bytes(
            settings.slow_consumer_timeout_ms, settings.answer_bytes_per_second_min
        )

    def _stuck_since(self, way: object, taken: int, now_ms: int) -> int:
        """Return since when a client that leaves no room has taken too little.

        `taken` counts the bytes that it has taken, as far as this `way` of counting tells.
        """
        if self._taking is None:
            self._taking = Pace()
        return self._taking.since(way, taken, now_ms, self._taking_least)

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
