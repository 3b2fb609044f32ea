"""Two ways to speak to a real server on one port: HTTP/1.1, and HTTP/2 with prior knowledge."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import httpx

from headrace.testing.process import ServerProcess

SECONDS_MAX = 30.0
PIECE_BYTES = 256 << 10
JSON_TYPE = {"content-type": "application/json"}
ERROR_KEYS = {"code", "message", "detail"}
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # made once: reading certificates takes long


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


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
        error: dict[str, Any] = document["error"]
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


class Spare(Generic[C]):
    """Open connections for one thread at a time, kept for whichever needs one next."""

    def __init__(self, new: Callable[[], C]) -> None:
        self._new = new
        self._free: list[C] = []
        self._all: list[C] = []

    @contextmanager
    def one(self) -> Iterator[C]:
        """A connection for the block alone; one that failed is not used again."""
        try:
            found = self._free.pop()
        except IndexError:
            found = self._new()
            self._all.append(found)
        yield found
        self._free.append(found)

    def close(self) -> None:
        for connection in self._all:
            connection.close()


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
        detail: dict[str, Any] = reply.error.get("detail", {})
        return detail

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
    """HTTP/1.1, one connection for each request at a time, no header that was not asked for."""

    name = "h1"

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server)
        self._spare = Spare(self._new)

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
        with self._spare.one() as connection:
            response = self._request(connection, method, path, body, headers)
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
        self._spare.close()


class Http2(Speaker):
    """HTTP/2 without TLS, by prior knowledge; one connection for each request at a time.

    Threads cannot share one: httpx lets the thread that reads keep the answers of the others
    waiting, for as long as its own does.
    """

    name = "h2c"

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server)
        self._spare = Spare(self._new)

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
        if body is None or len(body) <= PIECE_BYTES:
            return client.build_request(method, url, content=body, headers=headers)
        # For each frame that it sends, httpx copies the rest of the piece.
        pieces = (body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES))
        headers = {"content-length": str(len(body)), **headers}
        return client.build_request(method, url, content=pieces, headers=headers)

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        with (
            self._spare.one() as client,
            self.open_body(client, method, path, body, headers) as stream,
        ):
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
        self._spare.close()


SPEAKERS = {kind.name: kind for kind in (Http1, Http2)}
