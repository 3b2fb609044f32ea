"""One request over HTTP/2 and its answer.

Only this file knows what a stream has received, what of its answer waits for the client's windows,
and when its handler hears of it.  It decides nothing for the connection: `http2.py` says when there
is room to send, and counts.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.core.errors import HeadraceError
from headrace.server.http2_headers import Head, encode_head, encode_whole
from headrace.server.http2_limits import FREE_BODY_BYTES
from headrace.server.refusals import body_too_large
from headrace.server.served import ServedExchange
from headrace.wire.exchange import Headers, Outlet

if TYPE_CHECKING:
    from headrace.server.http2 import Http2Protocol

log = logging.getLogger("headrace.http2")

_BODILESS: Final = frozenset({204, 304})
CONTINUE: Final = encode_head(100, ())

OnBody = Callable[[bytes], None]


class Http2Exchange(ServedExchange):
    """One stream of a connection."""

    __slots__ = (
        "_connection",
        "_on_body",
        "_status",
        "arrived",
        "arrived_bytes",
        "budgeted",
        "expected_bytes",
        "finishing",
        "gone",
        "moved_ms",
        "outlet",
        "pending",
        "pending_bytes",
        "queued",
        "received",
        "stream_id",
        "streamed",
        "upgrade_to",
    )
    _connection: Http2Protocol

    def __init__(self, connection: Http2Protocol, stream_id: int, head: Head) -> None:
        app = connection.app
        self._connection = connection
        self._on_body: OnBody | None = None
        self.stream_id = stream_id
        self.upgrade_to = head.upgrade
        self.expected_bytes = None if head.upgrade else head.length
        self.streamed = False  # the handler takes the body as it arrives
        self.received = False  # the client has sent all it will
        self.arrived: deque[tuple[bytes, int]] = deque()  # pieces, and what they cost of a window
        self.arrived_bytes = 0
        self.budgeted = 0  # bytes taken of the budget that all arriving bodies share
        self.outlet: Http2Outlet | None = None
        self.pending: deque[bytes | memoryview] = deque()  # of the answer, not framed yet
        self.pending_bytes = 0
        self.finishing = False  # the stream ends after what is pending
        self.queued = False  # waits for its turn to send
        self.gone = False  # nothing can be sent any more
        self.moved_ms = connection.now_ms  # when something last came or went
        self._status = 0
        # The head may be shared by requests that look alike.
        super().__init__(
            head.method, head.path, head.query, dict(head.headers), app.clock.monotonic_ns()
        )

    @property
    def upgrade(self) -> bytes:
        return self.upgrade_to

    # The body

    @property
    def on_body(self) -> OnBody | None:
        return self._on_body

    @on_body.setter
    def on_body(self, callback: OnBody | None) -> None:
        self._on_body = callback
        if callback is not None and (self.arrived or self.received):
            # Not now: the handler that sets it has not finished.
            self._connection.app.soon(self.hand_over)

    def hand_over(self) -> None:
        """Give the handler what has arrived of a body that it takes in pieces."""
        arrived = self.arrived
        while not self.gone:
            callback = self._receiver()
            if callback is None or not (arrived or self.received):
                return
            if arrived:
                piece, cost = arrived.popleft()
                self._connection.give_window(self, cost)
                if piece:
                    self._call(callback, piece)
            else:
                self._drop_receiver()
                self._call(callback, b"")

    def _receiver(self) -> OnBody | None:
        if self.outlet is not None and self.upgrade_to:
            return self.outlet.on_data
        return self._on_body

    def _drop_receiver(self) -> None:
        if self.outlet is not None and self.upgrade_to:
            self.outlet.on_data = None
        self._on_body = None

    def _call(self, callback: OnBody, piece: bytes) -> None:
        try:
            callback(piece)
        except Exception as error:  # one stream's fault must not end the others
            if self.answered:
                log.exception("%s %s failed on its body", self.method, self.path)
                self._connection.cancel(self)
            else:
                self.fail(error)

    # Whole answers

    def _send(self, status: int, body: bytes, content_type: bytes, headers: Headers) -> None:
        if not self.gone:
            connection = self._connection
            if connection.app.gate.adds_headers:
                headers = connection.app.prepare(self, headers)
            bodiless = self.method == "HEAD" or status in _BODILESS
            if status in _BODILESS:
                block = encode_head(status, headers)
            else:
                block = encode_whole(status, content_type, len(body), headers)
            connection.sender.begin_answer(self, block, b"" if bodiless else body)
        self.end(status)

    def may_send(self, bytes_max: int) -> bool:
        """Whether the body is wanted; if not, the request has been refused."""
        length = self.expected_bytes
        if length is not None and length > bytes_max:
            self.refuse(body_too_large(bytes_max))
        elif length is None or length > FREE_BODY_BYTES or b"expect" in self.headers:
            try:
                self._connection.app.check_sender(self)
            except HeadraceError as error:
                self.refuse(error)
        return not self.answered

    def end(self, status: int) -> None:
        """Tell whoever counts, once."""
        callback, self.on_answered = self.on_answered, None
        if callback is not None:
            callback(self, status)

    def lost(self) -> None:
        """The client gave the stream up, or the connection is gone."""
        self.gone = True
        self.body = b""
        self.pending.clear()
        self.arrived.clear()
        if self.outlet is not None:
            self.outlet.lost()
        elif not self.answered:
            self.answered = True
            callback, self.on_abort = self.on_abort, None
            try:
                if callback is not None:
                    callback()
            except Exception:
                log.exception("%s %s failed when its client went", self.method, self.path)
            finally:
                self.end(0)

    # Answers that go on

    def stream(self, content_type: bytes, headers: Headers = ()) -> Outlet:
        return self._open(((b"content-type", content_type), *headers))

    def tunnel(self, headers: Headers = ()) -> Outlet:
        assert self.upgrade_to
        # The key of the HTTP/1.1 handshake has no place in RFC 8441.
        return self._open([header for header in headers if header[0] != b"sec-websocket-accept"])

    def _open(self, headers: Headers) -> Outlet:
        assert not self.answered
        self.answered = True
        self.body = b""  # it would stay as long as the stream
        self._status = 200
        connection = self._connection
        if connection.app.gate.adds_headers:
            headers = connection.app.prepare(self, headers)
        outlet = self.outlet = Http2Outlet(self, connection)
        if self.gone:
            connection.app.soon(outlet.lost)
        elif self.method == "HEAD":
            connection.sender.begin_answer(self, encode_head(200, headers), b"")
            connection.app.soon(outlet.lost)
        else:
            connection.sender.begin_stream(self, encode_head(200, headers))
            if self.upgrade_to and (self.arrived or self.received):
                connection.app.soon(self.hand_over)
        return outlet

    def ended(self) -> None:
        """The outlet was closed, by either side."""
        self.end(self._status)


class Http2Outlet(Outlet):
    """The body of an answer that goes on."""

    __slots__ = ("_closed", "_connection", "_exchange", "_full", "_stuck_since_ms")

    def __init__(self, exchange: Http2Exchange, connection: Http2Protocol) -> None:
        super().__init__()
        self._exchange = exchange
        self._connection = connection
        self._closed = False
        self._full = False  # until half of what was pending has been sent
        self._stuck_since_ms = -1

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
            if self._stuck_since_ms < 0:
                self._stuck_since_ms = connection.app.now_ms()
            connection.sender.waiting[self] = None
            return False
        self._stuck_since_ms = -1
        return True

    @property
    def stuck_ms(self) -> int:
        if self.room or self._closed:
            return 0
        return self._connection.app.now_ms() - self._stuck_since_ms

    def write(self, data: bytes) -> None:
        if self._closed or not data:
            return
        exchange, connection = self._exchange, self._connection
        connection.sender.send(exchange, data)
        if exchange.pending_bytes >= connection.sender.stream_pending_bytes:
            self._full = True
            connection.sender.waiting[self] = None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._connection.sender.waiting.pop(self, None)
        self._connection.sender.finish(self._exchange)
        self._forget_handler().ended()

    def lost(self) -> None:
        """The client went away."""
        if self._closed:
            return
        self._closed = True
        self._connection.sender.waiting.pop(self, None)
        callback = self.on_closed
        exchange = self._forget_handler()
        try:
            if callback is not None:
                callback()
        except Exception:
            log.exception("%s failed when its client went", exchange.path)
        finally:
            exchange.ended()

    def _forget_handler(self) -> Http2Exchange:
        """The exchange; that and the handler know the outlet, so it must not know them any more."""
        exchange = self._exchange
        self.on_room = self.on_closed = self.on_data = None
        del self._exchange
        return exchange

    def has_room(self) -> None:
        """Tell the handler, if it is so."""
        if self.room:
            self._connection.sender.waiting.pop(self, None)
            if self.on_room is not None:
                self.on_room()
