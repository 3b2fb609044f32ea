"""Clients that stay: watchers over SSE and WebSocket, and a writer whose records carry their time.

A record holds the monotonic time at which it was sent, which all processes of a machine share, so a
watcher knows how long it took.  Watchers and writer are processes of their own, so that the cost of
receiving does not count as the server's, nor as the writer's wait.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import select
import socket
import sys
import time
from array import array

from bench.load import PARTS, at
from bench.wires import HOST, JSON_HEADERS, BadAnswer, Http, http_request
from bench.wires_streams import WebSocket, masked

MARK = b'"t":"'
DIGITS = 20
MARK_BYTES = len(MARK) + DIGITS
SILENCE_SECONDS = 15.0
FILES_WANTED = 300_000
CONNECT_SECONDS = 30.0
STREAM_ADDRESS = "/v1/stream/{}"
# How often those watchers are read whose records are not timed; their buffers hold much more.
REST_SECONDS = 0.2
REST_PARTS = 20


def raise_file_limit() -> None:
    """Every connection takes a descriptor, and of some servers every stream."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(hard, FILES_WANTED), hard):  # only root may raise the second
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return


class Sessions:
    """Makes watch sessions on a connection that is kept."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=CONNECT_SECONDS)

    def make(self, body: dict[str, object]) -> str:
        """The address of a new session's stream."""
        self._connection.request("POST", "/v0/watch", json.dumps(body), JSON_HEADERS)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise BadAnswer(text.decode())
        address: str = json.loads(text)["stream_url"]
        return address

    def close(self) -> None:
        self._connection.close()


