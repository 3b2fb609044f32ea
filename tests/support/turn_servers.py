"""A whole server without sockets, to whose connections requests come in the same turn.

Nothing moves by itself: what is sent is read at once, and the turn ends when a test says so.  Time
stands still until then, and chance is seeded, so that two servers which are asked the same must
answer with the same bytes.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

from headrace.cli.compose import compose
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.server.auth import KeyRing
from headrace.storage.fs import Filesystem
from headrace.storage.wal.file import discover
from headrace.storage.wal.scan_shards import scan_all
from headrace.testing.simdisk import SimDisk
from tests.support.memory_transport import MemoryTransport
from tests.support.served_app import Response

Client = TypeVar("Client", bound="TurnClient")
SETTINGS = {"wal_file_bytes": 1 << 20, "wal_batch_bytes_max": 1 << 18}


def http(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    """The bytes of a request; `headers` by their names, with `_` for `-`."""
    sent = b""
    lines = [f"{method} {path} HTTP/1.1"]
    given = {"host": "localhost", **headers}
    if body is not None:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content_type": "application/json", **given, "content_length": str(len(sent))}
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
    return "\r\n".join([*lines, "", ""]).encode() + sent


def append(topic: str, *data: Any, **headers: str) -> bytes:
    """The bytes of a request that appends."""
    records = {"records": [{"data": value} for value in data or (1,)]}
    return http("POST", f"/v0/topics/{topic}", records, **headers)


class TurnClient:
    """A connection: what it sends is read at once, and what it was answered is kept."""

    def __init__(self, server: TurnServer) -> None:
        self._transport = MemoryTransport()
        self._transport.protocol = server.parts.protocol()
        self.protocol.connection_made(self._transport)

    def send(self, *requests: bytes) -> None:
        """Send in one piece."""
        self.protocol.data_received(b"".join(requests))

    def hear(self) -> list[Response]:
        """The answers that have come since the last time."""
        data = bytes(self._transport.sent)
        self._transport.sent.clear()
        found = []
        while data:
            head, separator, rest = data.partition(b"\r\n\r\n")
            assert separator, data
            line, *lines = head.split(b"\r\n")
            headers = dict(line.lower().split(b": ", 1) for line in lines)
            length = int(headers.get(b"content-length", b"0"))
            assert len(rest) >= length, data
            found.append(Response(int(line.split()[1]), headers, rest[:length]))
            data = rest[length:]
        return found

    def hang_up(self, error: Exception | None = None) -> None:
        """Go away, whatever was asked."""
        self._transport.closed = True
        self.protocol.connection_lost(error)

    @property
    def protocol(self) -> Any:
        """What the server has for this connection."""
        return self._transport.protocol

    @property
    def closed(self) -> bool:
        """Whether the server has closed it."""
        return self._transport.closed


class TurnServer:
    """A server whose turns end when a test says so."""

    def __init__(self, fs: Filesystem | None = None, live: bool = True, **settings: Any) -> None:
        self.clock = ManualClock()
        self.runtime = StepRuntime(self.clock)
        self.fs = SimDisk() if fs is None else fs
        self.settings = Settings(**{**SETTINGS, **settings})
        self.engine = Engine(self.fs, self.runtime, self.settings, random=SeededRandom(1))
        self.engine.recover()
        keys = KeyRing.parse(self.settings.api_keys)
        self.parts = compose(self.settings, self.engine, keys)
        self.app = self.parts.app
        if live:
            self.app.go_live()

    def __enter__(self) -> TurnServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.abandon()

    def connect(self, count: int, kind: type[Client] | None = None) -> list[Client]:
        """So many connections of a kind, of HTTP/1.1 if none is named."""
        return [(kind or TurnClient)(self) for _ in range(count)]  # type: ignore[misc]

    def end_turn(self) -> None:
        """Do all that is left to do now."""
        self.runtime.run()

    def pass_ms(self, ms: int) -> None:
        """Let time go by, and do what is due then."""
        self.clock.advance(ms)
        self.runtime.run()

    def ask(self, request: bytes) -> Response:
        """The answer to a request that comes alone, on a connection of its own."""
        client = TurnClient(self)
        client.send(request)
        self.end_turn()
        (answer,) = client.hear()
        client.hang_up()
        return answer

    def counters(self, pattern: str) -> list[str]:
        """The lines of the metrics whose names match."""
        text = self.ask(http("GET", "/v0/metrics", accept="text/plain")).body.decode()
        return sorted(line for line in text.splitlines() if re.match(pattern, line))

    def holds_turns(self, template: str, method: str = "POST") -> bool:
        """Whether the requests of a route come together."""
        rows = self.app.routes.routes
        (route,) = [row for row in rows if (row.method, row.template) == (method, template)]
        return route.turn_handler is not None


def log_entries(fs: Filesystem) -> list[tuple[int, bytes]]:
    """Every entry of the log: its kind and its bytes."""
    found: list[tuple[int, bytes]] = []
    scan_all(fs, discover(fs), {}, lambda kind, entry: found.append((kind, bytes(entry))))
    return found
