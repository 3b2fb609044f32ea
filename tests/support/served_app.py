"""An application on a real socket, in a thread of its own, and bytes in and out of it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

import uvloop

from headrace.core.settings import Settings
from headrace.core.thread_runtime import LoopRuntime
from headrace.metrics.requests import Metrics
from headrace.server.access import AccessControl
from headrace.server.app import App
from headrace.server.auth import KeyRing
from headrace.server.http1.connection import Http1Connection
from headrace.server.http1.heads import KnownHeads
from headrace.wire.dialect import Dialect
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.routes import Route, RouteTable

T = TypeVar("T")
PATIENCE_SECONDS = 20


class Response(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def json(self) -> dict[str, dict[str, object]]:
        return json.loads(self.body)  # type: ignore[no-any-return]


class Served:
    """`with Served(settings, routes) as server: ...`; the routes are those of the native API."""

    def __init__(
        self,
        settings: Settings,
        routes: Sequence[Route] = (),
        live: bool = True,
        dialects: Sequence[Dialect] = (),
        heads: KnownHeads | None = None,
    ) -> None:
        self.heads = KnownHeads() if heads is None else heads
        self._settings = settings
        self._dialects = dialects or [NativeDialect(routes)]
        self._live = live
        self._started: Future[tuple[str, int]] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self.app: App
        self.loop: asyncio.AbstractEventLoop

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        runtime = LoopRuntime()
        keys = KeyRing.parse(self._settings.api_keys)
        access = AccessControl(self._settings, keys)
        table = RouteTable(self._dialects)
        self.app = App(self._settings, table, access, runtime, Metrics())
        self.app.start()
        if self._live:
            self.app.go_live()
        server = await self.loop.create_server(
            lambda: Http1Connection(self.app, self.heads), "127.0.0.1", 0
        )
        self._started.set_result(server.sockets[0].getsockname())
        await self._stop.wait()
        server.close()
        self.app.stop()
        for connection in list(self.app.connections):
            connection.transport.abort()  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        runtime.close()

    def __enter__(self) -> Served:
        self._thread.start()
        self.address = self._started.result(PATIENCE_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_SECONDS)

    def connect(self) -> socket.socket:
        sock = socket.create_connection(self.address)
        sock.settimeout(PATIENCE_SECONDS)
        return sock

    def call(self, function: Callable[[], T]) -> T:
        """Call in the loop's thread."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                future.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return future.result(PATIENCE_SECONDS)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until the condition holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.call(condition):
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.005)


def read_until(sock: socket.socket, end: bytes) -> bytes:
    """Bytes up to and with `end`."""
    data = b""
    while not data.endswith(end):
        piece = sock.recv(1)
        assert piece, data
        data += piece
    return data


def read_response(sock: socket.socket) -> Response:
    """One whole response with a content length."""
    head = read_until(sock, b"\r\n\r\n")
    line, *lines = head[:-4].split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines)
    length = int(headers.get(b"content-length", b"0"))
    body = bytearray()
    while len(body) < length:
        piece = sock.recv(min(1 << 16, length - len(body)))
        assert piece, (head, body)
        body += piece
    return Response(int(line.split()[1]), headers, bytes(body))
