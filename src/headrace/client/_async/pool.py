"""Connections that are kept and used again, at most `connections_max` of them.

The youngest is used first, so that those not needed grow old and are dropped before the server
hangs up on them: a request on a connection that the server is closing has an unknown outcome.
"""

from __future__ import annotations

import ssl
from collections import deque
from typing import Final

from headrace.client._async.net import Connection, Slots, connect
from headrace.client.connection_failures import unreachable
from headrace.client.message import Address, Response
from headrace.core.clock import NS_PER_MS, SystemClock
from headrace.core.errors import InvalidRequest

# Below the server's `idle_timeout_ms`.
IDLE_MS_MAX: Final = 30_000


class AsyncPool:
    """Requests to one server, each on a connection of its own."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, connections_max: int) -> None:
        self._address = address
        self._tls = tls
        self._slots = Slots(connections_max)
        self._free: deque[tuple[Connection, int]] = deque()  # with when it was put back
        self._now_ns = SystemClock.monotonic_ns
        self._closed = False

    async def exchange(self, head: bytes, body: bytes, timeout_ms: int) -> Response:
        """Send a request on a connection that is free, or a new one."""
        if not await self._slots.take(timeout_ms):
            raise unreachable("all connections of this client are busy", "nothing")
        try:
            connection = self._youngest()
            if connection is None:
                connection = await connect(self._address, self._tls, timeout_ms)
            response = await connection.exchange(head, body, timeout_ms)
            if response.keep_alive and not self._closed:
                self._free.append((connection, self._now_ns()))
            else:
                connection.close()
            return response
        finally:
            self._slots.give()

    def _youngest(self) -> Connection | None:
        if self._closed:
            raise InvalidRequest("the client is closed", fix="make another")
        oldest_ns = self._now_ns() - IDLE_MS_MAX * NS_PER_MS
        while self._free:
            connection, since_ns = self._free.pop()
            if since_ns >= oldest_ns and connection.alive:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """Hang up; requests in progress still get their answers."""
        self._closed = True
        while self._free:
            self._free.pop()[0].close()
