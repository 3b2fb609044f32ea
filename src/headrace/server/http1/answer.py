"""One request over HTTP/1.1 and the head of its answer.

Only this file makes response heads.  A whole answer is kept until those before it on the same
connection have been written (`pipeline.py`); the body of one that goes on is in `outlet.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from headrace.core.telemetry import Counter
from headrace.metrics.requests import AnswersOf
from headrace.server.admitted_heads import AdmittedHead, header_lines
from headrace.server.app import RequestTarget
from headrace.server.http1.outlet import Http1Outlet
from headrace.server.http1.states import HALF_CLOSED, OPEN
from headrace.server.served_exchange import ServedExchange
from headrace.server.transport_exchange import BODILESS, OnBody, TransportExchange
from headrace.wire.exchange import (
    JSON,
    EmptyAnswer,
    Headers,
    Outlet,
    WholeAnswer,
    filled_headers,
)

if TYPE_CHECKING:
    from headrace.server.http1.connection import Http1Connection

OnAbort = Callable[[], None]

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    for status in HTTPStatus
}


class _Digits(dict[int, bytes]):
    """Whole numbers as they are written; those of most answers' lengths are ready."""

    def __missing__(self, number: int) -> bytes:
        return b"%d" % number


_DIGITS: Final = _Digits((number, b"%d" % number) for number in range(1_024))
# Heads of whole answers up to the length, by status and content type.
_heads: dict[tuple[int, bytes], bytes] = {}


