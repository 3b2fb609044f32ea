"""A server that does as it is told, to see what the client makes of good and bad answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from headrace.client import AsyncClient, Client

HANG = "hang"  # read the request, never answer
CLOSE = "close"  # read the request, hang up
REFUSE = "refuse"  # hang up without reading
TURN_DOWN = "turn down"  # answer whatever comes first, as a server does that met no HTTP


def answer(status: int, body: str = "{}", *headers: str) -> bytes:
    """A response as bytes."""
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body.encode())}", *headers]
    return "\r\n".join([*lines, "", body]).encode()


def error(status: int, code: str, detail: str = "{}", *headers: str) -> bytes:
    body = f'{{"error":{{"code":"{code}","message":"no","detail":{detail}}}}}'
    return answer(status, body, *headers)


APPENDED = answer(
    200,
    '{"topic":"t","first_seq":1,"last_seq":1,"head_seq":1,"count":1,'
    '"created":false,"deduped":false}',
)


class ScriptedServer:
    """Each request gets the next of `script`: bytes to send, or one of the words above."""

    APPENDED = APPENDED
    answer = staticmethod(answer)
    error = staticmethod(error)

    def __init__(self) -> None:
        self.script: list[bytes | str] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            if self.script and self.script[0] == REFUSE:
                self.script.pop(0)
                connection.close()
                continue
            if self.script and self.script[0] == TURN_DOWN:
                self.script.pop(0)
                connection.recv(65_536)
                connection.sendall(answer(400, "{}", "connection: close"))
                continue
            threading.Thread(target=self._talk, args=[connection], daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            while True:
                request = self._read(connection)
                if not request:
                    return
                self.requests.append(request)
                action = self.script.pop(0) if self.script else CLOSE
                if action == HANG:
                    connection.recv(1)
                    return
                if not isinstance(action, bytes):
                    return
                connection.sendall(action)
                if b"connection: close" in action:
                    return

    def _read(self, connection: socket.socket) -> bytes:
        data = b""
        try:
            while b"\r\n\r\n" not in data:
                data += (part := connection.recv(65_536))
                if not part:
                    return b""
            head, _, body = data.partition(b"\r\n\r\n")
            lengths = [x for x in head.split(b"\r\n") if x.startswith(b"content-length: ")]
            length = int(lengths[0].split(b": ")[1]) if lengths else 0
            while len(body) < length:
                body += connection.recv(65_536)
        except OSError:
            return b""
        return head + b"\r\n\r\n" + body

    def close(self) -> None:
        # `close` alone does not wake a thread that waits in `accept`.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._open:
            connection.close()


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.fixture(params=["sync", "async"])
def make_client(request: pytest.FixtureRequest) -> Iterator[Callable[..., object]]:
    """Clients of both kinds with one face: the calls of `Client`."""
    made: list[object] = []

    def make(url: str, **options: object) -> object:
        kind = Client if request.param == "sync" else Waiting
        client = kind(url, **options)  # type: ignore[arg-type]
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()  # type: ignore[attr-defined]


class Waiting:
    """An `AsyncClient` whose calls wait for their answers, on a loop in a thread."""

    def __init__(self, url: str, **options: object) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client = self._run(self._make(url, options))

    async def _make(self, url: str, options: dict[str, object]) -> AsyncClient:
        return AsyncClient(url, **options)  # type: ignore[arg-type]

    def _run(self, coroutine):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __getattr__(self, name: str) -> object:
        call = getattr(self._client, name)
        if name in ("follow", "topics"):
            return lambda *args, **options: self._items(call(*args, **options))
        return lambda *args, **options: self._run(call(*args, **options))

    def _items(self, items):  # type: ignore[no-untyped-def]
        while True:
            try:
                yield self._run(anext(items))
            except StopAsyncIteration:
                return

    def close(self) -> None:
        async def end() -> None:
            self._client.close()
            await asyncio.sleep(0)  # the transports close in the next turn

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