def connect_sse(port: int, address: str, receive_bytes: int = 0) -> socket.socket:
    """An open stream, its request sent; with a small buffer where it is not going to be read."""
    connection = socket.socket()
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(CONNECT_SECONDS)
    connection.connect((HOST, port))
    connection.sendall(
        f"GET {address} HTTP/1.1\r\nHost: {HOST}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    return connection


def connect_watchers(port: int, topics: list[str], kind: str) -> list[socket.socket]:
    """One watcher of each topic's tail; returns once each has heard something."""
    raise_file_limit()
    if kind == "ws":
        return [subscribed(port, topic) for topic in topics]
    if kind == "durable-streams":
        address = STREAM_ADDRESS + "?offset=now&live=sse"
        found = [connect_sse(port, address.format(topic)) for topic in topics]
        return [heard(connection, b"upToDate") for connection in found]
    sessions = Sessions(port)
    found = []
    for topic in topics:
        address = sessions.make({"topics": {topic: {"tail": True}}})
        found.append(connect_sse(port, address))
    sessions.close()
    return [heard(connection, b"caught-up") for connection in found]


def heard(connection: socket.socket, word: bytes) -> socket.socket:
    """The same stream, once it has said that there is no more for now."""
    data = b""
    while word not in data:
        piece = connection.recv(65_536)
        if not piece or not (data + piece).startswith(b"HTTP/1.1 200"[: len(data + piece)]):
            raise BadAnswer((data + piece)[:500].decode("latin-1"))
        data += piece
    return connection


def subscribed(port: int, topic: str) -> socket.socket:
    wire = WebSocket(port)
    question = {"op": "subscribe", "topic": topic, "tail": True, "request_id": 1}
    wire.socket.sendall(masked(json.dumps(question).encode()))
    while not any(b'"op":"subscribed"' in m for m in wire.messages(wire.socket.recv(65_536))):
        pass
    return wire.socket


class Deliveries:
    """Reads all watchers until each has had `expected` records.

    With `timed`, only so many of them, evenly spread, are read the moment something arrives; the
    others wait in the kernel and are read now and then.  All get everything, and a generator that
    has to time each of 200,000 records a second would be the limit of what it measures.
    """

    def __init__(self, connections: list[socket.socket], expected: int, timed: int = 0) -> None:
        self.latencies = array("d")
        self._buffer = bytearray(1 << 18)
        count = min(timed or len(connections), len(connections))
        chosen = {n * len(connections) // count for n in range(count)} if count else set()
        self._poller = select.epoll()
        self._connections = {c.fileno(): c for n, c in enumerate(connections) if n in chosen}
        self._others = [c for n, c in enumerate(connections) if n not in chosen]
        self._last = dict.fromkeys(self._others, 0)  # when the newest record of each was sent
        self._turn = 0
        self._due = 0.0
        self._rest = dict.fromkeys(self._connections, b"")
        self._missing = expected * len(self._connections)
        for connection in connections:
            connection.setblocking(False)
        for fd in self._connections:
            self._poller.register(fd, select.EPOLLIN)

    def collect(self) -> None:
        sent = 0
        while self._missing:
            events = self._poller.poll(SILENCE_SECONDS)
            if not events:
                raise TimeoutError(f"{self._missing} records were not delivered")
            for fd, _ in events:
                data = self._connections[fd].recv(1 << 18)
                now = time.monotonic_ns()
                if not data:
                    raise BadAnswer("a stream was closed")
                sent = max(sent, self._scan(fd, data, now))
            if self._others and time.monotonic() > self._due:
                self._read_some()
        end = time.monotonic() + SILENCE_SECONDS
        while late := [c for c, newest in self._last.items() if newest < sent]:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(late)} watchers have not had the last record")
            for connection in late:
                self._read(connection)

    def _scan(self, fd: int, data: bytes, now: int) -> int:
        """When the newest of the records was sent."""
        data = self._rest[fd] + data
        done = sent = 0
        while (found := data.find(MARK, done)) >= 0 and found + MARK_BYTES <= len(data):
            done = found + MARK_BYTES
            sent = int(data[found + len(MARK) : done])
            self.latencies.append((now - sent) / 1e9)
            self._missing -= 1
        self._rest[fd] = data[max(done, len(data) - MARK_BYTES) :]
        return sent

    def _read_some(self) -> None:
        """A part of those that are not timed."""
        self._due = time.monotonic() + REST_SECONDS / REST_PARTS
        self._turn += 1
        for connection in self._others[self._turn % REST_PARTS :: REST_PARTS]:
            self._read(connection)

    def _read(self, connection: socket.socket) -> None:
        try:
            size = connection.recv_into(self._buffer)
        except BlockingIOError:
            return
        if not size:
            raise BadAnswer("a stream was closed")
        found = self._buffer.rfind(MARK, 0, size - DIGITS)
        if found >= 0:
            self._last[connection] = int(self._buffer[found + len(MARK) : found + MARK_BYTES])

    def report(self) -> dict[str, float]:
        """Milliseconds."""
        return described(self.latencies)


def described(latencies: array[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    found = {name: at(ordered, part) * 1e3 for name, part in PARTS.items()}
    return {"count": len(ordered), **found}


def watch(port: int, topics: list[str], appends: int, kind: str = "sse", timed: int = 0) -> None:
    """A partner: connects at the first line; at the next, waits for all records and reports.

    With no appends to wait for it just stays connected until its input ends.
    """
    sys.stdin.readline()
    connections = connect_watchers(port, topics, kind)
    print(json.dumps(len(connections)), flush=True)
    if appends:
        deliveries = Deliveries(connections, appends, timed)
        # Nothing to wait for: the writer starts after the line above.
        deliveries.collect()
        sys.stdin.readline()
        print(json.dumps(deliveries.report()), flush=True)
    while sys.stdin.readline():
        pass


def write(port: int, topic: str, rate: float, appends: int, kind: str = "sse") -> dict[str, float]:
    """A step: appends at even intervals, each with its time; its latencies, its pace."""
    wire = Http(port, b"")
    buffer = bytearray(1 << 16)
    latencies = array("d")
    bare = kind == "durable-streams"
    address = (STREAM_ADDRESS if bare else "/v0/topics/{}").format(topic)
    started = time.monotonic()
    for n in range(appends):
        due = started + (n + 1) / rate
        time.sleep(max(0.0, due - time.monotonic()))
        sent = time.monotonic_ns()
        record = b'{"t":"%020d","note":"%b"}' % (sent, b"x" * 215)
        body = record if bare else b'{"records":[{"data":%b}]}' % record
        wire.socket.sendall(http_request("POST", address, body, JSON_HEADERS))
        while not wire.received(buffer, wire.socket.recv_into(buffer)):
            pass
        latencies.append((time.monotonic_ns() - sent) / 1e9)
    wire.close()
    return {**described(latencies), "rate": appends / (time.monotonic() - started)}