class Http1Exchange(TransportExchange):
    """One request of a connection."""

    _connection: Http1Connection

    # Most requests never set these.
    head = b""  # what was read from the head on, if that may be worth remembering
    held = 0  # bytes of the answer, while others have to go before it
    keep_alive = True
    lingers = False  # the rest of the request is read before the close
    modern = True  # HTTP/1.1, not 1.0
    outlet: Http1Outlet | None = None
    ready: bytes | None = None
    upgrade_to = b""
    wants_continue = False
    _on_abort: OnAbort | None = None
    _status = 0

    def __init__(
        self,
        connection: Http1Connection,
        target: RequestTarget,
        headers: dict[bytes, bytes],
        started_ns: int,
        body: bytes = b"",
        memo: dict[object, object] | None = None,
    ) -> None:
        # Not the base's: this is done for each request.
        self._connection = connection
        self.method, self.path, self.query, self.route, self.params = target
        self.headers = headers
        self.started_ns = started_ns
        self.body = body
        self.memo = memo

    @property
    def upgrade(self) -> bytes:
        return self.upgrade_to

    def send_continue(self) -> None:
        """Ask for the body that the client holds back."""
        transport = self._connection.transport
        if self.wants_continue and transport is not None and not self.answered:
            self.wants_continue = False
            transport.write(CONTINUE)

    @property
    def on_abort(self) -> OnAbort | None:
        return self._on_abort

    @on_abort.setter
    def on_abort(self, callback: OnAbort | None) -> None:
        self._on_abort = callback
        connection = self._connection
        if callback is not None and connection.answering is HALF_CLOSED:
            # Its client ended while the request waited for its turn.
            connection.app.soon(connection.leave_ended)

    @property
    def may_take_long(self) -> bool:
        """Whether the answer is not worth beginning for a client that may have left."""
        outlet = self.outlet
        return self._on_abort is not None or (outlet is not None and not outlet.sized)

    # The body

    def stream_body(self) -> None:
        """Hand the body over in pieces, from its first byte."""
        self.streamed = True
        self.arrived = deque()

    @property
    def _takes_pieces(self) -> bool:
        return self.streamed or self.tunnels

    def _receiver(self) -> OnBody | None:
        if self.tunnels:
            return self.outlet.on_data if self.outlet is not None else None
        return self._on_body

    def _body_waits(self, size: int) -> None:
        self._connection.body_waits(self)

    def _body_flows(self) -> None:
        self._connection.body_flows(self)

    def _cut_off(self) -> None:
        self._connection.abort()

    @property
    def _unsent(self) -> bool:
        return self.ready is None and not self._status

    def _end_connection(self) -> None:
        self.keep_alive = False

    # Whole answers

    def _let_go(self) -> None:
        self.let_go_body()
        if self.streamed:
            self.drop_body()

    def answer(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        if self.admitted is None or status != 200 or len(headers) != 1:
            super().answer(status, body, content_type, headers)
        else:
            name, value = headers[0]
            self.answer_all(((self, body, value),), name, content_type)

    @staticmethod
    def answer_all(
        answers: Sequence[WholeAnswer], header: bytes, content_type: bytes = JSON
    ) -> None:
        start = _heads.get((200, content_type)) or _make_head(200, content_type)
        before = b"\r\n%b: " % header
        last: AdmittedHead | None = None
        total: Counter | None = None
        durations_ns: list[int] = []
        now_ns = 0
        # Those of HTTP/2 have no admitted head.
        for exchange, body, value in cast("Sequence[tuple[Http1Exchange, bytes, bytes]]", answers):
            head, connection = exchange.admitted, exchange._connection
            try:
                if head is None:
                    exchange.answer(200, body, content_type, ((header, value),))
                    continue
                if (
                    len(connection.queue) != 1
                    or connection.answering is not OPEN
                    or len(body) >= head.compressed_from
                    or exchange.answered
                ):
                    ServedExchange.answer(exchange, 200, body, content_type, ((header, value),))
                    continue
                # The only request of a connection that stays: one without an answer is queued.
                assert b"\n" not in value, value
                exchange.answered = True
                # To join takes a third of the time of formatting.
                ready = b"".join((start, _DIGITS[len(body)], before, value, head.ends, body))
                if exchange.key is not None:
                    connection.app.access.release(exchange)
                if head.total is not total:
                    if last is not None:
                        last.count(durations_ns)
                    last, total, durations_ns = head, head.total, []
                    now_ns = connection.app.now_ns()
                durations_ns.append(now_ns - exchange.started_ns)
                connection.answered_alone(ready)
            except MemoryError as error:
                exchange._not_sent(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
                exchange.fail(error)
        if last is not None:
            last.count(durations_ns)

    @staticmethod
    def answer_empty(answers: Sequence[EmptyAnswer], status: int, lines: bytes) -> None:
        start = _STATUS_LINES[status]
        if status not in BODILESS:
            start += b"content-length: 0\r\n"
        last: AdmittedHead | None = None
        template, breaks = b"", 0
        counted: AnswersOf | None = None
        durations_ns: list[int] = []
        now_ns = 0
        # As in `answer_all`.
        for exchange, values in cast("Sequence[tuple[Http1Exchange, tuple[int, ...]]]", answers):
            head, connection = exchange.admitted, exchange._connection
            try:
                if (
                    head is None
                    or len(connection.queue) != 1
                    or connection.answering is not OPEN
                    or exchange.answered
                ):
                    headers = filled_headers(lines, values)
                    ServedExchange.answer(exchange, status, b"", b"", headers)
                    continue
                if last is None or head.route is not last.route:
                    if counted is not None:
                        counted.add(durations_ns)
                    last, counted, durations_ns = head, head.answers_of(status), []
                    template = start + head.lines.replace(b"%", b"%%") + lines + b"\r\n"
                    breaks = template.count(b"\n")
                    now_ns = connection.app.now_ns()
                ready = template % values
                assert ready.count(b"\n") == breaks, values
                exchange.answered = True
                if exchange.key is not None:
                    connection.app.access.release(exchange)
                durations_ns.append(now_ns - exchange.started_ns)
                connection.answered_alone(ready)
            except MemoryError as error:
                exchange._not_sent(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
                exchange.fail(error)
        if counted is not None:
            counted.add(durations_ns)

    def _send(self, status: int, body: bytes, content_type: bytes, headers: Headers) -> None:
        connection = self._connection
        transport = connection.transport
        if transport is None or transport.is_closing():
            self.end(status)
            return
        assert self.route is not None
        if self.route.dialect.adds_headers:
            headers = connection.app.prepare(self, headers)
        head = _heads.get((status, content_type)) or _make_head(status, content_type)
        lines = header_lines(headers) if headers else b""
        # A request that was not parsed is like those before it: whole, of HTTP/1.1, kept alive.
        if self.memo is None or connection.answering is not OPEN or not self.keep_alive:
            lines += self._connection_lines()
        length = len(body)
        if self.method == "HEAD":
            body = b""
        if status in BODILESS:
            self.ready = b"%b%b\r\n" % (_STATUS_LINES[status], lines)
        elif not length and self.method == "HEAD":
            # Its handler says nothing of what a GET would be answered with.
            untold = head.removesuffix(b"content-length: ")
            self.ready = b"%b%b\r\n" % (untold, lines)
        else:
            self.ready = b"%b%d\r\n%b\r\n%b" % (head, length, lines, body)
        if self.head:
            if 200 <= status < 300:
                connection.learn(self)
            self.head = b""
        callback = self.on_answered
        if callback is not None:
            self.on_answered = None
            callback(self, status)
        if self.lingers and connection.queue and connection.queue[0] is self:
            connection.queue.popleft()
            connection.linger(self.ready)
        else:
            connection.answered(self)

    def _connection_lines(self) -> bytes:
        """Decide whether the connection stays, and return what the head says of that."""
        connection = self._connection
        if not self.received and not self.streamed:
            # An answer before the end of the request: what is left of it cannot be told apart.
            self.keep_alive = False
        if connection.answering is not OPEN and connection.queue and connection.queue[-1] is self:
            self.keep_alive = False  # those behind it, if there were any, would be lost
        if not self.keep_alive:
            return b"connection: close\r\n"
        return b"" if self.modern else b"connection: keep-alive\r\n"

    def lost(self) -> None:
        """End the exchange, because its connection is gone."""
        if self._takes_pieces:
            self.drop_body()
        if self._status:  # of an answer that goes on
            if self.outlet is not None:
                self.outlet.lost()
            self.end(self._status)  # of one that was closed before its turn came
        elif self.ready is None:
            self.abandon()

    # Answers that go on

    def stream(self, content_type: bytes, headers: Headers = ()) -> Outlet:
        headers = ((b"content-type", content_type), *headers)
        if self.modern:
            headers = (*headers, (b"transfer-encoding", b"chunked"))
        else:
            self.keep_alive = False
        return self._open(200, _STATUS_LINES[200], headers, chunked=self.modern)

    def tunnel(self, headers: Headers = ()) -> Outlet:
        assert self.upgrade_to
        upgrade = ((b"connection", b"Upgrade"), (b"upgrade", self.upgrade_to))
        self.keep_alive = False
        self.arrived = deque()
        return self._open(101, _STATUS_LINES[101], (*upgrade, *headers), chunked=False)

    def _open_sized(
        self, status: int, length: int, content_type: bytes, headers: Headers
    ) -> Http1Outlet:
        connection = self._connection
        if connection.answering is not OPEN and connection.queue and connection.queue[-1] is self:
            self.keep_alive = False  # as in `_send`
        start = b"%b%d\r\n" % (_make_head(status, content_type), length)
        if self.modern or not self.keep_alive:
            return self._open(status, start, headers, chunked=False, sized=True)
        kept = (b"connection", b"keep-alive")
        return self._open(status, start, (*headers, kept), chunked=False, sized=True)

    @property
    def tunnels(self) -> bool:
        """Whether bytes that follow the request are for its handler."""
        return self._status == 101

    def _open(
        self, status: int, start: bytes, headers: Headers, *, chunked: bool, sized: bool = False
    ) -> Http1Outlet:
        """Answer with a head, of its first lines and headers, and a body that follows."""
        assert not self.answered
        self.answered = True
        self.let_go_body()
        self.head = b""  # they would stay as long as the stream
        self._status = status
        connection = self._connection
        assert self.route is not None
        if self.route.dialect.adds_headers:
            headers = connection.app.prepare(self, headers)
        head = start + header_lines(headers)
        if not self.keep_alive and status != 101:
            head += b"connection: close\r\n"
        head += b"\r\n"
        outlet = Http1Outlet(self, connection, head, chunked=chunked, sized=sized)
        self.outlet = outlet
        if connection.queue and connection.queue[0] is self:
            connection.outlet = outlet
            outlet.begin()
        return outlet

    def ended(self) -> None:
        """Go on with the next request: the handler has ended the answer."""
        self.end_stream()
        self._connection.streaming_ended(self)

    def end_stream(self) -> None:
        """End an answer that went on."""
        if self._takes_pieces:
            self.drop_body()
        self.outlet = None
        self.end(self._status)


def _make_head(status: int, content_type: bytes) -> bytes:
    """The head of an answer up to its length; remembered."""
    line = _STATUS_LINES[status]
    named = b"content-type: %b\r\n" % content_type if content_type else b""
    head = line + named + b"content-length: "
    if len(_heads) < 256:
        _heads[status, content_type] = head
    return head
