"""Two hundred slow senders and fifty who do not read: others are served, memory is bounded."""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.testing.process import ServerProcess
from tests.support.processes import resident_bytes

SLOWLORIS = 200
STALLED = 50
GROWTH_BYTES_MAX = 64 << 20


def call(server: ServerProcess, method: str, path: str, body: object = None) -> dict[str, object]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    headers = {"content-type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    document = json.loads(answer.read())
    assert answer.status < 300, document
    connection.close()
    return document  # type: ignore[no-any-return]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("stalled_on", ["watch", "diff"])
def test_others_are_served_and_memory_is_bounded(tmp_path: Path, stalled_on: str) -> None:
    with ServerProcess(tmp_path, log="error") as server, ExitStack() as stack:
        batch = {"records": [{"data": "x" * 10_000}] * 100}
        for _ in range(30):
            call(server, "POST", "/v0/topics/big", batch)
        call(server, "POST", "/v0/topics/big/diff", {"max_batch_bytes": 8 << 20, "limit": 1000})
        before = resident_bytes(server.process.pid)

        def connect() -> socket.socket:
            sock = socket.create_connection((server.host, server.port))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            return stack.enter_context(sock)

        slow = [connect() for _ in range(SLOWLORIS)]
        for number, sock in enumerate(slow):
            if number % 2:
                sock.sendall(b"POST /v0/topics/slow HTTP/1.1\r\nHost: localhost\r\nX-")
            else:
                sock.sendall(
                    b"POST /v0/topics/slow HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: application/json\r\nContent-Length: 60000000\r\n\r\n{"
                )
        for _ in range(STALLED):
            sock = connect()
            if stalled_on == "watch":
                body = {"topics": {"big": {"from_seq": 0}}, "max_batch_bytes": 8 << 20}
                wid = call(server, "POST", "/v0/watch", body)["wid"]
                sock.sendall(
                    b"GET /v0/watch/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % str(wid).encode()
                )
            else:
                asked = json.dumps({"max_batch_bytes": 8 << 20, "limit": 1000}).encode()
                sock.sendall(
                    b"POST /v0/topics/big/diff HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                    % (len(asked), asked)
                )
        largest = 0
        for number in range(100):
            appended = call(server, "POST", "/v0/topics/others", {"records": [{"data": number}]})
            assert appended["last_seq"] == number + 1
            for sock in slow:
                sock.sendall(b"a")
            largest = max(largest, resident_bytes(server.process.pid))
            time.sleep(0.02)
        grown = largest - before
        assert grown <= GROWTH_BYTES_MAX, f"{grown / 2**20:.0f} MiB more"
