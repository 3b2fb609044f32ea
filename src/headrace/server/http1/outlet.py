"""The body of an HTTP/1.1 answer that is sent as it comes: in chunks, by its length, or a tunnel.

Only this file writes such a body.  It is held until the answers before it on the same connection
have been written; a handler writes while there is room, and hears when there is room again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.server.acknowledged import acknowledged_bytes
from headrace.server.fan_out import write_now
from headrace.server.http1.socket_room import SocketRoom
from headrace.server.transport_outlet import TransportOutlet

if TYPE_CHECKING:
    from headrace.server.http1.answer import Http1Exchange
    from headrace.server.http1.connection import Http1Connection

log = logging.getLogger("headrace.http1")


class Http1Outlet(TransportOutlet):
    """The body of an answer that goes on."""

    __slots__ = (
        "_begun",
        "_chunked",
        "_connection",
        "_descriptor",
        "_held",
        "_socket_room",
        "exchange",
        "sized",
    )

    def __init__(
        self,
        exchange: Http1Exchange,
        connection: Http1Connection,
        head: bytes,
        *,
        chunked: bool,
        sized: bool,
    ) -> None:
        super().__init__(connection.app.settings)
        self.exchange = exchange
        self.sized = sized  # its length is known, so a client that takes nothing is timed out
        self._connection = connection
        self._chunked = chunked and exchange.method != "HEAD"
        self._held = head  # until the answers before this one have gone out
        self._begun = False
        self._descriptor = -1  # of the socket, once this answer is the next one on it
        self._socket_room: SocketRoom | None = None  # for what is written past the transport

    def begin(self) -> None:
        """Send what was held: the connection's turn has come to this answer."""
        connection, exchange = self._connection, self.exchange
        transport = connection.transport
        self._begun = True
        if transport is not None:
            pending = connection.app.settings.stream_pending_bytes
            transport.set_write_buffer_limits(high=pending)
        if self._chunked or exchange.tunnels or self.sized:
            self._descriptor = _plain_socket(transport)
        held, self._held = self._held, b""
        if self.sized and held and self.descriptor >= 0:
            # What follows can go past the transport only if nothing waits there.
            with contextlib.suppress(OSError):  # the transport meets the same, and ends
                held = held[write_now(self.descriptor, held) :]
        if transport is not None and held:
            transport.write(held)
        if self._closed:
            exchange.ended()
            return
        if not connection.writable:
            self.no_room()
        # After the handler has had time to set `on_data` and `on_closed`.
        if exchange.tunnels:
            connection.open_tunnel(exchange)
        elif exchange.method == "HEAD":
            connection.app.soon(self._end_head)
        else:
            connection.app.soon(connection.stay)
        if self.on_room is not None and self.room:
            self.on_room()

    def _end_head(self) -> None:
        """End the answer: the head was all that was asked for."""
        if not self._closed:
            self.lost()
            self._connection.stay()
            self._connection.streaming_ended(self.exchange)

    @property
    def room(self) -> bool:
        return self._begun and self._connection.writable and not self._closed

    @property
    def stuck_ms(self) -> int:
        if self._taking is None:
            return 0
        connection = self._connection
        now_ms = connection.app.now_ms()
        return now_ms - self._stuck_since(0, acknowledged_bytes(connection.transport), now_ms)

    def write(self, data: bytes) -> None:
        if self._closed or not data or self.exchange.method == "HEAD":
            return
        self.write_framed(self.framed(data))

    def framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def write_framed(self, framed: bytes) -> None:
        transport = self._connection.transport
        if not self._begun:
            self._held += framed
        elif transport is not None:
            transport.write(framed)

    @property
    def descriptor(self) -> int:
        # One that closes may have given up its descriptor, and what is unsent has to go first.
        transport = self._connection.transport
        if transport is None or self._closed or transport.is_closing():
            return -1
        return -1 if transport.get_write_buffer_size() else self._descriptor

    def when_writable(self, go_on: Callable[[], None]) -> bool:
        try:
            room = self._socket_room
            if room is None:
                room = self._socket_room = SocketRoom(self._descriptor)
            room.wait(go_on)
        except OSError:
            return False
        return True

    @property
    def waits_for_room(self) -> bool:
        """Whether the kernel takes nothing of what goes past the transport."""
        return self._socket_room is not None and self._socket_room.waits

    def _drop_socket_room(self) -> None:
        room, self._socket_room = self._socket_room, None
        if room is not None:
            room.close()

    def abort(self) -> None:
        if not self._closed:
            self._drop_socket_room()
            self._connection.abort()

    def _finish(self) -> None:
        self._drop_socket_room()
        if not self._chunked:
            return
        transport = self._connection.transport
        if not self._begun:
            self._held += b"0\r\n\r\n"
        elif transport is not None:
            transport.write(b"0\r\n\r\n")

    def _ended(self) -> None:
        if self._begun:
            self.exchange.ended()

    def _left(self) -> None:
        self._drop_socket_room()
        self.exchange.end_stream()

    @property
    def _path(self) -> str:
        return self.exchange.path

    def no_room(self) -> None:
        """Note since when the client takes nothing."""
        connection = self._connection
        taken = acknowledged_bytes(connection.transport)
        self._stuck_since(0, taken, connection.app.now_ms())

    def has_room(self) -> None:
        """Tell the handler that the client has taken what was written."""
        self._taking = None
        try:
            if self.on_room is not None and not self._closed:
                self.on_room()
        except Exception:  # the connection has to go on
            log.exception("%s failed to go on", self.exchange.path)
            self.close()


def _plain_socket(transport: asyncio.Transport | None) -> int:
    """Return the descriptor of a connection whose bytes are those of the protocol, else -1."""
    if transport is None or transport.get_extra_info("ssl_object") is not None:
        return -1
    socket = transport.get_extra_info("socket")
    return -1 if socket is None else int(socket.fileno())
