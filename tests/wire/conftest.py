"""A real server process for each module of tests, and two ways to speak to it.

A test that takes `speak` runs twice: over HTTP/1.1, and over HTTP/2 with prior knowledge on the
same port.  A module may set `SETTINGS`, by the names of `Settings`; `servers` starts others.  A
server whose log has a traceback fails its module.
"""

from __future__ import annotations

import http.client
import itertools
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from headrace.testing.process import ServerProcess

SECONDS_MAX = 30.0
JSON_TYPE = {"content-type": "application/json"}
ERROR_KEYS = {"code", "message", "detail"}
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # made once: reading certificates takes long

numbers = itertools.count(1)


class Reply(NamedTuple):
    """An answer as it was on the wire; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json", self
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """What is inside the envelope, whose form is checked."""
        document = self.json
        assert list(document) == ["error"], document
        error = document["error"]
        assert {"code", "message"} <= error.keys() <= ERROR_KEYS, error
        assert error["message"] and isinstance(error["message"], str)
        return error


class Event(NamedTuple):
    """One block of an SSE stream: an event, or a comment."""

    event: str
    data: Any
    id: str
    text: str


def parse_event(block: str) -> Event:
    fields: dict[str, str] = {}
    for line in block.split("\n"):
        name, _, value = line.partition(": ")
        assert name in ("event", "data", "id", "retry", ""), block
        assert name not in fields, block
        fields[name] = value
    kind = fields.get("event") or ("comment" if "" in fields else "retry")
    data = json.loads(fields["data"]) if "data" in fields else None
    return Event(kind, data, fields.get("id", ""), block)


class Stream:
    """An SSE answer, read event by event."""

    def __init__(self, status: int, headers: dict[str, str], chunks: Iterator[bytes]) -> None:
        self.status = status
        self.headers = headers
        self._chunks = chunks
        self._pending = b""

    def read(self) -> bytes:
        """Everything up to the end."""
        return self._pending + b"".join(self._chunks)

    def events(self) -> Iterator[Event]:
        """Events as they come; ends when the server ends the stream."""
        while True:
            block, end, rest = self._pending.partition(b"\n\n")
            if end:
                self._pending = rest
                yield parse_event(block.decode())
                continue
            chunk = next(self._chunks, b"")
            if not chunk:
                assert self._pending == b"", self._pending
                return
            self._pending += chunk

    def until(self, kind: str, **data: object) -> list[Event]:
        """Events up to the first of this kind whose data has these values; it is the last."""
        seen = []
        for event in self.events():
            seen.append(event)
            if event.event == kind and all(event.data[k] == v for k, v in data.items()):
                return seen
        raise AssertionError(f"no {kind} {data}: {seen}")

    def next(self, kind: str) -> Event:
        """The next event of this kind."""
        return self.until(kind)[-1]


class Speaker:
    """One protocol, to one server."""

    name = ""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        raise NotImplementedError

    def open(self, method: str, path: str, headers: dict[str, str]) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def __call__(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """Bytes are sent as they are, anything else as JSON."""
        if body is None or isinstance(body, bytes):
            return self.send(method, path, body, headers or {})
        return self.send(method, path, json.dumps(body).encode(), {**JSON_TYPE, **(headers or {})})

    def ok(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """The JSON of a success."""
        reply = self(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        assert reply.status in (200, 201), reply
        assert "error" not in reply.json
        return reply.json

    def refused(
        self, status: int, code: str, method: str, path: str, body: object = None, **headers: str
    ) -> dict[str, Any]:
        """The `detail` of a refusal, after its status, code and form were checked."""
        reply = self(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        assert (reply.status, reply.error["code"]) == (status, code), reply
        waits = status in (429, 503)
        assert ("retry-after" in reply.headers) == waits, reply
        return reply.error.get("detail", {})

    def append(self, topic: str, *payloads: object, **fields: object) -> Any:
        """Append plain payloads."""
        body = {"records": [{"data": payload} for payload in payloads], **fields}
        return self.ok("POST", f"/v0/topics/{topic}", body)

    def diff(self, topic: str, from_seq: int = 0, **fields: object) -> Any:
        return self.ok("POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq, **fields})

    def state(self, topic: str) -> Any:
        return self.ok("GET", f"/v0/topics/{topic}?touch=false")

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[Stream]:
        """An SSE stream; it is closed at the end of the block."""
        given = {k.replace("_", "-"): v for k, v in headers.items()}
        with self.open("GET", path, {"accept": "text/event-stream", **given}) as stream:
            yield stream


class Http1(Speaker):
    """HTTP/1.1, one connection for each thread, and no header that was not asked for."""

    name = "h1"

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server)
        self._local = threading.local()
        self._all: list[http.client.HTTPConnection] = []

    def _connection(self) -> http.client.HTTPConnection:
        if not hasattr(self._local, "connection"):
            self._local.connection = self._new()
            self._all.append(self._local.connection)
        return self._local.connection

    def _new(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.server.host, self.server.port, timeout=SECONDS_MAX)

    def _request(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
    ) -> http.client.HTTPResponse:
        connection.putrequest(method, path, skip_accept_encoding=True, skip_host="host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        if body is not None or method in ("PUT", "POST"):
            connection.putheader("content-length", str(len(body or b"")))
        connection.endheaders(body)
        return connection.getresponse()

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        response = self._request(self._connection(), method, path, body, headers)
        found = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, found, response.read())

    @contextmanager
    def open(self, method: str, path: str, headers: dict[str, str]) -> Iterator[Stream]:
        connection = self._new()
        try:
            response = self._request(connection, method, path, None, headers)
            found = {name.lower(): value for name, value in response.getheaders()}
            yield Stream(response.status, found, iter(lambda: response.read1(65_536), b""))
            response.close()
        finally:
            connection.close()

    def close(self) -> None:
        for connection in self._all:
            connection.close()


class Http2(Speaker):
    """HTTP/2 without TLS, by prior knowledge; one connection for each thread.

    Threads cannot share one: httpx lets the thread that reads keep the answers of the others
    waiting, for as long as its own does.
    """

    name = "h2c"

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server)
        self._local = threading.local()
        self._all: list[httpx.Client] = []

    def _client(self) -> httpx.Client:
        if not hasattr(self._local, "client"):
            self._local.client = self._new()
            self._all.append(self._local.client)
        return self._local.client

    def _new(self) -> httpx.Client:
        client = httpx.Client(
            http1=False, http2=True, timeout=SECONDS_MAX, trust_env=False, verify=NO_TLS
        )
        client.headers.clear()
        return client

    def _request(
        self, client: httpx.Client, method: str, path: str, body: bytes | None, headers: Any
    ) -> httpx.Request:
        url = httpx.URL(self.server.url).copy_with(raw_path=path.encode())
        return client.build_request(method, url, content=body, headers=headers)

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        with self.open_body(self._client(), method, path, body, headers) as stream:
            return Reply(stream.status, stream.headers, stream.read())

    @contextmanager
    def open_body(
        self, client: httpx.Client, method: str, path: str, body: bytes | None, headers: Any
    ) -> Iterator[Stream]:
        response = client.send(self._request(client, method, path, body, headers), stream=True)
        try:
            assert response.http_version == "HTTP/2"
            yield Stream(response.status_code, dict(response.headers), response.iter_raw())
        finally:
            response.close()

    @contextmanager
    def open(self, method: str, path: str, headers: dict[str, str]) -> Iterator[Stream]:
        with (
            self._new() as client,
            self.open_body(client, method, path, None, headers) as stream,
        ):
            yield stream

    def close(self) -> None:
        for client in self._all:
            client.close()


SPEAKERS = {kind.name: kind for kind in (Http1, Http2)}


class Servers:
    """Servers of one module, started when they are first asked for and stopped at its end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._all: list[tuple[ServerProcess, Path]] = []  # with their logs
        self._shared: dict[str, ServerProcess] = {}
        self._speakers: dict[tuple[int, str], Speaker] = {}

    def start(self, data: Path | None = None, **settings: Any) -> ServerProcess:
        """A new one; stopped at the end unless it was before."""
        number = next(numbers)
        log = self._directory / f"log-{number}"
        with open(log, "wb") as stderr:
            server = ServerProcess(
                data or self._directory / f"data-{number}", stderr=stderr, **settings
            )
        self._all.append((server, log))
        return server

    def with_settings(self, **settings: Any) -> ServerProcess:
        """One with these settings; the same for each who asks."""
        name = repr(sorted(settings.items()))
        if name not in self._shared:
            self._shared[name] = self.start(**settings)
        return self._shared[name]

    def speaker(self, server: ServerProcess, kind: str) -> Speaker:
        key = id(server), kind
        if key not in self._speakers:
            self._speakers[key] = SPEAKERS[kind](server)
        return self._speakers[key]

    def log_of(self, server: ServerProcess) -> str:
        return next(log for running, log in self._all if running is server).read_text()

    def stop_all(self) -> None:
        for speaker in self._speakers.values():
            speaker.close()
        logs = []
        for server, log in self._all:
            server.stop()
            logs.append(log.read_text())
        assert not [text for text in logs if "Traceback" in text], logs


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.stop_all()


@pytest.fixture(scope="module")
def server(servers: Servers, request: pytest.FixtureRequest) -> ServerProcess:
    """The module's server."""
    return servers.with_settings(**getattr(request.module, "SETTINGS", {}))


@pytest.fixture(params=sorted(SPEAKERS))
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def speak(servers: Servers, server: ServerProcess, protocol: str) -> Speaker:
    """Requests to the module's server, over each protocol in turn."""
    return servers.speaker(server, protocol)


@pytest.fixture
def speak_to(servers: Servers, protocol: str) -> Callable[..., Speaker]:
    """The same for a server with other settings."""
    return lambda **settings: servers.speaker(servers.with_settings(**settings), protocol)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t{next(numbers)}"
