"""A server that is asked for all that it allows: calls, its metrics, and its memory."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from headrace.testing.process import ServerProcess
from tests.support.processes import resident_bytes

SECONDS_MAX = 30.0
# What the process may have grown by beside what the metrics tell: pools of the allocator, caches.
UNTOLD_BYTES_MAX = 48 << 20


class Sweep:
    """A server, its metrics, and what it has been asked."""

    def __init__(self, server: ServerProcess, settings: dict[str, Any]) -> None:
        self.server = server
        self.settings = settings
        self.first = 0

    def connect(self) -> socket.socket:
        return socket.create_connection((self.server.host, self.server.port), SECONDS_MAX)

    def call(
        self, method: str, path: str, document: object = None, **headers: str
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.server.address, timeout=SECONDS_MAX)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        body = document if isinstance(document, bytes) else None
        if document is not None and body is None:
            body = json.dumps(document).encode()
            sent.setdefault("content-type", "application/json")
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def metrics(self) -> dict[str, int]:
        lines = self.call("GET", "/v0/metrics")[1].decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("headrace_held"))
        return {name.removeprefix("headrace_held_"): int(float(value)) for name, value in pairs}

    def objects(self, kind: str) -> int:
        return self.metrics()[f'objects{{kind="{kind}"}}']

    def bytes(self, kind: str) -> int:
        return self.metrics()[f'bytes{{kind="{kind}"}}']

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline, self.metrics()
            time.sleep(0.02)

    def check_memory(self, what: str) -> None:
        """Hold what the process has to what the metrics say, and to the budget."""
        told = self.metrics()
        held = sum(size for name, size in told.items() if name.startswith("bytes{"))
        resident = resident_bytes(self.server.process.pid)
        self.first = self.first or resident
        assert resident <= told["bytes_max"], (what, resident, told)
        assert resident - self.first <= held * 9 // 8 + UNTOLD_BYTES_MAX, (what, resident, told)


def ask(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def status_of(sock: socket.socket) -> int:
    answer = b""
    while b" " not in answer or len(answer) < 12:
        piece = sock.recv(4_096)
        assert piece, answer
        answer += piece
    return int(answer.split()[1])
