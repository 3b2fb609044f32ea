"""The HTTP/1.1 of this server against that of `h11`, on a corpus of hostile requests.

`h11` is an independent parser that nobody here wrote.  Where it says that bytes are one valid
request, this server must have seen the same method, target and body, or refuse; where it refuses,
this server must not have served anything.  So no front-end and no client can disagree with the
server about where a request ends.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import h11
import pytest

from headrace.core.settings import Settings
from headrace.wire.exchange import Exchange
from headrace.wire.routes import Route
from tests.support.served_app import Served

Seen = tuple[str, str, bytes]


START = [
    b"POST /echo",
    b"GET /echo?a=1",
    b"PUT /echo",
    b"POST  /echo",
    b"POST /ec ho",
    b"POST http://localhost/echo",
]
VERSION = [
    b" HTTP/1.1\r\n",
    b" HTTP/1.0\r\n",
    b" HTTP/2.0\r\n",
    b" http/1.1\r\n",
    b" HTTP/1.1\n",
    b"\r\n",
]
HEADERS = [
    b"Host: localhost\r\n",
    b"Host: localhost\n",
    b"Host : localhost\r\n",
    b"Host: localhost\r\n folded\r\n",
    b"Host: localhost\r\n\tfolded\r\n",
    b"Host: a\r\nHost: b\r\n",
    b"",
]
FRAMING = [
    b"Content-Length: 5\r\n",
    b"Content-Length: 5\r\nContent-Length: 5\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: -5\r\n",
    b"Content-Length: 0x5\r\n",
    b"Content-Length: 5 \r\n",
    b"Content-Length:\r\n",
    b"Content-Length: 99999999999999999999999999\r\n",
    b"content-length: 5\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: Chunked\r\n",
    b"Transfer-Encoding: chunked, chunked\r\n",
    b"Transfer-Encoding: identity, chunked\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    b"X: y\r\nTransfer-Encoding\r\n",
    b"",
]
BODY = [
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"05\r\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b"5;a=b\r\nhello\r\n0\r\n\r\n",
    b'5;a="\nb"\r\nhello\r\n0\r\n\r\n',
    b"5\nhello\n0\n\n",
    b"5\r\nhello0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello\r\n0\r\nTrailer: x\r\n\r\n",
    b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n",
    b"",
]
NEXT = b"GET /echo?next HTTP/1.1\r\nHost: localhost\r\n\r\n"


def corpus() -> Iterator[bytes]:
    """Every framing with every body; the other parts varied one at a time and at random."""
    for framing in FRAMING:
        for body in BODY:
            yield START[0] + VERSION[0] + HEADERS[0] + framing + b"\r\n" + body
    for start in START:
        for version in VERSION:
            for header in HEADERS:
                yield start + version + header + FRAMING[0] + b"\r\n" + BODY[0]
    chance = random.Random(11)
    for _ in range(300):
        parts = [chance.choice(p) for p in (START, VERSION, HEADERS, FRAMING)]
        raw = bytearray(b"".join(parts) + b"\r\n" + chance.choice(BODY))
        for _ in range(chance.randrange(3)):
            raw[chance.randrange(len(raw))] = chance.choice(b"\0\t\n\r :;,/\x7f\xff0aA")
        yield bytes(raw)


def parsed_by_h11(raw: bytes) -> list[Seen]:
    """The requests that h11 finds, until it refuses what comes after them."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw)
    connection.receive_data(b"")
    seen: list[Seen] = []
    head: h11.Request | None = None
    body = b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return seen
        if isinstance(event, h11.Request):
            head, body = event, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            seen.append((head.method.decode(), head.target.decode("latin-1"), body))
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return seen
            connection.start_next_cycle()
        else:
            return seen


@pytest.fixture(scope="module")
def seen() -> list[Seen]:
    return []


@pytest.fixture(scope="module")
def served(seen: list[Seen]) -> Iterator[Served]:
    def note(exchange: Exchange) -> None:
        target = exchange.path + ("?" + exchange.query if exchange.query else "")
        seen.append((exchange.method, target, exchange.body))
        exchange.answer(200, b"")

    routes = [Route(method, "/echo", note) for method in ("GET", "POST", "PUT")]
    with Served(Settings(), routes) as server:
        yield server


def exchange_bytes(served: Served, raw: bytes) -> bytes:
    """Send everything, then say so, and read all answers."""
    answers = b""
    with served.connect() as sock:
        try:
            sock.sendall(raw)
            sock.shutdown(1)
            while piece := sock.recv(1 << 16):
                answers += piece
        except ConnectionResetError:
            pass
    return answers


def path_of(target: str) -> str:
    """A target in absolute form means its path."""
    return "/" + target.split("/", 3)[3] if target.startswith("http://") else target


def test_the_server_and_h11_agree_on_every_request(served: Served, seen: list[Seen]) -> None:
    checked = refused = 0
    for raw in corpus():
        raw += NEXT
        seen.clear()
        answers = exchange_bytes(served, raw)
        # Several spaces before the target are taken here; they do not change where things end.
        expected = parsed_by_h11(raw.replace(b"POST  /", b"POST /"))
        wanted = [(m, path_of(t), b) for m, t, b in expected]
        routed = [item for item in wanted if item[1].split("?")[0] == "/echo"]
        # What was served is a beginning of what h11 sees: nothing else, and in no other shape.
        assert seen == routed[: len(seen)], (raw, seen, wanted, answers)
        checked += 1
        refused += len(seen) < len(routed)
        if not expected:
            assert b"HTTP/1.1 200" not in answers, (raw, answers)
    assert checked > 600
    # A server that refuses everything would pass the above.
    assert refused < checked / 3
