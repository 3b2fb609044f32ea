"""What is malformed or too large is refused, the connection closed, and others are unaffected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.served_app import Served, read_response
from tests.support.transport_routes import HTTP1_SETTINGS as SETTINGS
from tests.support.transport_routes import http1_handlers


@pytest.fixture
def served() -> Iterator[Served]:
    with Served(SETTINGS, http1_handlers().routes()) as server:
        yield server


BAD = {
    "no host": b"GET /echo HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /echo HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n",
    "length and chunked": (
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "two lengths": (
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        b"Content-Length: 5\r\n\r\nabcde"
    ),
    "bad length": b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: +4\r\n\r\nabcd",
    "bad chunk": (
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"
    ),
    "unknown coding": (
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\nxx"
    ),
    "space in name": b"GET /echo HTTP/1.1\r\nHost: localhost\r\nBad Name: x\r\n\r\n",
    "space before colon": b"GET /echo HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "null in value": b"GET /echo HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    "cr in value": b"GET /echo HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
    "not http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "version": b"GET /echo HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "no path": b"GET echo HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "high bytes in path": b"GET /ech\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "expect something": b"GET /echo HTTP/1.1\r\nHost: localhost\r\nExpect: tea\r\n\r\n",
    "connect": b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n",
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD.keys())
def test_what_is_malformed_is_refused_and_the_connection_closed(served: Served, raw: bytes) -> None:
    with served.connect() as sock, served.connect() as other:
        sock.sendall(raw + b"GET /echo?smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n")
        response = read_response(sock)
        assert response.status in (400, 405)
        assert response.json["error"]["code"] in ("invalid_request", "method_not_allowed")
        if response.status == 400:
            assert response.headers[b"connection"] == b"close"
            assert sock.recv(100) == b"", "nothing may be answered after a refusal"
        other.sendall(b"GET /echo?fine HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_response(other).body == b"fine"


@pytest.mark.parametrize("parts", [1, 10])
def test_headers_too_large_are_refused(served: Served, parts: int) -> None:
    with served.connect() as sock:
        sock.sendall(b"GET /echo HTTP/1.1\r\nHost: localhost\r\n")
        value = b"x" * (6000 // parts)
        try:
            for number in range(parts):
                sock.sendall(b"X-%d: %b\r\n" % (number, value))
            sock.sendall(b"\r\n")
        except OSError:
            pass
        assert read_response(sock).status == 431
