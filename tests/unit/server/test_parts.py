"""Answers of bytes and file ranges: whole or visibly broken off, and every file closed."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from h2.errors import ErrorCodes

from headrace.server.parts import PIECE_BYTES, SMALL_PARTS_BYTES
from headrace.wire.exchange import FileRange, Part
from tests.support.http2_client import Client
from tests.support.part_answers import CONTENT, MIB, World
from tests.support.served_app import Response, Served, read_response, read_until
from tests.support.transport_routes import HTTP1_SETTINGS

SETTINGS = replace(HTTP1_SETTINGS, write_timeout_ms=1500, idle_timeout_ms=60_000)
# Over HTTP/1.1 files are read in pieces, or moved by the system.
transports = pytest.mark.parametrize("transport", ["http1", "http2", "sendfile"])
in_pieces = pytest.mark.parametrize("transport", ["http1", "http2"])


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    world = World(tmp_path)
    world.moves = "http" not in request.node.name
    return world


@pytest.fixture
def served(world: World) -> Iterator[Served]:
    with Served(SETTINGS, world.routes()) as server:
        yield server


def request(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def ask(served: Served, transport: str, method: str = "GET", path: str = "/parts") -> Response:
    """One request that accepts compressed answers, on a connection that can then go on."""
    if transport != "http2":
        with served.connect() as sock:
            sock.sendall(request(path, "Accept-Encoding: gzip", method=method))
            if method == "HEAD":
                head = read_until(sock, b"\r\n\r\n")
                headers = dict(line.split(b": ", 1) for line in head[:-4].split(b"\r\n")[1:])
                response = Response(int(head.split()[1]), headers, b"")
            else:
                response = read_response(sock)
            sock.sendall(request("/echo?on"))
            assert read_response(sock).body == b"on"
            return response
    with Client(served) as client:
        headers2 = ((b"accept-encoding", b"gzip"),)
        stream = client.finish(client.start(method.encode(), path.encode(), headers2))
        assert stream.ended, stream.reset
        assert client.get(b"/echo?on").data == b"on"
        return Response(stream.status, stream.headers, stream.data)


def many(world: World) -> tuple[list[Part], bytes]:
    """Parts of every kind and size, and the body that they make."""
    one, two = world.open(), world.open()
    parts: list[Part] = [
        b"head",
        FileRange(one, 10, 300_000),
        b"",
        FileRange(two, 5, 0),
        CONTENT[:200_000],
        FileRange(one, 5, 7),
        FileRange(two, 3 * MIB, 0),
        FileRange(two, 3 * MIB - 1, 1),
        FileRange(one, PIECE_BYTES, 2 * PIECE_BYTES),
    ]
    for number in range(200):
        parts += [b"%d," % number, FileRange(two, number * 1000, number)]
    body = b"".join(
        part if isinstance(part, bytes) else CONTENT[part.offset : part.offset + part.length]
        for part in parts
    )
    return parts, body


@transports
def test_parts_are_sent_in_order_and_as_they_are(
    served: Served, world: World, transport: str
) -> None:
    parts, body = many(world)
    world.parts = lambda: parts
    response = ask(served, transport)
    assert (response.status, response.body) == (200, body)
    assert response.headers[b"content-length"] == b"%d" % len(body)
    assert response.headers[b"content-type"] == b"application/x-parts"
    assert response.headers[b"x-more"] == b"1"
    assert b"content-encoding" not in response.headers
    assert b"transfer-encoding" not in response.headers
    served.wait(world.all_closed)


def test_sendfile_copies_nothing(served: Served, world: World) -> None:
    file = world.open()
    if file.pread_nowait(1, 0) is None:
        pytest.skip("this filesystem does not say what its page cache holds")
    world.parts = lambda: [b"begin", FileRange(file, 0, 3 * MIB), CONTENT]
    assert ask(served, "sendfile").body == b"begin" + CONTENT + CONTENT
    assert (file.copies, file.reads > 0) == (0, True)


@transports
@pytest.mark.parametrize("size", [0, 1, SMALL_PARTS_BYTES, SMALL_PARTS_BYTES + 1])
def test_parts_without_a_file(served: Served, world: World, transport: str, size: int) -> None:
    world.parts = lambda: [CONTENT[: size // 2], b"", CONTENT[size // 2 : size]]
    response = ask(served, transport)
    assert response.body == CONTENT[:size]
    assert response.headers[b"content-length"] == b"%d" % size
    assert b"content-encoding" not in response.headers


@transports
@pytest.mark.parametrize("count", [0, 1, 3])
def test_nothing_at_all(served: Served, world: World, transport: str, count: int) -> None:
    world.parts = lambda: [FileRange(world.open(), number, 0) for number in range(count)]
    response = ask(served, transport)
    assert (response.body, response.headers[b"content-length"]) == (b"", b"0")
    assert len(world.files) == count
    served.wait(world.all_closed)


@transports
def test_head_tells_the_length_and_reads_nothing(
    served: Served, world: World, transport: str
) -> None:
    world.parts = lambda: [FileRange(world.open(), 0, 2 * MIB), b"end"]
    response = ask(served, transport, "HEAD")
    assert (response.body, response.headers[b"content-length"]) == (b"", b"%d" % (2 * MIB + 3))
    served.wait(world.all_closed)
    assert world.files[0].reads == 0


@contextmanager
def failing(served: Served, transport: str) -> Iterator[None]:
    """Ask for an answer that must be broken off; the next client is served."""
    if transport != "http2":
        with served.connect() as sock:
            sock.sendall(request("/parts"))
            head = read_until(sock, b"\r\n\r\n")
            assert b" 200 " in head
            yield
            got = 0
            with suppress(ConnectionResetError):
                while piece := sock.recv(1 << 16):
                    got += len(piece)
            assert got < int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
    else:
        with Client(served) as client:
            stream_id = client.start(b"GET", b"/parts")
            yield
            stream = client.finish(stream_id)
            assert (stream.ended, stream.reset) == (False, ErrorCodes.INTERNAL_ERROR)
            assert len(stream.data) < int(stream.headers[b"content-length"])
            assert client.get(b"/echo?other").data == b"other", "other streams go on"
    assert ask(served, transport, path="/echo?next").body == b"next"


@transports
@pytest.mark.parametrize("missing", [1, MIB])
def test_a_file_that_ends_early(served: Served, world: World, transport: str, missing: int) -> None:
    world.parts = lambda: [b"x" * 100, FileRange(world.open(), missing, 3 * MIB), b"end"]
    with failing(served, transport):
        pass
    served.wait(world.all_closed)


@transports
@pytest.mark.parametrize("fails_at", [1, 2, 20])
def test_a_read_that_fails(served: Served, world: World, transport: str, fails_at: int) -> None:
    if transport == "sendfile":
        fails_at = min(fails_at, 2)  # the system takes more at a time

    def parts() -> list[Part]:
        broken, other = world.open(), world.open()
        broken.fails_at = fails_at
        return [FileRange(broken, 0, 3 * MIB), FileRange(other, 0, 10)]

    world.parts = parts
    with failing(served, transport):
        pass
    served.wait(world.all_closed)
    assert world.files[0].reads == fails_at
    assert world.files[1].reads == 0


def large(world: World, tmp_path: Path, size: int = 64 * MIB) -> None:
    """Let /parts answer a large file, most of it a hole."""
    with (tmp_path / "large").open("wb") as file:
        file.write(CONTENT)
        file.truncate(size - 3)
    world.parts = lambda: [b"abc", FileRange(world.open("large"), 0, size - 3)]


def held_bytes(served: Served) -> int:
    """What the server holds for its clients."""
    return served.call(lambda: sum(c.pending_bytes for c in served.app.connections))


def reads_stand_still(world: World) -> int:
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < 0.3:
        if (now := sum(file.reads for file in world.files)) != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.01)
    return seen


@transports
def test_a_client_that_reads_slowly(
    served: Served, world: World, transport: str, tmp_path: Path
) -> None:
    size = 64 * MIB if transport != "http2" else 8 * MIB
    large(world, tmp_path, size)
    body = b"abc" + CONTENT + bytes(size - 3 - len(CONTENT))
    if transport != "http2":
        with served.connect() as sock:
            sock.sendall(request("/parts"))
            assert reads_stand_still(world) * PIECE_BYTES < size // 2
            assert held_bytes(served) <= SETTINGS.stream_pending_bytes + PIECE_BYTES
            assert read_response(sock).body == body
    else:
        with Client(served, window=30_000, greedy=False) as client:
            stream_id = client.start(b"GET", b"/parts")
            assert reads_stand_still(world) * PIECE_BYTES <= 3 * PIECE_BYTES
            assert held_bytes(served) <= SETTINGS.stream_pending_bytes + PIECE_BYTES
            assert client.get(b"/echo?other").data == b"other"
            client.h2.increment_flow_control_window(100 * MIB, stream_id)
            client.h2.increment_flow_control_window(100 * MIB)
            client.flush()
            pieces = client.finish(stream_id)
            assert hashlib.sha256(pieces.data).digest() == hashlib.sha256(body).digest()
    served.wait(world.all_closed)


@transports
def test_a_client_that_leaves(served: Served, world: World, transport: str, tmp_path: Path) -> None:
    large(world, tmp_path)
    if transport != "http2":
        with served.connect() as sock:
            sock.sendall(request("/parts"))
            reads_stand_still(world)
    else:
        with Client(served, window=1000, greedy=False) as client:
            stream_id = client.start(b"GET", b"/parts")
            client.until(lambda: client.streams[stream_id].data != b"")
            client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
            client.flush()
            served.wait(world.all_closed)
    served.wait(world.all_closed)
    served.wait(lambda: not served.app.connections)


@in_pieces
def test_a_client_that_leaves_during_a_read(served: Served, world: World, transport: str) -> None:
    gate = threading.Event()

    def parts() -> list[Part]:
        file = world.open()
        file.gate = gate
        return [FileRange(file, 0, MIB), FileRange(world.open(), 0, MIB)]

    world.parts = parts
    try:
        if transport != "http2":
            with served.connect() as sock:
                sock.sendall(request("/parts"))
                served.wait(lambda: bool(world.files) and world.files[0].reading)
        else:
            with Client(served) as client:
                client.start(b"GET", b"/parts")
                served.wait(lambda: bool(world.files) and world.files[0].reading)
        served.wait(lambda: not served.app.connections)
        assert not any(file.closes for file in world.files), "not under a read"
    finally:
        gate.set()
    served.wait(world.all_closed)
    assert world.files[0].reads == 1


@transports
def test_a_client_that_takes_nothing_is_timed_out(
    served: Served, world: World, transport: str, tmp_path: Path
) -> None:
    large(world, tmp_path)
    if transport != "http2":
        with served.connect() as sock:
            sock.sendall(request("/parts"))
            served.wait(lambda: bool(world.files))
            served.wait(world.all_closed)
            served.wait(lambda: not served.app.connections)
    else:
        with Client(served, window=1000, greedy=False) as client:
            stream = client.finish(client.start(b"GET", b"/parts"))
            assert stream.reset == ErrorCodes.CANCEL
            served.wait(world.all_closed)


@in_pieces
def test_a_disk_that_is_slow_is_not_the_clients_fault(
    served: Served, world: World, transport: str
) -> None:
    gate = threading.Event()

    def parts() -> list[Part]:
        file = world.open()
        file.gate = gate
        return [b"begin", FileRange(file, 0, 100)]

    world.parts = parts
    timer = threading.Timer(2.5 * SETTINGS.write_timeout_ms / 1000, gate.set)
    timer.start()
    assert ask(served, transport).body == b"begin" + CONTENT[:100]
    timer.join()


@transports
def test_drain_lets_an_answer_finish(
    served: Served, world: World, transport: str, tmp_path: Path
) -> None:
    size = 16 * MIB if transport != "http2" else 4 * MIB
    large(world, tmp_path, size)
    if transport != "http2":
        with served.connect() as sock:
            sock.sendall(request("/parts"))
            reads_stand_still(world)
            served.call(served.app.drain)
            assert len(read_response(sock).body) == size
            assert sock.recv(1) == b""
    else:
        with Client(served, window=5 * MIB) as client:
            stream_id = client.start(b"GET", b"/parts")
            served.wait(lambda: bool(world.files))
            served.call(served.app.drain)
            assert len(client.finish(stream_id).data) == size
            assert client.expect_goaway() == ErrorCodes.NO_ERROR
    served.wait(world.all_closed)


@transports
def test_a_server_that_stops_closes_the_files(world: World, transport: str, tmp_path: Path) -> None:
    large(world, tmp_path)
    with Served(SETTINGS, world.routes()) as served:
        if transport != "http2":
            sock = served.connect()
            sock.sendall(request("/parts"))
        else:
            sock = Client(served, window=1000, greedy=False)
            sock.start(b"GET", b"/parts")
        served.wait(lambda: bool(world.files))
        reads_stand_still(world)
    assert world.all_closed()
    (sock if transport != "http2" else sock.sock).close()


def test_a_second_answer_closes_its_files(served: Served, world: World) -> None:
    with served.connect() as sock:
        sock.sendall(request("/hold"))
        served.wait(lambda: len(world.held) == 1)
        served.call(lambda: world.held[0].answer(200, b"first"))
        parts = [FileRange(world.open(), 0, MIB)]
        served.call(lambda: world.held[0].answer_parts(200, parts))
        assert read_response(sock).body == b"first"
        sock.sendall(request("/echo?on"))
        assert read_response(sock).body == b"on"
    assert world.all_closed()


def test_http1_pipelined(served: Served, world: World) -> None:
    world.parts = lambda: [FileRange(world.open(), 0, MIB), b"end"]
    with served.connect() as sock:
        sock.sendall(request("/hold") + request("/parts") + request("/echo?1") + request("/parts"))
        served.wait(lambda: len(world.held) == 1)
        time.sleep(0.1)
        assert [file.reads for file in world.files] == [0] * len(world.files)
        served.call(lambda: world.held[0].answer(200, b"held"))
        assert read_response(sock).body == b"held"
        assert read_response(sock).body == CONTENT[:MIB] + b"end"
        assert read_response(sock).body == b"1"
        assert read_response(sock).body == CONTENT[:MIB] + b"end"
    served.wait(world.all_closed)


def test_http1_a_client_that_has_sent_its_end_gets_all(served: Served, world: World) -> None:
    world.parts = lambda: [FileRange(world.open(), 0, 3 * MIB)]
    with served.connect() as sock:
        sock.sendall(request("/parts"))
        sock.shutdown(socket.SHUT_WR)
        assert read_response(sock).body == CONTENT
        assert sock.recv(1) == b""
    served.wait(world.all_closed)


@pytest.mark.parametrize("keep", [True, False])
def test_http1_0(served: Served, world: World, keep: bool) -> None:
    world.parts = lambda: [FileRange(world.open(), 0, MIB)]
    with served.connect() as sock:
        line = b"Connection: keep-alive\r\n" if keep else b""
        sock.sendall(b"GET /parts HTTP/1.0\r\nHost: localhost\r\n" + line + b"\r\n")
        response = read_response(sock)
        assert response.body == CONTENT[:MIB]
        assert response.headers[b"connection"] == (b"keep-alive" if keep else b"close")
        if keep:
            sock.sendall(request("/echo?on"))
            assert read_response(sock).body == b"on"
        else:
            assert sock.recv(1) == b""


def test_http1_while_the_request_still_arrives(served: Served, world: World) -> None:
    """The rest of a streamed body is dropped, and the connection goes on."""
    world.parts = lambda: [FileRange(world.open(), 0, MIB)]
    with served.connect() as sock:
        sock.sendall(request("/streamed", "Content-Length: 2000000", method="POST"))
        assert read_response(sock).body == CONTENT[:MIB]
        sock.sendall(bytes(2_000_000) + request("/echo?on"))
        assert read_response(sock).body == b"on"
    served.wait(world.all_closed)
