"""How a request of an HTTP/1.1 connection is read: parsed, bounded, and taken as a whole.

`httptools` parses; this file owns what a parser does not know: how large a head and a body may be,
which headers may come once only, and that a request that cannot be read any further is refused.
A request whose head was seen before is not parsed (`known_requests.py`), and neither is most of a
long body whose length is known: the parser would copy it.
It answers nothing: `connection.py` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, NoReturn

import httptools

from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError, Internal, InvalidRequest, OutOfResources
from headrace.server.app import App, RequestTarget
from headrace.server.http1.answer import Http1Exchange
from headrace.server.http1.heads import ATTEMPTS_MAX, HeadLayout, KnownHeads
from headrace.server.http1.states import (
    HEAD_COMPLETE,
    IDLE,
    MESSAGE_BEGUN,
    MESSAGE_COMPLETE,
    NEW,
    State,
)
from headrace.server.refusals import bad_expectation, body_too_large, headers_too_large, no_memory
from headrace.server.transport_exchange import FREE_BODY_BYTES
from headrace.wire.exchange import Repeated
from headrace.wire.routes import takes_stream

log = logging.getLogger("headrace.http1")

# Of a body of known length so much has to be missing for the rest to go past the parser.
UNPARSED_BYTES_MIN: Final = 64 * 1024
_SINGLE_HEADERS: Final = frozenset(
    {b"host", b"content-length", b"content-type", b"authorization", b"transfer-encoding"}
)


class Refused(Exception):
    """Stops the parser; what is wrong is in the connection."""


class RequestReader(asyncio.Protocol):
    """The reading half of a connection."""

    __slots__ = (
        "_at_start",
        "_attempts",
        "_body",
        "_body_bytes",
        "_body_bytes_max",
        "_body_follows",
        "_body_length",
        "_body_missing",
        "_budgeted",
        "_chunk_bytes",
        "_exchange",
        "_head_bytes",
        "_header_bytes_max",
        "_headers",
        "_heads",
        "_layout",
        "_modern",
        "_muted",
        "_nothing_follows",
        "_parser",
        "_refusal",
        "_unread",
        "_url",
        "app",
        "queue",
        "reading",
        "transport",
    )

    def __init__(self, app: App, heads: KnownHeads) -> None:
        settings = app.settings
        self.app = app
        self.transport: asyncio.Transport | None = None
        self.queue: deque[Http1Exchange] = deque()  # read and not answered, in order
        self._parser: httptools.HttpRequestParser
        self.reading: State = NEW
        self._headers: dict[bytes, bytes] = {}
        self._url = b""
        # Of the head that is arriving; later, what came since the last byte of the body.
        self._head_bytes = 0
        self._chunk_bytes = 0  # size of the read that is being parsed
        self._at_start = True  # nothing of that read came before
        self._exchange: Http1Exchange | None = None  # whose body is arriving
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._body_length = 0  # as the head says; 0: only the parser knows where the body ends
        self._body_missing = 0  # bytes of it that come next and are not parsed
        self._budgeted = 0
        self._refusal: HeadraceError | None = None
        self._body_follows = False  # behind a head that asks for another protocol
        self._muted = False  # the parser reads a head of our own
        self._body_bytes_max = settings.body_bytes_max
        self._header_bytes_max = settings.header_bytes_max
        self._modern: bool | None = None  # HTTP/1.1, not 1.0, by the last request that was asked
        self._heads = heads
        self._layout: HeadLayout | None = None  # of the header lines of the last request
        self._attempts = 0  # heads remembered since one was of use
        self._nothing_follows = False  # the last request was not to be kept alive
        self._unread = b""  # what is being parsed, until the first head in it is complete

    # What the other half does

    def _new_exchange(self, target: RequestTarget, headers: dict[bytes, bytes]) -> Http1Exchange:
        """Make a request of this connection."""
        raise NotImplementedError

    def _hand_over(self) -> None:
        """Give the application what has arrived."""
        raise NotImplementedError

    def _refuse(self, error: HeadraceError) -> None:
        """Answer what cannot be read any further, and close."""
        raise NotImplementedError

    def _upgrading(self, rest: bytes) -> bytes:
        """Take what follows a request for another protocol; return what of it is HTTP anyway."""
        raise NotImplementedError

    # Reading

    def _feed(self, data: bytes) -> None:
        if self._body_missing:
            data = self._take_body(data)
        while data:
            data = self._parse(data)

    def _take_body(self, data: bytes) -> bytes:
        """Take what the parser is not asked about: more of a body; return what follows it."""
        data, rest = data[: self._body_missing], data[self._body_missing :]
        self._chunk_bytes = len(data)
        self._body_missing = missing = self._body_missing - len(data)
        try:
            self.on_body(data)
            if not missing:
                self.on_message_complete()
        except Exception as error:  # noqa: BLE001 - as the parser does, which calls these otherwise
            self._body_missing = 0
            self._refuse(self._refusal_for(error))
            return b""
        if missing or self.reading is not IDLE:
            return b""
        self._parser = httptools.HttpRequestParser(self)  # the last one still waits for the body
        return rest

    def _parse(self, data: bytes) -> bytes:
        """Parse up to a request that asks for another protocol; return what is left to parse."""
        self._chunk_bytes = len(data)
        self._at_start = self.reading is IDLE
        self._unread = data if self._at_start and self._attempts < ATTEMPTS_MAX else b""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if not self._body_follows:
                return self._upgrading(rest)
            self._read_on()
            return rest
        except httptools.HttpParserError as error:
            self._refuse(self._refusal_of(error))
            return b""
        if self.reading is not IDLE:
            self._head_bytes += len(data)
            missing = self._body_length - self._body_bytes
            if self._head_bytes > self._header_bytes_max:
                self._refuse(headers_too_large(self._header_bytes_max))
            # Behind the last request there may be nothing, and only the parser says so.
            elif missing >= UNPARSED_BYTES_MIN and self._parser.should_keep_alive():
                self._body_missing = missing
        return b""

    def _refusal_of(self, error: httptools.HttpParserError) -> HeadraceError:
        """The error that tells why the parser stopped."""
        if self._refusal is not None or isinstance(error, httptools.HttpParserCallbackError):
            return self._refusal_for(error, error.__context__)
        self.app.metrics.rejected("malformed")
        return InvalidRequest(f"not HTTP/1.1: {error}", fix="send a valid request")

    def _refusal_for(self, error: Exception, cause: BaseException | None = None) -> HeadraceError:
        """The error that tells why what was read could not be taken."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            return refusal
        if isinstance(cause or error, MemoryError):
            without_frames(error)  # which refer to the body
            return OutOfResources.told("nothing")
        log.error("a request could not be taken", exc_info=cause or error)
        return Internal("the server met an error of its own", fix="see the server's log")

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
        self.reading = MESSAGE_BEGUN[self.reading]
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
        headers, name, value = self._headers, name.lower(), value.rstrip(b" \t")  # no margins
        if name in headers:
            if name in _SINGLE_HEADERS:
                self._stop(InvalidRequest(f"{name.decode('latin-1')} twice", fix="send it once"))
            value = Repeated(headers[name] + b", " + value)
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
        self._headers = {}  # for trailers, which are dropped
        self._head_bytes = -self._chunk_bytes
        if not self._modern:
            exchange.modern = False
        self._exchange = exchange
        exchange.head, self._unread = self._unread, b""
        self._body_bytes = self._body_length = 0
        route = target.route
        streamed = route is not None and (
            route.streamed or (route.handling is not None and takes_stream(exchange))
        )
        if headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            self._stop(InvalidRequest("an unknown transfer coding", fix="send chunked, or none"))
        length = headers.get(b"content-length")
        if length is not None and int(length) > self._body_bytes_max and not streamed:
            self._stop(body_too_large(self._body_bytes_max))
        self.queue.append(exchange)
        self.reading = HEAD_COMPLETE[self.reading]
        if b"expect" in headers and self._modern:
            self._expect(exchange, headers[b"expect"])
        if b"upgrade" in headers and parser.should_upgrade():
            self._body_follows = b"transfer-encoding" in headers or int(length or 0) > 0
        if streamed:
            exchange.stream_body()
            self._hand_over()
        elif length is not None and b"upgrade" not in headers:
            self._body_length = int(length)

    def _is_modern(self) -> bool:
        """Whether the request is HTTP/1.1, not 1.0; others are refused."""
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._stop(InvalidRequest(f"HTTP/{version}", fix="send HTTP/1.1"))
        return bool(version == "1.1")

    def _check_head(self) -> None:
        size = len(self._url) + sum(len(k) + len(v) + 4 for k, v in self._headers.items())
        if size > self._header_bytes_max:
            self._stop(headers_too_large(self._header_bytes_max))

    def _target(self) -> bytes:
        """Path and query of the request target; a host in it takes the place of `Host`."""
        url = self._url
        if not url.startswith(b"/"):
            url = self._whole_target(url)
        if not url.isascii():
            self._stop(InvalidRequest("the path is not ASCII", fix="percent-encode it"))
        return url

    def _whole_target(self, url: bytes) -> bytes:
        """Path and query of a target with a host, which counts in place of `Host` (RFC 9112)."""
        scheme, separator, rest = url.partition(b"://")
        if not separator or scheme.lower() not in (b"http", b"https"):
            self._stop(InvalidRequest("the request target is not a path", fix="send a path"))
        place, question, query = rest.partition(b"?")
        authority, _, path = place.partition(b"/")
        if not authority or b"@" in authority or b"#" in authority or not authority.isascii():
            self._stop(InvalidRequest("the request target names no host", fix="send a path"))
        self._headers[b"host"] = authority
        return b"/" + path + question + query

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
            exchange.piece_arrived(body)
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
        if not self.app.budget.take_more(more, self._budgeted):
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
        exchange, parser, body = self._exchange, self._parser, self._body
        assert exchange is not None
        # Before anything changes: there may be no memory for it.
        whole = b"".join(body) if len(body) > 1 else b""
        if not parser.should_keep_alive():
            # Before anything else: it may be refused for its version.
            exchange.keep_alive = False
            exchange.modern = self._is_modern()
            self._nothing_follows = True
        self._exchange = None
        self._body_length = 0
        self.reading = MESSAGE_COMPLETE[self.reading]
        self._at_start = False
        if body:
            exchange.body = whole or body[0]
            self._body = []
            if self._budgeted:
                self._give_budget()
        if b"upgrade" in exchange.headers and parser.should_upgrade():
            exchange.upgrade_to = exchange.headers.get(b"upgrade", b"").lower()
        exchange.received = True
        if exchange.streamed:
            exchange.hand_over()
            return
        self._hand_over()

    def learn(self, exchange: Http1Exchange) -> None:
        """Remember how a request began that was answered well."""
        self._attempts += 1
        self._heads.learn(exchange.head, exchange)

    def _stop(self, error: HeadraceError) -> NoReturn:
        """End the parse of this connection with an error."""
        self._refusal = error
        raise Refused

    def _give_budget(self) -> None:
        if self._budgeted:
            self.app.budget.give(self._budgeted)
            self._budgeted = 0
