"""How a request of an HTTP/1.1 connection is read: parsed, bounded, and taken as a whole.

`httptools` parses; this file owns what a parser does not know: how large a head and a body may be,
which headers may come once only, and that a request that cannot be read any further is refused.
A request that begins like the last one of its connection is not parsed at all (`http1_heads.py`).
It answers nothing: `http1.py` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, NoReturn

import httptools

from headrace.core.errors import HeadraceError, Internal, InvalidRequest
from headrace.server.app import App, Target
from headrace.server.http1_answer import Http1Exchange
from headrace.server.http1_heads import ATTEMPTS_MAX, HEADS_MAX, KnownHead, known_head
from headrace.server.refusals import bad_expectation, body_too_large, headers_too_large, no_memory

log = logging.getLogger("headrace.http1")

# Where a connection is, for the time-outs.
IDLE, HEAD, BODY = 0, 1, 2
# Bodies up to here are not counted against the bytes that all arriving bodies share.
FREE_BODY_BYTES = 64 * 1024

_SINGLE_HEADERS: Final = frozenset(
    {b"host", b"content-length", b"content-type", b"authorization", b"transfer-encoding"}
)


class Refused(Exception):
    """Stops the parser; what is wrong is in the connection."""


class RequestReader(asyncio.Protocol):
    """The reading half of a connection."""

    def __init__(self, app: App) -> None:
        settings = app.settings
        self.app = app
        self.queue: deque[Http1Exchange] = deque()  # read and not answered, in order
        self._parser = httptools.HttpRequestParser(self)
        self._phase = IDLE
        self._headers: dict[bytes, bytes] = {}
        self._url = b""
        # Of the head that is arriving; later, what came since the last byte of the body.
        self._head_bytes = 0
        self._chunk_bytes = 0  # size of the read that is being parsed
        self._at_start = True  # nothing of that read came before
        self._exchange: Http1Exchange | None = None  # whose body is arriving
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._budgeted = 0
        self._refusal: HeadraceError | None = None
        self._body_follows = False  # behind a head that asks for another protocol
        self._muted = False  # the parser reads a head of our own
        self._body_bytes_max = settings.body_bytes_max
        self._header_bytes_max = settings.header_bytes_max
        self._modern: bool | None = None  # HTTP/1.1, not 1.0, by the last request that was asked
        self._known: tuple[KnownHead, ...] = ()  # how the last requests began, newest first
        self._attempts = 0  # heads remembered since one was of use
        self._completed: list[Http1Exchange] = []  # requests that the present read completed

    # What the other half does

    def _new_exchange(self, target: Target, headers: dict[bytes, bytes]) -> Http1Exchange:
        """A request of this connection."""
        raise NotImplementedError

    def _hand_over(self) -> None:
        """Give the application what has arrived."""
        raise NotImplementedError

    def _refuse(self, error: HeadraceError) -> None:
        """Answer what cannot be read any further, and close."""
        raise NotImplementedError

    def _upgrading(self, rest: bytes) -> bytes:
        """A request asked for another protocol; what of the rest is HTTP nevertheless."""
        raise NotImplementedError

    # Reading

    def _take(self, data: bytes) -> None:
        """Read requests, or parts of them."""
        if self._phase != IDLE:
            self._feed(data)
            return
        for known in self._known:
            taken = known.take(data)
            if taken is not None:
                break
        else:
            self._feed(data)
            return
        if len(taken[1]) > self._body_bytes_max:
            self._feed(data)
            return
        self._attempts = 0
        exchange = self._new_exchange(known.target, taken[0])
        exchange.body = taken[1]
        exchange.whole = True
        self.queue.append(exchange)
        self._hand_over()

    def _feed(self, data: bytes) -> None:
        while data:
            data = self._parse(data)

    def _parse(self, data: bytes) -> bytes:
        """Parse up to a request that asks for another protocol; what is left to parse."""
        self._chunk_bytes = len(data)
        whole = self._at_start = self._phase == IDLE
        self._completed = []
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            self._completed = []
            if not self._body_follows:
                return self._upgrading(rest)
            self._read_on()
            return rest
        except httptools.HttpParserError as error:
            self._refuse(self._refusal_of(error))
            return b""
        if self._phase != IDLE:
            self._head_bytes += len(data)
            if self._head_bytes > self._header_bytes_max:
                self._refuse(headers_too_large(self._header_bytes_max))
            return b""
        # Not kept any longer: an exchange may hold a large answer.
        completed, self._completed = self._completed, []
        if whole and len(completed) == 1 and self._attempts < ATTEMPTS_MAX:
            self._attempts += 1
            known = known_head(data, completed[0])
            if known is not None:
                self._known = (known, *self._known[: HEADS_MAX - 1])
        return b""

    def _refusal_of(self, error: httptools.HttpParserError) -> HeadraceError:
        """Why the parser stopped."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            return refusal
        if isinstance(error, httptools.HttpParserCallbackError):
            log.error("a request could not be taken", exc_info=error.__context__)
            return Internal("the server met an error of its own", fix="see the server's log")
        self.app.metrics.rejected("malformed")
        return InvalidRequest(f"not HTTP/1.1: {error}", fix="send a valid request")

    def _read_on(self) -> None:
        """Read the body of a request that wants to change the protocol.

        The parser takes what follows such a head for the other protocol, although clients that
        would like HTTP/2 send bodies too.  Nothing here changes protocol with a body, so another
        parser goes on behind a head that says no more than how long the body is.
        """
        exchange = self._exchange
        assert exchange is not None
        headers = exchange.headers
        head = b"POST / HTTP/1.1\r\n"
        if b"close" in headers.get(b"connection", b"").lower():
            head += b"Connection: close\r\n"
        if b"content-length" in headers:
            head += b"Content-Length: %b\r\n\r\n" % headers[b"content-length"]
        else:
            head += b"Transfer-Encoding: chunked\r\n\r\n"
        self._body_follows = False
        self._parser = httptools.HttpRequestParser(self)
        self._muted = True
        self._parser.feed_data(head)
        self._muted = False

    def on_message_begin(self) -> None:
        if self._muted:
            return
        self._phase = HEAD
        # A read is counted whole, unless something else comes before the head in it.
        self._head_bytes = 0 if self._at_start else 1 - self._chunk_bytes
        self._headers = {}
        self._url = b""

    def on_url(self, url: bytes) -> None:
        if self._muted:
            return
        self._url = self._url + url if self._url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._muted:
            return
        name = name.lower()
        headers = self._headers
        if name in headers:
            if name in _SINGLE_HEADERS:
                self._stop(InvalidRequest(f"{name.decode('latin-1')} twice", fix="send it once"))
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        if self._muted:
            return
        headers, parser = self._headers, self._parser
        if self._head_bytes > 0 or self._chunk_bytes > self._header_bytes_max:
            self._check_head()
        if not self._modern or b"connection" in headers:
            self._modern = self._is_modern()
        if b"host" not in headers and self._modern:
            self._stop(InvalidRequest("no Host header", fix="send one"))
        target = self.app.target_of(parser.get_method(), self._target())
        exchange = self._new_exchange(target, headers)
        self._headers = {}  # for trailers, which nobody is told of
        self._head_bytes = -self._chunk_bytes
        if not self._modern:
            exchange.modern = False
        self._exchange = exchange
        self._body_bytes = 0
        route = target.route
        streamed = route is not None and route.streamed
        if headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            self._stop(InvalidRequest("an unknown transfer coding", fix="send chunked, or none"))
        length = headers.get(b"content-length")
        if length is not None and int(length) > self._body_bytes_max and not streamed:
            self._stop(body_too_large(self._body_bytes_max))
        self.queue.append(exchange)
        self._phase = BODY
        if b"expect" in headers and self._modern:
            self._expect(exchange, headers[b"expect"])
        if b"upgrade" in headers and parser.should_upgrade():
            self._body_follows = b"transfer-encoding" in headers or int(length or 0) > 0
        if streamed:
            exchange.streamed = True
            self._hand_over()

    def _is_modern(self) -> bool:
        """HTTP/1.1, not 1.0; no other version is served."""
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._stop(InvalidRequest(f"HTTP/{version}", fix="send HTTP/1.1"))
        return bool(version == "1.1")

    def _check_head(self) -> None:
        size = len(self._url) + sum(len(k) + len(v) + 4 for k, v in self._headers.items())
        if size > self._header_bytes_max:
            self._stop(headers_too_large(self._header_bytes_max))

    def _target(self) -> bytes:
        """Path and query of the request target."""
        url = self._url
        if not url.startswith(b"/"):
            scheme, separator, rest = url.partition(b"://")
            if not separator or scheme.lower() not in (b"http", b"https"):
                self._stop(InvalidRequest("the request target is not a path", fix="send a path"))
            authority, question, query = rest.partition(b"?")
            slash = authority.find(b"/")
            url = (authority[slash:] if slash >= 0 else b"/") + question + query
        if not url.isascii():
            self._stop(InvalidRequest("the path is not ASCII", fix="percent-encode it"))
        return url

    def _expect(self, exchange: Http1Exchange, value: bytes) -> None:
        if value.strip().lower() != b"100-continue":
            self._stop(bad_expectation())
        self._check_sender(exchange)
        exchange.wants_continue = True
        if self.queue[0] is exchange:
            exchange.send_continue()

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        self._head_bytes = -self._chunk_bytes
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
            self._stop(body_too_large(self._body_bytes_max))
        if not self._budgeted and self._exchange is not None:
            self._check_sender(self._exchange)
        if not self.app.budget.take(more):
            self.app.metrics.rejected("request_memory")
            self._stop(no_memory(self.app.budget.limit))
        self._budgeted += more

    def _check_sender(self, exchange: Http1Exchange) -> None:
        try:
            self.app.check_sender(exchange)
        except HeadraceError as error:
            self._stop(error)

    def on_message_complete(self) -> None:
        if self._body_follows:
            return  # the parser expects none: `_read_on` does
        exchange, parser = self._exchange, self._parser
        assert exchange is not None
        if not parser.should_keep_alive():
            # Before anything else: it may be refused for its version.
            exchange.keep_alive = False
            exchange.modern = self._is_modern()
            self._known = ()  # nothing may follow
        self._exchange = None
        self._phase = IDLE
        self._at_start = False
        body = self._body
        if body:
            exchange.body = body[0] if len(body) == 1 else b"".join(body)
            self._body = []
            if self._budgeted:
                self._give_budget()
        if b"upgrade" in exchange.headers and parser.should_upgrade():
            exchange.upgrade_to = exchange.headers.get(b"upgrade", b"").lower()
        if exchange.streamed:
            if exchange.on_body is not None:
                exchange.on_body(b"")
            return
        exchange.whole = True
        self._completed.append(exchange)
        self._hand_over()

    def _stop(self, error: HeadraceError) -> NoReturn:
        """End the parse of this connection with an error."""
        self._refusal = error
        raise Refused

    def _give_budget(self) -> None:
        if self._budgeted:
            self.app.budget.give(self._budgeted)
            self._budgeted = 0
