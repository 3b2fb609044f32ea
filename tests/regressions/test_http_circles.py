"""What a connection held is free when it ends, without a collection: those are very rare here."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Callable, Iterator

import pytest

from headrace.core.settings import Settings
from headrace.wire.exchange import EVENT_STREAM, Exchange, Outlet
from headrace.wire.native import TOPICS
from headrace.wire.routes import Route
from tests.unit.server.http2_client import Client
from tests.unit.server.serving import Served, read_response, read_until

WANTS_TUNNEL = "Connection: Upgrade\r\nUpgrade: other\r\n"


class Session:
    """A handler's side of a stream: it knows its outlet, and is told by it."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        outlet.on_room = outlet.on_closed = self.told
        outlet.on_data = self.took
        outlet.write(b"first\n")

    def told(self) -> None:
        pass

    def took(self, data: bytes) -> None:
        pass


class Waiting:
    """A request that is not answered yet; it is told when its client goes."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        exchange.on_abort = self.gone

    def gone(self) -> None:
        self.exchange.on_abort = None


def routes() -> list[Route]:
    return [
        Route("GET", "/at-once", lambda e: e.answer(200, b"{}"), TOPICS),
        Route("POST", "/at-once", lambda e: e.answer(200, e.body), TOPICS),
        Route("GET", "/never", lambda e: (Waiting(e), None)[1], TOPICS),
        Route("GET", "/stream", lambda e: (Session(e.stream(EVENT_STREAM)), None)[1], TOPICS),
        Route("GET", "/tunnel", lambda e: (Session(e.tunnel()), None)[1], TOPICS),
    ]


@pytest.fixture
def server() -> Iterator[Served]:
    with Served(Settings(), routes()) as served:
        yield served


@pytest.fixture
def _no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def ask(sock: socket.socket, path: str, more: str = "") -> None:
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode())


def at_once(sock: socket.socket) -> None:
    ask(sock, "/at-once")
    read_response(sock)
    for body in (b"1", b"22", b"22"):
        head = f"POST /at-once HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        read_response(sock)


def never(sock: socket.socket) -> None:
    ask(sock, "/at-once")
    ask(sock, "/never")
    read_response(sock)


def stream(sock: socket.socket) -> None:
    ask(sock, "/stream")
    read_until(sock, b"first\n")


def tunnel(sock: socket.socket) -> None:
    ask(sock, "/tunnel", WANTS_TUNNEL)
    read_until(sock, b"first\n")


def malformed(sock: socket.socket) -> None:
    sock.sendall(b"malformed\r\n\r\n")
    assert read_response(sock).status == 400


def half_a_request(sock: socket.socket) -> None:
    ask(sock, "/at-once")
    read_response(sock)
    sock.sendall(b"POST /at-once HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n123")


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize(
    "use", [at_once, never, stream, tunnel, malformed, half_a_request], ids=lambda use: use.__name__
)
def test_http1(server: Served, use: Callable[[socket.socket], None]) -> None:
    with server.connect() as sock:
        use(sock)
        known = server.call(lambda: [weakref.ref(c) for c in server.app.connections])
        assert len(known) == 1
    server.wait(lambda: known[0]() is None)


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize("path", ["/at-once", "/never", "/stream"])
def test_http2(server: Served, path: str) -> None:
    with Client(server) as client:
        stream_id = client.start(b"GET", path.encode())
        if path != "/never":
            client.until(lambda: client.streams[stream_id].data != b"")
        kind = "Http2Protocol"
        server.wait(lambda: [type(c).__name__ for c in server.app.connections] == [kind])
        known = server.call(lambda: [weakref.ref(c) for c in server.app.connections])
    server.wait(lambda: known[0]() is None)
