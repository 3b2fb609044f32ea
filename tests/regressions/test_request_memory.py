"""Bodies of requests that wait or are worked on: they count until the answer, and are given back.

Each test was red when a body counted only while it arrived: a client could have any number of them
held behind a long poll, unpacked, or on their way to the log.
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import struct
from collections.abc import Iterator

import pytest

from headrace.core.settings import Settings
from headrace.server.http1.pipeline import WAITING_BYTES_MAX
from headrace.server.http2.limits import FREE_STREAMS, STREAM_BYTES
from headrace.wire.exchange import Exchange
from headrace.wire.routes import READ, WRITE, Route
from tests.support.http2_client import Client
from tests.support.served_app import Served, read_response

MIB = 1 << 20
SENT_BYTES_MAX = 60 * MIB  # more than the kernel keeps
BODY = b" " * (900 * 1024)
SETTINGS = Settings(body_bytes_max=MIB, record_bytes_max=MIB, request_memory_bytes_max=2 * MIB)


class Slow:
    """A read and a write that are answered when the test says so."""

    def __init__(self) -> None:
        self.taken: list[Exchange] = []

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/poll", self.taken.append, frozenset({READ})),
            Route("POST", "/write", self.taken.append, frozenset({WRITE})),
        ]

    def answer_all(self) -> None:
        for exchange in list(self.taken):
            self.taken.remove(exchange)
            exchange.answer(200, b"{}")


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def server(slow: Slow) -> Iterator[Served]:
    with Served(SETTINGS, slow.routes()) as served:
        yield served


def post(body: bytes, *headers: str) -> bytes:
    lines = ["POST /write HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def send_until_stuck(sock: socket.socket, request: bytes) -> int:
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < SENT_BYTES_MAX:
            sock.sendall(request)
            sent += len(request)
    return sent


def used(server: Served) -> int:
    return server.app.budget.used


@pytest.mark.parametrize("leaves", [False, True])
def test_a_body_behind_a_long_poll_counts(server: Served, slow: Slow, leaves: bool) -> None:
    sock = server.connect()
    sock.sendall(b"GET /poll HTTP/1.1\r\nHost: localhost\r\n\r\n" + post(BODY))
    server.wait(lambda: used(server) == len(BODY))
    assert len(slow.taken) == 1
    if leaves:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    else:
        server.call(slow.answer_all)
        server.wait(lambda: bool(slow.taken))
        assert used(server) == len(BODY)
        server.call(slow.answer_all)
        assert [read_response(sock).status for _ in range(2)] == [200, 200]
    sock.close()
    server.wait(lambda: not server.app.connections)
    assert used(server) == 0


@pytest.mark.parametrize("size", [4 * 1024, WAITING_BYTES_MAX + 1, len(BODY)])
def test_a_client_that_sends_ahead_is_not_read_from(server: Served, slow: Slow, size: int) -> None:
    """However many it sends behind a request that waits: few are in memory."""
    sock = server.connect()
    sock.sendall(b"GET /poll HTTP/1.1\r\nHost: localhost\r\n\r\n")
    server.wait(lambda: len(slow.taken) == 1)
    sock.settimeout(0.3)
    assert send_until_stuck(sock, post(b" " * size)) < SENT_BYTES_MAX
    (connection,) = server.app.connections
    held = server.call(lambda: sum(len(waiting.body) for waiting in connection.queue))
    assert held <= WAITING_BYTES_MAX + max(size, 256 * 1024)
    sock.close()


@pytest.mark.parametrize("protocol", ["h1", "h2"])
def test_a_body_that_is_worked_on_counts(server: Served, slow: Slow, protocol: str) -> None:
    if protocol == "h2":
        with Client(server) as client:
            stream_id = client.start(b"POST", b"/write", end=False)
            client.send(stream_id, BODY, end=True)
            server.wait(lambda: bool(slow.taken))
            assert used(server) == len(BODY)
            server.call(slow.answer_all)
            assert client.finish(stream_id).status == 200
    else:
        with server.connect() as sock:
            sock.sendall(post(BODY))
            server.wait(lambda: bool(slow.taken))
            assert used(server) == len(BODY)
            server.call(slow.answer_all)
            assert read_response(sock).status == 200
    assert used(server) == 0


def test_what_is_unpacked_counts_by_its_size(server: Served, slow: Slow) -> None:
    packed = post(gzip.compress(BODY), "Content-Encoding: gzip")
    socks = [server.connect() for _ in range(3)]
    for number, sock in enumerate(socks[:2]):
        sock.sendall(packed)
        server.wait(lambda count=number + 1: len(slow.taken) == count)
    assert used(server) == 2 * len(BODY)
    socks[2].sendall(packed)
    refused = read_response(socks[2])
    assert (refused.status, refused.json["error"]["code"]) == (429, "throttled")
    server.call(slow.answer_all)
    assert [read_response(sock).status for sock in socks[:2]] == [200, 200]
    assert used(server) == 0
    for sock in socks:
        sock.close()


@pytest.mark.parametrize("sent", ["large heads", "many streams"])
def test_heads_of_http2_streams_count(server: Served, sent: str) -> None:
    """A head of 60 KB takes 20 bytes on the wire, once its fields are in the table."""
    pad = [(b"x-pad", b"v" * 3_900)] * 15 if sent == "large heads" else []
    count = 30 if pad else FREE_STREAMS + 100
    with Client(server) as client:
        for number in range(count):
            client.start(b"POST", b"/write?n=%d" % number, pad, end=False)
        least = count * 58_000 if pad else 100 * STREAM_BYTES
        server.wait(lambda: used(server) >= least)
        refused = [client.start(b"POST", b"/write?m=%d" % n, pad, end=False) for n in range(20)]
        if pad:
            assert client.finish(refused[-1]).status == 429
    server.wait(lambda: not server.app.connections)
    assert used(server) == 0
