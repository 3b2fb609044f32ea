"""Requests that begin like the last one are not parsed, and mean exactly what parsing says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.core.settings import Settings
from headrace.server import http1_heads
from headrace.server.http1_heads import KnownHead
from headrace.wire.exchange import Exchange
from headrace.wire.native import TOPICS
from headrace.wire.routes import Route
from tests.unit.server.serving import Response, Served, read_response

SETTINGS = Settings(
    body_bytes_max=1 << 16, record_bytes_max=1 << 16, header_timeout_ms=1000, body_timeout_ms=1000
)
FIRST = b"POST /echo?a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nX: 1\r\n\r\nhello"


def echo(exchange: Exchange) -> None:
    """All that was understood."""
    headers = b"|".join(b"%b=%b" % item for item in sorted(exchange.headers.items()))
    parts = (exchange.method.encode(), exchange.path.encode(), exchange.query.encode())
    exchange.answer(200, b"\n".join((*parts, headers, exchange.body)), b"text/plain")


@pytest.fixture
def served() -> Iterator[Served]:
    routes = [Route("POST", "/echo", echo, TOPICS), Route("POST", "/other", echo, TOPICS)]
    with Served(SETTINGS, routes) as server:
        yield server


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request of a connection that knows a head was taken without the parser."""
    found: list[bool] = []
    take = KnownHead.take

    def noted(self: KnownHead, data: bytes) -> tuple[dict[bytes, bytes], bytes] | None:
        result = take(self, data)
        found.append(result is not None)
        return result

    monkeypatch.setattr(http1_heads.KnownHead, "take", noted)
    return found


def answers(served: Served, *requests: bytes) -> list[Response]:
    """The answers to requests of one connection, each sent after the last was answered."""
    with served.connect() as sock:
        found = []
        for request in requests:
            sock.sendall(request)
            found.append(read_response(sock))
        return found


def test_only_the_body_and_its_length_may_differ(served: Served, taken: list[bool]) -> None:
    longer = FIRST.replace(b": 5", b": 12").replace(b"hello", b"hello, world")
    empty = FIRST.replace(b": 5", b": 0").replace(b"hello", b"")
    requests = [FIRST, FIRST, longer, empty, FIRST]
    assert answers(served, *requests) == [answers(served, one)[0] for one in requests]
    assert taken == [True] * 4


def test_two_heads_in_turn_are_both_remembered(served: Served, taken: list[bool]) -> None:
    other = FIRST.replace(b"/echo?a", b"/other").replace(b": 5", b": 3").replace(b"hello", b"you")
    third = FIRST.replace(b"X: 1", b"X: 3")
    in_turn = [FIRST, other] * 3
    alone = {one: answers(served, one)[0] for one in (FIRST, other, third)}
    del taken[:]
    assert answers(served, *in_turn) == [alone[one] for one in in_turn]
    assert taken.count(True) == 4, "all but the first two"
    del taken[:]
    many = [*in_turn, third, third, FIRST, third, FIRST]
    assert answers(served, *many) == [alone[one] for one in many]
    assert taken.count(True) == 4 + 3, "a third takes the place of the oldest"


ALIKE = [
    FIRST.replace(b"X: 1", b"X: 2"),
    FIRST.replace(b"X: 1", b"x: 1"),
    FIRST.replace(b"X: 1\r\n", b""),
    FIRST.replace(b"X: 1\r\n", b"X: 1\r\nY: 2\r\n"),
    FIRST.replace(b"/echo?a", b"/other"),
    FIRST.replace(b"/echo?a", b"/none"),
    FIRST.replace(b"POST", b"PUT"),
    FIRST.replace(b"HTTP/1.1", b"HTTP/1.0"),
    FIRST.replace(b": 5", b": 05"),
    FIRST.replace(b": 5", b":5"),
    FIRST.replace(b": 5", b": +5"),
    FIRST.replace(b": 5", b": -5"),
    FIRST.replace(b": 5", b": 5 "),
    FIRST.replace(b": 5", b": 5, 5"),
    FIRST.replace(b": 5", b": 0x5"),
    FIRST.replace(b": 5", b": \xb25"),
    FIRST.replace(b": 5", b": 5\r\nContent-Length: 6"),
    FIRST.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked").replace(
        b"hello", b"5\r\nhello\r\n0\r\n\r\n"
    ),
    FIRST.replace(b": 5", b": 70000").replace(b"hello", b"h" * 70_000),
]


@pytest.mark.parametrize("second", ALIKE)
def test_what_only_looks_alike_means_the_same_as_on_a_new_connection(
    served: Served, second: bytes
) -> None:
    assert answers(served, FIRST, FIRST, second)[2] == answers(served, second)[0]


@pytest.mark.parametrize("cut", [1, 30, 60, len(FIRST) - 2])
def test_a_request_in_pieces_is_parsed(served: Served, cut: int) -> None:
    with served.connect() as sock:
        for pieces in ([FIRST], [FIRST[:cut], FIRST[cut:]], [FIRST]):
            for piece in pieces:
                sock.sendall(piece)
                served.call(lambda: None)
            assert read_response(sock) == answers(served, FIRST)[0]


def test_two_requests_in_one_piece_are_two(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(FIRST)
        first = read_response(sock)
        sock.sendall(FIRST + FIRST + FIRST[:-3])
        assert [read_response(sock), read_response(sock)] == [first, first]
        sock.sendall(FIRST[-3:])
        assert read_response(sock) == first


@pytest.mark.parametrize(
    "header", [b"Expect: 100-continue", b"Connection: close", b"Upgrade: x\r\nConnection: upgrade"]
)
def test_heads_that_ask_for_more_are_not_remembered(
    served: Served, taken: list[bool], header: bytes
) -> None:
    request = FIRST.replace(b"X: 1", header)
    with served.connect() as sock:
        for _ in range(2):
            sock.sendall(request)
            response = read_response(sock)
            if response.status == 100:
                response = read_response(sock)
            assert response.status == 200
            if b"close" in header:
                assert sock.recv(1) == b""
                break
    assert taken == []


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_request_that_would_like_another_protocol_keeps_its_body(
    served: Served, upgrade: bytes, pieces: int
) -> None:
    header = b"Upgrade: %b\r\nConnection: Upgrade, HTTP2-Settings" % upgrade
    plain = FIRST.replace(b"X: 1", header)
    chunked = plain.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked").replace(
        b"hello", b"5\r\nhello\r\n0\r\n\r\n"
    )
    for request in (plain, chunked):
        with served.connect() as sock:
            for _ in range(2):
                cut = request.index(b"hello") + 2 if pieces == 2 else len(request)
                sock.sendall(request[:cut])
                served.call(lambda: None)
                sock.sendall(request[cut:])
                response = read_response(sock)
                assert response.status == 200
                assert response.body.endswith(b"\nhello")
            sock.sendall(request + FIRST + FIRST)
            assert [read_response(sock).status for _ in range(3)] == [200] * 3


def test_heads_that_never_repeat_are_given_up(served: Served, taken: list[bool]) -> None:
    each = [FIRST.replace(b"X: 1", b"X: %d" % n) for n in range(40)]
    assert [r.status for r in answers(served, *each)] == [200] * 40
    assert not any(taken)
