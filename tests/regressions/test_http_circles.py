"""What a connection held is free when it ends, without a collection: those are very rare here."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Callable, Iterator

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.state import failed
from headrace.wire.exchange import EVENT_STREAM, Exchange, Outlet
from headrace.wire.routes import Route
from tests.support.http2_client import Client
from tests.support.served_app import Served, read_response, read_until

REFUSED = ["/refused", "/refused-by-a-ticket", "/refused-in-a-lane", "/broken"]
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


class Taking:
    """A request whose body its handler takes in pieces, after a pause."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        exchange.pause_body()
        exchange.on_body = self.took
        exchange.resume_body()

    def took(self, piece: bytes) -> None:
        pass


def refuse(exchange: Exchange) -> None:
    """Refuse with an error whose frames refer to it, and to the request."""
    error = InvalidRequest("no", fix="do not ask")
    raise error


def fail_later(exchange: Exchange) -> None:
    """Answer with the error of a ticket that has failed in a call, which raised it."""
    runtime = StepRuntime()
    try:
        refuse(exchange)
    except InvalidRequest as error:
        ticket = failed(runtime, error)
    exchange.fail(ticket.error or AssertionError)


def refuse_later(exchange: Exchange) -> None:
    """Answer with the error of work in a lane that had the body."""

    def work() -> None:
        refuse(exchange)

    def done(value: object, error: BaseException | None) -> None:
        exchange.fail(error or AssertionError())

    runtime = StepRuntime()
    runtime.submit("lane", work, done)
    runtime.run()


def routes() -> list[Route]:
    return [
        Route("GET", "/at-once", lambda e: e.answer(200, b"{}")),
        Route("POST", "/at-once", lambda e: e.answer(200, e.body)),
        Route("POST", "/refused", refuse),
        Route("POST", "/refused-by-a-ticket", fail_later),
        Route("POST", "/refused-in-a-lane", refuse_later),
        Route("POST", "/broken", lambda e: (1 // len(e.path[:0]), None)[1]),
        Route("GET", "/never", lambda e: (Waiting(e), None)[1]),
        Route("GET", "/stream", lambda e: (Session(e.stream(EVENT_STREAM)), None)[1]),
        Route("GET", "/tunnel", lambda e: (Session(e.tunnel()), None)[1]),
        Route("POST", "/taking", lambda e: (Taking(e), None)[1], streamed=True),
        Route("GET", "/parts", lambda e: e.answer_parts(200, [bytes(64 << 20)])),
    ]


@pytest.fixture
def server() -> Iterator[Served]:
    with Served(Settings(), routes()) as served:
        yield served


@pytest.fixture
def _no_collections() -> Iterator[None]:
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


def refused(sock: socket.socket) -> None:
    for path in REFUSED:
        size = "Content-Length: 3\r\n"
        sock.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{size}\r\n123".encode())
        assert read_response(sock).status in (400, 500)


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


def half_a_streamed_request(sock: socket.socket) -> None:
    sock.sendall(b"POST /taking HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n123")


def half_an_answer(sock: socket.socket) -> None:
    ask(sock, "/parts")
    read_until(sock, b"\r\n\r\n")


HTTP1_USES = [
    at_once,
    refused,
    never,
    stream,
    tunnel,
    malformed,
    half_a_request,
    half_a_streamed_request,
    half_an_answer,
]


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize("use", HTTP1_USES, ids=lambda use: use.__name__)
def test_http1(server: Served, use: Callable[[socket.socket], None]) -> None:
    with server.connect() as sock:
        use(sock)
        server.wait(lambda: len(server.app.connections) == 1)
        known = server.call(lambda: [weakref.ref(c) for c in server.app.connections])
    server.wait(lambda: known[0]() is None)


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize("path", ["/at-once", "/never", "/stream", "/taking", "/parts", *REFUSED])
def test_http2(server: Served, path: str) -> None:
    with Client(server) as client:
        method = b"POST" if path in ("/taking", *REFUSED) else b"GET"
        stream_id = client.start(method, path.encode(), end=method == b"GET")
        if path in REFUSED:
            client.send(stream_id, b"123", end=True)
        if path == "/taking":
            client.send(stream_id, b"123")
        elif path != "/never":
            client.until(lambda: client.streams[stream_id].data != b"")
        kind = "Http2Connection"
        server.wait(lambda: [type(c).__name__ for c in server.app.connections] == [kind])
        known = server.call(lambda: [weakref.ref(c) for c in server.app.connections])
    server.wait(lambda: known[0]() is None)
