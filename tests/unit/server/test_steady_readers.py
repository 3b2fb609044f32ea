"""Readers that take little, but steadily, are not stuck; those that take too little are.

Time passes when a test says so.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from headrace.core.settings import Settings
from headrace.server.acknowledged import acknowledged_bytes
from headrace.server.app import App
from tests.support.http2_client import CONNECT, Client
from tests.support.served_app import PATIENCE_SECONDS, Served
from tests.support.transport_routes import HTTP1_SETTINGS, HTTP2_SETTINGS, Handlers

BIG = 24 << 20  # more than any kernel takes for a client
WINDOW = (1 << 31) - 1
LITTLE = 16 << 10
TAKEN_MAX = 256 << 10
LIMIT_MS = 30_000
STEP_MS = LIMIT_MS - 1_000


class Passing:
    """The time of a server, which no clock moves."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Passing:
    passing = Passing()
    monkeypatch.setattr(App, "now_ms", lambda _app: passing.now_ms)
    monkeypatch.setattr(App, "_tick", lambda _app: None)
    return passing


@contextmanager
def asked(served: Served, protocol: str, path: bytes) -> Iterator[socket.socket]:
    """A connection that has asked for an answer, and reads nothing of it by itself."""
    if protocol == "h1":
        with served.connect() as sock:
            upgrade = b"Connection: upgrade\r\nUpgrade: websocket\r\n" * (path == b"/tunnel")
            sock.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (path, upgrade))
            yield sock
    else:
        with Client(served, window=WINDOW) as client:
            client.h2.increment_flow_control_window(WINDOW - 65_535)
            tunnel = path == b"/tunnel"
            client.start(b"GET", path, end=not tunnel, pseudo=CONNECT if tunnel else None)
            yield client.sock


@pytest.fixture(params=["h1", "h2"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def handlers() -> Handlers:
    return Handlers(b"websocket", big_bytes=BIG)


def settings_of(protocol: str, **more: int) -> Settings:
    return replace(
        HTTP1_SETTINGS if protocol == "h1" else HTTP2_SETTINGS,
        write_timeout_ms=LIMIT_MS,
        slow_consumer_timeout_ms=LIMIT_MS,
        http2_ping_ms=10_000,
        **more,
    )


@pytest.fixture
def served(passing: Passing, protocol: str, handlers: Handlers) -> Iterator[Served]:
    with ServedSlowly(settings_of(protocol), handlers.routes()) as server:
        yield server


@pytest.fixture
def strict(passing: Passing, protocol: str, handlers: Handlers) -> Iterator[Served]:
    """A server for which what these readers take is too little."""
    rate = 4 * TAKEN_MAX // (LIMIT_MS // 1_000)
    settings = settings_of(protocol, answer_bytes_per_second_min=rate)
    with ServedSlowly(settings, handlers.routes()) as server:
        yield server


class ServedSlowly(Served):
    """Its clients' kernels take little ahead of them."""

    def connect(self) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        sock.settimeout(PATIENCE_SECONDS)
        sock.connect(self.address)
        return sock


class Link:
    """The server's end of the only connection."""

    def __init__(self, served: Served, passing: Passing) -> None:
        self._served = served
        self._passing = passing
        served.wait(lambda: any(one.pending_bytes for one in served.app.connections))
        (self.connection,) = served.app.connections
        self._transport: asyncio.Transport = self.connection.transport  # type: ignore[attr-defined]

    def acknowledged(self) -> int:
        return self._served.call(lambda: acknowledged_bytes(self._transport))

    def take(self, sock: socket.socket) -> None:
        """Take a little, until the server's kernel knows: a window opens a packet at a time."""
        before, taken = self.acknowledged(), 0
        while self.acknowledged() == before:
            assert taken < TAKEN_MAX
            taken += len(sock.recv(LITTLE))

    def tick(self) -> None:
        self._passing.now_ms += STEP_MS
        self._served.call(lambda: self.connection.tick(self._passing.now_ms))

    @property
    def there(self) -> bool:
        return self.connection in self._served.app.connections


def settled(link: Link) -> None:
    """Wait until the kernels have taken what they take, so that only the reader moves anything."""
    before = -1
    while before != (before := link.acknowledged()):
        time.sleep(0.02)


def test_a_large_answer_that_is_taken_steadily(
    served: Served, passing: Passing, protocol: str
) -> None:
    """A reader of 40 KB a second leaves the process's own buffer untouched for a minute."""
    with asked(served, protocol, b"/big") as sock:
        link = Link(served, passing)
        settled(link)
        for _ in range(6):
            link.take(sock)
            link.tick()
            assert link.there
        for _ in range(3):
            link.tick()  # it takes nothing any more
        served.wait(lambda: not link.there)


@pytest.mark.parametrize("path", [b"/stream", b"/tunnel"])
def test_a_stream_that_is_taken_steadily_is_not_stuck(
    served: Served, passing: Passing, handlers: Handlers, protocol: str, path: bytes
) -> None:
    """Server-sent events and WebSocket: the limit is for those who take nothing."""
    with asked(served, protocol, path) as sock:
        served.wait(lambda: len(handlers.outlets) == 1)
        outlet = handlers.outlets[0]
        served.call(lambda: outlet.write(b"x" * BIG))
        link = Link(served, passing)
        settled(link)
        served.call(lambda: outlet.stuck_ms)
        for _ in range(6):
            link.take(sock)
            link.tick()
            assert link.there
            assert served.call(lambda: outlet.stuck_ms) == 0
        passing.now_ms += STEP_MS
        assert served.call(lambda: outlet.stuck_ms) == STEP_MS


def test_a_large_answer_that_is_taken_too_slowly_is_given_up(
    strict: Served, passing: Passing, protocol: str
) -> None:
    with asked(strict, protocol, b"/big") as sock:
        link = Link(strict, passing)
        settled(link)
        link.tick()
        link.take(sock)
        link.tick()
        assert link.there
        link.take(sock)
        link.tick()
        strict.wait(lambda: not link.there)
        text = strict.app.metrics.registry.text()
        assert 'headrace_http_rejected_total{reason="write_rate"} 1' in text


@pytest.mark.parametrize("path", [b"/stream", b"/tunnel"])
def test_a_stream_that_is_taken_too_slowly_is_stuck(
    strict: Served, passing: Passing, handlers: Handlers, protocol: str, path: bytes
) -> None:
    with asked(strict, protocol, path) as sock:
        strict.wait(lambda: len(handlers.outlets) == 1)
        outlet = handlers.outlets[0]
        strict.call(lambda: outlet.write(b"x" * BIG))
        link = Link(strict, passing)
        settled(link)
        begun = strict.call(lambda: outlet.stuck_ms)
        for step in range(1, 3):
            link.take(sock)
            passing.now_ms += STEP_MS
            assert strict.call(lambda: outlet.stuck_ms) == begun + step * STEP_MS
