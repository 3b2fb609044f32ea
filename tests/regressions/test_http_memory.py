"""Bytes that clients make the server keep: all are counted while they are kept, and given back."""

from __future__ import annotations

import contextlib
import gzip
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.core.settings import Settings
from headrace.server.http1.heads import LINE_BYTES_MAX
from headrace.wire.exchange import EVENT_STREAM, Exchange
from headrace.wire.routes import Route
from tests.support.http2_client import Client, frame
from tests.support.served_app import Served, read_response, read_until

MIB = 1 << 20
SETTINGS = Settings(
    body_bytes_max=MIB,
    record_bytes_max=MIB,
    request_memory_bytes_max=4 * MIB,
    response_memory_bytes_max=MIB,
)


class Handlers:
    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.bodies: list[bytes] = []

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/take", self.take),
            Route("GET", "/take", self.take),
            Route("GET", "/large", lambda e: e.answer(200, bytes(MIB), b"text/plain")),
            Route("POST", "/stream", self.stream, long_lived=True),
        ]

    def take(self, exchange: Exchange) -> None:
        self.bodies.append(exchange.body)
        exchange.answer(200, b"{}")

    def stream(self, exchange: Exchange) -> None:
        exchange.stream(EVENT_STREAM).write(b"first\n")
        self.exchanges.append(exchange)


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def recovering(handlers: Handlers) -> Iterator[Served]:
    with Served(replace(SETTINGS, parked_ms_max=60_000), handlers.routes(), live=False) as served:
        yield served


@pytest.fixture
def server(handlers: Handlers) -> Iterator[Served]:
    with Served(SETTINGS, handlers.routes()) as served:
        yield served


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_bodies_that_wait_for_recovery(recovering: Served, handlers: Handlers) -> None:
    app = recovering.app
    socks = [recovering.connect() for _ in range(5)]
    for number, sock in enumerate(socks[:4]):
        sock.sendall(post("/take", bytes(900_000)))
        recovering.wait(lambda count=number + 1: app.parked == count)
    assert app.budget.used == 4 * 900_000
    socks[4].sendall(post("/take", bytes(900_000)))
    assert read_response(socks[4]).status == 429
    reset(socks[0])
    recovering.wait(lambda: len(app.connections) == 4)
    recovering.call(app.go_live)
    assert [read_response(sock).status for sock in socks[1:4]] == [200] * 3
    assert len(handlers.bodies) == 3  # nobody waits for the first any more
    assert app.budget.used == 0
    for sock in socks:
        sock.close()


