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
CONNECT_SECONDS = 30.0


def raise_file_limit() -> None:
    """Every connection takes a descriptor."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
    sessions = Sessions(port)
    found = []
    for topic in topics:
        address = sessions.make({"topics": {topic: {"tail": True}}})
        found.append(connect_sse(port, address))
    sessions.close()
    for connection in found:
        data = b""
        while b"caught-up" not in data:
            piece = connection.recv(65_536)
            if not piece or not (data + piece).startswith(b"HTTP/1.1 200"[: len(data + piece)]):
                raise BadAnswer((data + piece)[:500].decode("latin-1"))
            data += piece
    return found


def subscribed(port: int, topic: str) -> socket.socket:
    wire = WebSocket(port)
    question = {"op": "subscribe", "topic": topic, "tail": True, "request_id": 1}
    wire.socket.sendall(masked(json.dumps(question).encode()))
    while not any(b'"op":"subscribed"' in m for m in wire.messages(wire.socket.recv(65_536))):
        pass
    return wire.socket


class Deliveries:
    """Reads all watchers until each has had `expected` records."""

    def __init__(self, connections: list[socket.socket], expected: int) -> None:
        self.latencies = array("d")
        self._poller = select.epoll()
        self._connections = {c.fileno(): c for c in connections}
        self._rest = dict.fromkeys(self._connections, b"")
        self._missing = expected * len(connections)
        for fd in self._connections:
            self._poller.register(fd, select.EPOLLIN)

    def collect(self) -> None:
        while self._missing:
            events = self._poller.poll(SILENCE_SECONDS)
            if not events:
                raise TimeoutError(f"{self._missing} records were not delivered")
            for fd, _ in events:
                data = self._connections[fd].recv(1 << 18)
                now = time.monotonic_ns()
                if not data:
                    raise BadAnswer("a stream was closed")
                self._scan(fd, data, now)

    def _scan(self, fd: int, data: bytes, now: int) -> None:
        data = self._rest[fd] + data
        done = 0
        while (found := data.find(MARK, done)) >= 0 and found + MARK_BYTES <= len(data):
            done = found + MARK_BYTES
            self.latencies.append((now - int(data[found + len(MARK) : done])) / 1e9)
            self._missing -= 1
        self._rest[fd] = data[max(done, len(data) - MARK_BYTES) :]

    def report(self) -> dict[str, float]:
        """Milliseconds."""
        return described(self.latencies)


def described(latencies: array[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    found = {name: at(ordered, part) * 1e3 for name, part in PARTS.items()}
    return {"count": len(ordered), **found}


def watch(port: int, topics: list[str], appends: int, kind: str = "sse") -> None:
    """A partner: connects at the first line; at the next, waits for all records and reports.

    With no appends to wait for it just stays connected until its input ends.
    """
    sys.stdin.readline()
    connections = connect_watchers(port, topics, kind)
    print(json.dumps(len(connections)), flush=True)
    if appends:
        deliveries = Deliveries(connections, appends)
        # Nothing to wait for: the writer starts after the line above.
        deliveries.collect()
        sys.stdin.readline()
        print(json.dumps(deliveries.report()), flush=True)
    while sys.stdin.readline():
        pass


def write(port: int, topic: str, rate: float, appends: int) -> dict[str, float]:
    """A step: appends at even intervals, each with its time; the writer's own latencies."""
    wire = Http(port, b"")
    buffer = bytearray(1 << 16)
    latencies = array("d")
    started = time.monotonic()
    for n in range(appends):
        due = started + (n + 1) / rate
        time.sleep(max(0.0, due - time.monotonic()))
        sent = time.monotonic_ns()
        record = b'{"t":"%020d","note":"%b"}' % (sent, b"x" * 215)
        body = b'{"records":[{"data":%b}]}' % record
        wire.socket.sendall(http_request("POST", f"/v0/topics/{topic}", body, JSON_HEADERS))
        while not wire.received(buffer, wire.socket.recv_into(buffer)):
            pass
        latencies.append((time.monotonic_ns() - sent) / 1e9)
    wire.close()
    return described(latencies)
