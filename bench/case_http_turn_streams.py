"""The Python part of an append that comes over HTTP/2 or a WebSocket, alone in its turn or not.

As `case_http_turn.py` does it for HTTP/1.1: no socket, and bytecodes beside the time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from bench.case_http_budget import Clocked, connected, until
from bench.case_http_turn import (
    PAYLOAD,
    REQUESTS,
    ROUNDS,
    TOGETHER,
    TOPICS,
    TRACED_TURNS,
    bytecodes,
)
from bench.measure import Measured, run_loop, settings_of
from bench.wires import HOST
from bench.wires_streams import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTINGS,
    WINDOW_MAX,
    WINDOW_UPDATE,
    frame,
    literal,
    masked,
)

STREAMS = 16  # of one HTTP/2 connection, at most
# Three fields that are in the table after the first request, behind a path that never is.
KNOWN_FIELDS = b"\xc0\xbf\xbe"


def run(directory: str, quick: bool) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for count in (1, TOGETHER):
        for kind, opened in (("h2", http2_turns), ("ws", websocket_turns)):
            cpu, steps = run_loop(measure(f"{directory}/{kind}-{count}", opened, count, quick))
            found[f"http_turn_{kind}_{count}_cpu"] = cpu
            found[f"http_turn_{kind}_{count}_bytecodes"] = steps
    return found


async def measure(
    directory: str, opened: Callable[[Any, int], Awaitable[Connections]], count: int, quick: bool
) -> tuple[float, float]:
    """Microseconds of the loop thread and bytecodes, for one append of `count` in a turn."""
    from headrace.cli.compose import compose
    from headrace.engine.engine import Engine
    from headrace.server.auth import KeyRing

    settings = settings_of(directory)
    engine = Engine.prepare_async(directory, settings)
    server = compose(settings, engine, KeyRing.parse(""))
    await engine.recover_async()
    server.app.go_live()
    for number in range(TOPICS):
        await engine.append(f"t{number}", [{"x": "a" * 230}])
    client = await opened(server, count)
    client.prepare(2 * TOPICS)
    for _ in range(2 * TOPICS):  # until every head is known
        await client.turn()
    many = max(1, (200 if quick else REQUESTS) // count)
    best = float("inf")
    for _ in range(2 if quick else ROUNDS):
        client.prepare(many)
        begun = time.thread_time_ns()
        for _ in range(many):
            await client.turn()
        best = min(best, (time.thread_time_ns() - begun) / many / count / 1e3)
    client.prepare(TRACED_TURNS)
    steps = await bytecodes(client.turn)
    engine.abandon()
    return best, steps / TRACED_TURNS / count


class Connections:
    """Connections that each send the same number of appends in a turn."""

    def __init__(self, connections: list[tuple[Any, Clocked]], appends: int) -> None:
        self.connections = connections
        self.appends = appends  # of one connection in a turn
        self.sent = 0
        self.ready: deque[bytes] = deque()

    def next_read(self) -> bytes:
        """What the server reads next from a connection."""
        raise NotImplementedError

    def prepare(self, turns: int) -> None:
        """Make what is sent in the next turns, so that this is not measured."""
        self.ready.extend(self.next_read() for _ in range(turns * len(self.connections)))

    async def turn(self) -> None:
        """Send, and wait for the answers."""
        for protocol, _ in self.connections:
            protocol.data_received(self.ready.popleft())
        for _, transport in self.connections:
            await until(partial(self._answered, transport))
            transport.data = b""

    def _answered(self, transport: Clocked) -> bool:
        return transport.data.count(b"server_total_ms") == self.appends


class Http2Connections(Connections):
    """Each has up to `STREAMS` streams at once; all of them are at the same stream number."""

    body = b'{"records":[{"data":' + PAYLOAD + b"}]}"

    def append(self, stream: int, fields: bytes) -> bytes:
        """The frames of one request."""
        path = b"/v0/topics/t%d" % (self.sent % TOPICS)
        self.sent += 1
        block = b"\x83\x86\x04%c%b%b" % (len(path), path, fields)
        head = frame(HEADERS, END_HEADERS, stream, block)
        return head + frame(DATA, END_STREAM, stream, self.body)

    def next_read(self) -> bytes:
        turn = self.sent // self.appends // len(self.connections)
        first = 1 + 2 * turn * self.appends
        streams = range(first, first + 2 * self.appends, 2)
        return b"".join([self.append(stream, KNOWN_FIELDS) for stream in streams])


async def http2_turns(server: Any, count: int) -> Connections:
    """`STREAMS` appends of each connection in a turn, or one of the only one."""
    streams = min(STREAMS, count)
    connections = [_http2_connection(server) for _ in range(count // streams)]
    client = Http2Connections(connections, streams)
    fields = [(1, HOST), (31, "application/json"), (28, str(len(client.body)))]
    for protocol, transport in connections:
        protocol.data_received(client.append(1, b"".join(literal(*field) for field in fields)))
        await until(partial(getattr, transport, "data"))
        transport.data = b""
    client.sent = len(connections) * streams  # numbers of streams go on from here
    return client


def _http2_connection(server: Any) -> tuple[Any, Clocked]:
    protocol, transport = connected(server)
    transports: list[Any] = []
    transport.set_protocol = transports.append  # type: ignore[attr-defined]
    protocol.data_received(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(SETTINGS, 0, 0, b"\x00\x04" + WINDOW_MAX.to_bytes(4, "big"))
        + frame(WINDOW_UPDATE, 0, 0, (WINDOW_MAX - 65_535).to_bytes(4, "big"))
    )
    transport.data = b""
    return transports[0], transport


class WebSockets(Connections):
    """Each publishes once in a turn."""

    messages = tuple(
        masked(
            b'{"op":"publish","topic":"t%d","request_id":%d,"records":[{"data":%b}]}'
            % (number, number, PAYLOAD)
        )
        for number in range(TOPICS)
    )

    def next_read(self) -> bytes:
        self.sent += 1
        return self.messages[self.sent % TOPICS]


async def websocket_turns(server: Any, count: int) -> Connections:
    """One publish of each of `count` connections in a turn."""
    connections = []
    for _ in range(count):
        protocol, transport = connected(server)
        protocol.data_received(
            b"GET /v0/ws HTTP/1.1\r\nHost: %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            % HOST.encode()
        )
        await until(partial(getattr, transport, "data"))
        assert transport.data.startswith(b"HTTP/1.1 101"), transport.data
        transport.data = b""
        connections.append((protocol, transport))
    return WebSockets(connections, 1)
