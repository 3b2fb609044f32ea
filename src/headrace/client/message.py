"""HTTP/1.1 as bytes, from the client's side: requests out, responses in.  No sockets.

Only this file makes request heads and reads response heads.  A header value with a line break is
refused here, so that no caller can smuggle a header.  It does not follow redirects, keep cookies or
undo compression, and asks for none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httptools

from headrace.core.errors import InvalidRequest, Unreachable

PORTS: Final = {"http": 80, "https": 443}

# A server of ours sends at most `arrow_bytes_max` and a little; anything larger is not ours.
RESPONSE_BYTES_MAX: Final = 512 << 20
RESPONSE_HEADERS_MAX: Final = 128

# `detail.reason` of an error that no repeat can mend: the client is set up for another server.
SETUP: Final = "setup"


class Address(NamedTuple):
    """Where a server is, out of its URL.

    >>> Address.of("http://localhost:4000")
    Address(host='localhost', port=4000, tls=False, prefix='')
    >>> Address.of("https://events.example/headrace/").prefix
    '/headrace'
    """

    host: str
    port: int
    tls: bool
    prefix: str

    @classmethod
    def of(cls, url: str) -> Address:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in PORTS or not parts.hostname or port == -1:
            raise InvalidRequest(
                f"{url!r} is not the address of a server", fix="give http://HOST:PORT"
            )
        if parts.query or parts.fragment or parts.username is not None:
            # What is there may be a secret: it is not repeated.
            raise InvalidRequest(
                "the address has a user, a query or a fragment",
                fix="give http://HOST:PORT, keys by `token`",
            )
        return cls(
            parts.hostname,
            port or PORTS[parts.scheme],
            parts.scheme == "https",
            parts.path.rstrip("/"),
        )

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Heads:
    """Makes request heads; what is the same for all of them is made once.

    >>> Heads("localhost:4000", None).head("GET", "/v0/health", {}, 0)
    b'GET /v0/health HTTP/1.1\\r\\nhost: localhost:4000\\r\\n\\r\\n'
    """

    def __init__(self, authority: str, token: str | None) -> None:
        lines = f" HTTP/1.1\r\nhost: {_line(authority)}\r\n"
        if token is not None:
            lines += f"authorization: Bearer {_secret(token)}\r\n"
        self._common = lines.encode("latin-1")

    def head(self, method: str, target: str, headers: Mapping[str, str], body_bytes: int) -> bytes:
        """Everything up to the body."""
        lines = "".join([f"{name}: {_line(value)}\r\n" for name, value in headers.items()])
        if body_bytes or method not in ("GET", "HEAD", "DELETE"):
            lines += f"content-length: {body_bytes}\r\n"
        return b"%b %b%b%b\r\n" % (
            method.encode(),
            target.encode("ascii"),
            self._common,
            lines.encode("latin-1"),
        )


def _line(value: str) -> str:
    if value.isascii() and value.isprintable():
        return value
    raise InvalidRequest(
        f"{value!r} cannot be the value of a header", fix="use printable ASCII characters"
    )


def _secret(value: str) -> str:
    """Return a value as `_line` does, but never show it in an error: it is a secret."""
    if value.isascii() and value.isprintable():
        return value
    raise InvalidRequest(
        "the token cannot be the value of a header",
        fix="use printable ASCII characters, and leave out the line end of a file",
    )


class Response(NamedTuple):
    """An answer, whole.  Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes
    keep_alive: bool


class ResponseReader:
    """Bytes in, one `Response` out; then it is ready for the next.

    >>> reader = ResponseReader()
    >>> reader.feed(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\no")
    >>> reader.feed(b"k").body
    b'ok'
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._bytes = 0
        self._response: Response | None = None
        self.started = False  # whether a byte of the present answer has arrived

    def feed(self, data: bytes) -> Response | None:
        """Take what arrived; the answer once it is complete."""
        stranger = not self.started and data[:1] != b"H"  # of HTTP/1.1
        self.started = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, Unreachable):
                raise cause from None
            raise Unreachable(
                f"what answered does not speak HTTP/1.1: {error}",
                fix="check the address of the server (https:// if it serves TLS)",
                detail={"outcome": "unknown", **({"reason": SETUP} if stranger else {})},
            ) from None
        response, self._response = self._response, None
        if response is not None:
            self.started = False
        return response

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._headers = {}
        self._parts = []
        self._bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self._headers) >= RESPONSE_HEADERS_MAX:
            raise _too_large()
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > RESPONSE_BYTES_MAX:
            raise _too_large()
        self._parts.append(data)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue and its like come before the answer
            return
        if self._response is not None:
            raise Unreachable(
                "the server answered twice",
                fix="check what is between this client and the server",
                detail={"outcome": "unknown"},
            )
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._response = Response(status, self._headers, body, self._parser.should_keep_alive())


def _too_large() -> Unreachable:
    return Unreachable(
        f"the answer is larger than {RESPONSE_BYTES_MAX} bytes",
        fix="ask for less at a time",
        detail={"outcome": "unknown"},
    )
