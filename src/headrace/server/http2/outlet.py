"""The body of an HTTP/2 answer that is sent as it comes.

Only this file says when a handler may write: while its stream has less than `stream_pending_bytes`
to send and the connection has room.  What is sent when is in `sending.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.server.transport_outlet import TransportOutlet

if TYPE_CHECKING:
    from headrace.server.http2.connection import Http2Connection
    from headrace.server.http2.stream import Http2Exchange


class Http2Outlet(TransportOutlet):
    """The body of an answer that goes on."""

    __slots__ = ("_connection", "_exchange", "_full")
    writes_later = True

    def __init__(self, exchange: Http2Exchange, connection: Http2Connection) -> None:
        super().__init__(connection.app.settings)
        self._exchange = exchange
        self._connection = connection
        self._full = False  # until half of what was pending has been sent

    @property
    def room(self) -> bool:
        if self._closed:
            return False
        connection = self._connection
        pending = self._exchange.pending_bytes
        if pending >= connection.sender.stream_pending_bytes:
            self._full = True
        elif pending <= connection.sender.stream_pending_bytes // 2:
            self._full = False
        if self._full or connection.sender.full:
            if self._taking is None:
                self._stuck_since(*self._taken, connection.app.now_ms())
            connection.sender.waiting[self] = None
            return False
        self._taking = None
        return True

    @property
    def stuck_ms(self) -> int:
        if self.room or self._closed:
            return 0
        now_ms = self._connection.app.now_ms()
        return now_ms - self._stuck_since(*self._taken, now_ms)

    @property
    def _taken(self) -> tuple[bool, int]:
        """How many bytes the client has taken, of this stream or of all, and which of the two.

        What others get does not count while this stream waits for a window of its own.
        """
        connection = self._connection
        if connection.sender.writable:
            return True, self._exchange.sent_bytes
        return False, connection.taken_bytes

    def write(self, data: bytes) -> None:
        if self._closed or not data:
            return
        exchange, connection = self._exchange, self._connection
        if exchange.sized and not exchange.pending:
            exchange.pace = None  # until now the server was the slow one
        connection.sender.send(exchange, data)
        if exchange.pending_bytes >= connection.sender.stream_pending_bytes:
            self._full = True
            connection.sender.waiting[self] = None

    def abort(self) -> None:
        if not self._closed:
            self._connection.cancel(self._exchange)

    def _finish(self) -> None:
        self._connection.sender.finish(self._exchange)

    def _ended(self) -> None:
        self._let_go().ended()

    def _left(self) -> None:
        self._let_go().ended()

    def _let_go(self) -> Http2Exchange:
        """Forget the exchange, which knows the outlet, and return it."""
        exchange = self._exchange
        self._connection.sender.waiting.pop(self, None)
        del self._exchange
        return exchange

    @property
    def _path(self) -> str:
        return self._exchange.path

    def has_room(self) -> None:
        """Tell the handler that it may write again, if it may."""
        if self.room:
            self._connection.sender.waiting.pop(self, None)
            if self.on_room is not None:
                self.on_room()
