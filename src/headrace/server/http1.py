"""HTTP/1.1 on one connection: parse, hand over, answer in order.

`httptools` parses; this file owns what a parser does not know: how much of a request may arrive and
in what time, that pipelined requests are answered in their order, that a client who does not read
is not read from either, and when a connection has to be closed.  It knows no route: `app.py` does.

The hot path is one read, one parse, one handler call and one write a request; times are looked at
once a second for all connections, not by a timer for each.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, cast

import httptools

from headrace.core.errors import (
    HeadersTooLarge,
    HeadraceError,
    InvalidRequest,
    PayloadTooLarge,
    RequestTimeout,
    Throttled,
)
from headrace.server.app import App, Target
from headrace.server.http1_answer import Http1Exchange, StreamOutlet
from headrace.server.http2 import PREFACE, Http2Protocol

log = logging.getLogger("headrace.http1")

# Where a connection is, for the time-outs.
IDLE, HEAD, BODY = 0, 1, 2
# Bodies up to here are not counted against the bytes that all arriving bodies share.
FREE_BODY_BYTES = 64 * 1024
# After a refusal the rest of the request is read and dropped for so long, so that the client gets
# to see the answer instead of a reset.
LINGER_SECONDS = 1.0
LINGER_BYTES_MAX = 16 << 20

_SINGLE_HEADERS: Final = frozenset(
    {b"host", b"content-length", b"content-type", b"authorization", b"transfer-encoding"}
)


class Refused(Exception):
    """Stops the parser; what is wrong is in the connection."""


class Http1Protocol(asyncio.Protocol):
    """One connection, until it turns out to be HTTP/2."""

    def __init__(self, app: App) -> None:
        settings = app.settings
        self.app = app
        self.transport: asyncio.Transport | None = None
        self.queue: deque[Http1Exchange] = deque()  # parsed and not answered, in order
        self.outlet: StreamOutlet | None = None  # of the answer that goes on
        self.closing = False  # close once the queue is empty
        self.writable = True
        self._paused = False  # no more is read from the client
        self._parser = httptools.HttpRequestParser(self)
        self._begun = b""  # first bytes, until they tell which protocol it is
        self._plain = False
        self._phase = IDLE
        self._headers: dict[bytes, bytes] = {}
        self._url = b""
        self._head_bytes = 0
        self._chunk_bytes = 0  # size of the read that is being parsed
        self._exchange: Http1Exchange | None = None  # whose body is arriving
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._budgeted = 0
        self._refusal: HeadraceError | None = None
        self._discarding = False
        self._discarded = 0
        self._handled = 0  # how many of the queue have been handed over
        self._leftover = b""  # bytes after a request that asks for another protocol
        self._suspended = False  # an upgrade is being decided
        self._body_bytes_max = settings.body_bytes_max
        self._header_bytes_max = settings.header_bytes_max
        self._pipeline_max = settings.pipeline_requests_max
        # Time-outs: reads so far, and what the last ticks saw.
        self._reads = 0
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self._seen_ms = 0
        self._modern: bool | None = None  # HTTP/1.1, not 1.0, by the last request that was asked
        self._now_ns = app.clock.monotonic_ns

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports are no subclass of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        app = self.app
        if len(app.connections) >= app.settings.max_connections:
            app.metrics.rejected("max_connections")
            self.transport.abort()
            return
        app.connections.add(self)
        self._seen_ms = app.now_ms()
        self.transport.set_write_buffer_limits(high=app.settings.stream_pending_bytes)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            self._become_http2(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self.app.connections.discard(self)
        self._give_budget()
        outlet, self.outlet = self.outlet, None
        queue, self.queue = self.queue, deque()
        if outlet is not None:
            outlet.lost()
        for exchange in queue:
            exchange.lost()

    def eof_received(self) -> bool:
        # The other side has sent all it will, and most who do are gone.  What is in progress is
        # still answered, unless it may take long: then its handler has asked to hear of this.
        self.closing = True
        if self._phase != IDLE or self.outlet is not None or not self.queue:
            return False
        return self.queue[0].on_abort is None

    def pause_writing(self) -> None:
        self.writable = False
        self._pause()
        if self.outlet is not None:
            self.outlet.no_room()

    def resume_writing(self) -> None:
        self.writable = True
        if self.outlet is not None:
            self.outlet.has_room()
        self._hand_over()
        self._resume()

    def data_received(self, data: bytes) -> None:
        self._reads += 1
        if self._plain:
            outlet = self.outlet
            if outlet is not None and outlet.on_data is not None:
                outlet.on_data(data)
            elif self._discarding:
                self._discard(data)
            elif self._suspended:
                self._leftover += data
            else:
                self._feed(data)
        else:
            self._sniff(data)

    # Which protocol

    def _sniff(self, data: bytes) -> None:
        data = self._begun + data
        start = data[: len(PREFACE)]
        if start == PREFACE:
            self._become_http2(data)
        elif PREFACE.startswith(start) and len(start) < len(PREFACE):
            self._begun = data
            self._phase = HEAD
        else:
            self._plain = True
            self._begun = b""
            self._feed(data)

    def _become_http2(self, data: bytes) -> None:
        transport = self.transport
        assert transport is not None
        self.app.connections.discard(self)
        protocol = Http2Protocol(self.app)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data:
            protocol.data_received(data)

    # Parsing

    def _feed(self, data: bytes) -> None:
        self._chunk_bytes = len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrading(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            refusal, self._refusal = self._refusal, None
            if refusal is None:
                refusal = InvalidRequest(f"not HTTP/1.1: {error}", fix="send a valid request")
                self.app.metrics.rejected("malformed")
            self._refuse(refusal)
            return
        if self._phase == HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > self._header_bytes_max:
                self._refuse(_headers_too_large(self._header_bytes_max))

    def on_message_begin(self) -> None:
        self._phase = HEAD
        self._head_bytes = 0
        self._headers = {}
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url = self._url + url if self._url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        headers = self._headers
        if name in headers:
            if name in _SINGLE_HEADERS:
                self._stop(InvalidRequest(f"{name.decode('latin-1')} twice", fix="send it once"))
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        headers, parser = self._headers, self._parser
        if self._chunk_bytes > self._header_bytes_max:
            self._check_head()
        if self._modern is None or b"connection" in headers:
            self._modern = parser.get_http_version() == "1.1"
        if b"host" not in headers and self._modern:
            self._stop(InvalidRequest("no Host header", fix="send one"))
        target = self.app.target_of(parser.get_method(), self._target())
        exchange = Http1Exchange(self, target, headers, self._now_ns())
        if not self._modern:
            exchange.modern = False
        self._exchange = exchange
        self._body_bytes = 0
        route = target.route
        streamed = route is not None and route.streamed
        length = headers.get(b"content-length")
        if length is not None and int(length) > self._body_bytes_max and not streamed:
            self._stop(_body_too_large(self._body_bytes_max))
        self.queue.append(exchange)
        self._phase = BODY
        if b"expect" in headers and self._modern:
            self._expect(exchange, headers[b"expect"])
        if streamed:
            exchange.streamed = True
            self._hand_over()

    def _check_head(self) -> None:
        size = len(self._url) + sum(len(k) + len(v) + 4 for k, v in self._headers.items())
        if size > self._header_bytes_max:
            self._stop(_headers_too_large(self._header_bytes_max))

    def _target(self) -> bytes:
        """Path and query of the request target."""
        url = self._url
        if not url.startswith(b"/"):
            scheme, separator, rest = url.partition(b"://")
            if not separator or scheme.lower() not in (b"http", b"https"):
                self._stop(InvalidRequest("the request target is not a path", fix="send a path"))
            slash = rest.find(b"/")
            url = rest[slash:] if slash >= 0 else b"/"
        if not url.isascii():
            self._stop(InvalidRequest("the path is not ASCII", fix="percent-encode it"))
        return url

    def _expect(self, exchange: Http1Exchange, value: bytes) -> None:
        if value.strip().lower() != b"100-continue":
            self._stop(InvalidRequest("Expect is not 100-continue", fix="leave Expect out"))
        exchange.wants_continue = True
        if self.queue[0] is exchange:
            exchange.send_continue()

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        if exchange.streamed:
            if exchange.on_body is not None:
                exchange.on_body(body)
            return
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > FREE_BODY_BYTES:
            self._check_body(len(body))

    def _check_body(self, more: int) -> None:
        if self._body_bytes > self._body_bytes_max:
            self._stop(_body_too_large(self._body_bytes_max))
        if not self.app.budget.take(more):
            self.app.metrics.rejected("request_memory")
            self._stop(
                Throttled(
                    "too many large bodies arrive at once",
                    fix="retry after a moment, or raise HEADRACE_REQUEST_MEMORY_BYTES_MAX",
                    detail={
                        "limit": "request_memory_bytes_max",
                        "max": self.app.budget.limit,
                    },
                )
            )
        self._budgeted += more

    def on_message_complete(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        self._exchange = None
        self._phase = IDLE
        body = self._body
        if body:
            exchange.body = body[0] if len(body) == 1 else b"".join(body)
            self._body = []
            if self._budgeted:
                self._give_budget()
        parser = self._parser
        if not parser.should_keep_alive():
            exchange.keep_alive = False
            exchange.modern = parser.get_http_version() == "1.1"
        if b"upgrade" in exchange.headers and parser.should_upgrade():
            exchange.upgrade_to = exchange.headers.get(b"upgrade", b"").lower()
        if exchange.streamed:
            if exchange.on_body is not None:
                exchange.on_body(b"")
            return
        exchange.whole = True
        self._hand_over()

    def _stop(self, error: HeadraceError) -> None:
        """End the parse of this connection with an error."""
        self._refusal = error
        raise Refused

    def _give_budget(self) -> None:
        if self._budgeted:
            self.app.budget.give(self._budgeted)
            self._budgeted = 0

    # Handing over

    def _hand_over(self) -> None:
        """Give the application what has arrived, at most so many requests at a time.

        None while the client does not take the answers that it has been given.
        """
        queue = self.queue
        while self._handled < len(queue) and self.writable:
            exchange = queue[self._handled]
            if self._handled >= self._pipeline_max or not (exchange.whole or exchange.streamed):
                break
            self._handled += 1
            self.app.handle(exchange)
            queue = self.queue  # a lost connection makes it another
        if len(queue) > self._pipeline_max:
            self._pause()

    def answered(self, exchange: Http1Exchange) -> None:
        """An answer is ready: write it and those behind it, in order."""
        queue, transport = self.queue, self.transport
        if not queue or queue[0] is not exchange or transport is None:
            return
        if len(queue) == 1 and exchange.keep_alive and not self._suspended:
            assert exchange.ready is not None
            queue.popleft()
            self._handled -= 1
            transport.write(exchange.ready)
            if self._paused:
                self._resume()
            return
        ready = []
        while queue and queue[0].ready is not None:
            done = queue.popleft()
            self._handled -= 1
            assert done.ready is not None
            ready.append(done.ready)
            if not done.keep_alive or (self.closing and not queue):
                self._finish(ready)
                return
        transport.write(ready[0] if len(ready) == 1 else b"".join(ready))
        if queue:
            self._go_on()
        else:
            self._resume()
        if self._suspended:
            self._not_upgraded()

    def _go_on(self) -> None:
        """The first of the queue is another one now."""
        first = self.queue[0]
        if first.wants_continue and not first.whole:
            first.send_continue()
        if first.outlet is not None and self.outlet is None:
            self.outlet = first.outlet
            first.outlet.begin()
        self._hand_over()
        self._resume()

    def streaming_ended(self, exchange: Http1Exchange) -> None:
        """The answer that went on has ended."""
        self.outlet = None
        if self.queue and self.queue[0] is exchange:
            self.queue.popleft()
            self._handled -= 1
        if not exchange.keep_alive or self.closing:
            self._finish([])
        elif self.queue:
            self.answered(self.queue[0]) if self.queue[0].ready is not None else self._go_on()
        else:
            self._resume()

    def _finish(self, last: list[bytes]) -> None:
        """Write the last answer and close."""
        transport = self.transport
        assert transport is not None
        queue, self.queue = self.queue, deque()
        for exchange in queue:
            exchange.lost()
        if last:
            transport.write(b"".join(last))
        transport.close()

    # Upgrades

    def _upgrading(self, rest: bytes) -> None:
        """A request asked for another protocol; what follows it may not be HTTP."""
        outlet = self.outlet
        if outlet is not None and outlet.on_data is not None:
            if rest:
                outlet.on_data(rest)
            return
        self._leftover = rest
        self._suspended = True
        if not self.queue:
            self._not_upgraded()

    def _not_upgraded(self) -> None:
        """The answer was an ordinary one, so what follows is HTTP again."""
        self._suspended = False
        rest, self._leftover = self._leftover, b""
        self._parser = httptools.HttpRequestParser(self)
        if rest and not self.closing:
            self._feed(rest)

    def take_leftover(self) -> bytes:
        """What arrived after the request that a tunnel was made of."""
        self._suspended = False
        rest, self._leftover = self._leftover, b""
        return rest

    # Refusals, time-outs, drain

    def _refuse(self, error: HeadraceError) -> None:
        """Answer what cannot be parsed any further, and close."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._give_budget()
        self._body = []
        exchange = self._exchange
        if exchange is None or exchange not in self.queue:
            exchange = Http1Exchange(self, Target("", "", ""), {}, self._now_ns())
            self.queue.append(exchange)
        self._exchange = None
        self._phase = IDLE
        self._discarding = True
        exchange.keep_alive = False
        exchange.whole = True
        exchange.lingers = True
        if exchange.answered:
            transport.close()
        else:
            exchange.refuse(error)

    def linger(self, last: bytes) -> None:
        """Write the last answer, then let the client finish sending before the close."""
        transport = self.transport
        assert transport is not None
        transport.write(last)
        if transport.can_write_eof():
            transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, transport.abort)

    def _discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > LINGER_BYTES_MAX and self.transport is not None:
            self.transport.abort()

    def _pause(self) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing() and not self._paused:
            self._paused = True
            transport.pause_reading()

    def _resume(self) -> None:
        transport = self.transport
        if not self._paused or transport is None or transport.is_closing():
            return
        if self.writable and len(self.queue) <= self._pipeline_max:
            self._paused = False
            transport.resume_reading()

    @property
    def pending_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def tick(self, now_ms: int) -> None:
        """Close or refuse what takes too long; a change since the last tick is progress."""
        pending = self.pending_bytes
        seen = (self._reads if self._phase != HEAD else -1, self._phase, pending)
        if seen != self._seen:
            self._seen, self._seen_ms = seen, now_ms
            return
        age_ms = now_ms - self._seen_ms
        settings, transport = self.app.settings, self.transport
        if transport is None:
            return
        if pending:
            if self.outlet is None and age_ms > settings.write_timeout_ms:
                self.app.metrics.rejected("write_timeout")
                transport.abort()
        elif self._phase == HEAD:
            if age_ms > settings.header_timeout_ms:
                self._time_out("headers", "header_timeout")
        elif self._phase == BODY:
            if age_ms > settings.body_timeout_ms and self.writable:
                self._time_out("body", "body_timeout")
        elif not self.queue and age_ms > settings.idle_timeout_ms:
            transport.close()

    def _time_out(self, what: str, reason: str) -> None:
        self.app.metrics.rejected(reason)
        error = RequestTimeout(f"the {what} did not arrive in time", fix="send it faster")
        self._refuse(error)

    def drain(self) -> None:
        """Close when what is in progress has been answered."""
        self.closing = True
        if not self.queue and self._phase == IDLE and self.transport is not None:
            self.transport.close()


def _headers_too_large(bytes_max: int) -> HeadersTooLarge:
    return HeadersTooLarge(
        f"more than {bytes_max} bytes of headers",
        fix="send fewer, or raise HEADRACE_HEADER_BYTES_MAX",
        detail={"max": bytes_max},
    )


def _body_too_large(bytes_max: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"a body of more than {bytes_max} bytes",
        fix="send less at a time, or raise HEADRACE_MAX_BODY_BYTES",
        detail={"max": bytes_max},
    )
