"""One request over HTTP/2 and its answer.

Only this file knows what a stream has received, what of its answer waits for the client's windows,
and when its handler hears of it.  It decides nothing for the connection: `connection.py` says when
there is room to send, and counts.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from headrace.core.errors import HeadraceError
from headrace.core.pace import Pace
from headrace.server.http2.headers import Head
from headrace.server.http2.outlet import Http2Outlet
from headrace.server.http2.response_heads import encode_head, encode_whole
from headrace.server.refusals import body_too_large
from headrace.server.transport_exchange import (
    BODILESS,
    FREE_BODY_BYTES,
    OnBody,
    TransportExchange,
)
from headrace.wire.exchange import Headers

if TYPE_CHECKING:
    from headrace.server.http2.connection import Http2Connection

CONTINUE: Final = encode_head(100, ())


class Http2Exchange(TransportExchange):
    """One stream of a connection."""

    _connection: Http2Connection

    # Most requests never set these.
    arrived_bytes = 0
    # Of the pieces that wait for their handler: bytes whose part of the connection's window was
    # given back already, so that other streams go on; they count as `budgeted`.
    lent_bytes = 0
    head_bytes = 0  # of its head, that count as memory of requests
    outlet: Http2Outlet | None = None
    pending: deque[bytes | memoryview] | None = None  # of the answer, not framed yet
    pending_bytes = 0
    sent_bytes = 0  # of the answer, framed so far, if it did not go out whole
    pace: Pace | None = None  # of the body or the answer, since the tick that first waited for it
    ended_ms = 0  # when this side ended a tunnel
    sized = False  # the answer's length is known, although it is not there as a whole
    finishing = False  # the stream ends after what is pending
    queued = False  # waits for its turn to send
    gone = False  # nothing can be sent any more
    _framed = False  # its head has gone to the connection
    _status = 0

    def __init__(
        self, connection: Http2Connection, stream_id: int, head: Head, started_ns: int
    ) -> None:
        # Not the base's: this is done for each request.
        self._connection = connection
        self.stream_id = stream_id
        self.method = head.method
        self.path = head.path
        self.query = head.query
        self.headers = head.headers
        self.route = head.route
        self.params = head.params
        self.memo = head.memo
        self.upgrade_to = head.upgrade
        self.expected_bytes = None if head.upgrade else head.length
        self.started_ns = started_ns
        self.arrived = deque()

    @property
    def upgrade(self) -> bytes:
        return self.upgrade_to

    # The body

    def _receiver(self) -> OnBody | None:
        if self.gone:
            return None
        if self.outlet is not None and self.upgrade_to:
            return self.outlet.on_data
        return self._on_body

    def _drop_receiver(self) -> None:
        if self.outlet is not None and self.upgrade_to:
            self.outlet.on_data = None
        self._on_body = None

    def _body_waits(self, size: int) -> None:
        self._connection.lend_window(self, size)

    def _piece_taken(self, size: int) -> None:
        self._connection.give_window(self, size)

    def _cut_off(self) -> None:
        self._connection.cancel(self)

    @property
    def _unsent(self) -> bool:
        return not self._framed and not self._status and not self.gone

    def _end_connection(self) -> None:
        self._connection.drain()

    # Whole answers

    def _let_go(self) -> None:
        self.let_go_body()
        if self.streamed:
            self.drop_body()
        else:
            self.arrived.clear()  # of a request that was refused while it arrived

    def _send(self, status: int, body: bytes, content_type: bytes, headers: Headers) -> None:
        if not self.gone:
            headers = self._prepare(headers)
            if status in BODILESS:
                block, body = encode_head(status, headers), b""
            elif not body and self.method == "HEAD":
                # Its handler says nothing of what a GET would be answered with.
                named = ((b"content-type", content_type),) if content_type else ()
                block = encode_head(status, (*named, *headers))
            else:
                block = encode_whole(status, content_type, len(body), headers)
                if self.method == "HEAD":
                    body = b""
            self._framed = True
            self._connection.sender.begin_answer(self, block, body)
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

    def lost(self) -> None:
        """End the exchange: the client gave the stream up, or the connection is gone."""
        self.gone = True
        self.pending = None
        self.arrived.clear()
        self._on_body = None
        if self.outlet is not None:
            self.outlet.lost()
        elif not self.answered:
            self.abandon()

    # Answers that go on

    def stream(self, content_type: bytes, headers: Headers = ()) -> Http2Outlet:
        headers = self._prepare(((b"content-type", content_type), *headers))
        return self._open(200, encode_head(200, headers))

    def tunnel(self, headers: Headers = ()) -> Http2Outlet:
        assert self.upgrade_to
        # The key of the HTTP/1.1 handshake has no place in RFC 8441.
        wanted = [header for header in headers if header[0] != b"sec-websocket-accept"]
        return self._open(200, encode_head(200, self._prepare(wanted)))

    def _open_sized(
        self, status: int, length: int, content_type: bytes, headers: Headers
    ) -> Http2Outlet:
        self.sized = True
        block = encode_whole(status, content_type, length, self._prepare(headers))
        return self._open(status, block)

    def _prepare(self, headers: Headers) -> Headers:
        assert self.route is not None
        if self.route.dialect.adds_headers:
            return self._connection.app.prepare(self, headers)
        return headers

    def _open(self, status: int, block: bytes) -> Http2Outlet:
        """Answer with a head and a body that follows."""
        assert not self.answered
        self.answered = True
        self.let_go_body()  # it would stay as long as the stream
        self._status = status
        connection = self._connection
        outlet = self.outlet = Http2Outlet(self, connection)
        if self.gone:
            connection.app.soon(outlet.lost)
        elif self.method == "HEAD":
            connection.sender.begin_answer(self, block, b"")
            connection.app.soon(outlet.lost)
        else:
            connection.sender.begin_stream(self, block)
            if self.upgrade_to and (self.arrived or self.received):
                connection.app.soon(self.hand_over)
        return outlet

    def ended(self) -> None:
        """End an answer that went on, whichever side ended it."""
        self.drop_body()
        self.end(self._status)
