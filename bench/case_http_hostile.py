"""200 clients that never finish a request and 50 that never read: what the others notice.

The same appends a second, open loop, before and while the hostile ones are there.  The topic is
capped, so that what it stores does not grow and memory can be compared.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

from bench.case_http_diff import fill
from bench.measure import Measured, Partner
from bench.served import Served, column, serving
from bench.streams import Sessions, connect_sse, raise_file_limit
from bench.wires import HOST, diff_request

RATE = 2_000.0
CONNECTIONS = 16
SECONDS = 5.0
ROUNDS = 3
SLOW, STALLED = 200, 50
BACKLOG = 50_000  # records that nobody takes
PIPELINED = 8


def run(directory: str, quick: bool) -> dict[str, Measured]:
    with serving(directory) as server:
        server.call("PUT", "/v0/topics/orders", {"cap_records": 10_000})
        fill(server, "backlog", 2_000 if quick else BACKLOG)
        quiet(server, quick)  # so that what a first load leaves behind is not called growth
        before = quiet(server, quick)
        resident = server.resident_mb
        server.reset_peak()
        with Partner("case_http_hostile:attack", port=server.port) as partner:
            partner.ask()
            during = quiet(server, quick)
            growth = server.peak_mb - resident
            partner.close()
    return {
        "http_hostile_quiet_p99": before,
        "http_hostile_p99": during,
        "http_hostile_growth": max(growth, 0.0),
    }


def quiet(server: Served, quick: bool) -> list[float]:
    """The p99 of each round, in milliseconds."""
    rounds = server.load(
        {"wire": "append", "topic": "orders"},
        CONNECTIONS,
        seconds=0.3 if quick else SECONDS,
        rounds=1 if quick else ROUNDS,
        rate=RATE,
        warm_up=0.1,
    )
    return [us / 1e3 for us in column(rounds, "p99")]


def attack(port: int) -> None:
    """A partner: connects at the first line, and holds on until its input ends."""
    sys.stdin.readline()
    raise_file_limit()
    slow = [half_request(port) for _ in range(SLOW)]
    sessions = Sessions(port)
    stalled = []
    for n in range(STALLED):
        if n % 2:
            address = sessions.make({"topics": {"backlog": {"from_seq": 0}}})
            stalled.append(connect_sse(port, address, receive_bytes=4_096))
        else:
            stalled.append(unread_diffs(port))
    print(json.dumps(len(slow) + len(stalled)), flush=True)
    threading.Thread(target=drip, args=(slow,), daemon=True).start()
    while sys.stdin.readline():
        pass


def half_request(port: int) -> socket.socket:
    connection = socket.create_connection((HOST, port), 10.0)
    connection.sendall(f"POST /v0/topics/orders HTTP/1.1\r\nHost: {HOST}\r\nX-Slow: ".encode())
    return connection


def unread_diffs(port: int) -> socket.socket:
    """Several large reads, none of whose answers is taken."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(10.0)
    connection.connect((HOST, port))
    connection.sendall(diff_request("backlog", 0, 1_000) * PIPELINED)
    return connection


def drip(connections: list[socket.socket]) -> None:
    """A byte a second each, for as long as the process lives."""
    while True:
        time.sleep(1.0)
        for connection in connections:
            try:
                connection.send(b"x")
            except OSError:
                continue  # the server has had enough of it
