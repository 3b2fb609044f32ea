"""Answers over HTTP/1.1: the bytes of a response, whole or going on.

Only this file writes response heads.  A whole answer is kept until those before it on the same
connection have been written; one that goes on is sent in chunks as they come.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from headrace.server.app import Target
from headrace.server.served import ServedExchange
from headrace.wire.exchange import Headers, Outlet

if TYPE_CHECKING:
    from headrace.server.http1 import Http1Protocol

log = logging.getLogger("headrace.http1")

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_BODILESS: Final = frozenset({204, 304})
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    for status in HTTPStatus
}
# Heads of whole answers up to the length, by status and content type.
_heads: dict[tuple[int, bytes], bytes] = {}


class Http1Exchange(ServedExchange):
    """One request of a connection."""

    _connection: Http1Protocol

    # Most requests never set these.
    held = 0  # bytes of the answer, while others have to go before it
    keep_alive = True
    lingers = False  # the rest of the request is read before the close
    modern = True  # HTTP/1.1, not 1.0
    outlet: StreamOutlet | None = None
    ready: bytes | None = None
    streamed = False
    upgrade_to = b""
    wants_continue = False
    whole = False  # the request has arrived
    _status = 0

    def __init__(
        self,
        connection: Http1Protocol,
        target: Target,
        headers: dict[bytes, bytes],
        started_ns: int,
    ) -> None:
        # Not the base's: this is done for each request.
        self._connection = connection
        self.method, self.path, self.query, self.route, self.params = target
        self.headers = headers
        self.started_ns = started_ns

    @property
    def upgrade(self) -> bytes:
        return self.upgrade_to

    def send_continue(self) -> None:
        """Ask for the body that the client holds back."""
        transport = self._connection.transport
        if self.wants_continue and transport is not None and not self.answered:
            self.wants_continue = False
            transport.write(CONTINUE)

    # Whole answers

    def _let_go(self) -> None:
        if self.streamed:
            self.on_body = None

    def _send(self, status: int, body: bytes, content_type: bytes, headers: Headers) -> None:
        connection = self._connection
        transport = connection.transport
        if transport is None or transport.is_closing():
            self._end(status)
            return
        if connection.app.gate.adds_headers:
            headers = connection.app.prepare(self, headers)
        if not self.whole and not self.streamed:
            # An answer before the end of the request: what is left of it cannot be told apart.
            self.keep_alive = False
        head = _heads.get((status, content_type)) or _make_head(status, content_type)
        lines = _lines(headers) if headers else b""
        if connection.closing and connection.queue and connection.queue[-1] is self:
            self.keep_alive = False  # those behind it, if there were any, would be lost
        if not self.keep_alive:
            lines += b"connection: close\r\n"
        elif not self.modern:
            lines += b"connection: keep-alive\r\n"
        length = len(body)
        if self.method == "HEAD":
            body = b""
        if status in _BODILESS:
            self.ready = b"%b%b\r\n" % (_STATUS_LINES[status], lines)
        else:
            self.ready = b"%b%d\r\n%b\r\n%b" % (head, length, lines, body)
        callback = self.on_answered
        if callback is not None:
            self.on_answered = None
            callback(self, status)
        if self.lingers and connection.queue and connection.queue[0] is self:
            connection.queue.popleft()
            connection.linger(self.ready)
        else:
            connection.answered(self)

    def _end(self, status: int) -> None:
        callback, self.on_answered = self.on_answered, None
        if callback is not None:
            callback(self, status)

    def lost(self) -> None:
        """The connection is gone."""
        if self._status:  # of an answer that goes on
            if self.outlet is not None:
                self.outlet.lost()
            self._end(self._status)  # of one that was closed before its turn came
            return
        if self.ready is not None:
            return
        self.answered = True
        callback, self.on_abort = self.on_abort, None
        try:
            if callback is not None:
                callback()
        except Exception:  # there may be others behind this one
            log.exception("%s %s failed when its client went", self.method, self.path)
        finally:
            self._end(0)

    # Answers that go on

    def stream(self, content_type: bytes, headers: Headers = ()) -> Outlet:
        headers = ((b"content-type", content_type), *headers)
        if self.modern:
            headers = (*headers, (b"transfer-encoding", b"chunked"))
        else:
            self.keep_alive = False
        return self._open(200, headers, chunked=self.modern)

    def tunnel(self, headers: Headers = ()) -> Outlet:
        upgrade = ((b"connection", b"Upgrade"), (b"upgrade", self.upgrade_to))
        self.keep_alive = False
        return self._open(101, (*upgrade, *headers), chunked=False)

    @property
    def tunnels(self) -> bool:
        """Whether bytes that follow the request are for its handler."""
        return self._status == 101

    def _open(self, status: int, headers: Headers, *, chunked: bool) -> StreamOutlet:
        assert not self.answered
        self.answered = True
        self.body = b""  # it would stay as long as the stream
        self._status = status
        connection = self._connection
        if connection.app.gate.adds_headers:
            headers = connection.app.prepare(self, headers)
        head = _STATUS_LINES[status] + _lines(headers)
        if not self.keep_alive and status != 101:
            head += b"connection: close\r\n"
        outlet = self.outlet = StreamOutlet(self, connection, head + b"\r\n", chunked)
        if connection.queue and connection.queue[0] is self:
            connection.outlet = outlet
            outlet.begin()
        return outlet

    def ended(self) -> None:
        """The outlet was closed by the handler."""
        self.on_body = None
        self.outlet = None
        self._end(self._status)
        self._connection.streaming_ended(self)

    def went(self) -> None:
        """The outlet was closed by the client."""
        self.on_body = None
        self.outlet = None
        self._end(self._status)


class StreamOutlet(Outlet):
    """The body of an answer that goes on."""

    __slots__ = (
        "_begun",
        "_chunked",
        "_closed",
        "_connection",
        "_exchange",
        "_held",
        "_stuck_since_ms",
    )

    def __init__(
        self, exchange: Http1Exchange, connection: Http1Protocol, head: bytes, chunked: bool
    ) -> None:
        super().__init__()
        self._exchange = exchange
        self._connection = connection
        self._chunked = chunked and exchange.method != "HEAD"
        self._held = head  # until the answers before this one have gone out
        self._begun = False
        self._closed = False
        self._stuck_since_ms = -1

    def begin(self) -> None:
        """The connection's turn has come to this answer."""
        transport = self._connection.transport
        self._begun = True
        if transport is not None:
            pending = self._connection.app.settings.stream_pending_bytes
            transport.set_write_buffer_limits(high=pending)
        held, self._held = self._held, b""
        if transport is not None and held:
            transport.write(held)
        if self._closed:
            self._exchange.ended()
            return
        if not self._connection.writable:
            self.no_room()
        # After the handler has had time to set `on_data` and `on_closed`.
        if self._exchange.tunnels:
            rest = self._connection.take_leftover()
            if rest:
                self._connection.app.soon(lambda: self._late(rest))
        elif self._exchange.method == "HEAD":
            self._connection.app.soon(self._end_head)
        else:
            self._connection.app.soon(self._connection.stay)
        if self.on_room is not None and self.room:
            self.on_room()

    def _end_head(self) -> None:
        """The head was all that was asked for."""
        if not self._closed:
            self.lost()
            self._connection.stay()
            self._connection.streaming_ended(self._exchange)

    def _late(self, rest: bytes) -> None:
        if self.on_data is not None and not self._closed:
            self.on_data(rest)

    @property
    def room(self) -> bool:
        return self._begun and self._connection.writable and not self._closed

    @property
    def stuck_ms(self) -> int:
        if self._stuck_since_ms < 0:
            return 0
        return self._connection.app.now_ms() - self._stuck_since_ms

    def write(self, data: bytes) -> None:
        if self._closed or not data or self._exchange.method == "HEAD":
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        transport = self._connection.transport
        if not self._begun:
            self._held += data
        elif transport is not None:
            transport.write(data)

    def close(self) -> None:
        if self._closed:
            return
        if self._chunked:
            self.write_last()
        self._closed = True
        self._forget_handler()
        if self._begun:
            self._exchange.ended()

    def write_last(self) -> None:
        """The chunk that says that there are no more."""
        transport = self._connection.transport
        if not self._begun:
            self._held += b"0\r\n\r\n"
        elif transport is not None:
            transport.write(b"0\r\n\r\n")

    def lost(self) -> None:
        """The client went away."""
        if self._closed:
            return
        self._closed = True
        callback = self.on_closed
        self._forget_handler()
        try:
            if callback is not None:
                callback()
        except Exception:  # there may be others behind this one
            log.exception("%s failed when its client went", self._exchange.path)
        finally:
            self._exchange.went()

    def _forget_handler(self) -> None:
        # A handler knows its outlet: a circle otherwise.
        self.on_room = self.on_closed = self.on_data = None

    def no_room(self) -> None:
        self._stuck_since_ms = self._connection.app.now_ms()

    def has_room(self) -> None:
        self._stuck_since_ms = -1
        try:
            if self.on_room is not None and not self._closed:
                self.on_room()
        except Exception:  # the connection has to go on
            log.exception("%s failed to go on", self._exchange.path)
            self.close()


def _make_head(status: int, content_type: bytes) -> bytes:
    line = _STATUS_LINES[status]
    head = line + b"content-type: " + content_type + b"\r\ncontent-length: "
    if len(_heads) < 256:
        _heads[status, content_type] = head
    return head


def _lines(headers: Headers) -> bytes:
    if len(headers) == 1:
        lines = b"%b: %b\r\n" % headers[0]
    else:
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    # A value with a line break in it would be another header.
    assert lines.count(b"\n") == len(headers), headers
    return lines
