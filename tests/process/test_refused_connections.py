"""Refusals of clients that send too much, too slowly or to a full disk: what they held is free.

The clients of `test_refused_requests.py` send whole requests, and keep their connection.
"""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import pytest
from h2.exceptions import StreamClosedError

from headrace.testing.process import ServerProcess
from tests.support.http2_client import Client
from tests.support.memory_growth import COUNTS, Growth
from tests.support.speakers import JSON_TYPE, SPEAKERS

SECONDS_MAX = 60
BODY_BYTES = 2 << 20
BODY_BYTES_MAX = 3 << 20
PIECE_BYTES = 256 << 10
HEADER_BYTES_MAX = 64 << 10
# Of those that are late: a tick of the server refuses all of them together.
BATCH = 100
LATE_MS = 500
APPEND = json.dumps({"records": [{"data": "x" * 1_000_000}] * 2}).encode()
FILE_BYTES_MAX = 8_192
PATH = b"/v0/topics/t"
JSON_FIELD = (b"content-type", b"application/json")
HEAD = b"POST %b HTTP/1.1\r\nHost: localhost\r\n%b: %b\r\n" % (PATH, *JSON_FIELD)

# Makes a server refuse as many requests as it is asked for.
Ask = Callable[[ServerProcess, int], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("refused")
    with ServerProcess(
        directory, body_bytes_max=BODY_BYTES_MAX, header_bytes_max=HEADER_BYTES_MAX
    ) as server:
        yield server


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that does not wait long."""
    directory = tmp_path_factory.mktemp("hasty")
    with ServerProcess(directory, body_timeout_ms=LATE_MS, header_timeout_ms=LATE_MS) as server:
        yield server


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose files may have only a header: to it, the disk is full."""
    with ServerProcess(tmp_path_factory.mktemp("full"), log="error") as server:
        pid, hard = server.process.pid, resource.RLIM_INFINITY
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, hard))
        yield server
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


class Address:
    """A server as clients of sockets know it."""

    def __init__(self, server: ServerProcess) -> None:
        self._at = server.host, server.port

    def connect(self) -> socket.socket:
        return socket.create_connection(self._at, SECONDS_MAX)


def measure(server: ServerProcess, kinds: dict[str, Ask], count: int) -> None:
    """Have each kind refused `count` times, and look at what that left."""
    growth = Growth(server)
    for name, ask in kinds.items():
        ask(server, count)
        growth.look_at_rest(name)
    growth.check()


# Too much


def read_status(sock: socket.socket) -> int:
    """The status of the last answer of a connection, which ends with it."""
    answer = b""
    with suppress(ConnectionResetError):  # it was answered before it had sent all
        while piece := sock.recv(1 << 16):
            answer += piece
    return int(answer.split()[1])


def large_head_1(server: ServerProcess, count: int) -> None:
    for _ in range(count):
        with Address(server).connect() as sock:
            sock.sendall(HEAD + b"X-Much: " + b"x" * HEADER_BYTES_MAX)
            assert read_status(sock) == 431


def large_head_2(server: ServerProcess, count: int) -> None:
    for _ in range(count):
        with Client(Address(server)) as client:
            many = [(b"x-much-%d" % n, b"x" * 4_096) for n in range(HEADER_BYTES_MAX // 4_096)]
            assert client.finish(client.start(b"POST", PATH, many)).status == 431


def large_body_2(server: ServerProcess, count: int, *headers: tuple[bytes, bytes]) -> None:
    """A body above the bound, by a client that sends until the stream is ended."""
    with Client(Address(server)) as client:
        for _ in range(count):
            stream_id = client.start(b"POST", PATH, (JSON_FIELD, *headers), end=False)
            stream = client.streams[stream_id]
            left = BODY_BYTES_MAX + 1
            with suppress(StreamClosedError):
                while left and stream.reset is None:
                    client.send(stream_id, b" " * min(left, PIECE_BYTES))
                    left -= min(left, PIECE_BYTES)
            assert client.finish(stream_id).status == 413
            del client.streams[stream_id]


def large_body_of_a_length_2(server: ServerProcess, count: int) -> None:
    large_body_2(server, count, (b"content-length", b"%d" % (BODY_BYTES_MAX + 1)))


def large_body_1(server: ServerProcess, count: int) -> None:
    """A body above the bound that does not tell its length."""
    body = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
        BODY_BYTES_MAX + 1,
        b" " * (BODY_BYTES_MAX + 1),
    )
    for _ in range(count):
        with Address(server).connect() as sock:
            with suppress(ConnectionError):
                sock.sendall(HEAD + body)
            assert read_status(sock) == 413


TOO_MUCH: dict[str, dict[str, Ask]] = {
    "h1": {"head": large_head_1, "body": large_body_1},
    "h2c": {
        "head": large_head_2,
        "body": large_body_2,
        "body of a length": large_body_of_a_length_2,
    },
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("protocol", TOO_MUCH)
def test_too_much_leaves_nothing(server: ServerProcess, protocol: str, count: int) -> None:
    """413 and 431, also of bodies that the server hears of piece by piece."""
    measure(server, TOO_MUCH[protocol], count)


# Too slowly


def in_batches(count: int) -> Iterator[int]:
    while count > 0:
        yield min(count, BATCH)
        count -= BATCH


def late_1(server: ServerProcess, count: int) -> None:
    """As many heads as bodies, since both wait for the same tick."""
    length = b"Content-Length: %d\r\n\r\n" % (BODY_BYTES + 1)
    parts = (HEAD + b"X-Much: " + b"x" * (HEADER_BYTES_MAX // 2), HEAD + length + b" " * BODY_BYTES)
    for size in in_batches(count):
        with ExitStack() as stack:
            late = [stack.enter_context(Address(server).connect()) for _ in range(2 * size)]
            for number, sock in enumerate(late):
                sock.sendall(parts[number % 2])
            assert {read_status(sock) for sock in late} == {408}


def late_2(server: ServerProcess, count: int) -> None:
    for size in in_batches(count):
        with Client(Address(server)) as client:
            late = []
            for _ in range(size):
                late.append(client.start(b"POST", PATH, [JSON_FIELD], end=False))
                client.send(late[-1], b" " * PIECE_BYTES)
            assert {client.finish(stream_id).status for stream_id in late} == {408}


LATE: dict[str, dict[str, Ask]] = {"h1": {"heads and bodies": late_1}, "h2c": {"bodies": late_2}}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("protocol", LATE)
def test_what_is_late_leaves_nothing(hasty: ServerProcess, protocol: str, count: int) -> None:
    """408 of heads and bodies of which only a part arrived."""
    measure(hasty, LATE[protocol], count)


# To a full disk


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("protocol", SPEAKERS)
def test_a_full_disk_leaves_nothing(full: ServerProcess, protocol: str, count: int) -> None:
    """503 of appends that were read, checked and not written."""
    with closing(SPEAKERS[protocol](full)) as speak:

        def ask(_: ServerProcess, count: int) -> None:
            for _ in range(count):
                reply = speak.send("POST", "/v0/topics/t", APPEND, JSON_TYPE)
                assert (reply.status, reply.error["code"]) == (503, "not_ready"), reply

        measure(full, {"append": ask}, count)
