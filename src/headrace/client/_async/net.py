"""Connections, slots and pauses for asyncio: what `_sync/net.py` does with blocking sockets.

Only this file and its twin touch the network.  A connection carries one request at a time.  Once
something went wrong on it, it is closed: a late answer must not be taken for the next one.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

from headrace.client.connection_failures import closed_early, not_connected, unreachable
from headrace.client.message import Address, Response, ResponseReader
from headrace.core.errors import HeadraceError

# Up to here head and body are one write; above, copying costs more than a second write.
JOINED_BYTES_MAX = 64 << 10


class Connection(asyncio.Protocol):
    """One connection to the server."""

    def __init__(self) -> None:
        self._reader = ResponseReader()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Response] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def alive(self) -> bool:
        """Whether a request may be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, head: bytes, body: bytes, timeout_ms: int) -> Response:
        """Send a request and wait for its answer."""
        if self._transport is None or self._transport.is_closing():
            raise unreachable("the connection is closed", "nothing")
        waiter: asyncio.Future[Response] = self._loop.create_future()
        self._waiter = waiter
        timer = self._loop.call_later(timeout_ms / 1_000, self._expire, timeout_ms)
        try:
            if len(body) <= JOINED_BYTES_MAX:
                self._transport.write(head + body)
            else:
                self._transport.writelines((head, body))
            return await waiter
        except BaseException:
            # Nobody waits for the rest of the answer any more.
            self.close()
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: HeadraceError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.close()

    def _expire(self, timeout_ms: int) -> None:
        self._fail(unreachable(f"no answer within {timeout_ms} ms", "unknown"))

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self.close()  # an answer to no request
            return
        try:
            response = self._reader.feed(data)
        except HeadraceError as error:
            self._fail(error)
            return
        if response is not None:
            self._waiter.set_result(response)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fail(closed_early(error))


async def connect(address: Address, tls: ssl.SSLContext | None, timeout_ms: int) -> Connection:
    """Open a connection."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            _, connection = await loop.create_connection(
                Connection, address.host, address.port, ssl=tls
            )
    except TimeoutError:
        raise unreachable(
            f"{address.authority} was not there in {timeout_ms} ms", "nothing"
        ) from None
    except OSError as error:
        raise not_connected(address, error) from None
    return connection


class Slots:
    """At most `count` at a time; the others wait in line."""

    def __init__(self, count: int) -> None:
        self._semaphore = asyncio.Semaphore(count)

    async def take(self, timeout_ms: int) -> bool:
        """Take a slot; return whether one was free in time."""
        if not self._semaphore.locked():
            return await self._semaphore.acquire()
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                return await self._semaphore.acquire()
        except TimeoutError:
            return False

    def give(self) -> None:
        self._semaphore.release()


async def pause(ms: int) -> None:
    """Let time pass."""
    await asyncio.sleep(ms / 1_000)