def test_those_who_went_while_they_waited(
    recovering: Served, handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    """Not answered, not counted, and nothing is said of it."""
    app = recovering.app
    with Client(recovering) as client:
        stream_id = client.start(b"POST", b"/take", end=False)
        client.send(stream_id, bytes(100_000), end=True)
        recovering.wait(lambda: app.parked == 1)
        client.h2.reset_stream(stream_id)
        client.flush()
        sock = recovering.connect()
        sock.sendall(post("/take", bytes(100_000)))
        recovering.wait(lambda: app.parked == 2)
        reset(sock)
    recovering.wait(lambda: not app.connections)
    recovering.call(app.drain)
    assert app.parked == 0
    assert app.budget.used == 0
    assert handlers.bodies == []
    assert not caplog.records


def test_compressed_bodies(server: Served, handlers: Handlers) -> None:
    body = bytes(range(256)) * 1024
    with server.connect() as sock:
        for _ in range(3):
            sock.sendall(post("/take", gzip.compress(body, 0), "Content-Encoding: gzip"))
            assert read_response(sock).status == 200
    server.call(lambda: setattr(server.app.budget, "limit", 0))
    with server.connect() as sock:
        sock.sendall(post("/take", gzip.compress(body[:50_000], 0), "Content-Encoding: gzip"))
        assert read_response(sock).status == 429
    assert handlers.bodies == [body] * 3
    assert server.app.budget.used == 0


@pytest.mark.parametrize("protocol", ["http1", "http2"])
def test_a_stream_does_not_keep_its_request(
    server: Served, handlers: Handlers, protocol: str
) -> None:
    if protocol == "http1":
        with server.connect() as sock:
            sock.sendall(post("/stream", bytes(100_000)))
            read_until(sock, b"first\n")
    else:
        with Client(server) as client:
            stream_id = client.start(b"POST", b"/stream", end=False)
            client.send(stream_id, bytes(100_000), end=True)
            client.until(lambda: client.streams[stream_id].data != b"")
    assert handlers.exchanges[0].body == b""


def test_http2_requests_that_are_held_back(server: Served, handlers: Handlers) -> None:
    """As long as the client does not take its answers, its bodies count."""
    with Client(server, window=0) as client:
        client.start(b"GET", b"/large")
        stream_id = client.start(b"POST", b"/take", end=False)
        client.send(stream_id, bytes(100_000), end=True)
        (connection,) = server.app.connections
        server.wait(lambda: len(connection._held) == 1)
        assert server.app.budget.used == 100_000
        client.h2.reset_stream(stream_id)
        client.flush()
        server.wait(lambda: server.app.budget.used == 0)
        assert [e.body for e in connection._held] == [b""]
    assert handlers.bodies == []


def test_http2_heads_that_nobody_reads(server: Served) -> None:
    """Requests whose answers have no body wait, too, when the client takes nothing."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.connect(server.address)
        sock.settimeout(5)
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
        path = b"/take?" + b"x" * 100
        # HEAD as a literal; the scheme, the authority and the path by the static table.
        block = b"\x02\x04HEAD\x86\x01\x09localhost\x04" + bytes([len(path)]) + path
        server.wait(lambda: bool(server.app.connections))
        server.call(lambda: setattr(server.app, "prepare", _with_much))
        server.call(lambda: setattr(server.app.routes.dialects[0], "adds_headers", True))
        buffered = [0]
        with contextlib.suppress(ConnectionError):
            for start in range(1, 40_001, 200):
                frames = [frame(1, 5, start + 2 * n, block) for n in range(100)]
                sock.sendall(b"".join(frames))
                buffered += server.call(lambda: [c.pending_bytes for c in server.app.connections])
        server.wait(lambda: not server.app.connections)  # too many at once, in the end
        assert 0 < max(buffered) < 2 * MIB


def _with_much(_exchange: Exchange, _headers: object) -> list[tuple[bytes, bytes]]:
    return [(b"x", bytes(8_000).replace(b"\0", b"v"))]


def test_only_what_is_taken_is_progress(server: Served) -> None:
    """A buffer that only grows is a client that takes nothing."""
    with Client(server, greedy=False) as client:
        client.h2.increment_flow_control_window(100 * MIB)
        client.flush()
        kinds = ["Http2Connection"]
        server.wait(lambda: [type(c).__name__ for c in server.app.connections] == kinds)
        (connection,) = server.app.connections
        transport = connection.transport

        def grow() -> None:
            connection._state._put(6, 1, 0, bytes(8 * MIB))
            connection._flush()

        server.call(grow)
        start_ms = server.app.now_ms()
        seconds = SETTINGS.write_timeout_ms // 1_000 + 3
        time.sleep(0.1)  # until the kernel is full
        for second in range(seconds):
            server.call(lambda: connection._state._put(6, 1, 0, bytes(8)))
            server.call(connection._flush)
            server.call(lambda at=start_ms + 1_000 * second: connection.tick(at))
        assert transport.is_closing()


def test_long_request_lines_are_not_remembered(server: Served) -> None:
    with server.connect() as sock:
        for number in range(20):
            query = f"{number:04}" + "x" * (LINE_BYTES_MAX if number % 2 else 10)
            sock.sendall(f"GET /take?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert read_response(sock).status == 200
    lines = server.heads._lines
    assert len(lines) == 10
    assert all(len(line) <= LINE_BYTES_MAX for line in lines)


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [("/take", b"wrong", 401), ("/take", b"reader", 403), ("/unknown", b"right", 404)],
)
@pytest.mark.parametrize("how", ["length", "chunked", "expect", "http2"])
def test_large_bodies_of_those_who_are_not_let_in(
    handlers: Handlers, path: str, key: bytes, status: int, how: str
) -> None:
    """They are refused before their bodies take memory that others need."""
    routes = [route._replace(scopes=frozenset(("write",))) for route in handlers.routes()]
    settings = replace(SETTINGS, api_keys="right,reader:read")
    authorization = b"Bearer " + key
    with Served(settings, routes) as server:
        if how == "http2":
            with Client(server) as client:
                headers = [(b"authorization", authorization)]
                stream_id = client.start(b"POST", path.encode(), headers, end=False)
                client.until(lambda: client.streams[stream_id].over)
                assert client.streams[stream_id].status == status
        else:
            more = {
                "length": b"Content-Length: 900000\r\n\r\n" + bytes(200_000),
                "chunked": b"Transfer-Encoding: chunked\r\n\r\n30d40\r\n" + bytes(200_000),
                "expect": b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n",
            }[how]
            with server.connect() as sock:
                head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: ".encode()
                sock.sendall(head + authorization + b"\r\n" + more)
                assert read_response(sock).status == status
        assert server.app.budget.used == 0
        assert handlers.bodies == []


@pytest.mark.parametrize("protocol", ["http1", "http2"])
def test_large_bodies_of_those_who_are(handlers: Handlers, protocol: str) -> None:
    """They are let in once, and hold one place while they are."""
    body = bytes(900_000)
    settings = replace(SETTINGS, api_keys="right", max_inflight_per_key=1)
    with Served(settings, handlers.routes()) as server:
        for _ in range(3):
            if protocol == "http2":
                with Client(server) as client:
                    headers = [(b"authorization", b"Bearer right")]
                    assert client.post(b"/take", body, headers).status == 200
            else:
                with server.connect() as sock:
                    sock.sendall(post("/take", body, "Authorization: Bearer right"))
                    assert read_response(sock).status == 200
        assert server.app.budget.used == 0
        assert handlers.bodies == [body] * 3


def test_large_bodies_that_never_end_leave_room_for_small_ones(server: Served) -> None:
    """Others hold three quarters of the memory of bodies: a large one gets most of the rest."""
    budget = server.app.budget
    server.call(lambda: budget.take(3 * MIB))
    with server.connect() as sock:
        sock.sendall(post("/take", bytes(1_000_000)))
        assert read_response(sock).status == 429
    with Client(server) as client:
        stream_id = client.start(b"POST", b"/take", end=False)
        client.send(stream_id, bytes(10_000))
        client.send(stream_id, bytes(10_000), end=True)
        assert client.finish(stream_id).status == 200
    server.call(lambda: budget.give(3 * MIB))
    server.wait(lambda: budget.used == 0)
