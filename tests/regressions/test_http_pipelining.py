"""Requests behind each other on one HTTP/1.1 connection: each answered once and in order."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.core.settings import Settings
from headrace.server.http1.outlet import Http1Outlet
from headrace.server.http1.states import DISCARDING, OPEN
from headrace.wire.exchange import EVENT_STREAM, Exchange
from headrace.wire.routes import Route
from tests.support.served_app import Served, read_response, read_until

SETTINGS = Settings(
    body_bytes_max=1 << 20,
    record_bytes_max=1 << 20,
    header_bytes_max=16 << 10,
    stream_pending_bytes=64 << 10,
)


class Handlers:
    """Some answer at once, some when told to."""

    def __init__(self) -> None:
        self.held: list[Exchange] = []
        self.calls: list[tuple[str, bytes]] = []
        self.headers: list[dict[bytes, bytes]] = []
        self.closed = 0

    def routes(self) -> list[Route]:
        def route(method: str, path: str, handler: object, **more: object) -> Route:
            return Route(method, path, handler, **more)

        return [
            route("GET", "/hold", self.held.append),
            route("GET", "/echo", self.echo),
            route("POST", "/echo", self.echo),
            route("GET", "/large", lambda e: e.answer(200, bytes(100 << 10), b"text/plain")),
            route("GET", "/stream", self.stream, long_lived=True),
        ]

    def echo(self, exchange: Exchange) -> None:
        self.calls.append((exchange.query, exchange.body))
        self.headers.append(exchange.headers)
        exchange.answer(200, exchange.query.encode() + exchange.body, b"text/plain")

    def stream(self, exchange: Exchange) -> None:
        exchange.stream(EVENT_STREAM).on_closed = self.close

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def server(handlers: Handlers) -> Iterator[Served]:
    with Served(SETTINGS, handlers.routes()) as served:
        yield served


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode()


def post(body: bytes, path: str = "/echo") -> bytes:
    return get(path, f"Content-Length: {len(body)}", method="POST") + body


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(1 << 16):
        data += piece
    return data


def release(server: Served, handlers: Handlers, at: int) -> None:
    server.call(lambda: handlers.held[at].answer(200, b"held", b"text/plain"))


def test_many_behind_a_slow_one(server: Served, handlers: Handlers) -> None:
    """More than the interpreter may call in each other."""
    count = 2_000
    with server.connect() as sock:
        sock.sendall(get("/hold") + b"".join(get(f"/echo?{n}") for n in range(count)))
        server.wait(lambda: len(handlers.held) == 1)
        release(server, handlers, 0)
        assert read_response(sock).body == b"held"
        assert [read_response(sock).body for _ in range(count)] == [b"%d" % n for n in range(count)]


@pytest.mark.parametrize("end", ["drain", "half-close"])
def test_all_in_progress_are_answered_at_the_end(
    server: Served, handlers: Handlers, end: str
) -> None:
    with server.connect() as sock:
        sock.sendall(get("/hold") * 3)
        server.wait(lambda: len(handlers.held) == 3)
        if end == "drain":
            server.call(server.app.drain)
        else:
            sock.shutdown(socket.SHUT_WR)
            server.wait(lambda: all(c.answering is not OPEN for c in server.app.connections))
        for at in (1, 0, 2):
            release(server, handlers, at)
        data = read_all(sock)
        assert data.count(b"HTTP/1.1 200 OK") == 3
        # Only the last one says so: a client sends nothing again that is still to be answered.
        assert data.count(b"connection: close") == 1
        assert b"connection: close" in data.rpartition(b"HTTP/1.1")[2]


def test_a_read_that_ends_in_a_head(server: Served, handlers: Handlers) -> None:
    """However much came before the head, it is not counted as part of it."""
    requests = post(b"x" * 20_000) * 40
    answers: list[int] = []
    with server.connect() as sock:
        sender = threading.Thread(target=lambda: sock.sendall(requests))
        sender.start()
        answers.extend(read_response(sock).status for _ in range(40))
        sender.join()
    assert answers == [200] * 40


@pytest.mark.parametrize("before", [b"", post(b"x" * 100)], ids=["first", "second"])
@pytest.mark.parametrize("cut", [1 << 20, 40, 9_000], ids=["once", "early", "late"])
def test_a_head_that_is_too_large(server: Served, before: bytes, cut: int) -> None:
    request = before + get("/echo", "X: " + "v" * (17 << 10))
    at = len(before) + cut
    with server.connect() as sock:
        sock.sendall(request[:at])
        if before:
            assert read_response(sock).status == 200
        server.call(lambda: None)
        sock.sendall(request[at:])
        assert read_response(sock).status == 431


def test_a_head_request_for_a_stream_ends(server: Served, handlers: Handlers) -> None:
    with server.connect() as sock:
        sock.sendall(get("/stream", method="HEAD") + get("/echo?next"))
        assert b"200 OK" in read_until(sock, b"\r\n\r\n")
        assert read_response(sock).body == b"next"
    assert handlers.closed == 1  # whatever the stream held has been given back


def test_trailers_are_no_headers(server: Served, handlers: Handlers) -> None:
    head = get("/echo", "Transfer-Encoding: chunked", method="POST")
    with server.connect() as sock:
        trailers = b"Authorization: Bearer k\r\nHost: other\r\nContent-Encoding: br\r\n"
        sock.sendall(head + b"2\r\nab\r\n0\r\n" + trailers + b"\r\n")
        assert read_response(sock).body == b"ab"
        assert handlers.headers == [{b"host": b"localhost", b"transfer-encoding": b"chunked"}]
        # They belong to no later request either.
        sock.sendall(get("/echo?next"))
        assert read_response(sock).body == b"next"
        assert handlers.headers[1] == {b"host": b"localhost"}


@pytest.mark.parametrize("what", [b"0\r\nX: ", b"0\r\n", b"2;"], ids=["value", "lines", "chunk"])
def test_what_is_around_a_body_is_bounded(server: Served, what: bytes) -> None:
    head = get("/echo", "Transfer-Encoding: chunked", method="POST")
    piece = b"Name: value\r\n" * 1_000 if what == b"0\r\n" else b"v" * 13_000
    with server.connect() as sock:
        sock.sendall(head + b"2\r\nab\r\n" + what)
        reads = 0
        server.wait(lambda: bool(server.app.connections))
        (connection,) = server.app.connections
        while connection.reading is not DISCARDING and reads < 10:
            server.wait(lambda seen=reads: connection._reads > seen)
            reads = connection._reads
            sock.sendall(piece)
        assert read_response(sock).status == 431


def test_what_follows_an_upgrade_is_bounded(server: Served, handlers: Handlers) -> None:
    with server.connect() as sock:
        sock.sendall(get("/hold", "Upgrade: other", "Connection: upgrade"))
        server.wait(lambda: len(handlers.held) == 1)
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            sock.sendall(bytes(64 << 20))
        (connection,) = server.app.connections
        assert len(connection._leftover) < 1 << 20


def test_requests_that_all_want_another_protocol(server: Served) -> None:
    wants = ("Upgrade: h2c", "Connection: upgrade")
    with server.connect() as sock:
        count = 1_500
        one = get("/echo?get", *wants) + get("/echo", *wants, "Content-Length: 4", method="POST")
        sender = threading.Thread(target=lambda: sock.sendall((one + b"post") * count))
        sender.start()
        for _ in range(count):
            assert read_response(sock).body == b"get"
            assert read_response(sock).body == b"post"
        sender.join()


def test_a_stream_that_was_asked_for_another_protocol(server: Served) -> None:
    """What comes after the request is HTTP, and none of it gets lost."""
    with server.connect() as sock:
        head = get("/stream", "Upgrade: h2c", "Connection: upgrade", method="HEAD")
        sock.sendall(head + get("/echo?a") + get("/echo?b"))
        assert b"200 OK" in read_until(sock, b"\r\n\r\n")
        assert [read_response(sock).body for _ in range(2)] == [b"a", b"b"]


def test_answers_behind_a_slow_one_are_counted(server: Served, handlers: Handlers) -> None:
    memory = server.app.memory
    with server.connect() as sock:
        sock.sendall(get("/hold") + get("/large") * 20)
        server.wait(lambda: memory.used > 0)
        # One more than fits, and no more are made.
        assert memory.used < SETTINGS.stream_pending_bytes + (128 << 10)
        release(server, handlers, 0)
        assert read_response(sock).body == b"held"
        for _ in range(20):
            assert len(read_response(sock).body) == 100 << 10
        server.wait(lambda: memory.used == 0)
        sock.sendall(get("/hold") + get("/large") * 20)
        server.wait(lambda: memory.used > 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    server.wait(lambda: memory.used == 0)


def test_a_refused_request_is_not_carried_out(server: Served, handlers: Handlers) -> None:
    """It waits for its turn to be answered, and its handler is not called for what there is."""
    head = get("/echo?refused", "Transfer-Encoding: chunked", method="POST")
    with server.connect() as sock:
        sock.sendall(get("/hold") + head + b"1\r\nx\r\nnot a chunk\r\n")
        server.wait(lambda: len(handlers.held) == 1)
        release(server, handlers, 0)
        assert read_response(sock).body == b"held"
        assert read_response(sock).status == 400
        assert sock.recv(1) == b""
    assert handlers.calls == []


def test_nothing_is_taken_after_a_request_to_close(server: Served, handlers: Handlers) -> None:
    """Also not what begins like the requests before."""
    with server.connect() as sock:
        for _ in range(6):
            sock.sendall(post(b"12345"))
            assert read_response(sock).status == 200
        sock.sendall(get("/hold", "Connection: close", "Content-Length: 1"))
        server.call(lambda: None)
        sock.sendall(b"x")
        server.wait(lambda: len(handlers.held) == 1)
        sock.sendall(post(b"late!"))
        server.call(lambda: None)
        release(server, handlers, 0)
        assert read_response(sock).body == b"held"
    assert handlers.calls == [("", b"12345")] * 6


def test_the_same_wrong_request_is_wrong_in_the_same_way(server: Served) -> None:
    request = post(b"{}", path="/stream")
    with server.connect() as sock:
        answers = []
        for _ in range(3):
            sock.sendall(request)
            answers.append(read_response(sock).status)
        assert answers == [405] * 3


def test_the_time_that_we_do_not_read_is_not_the_clients(handlers: Handlers) -> None:
    settings = replace(SETTINGS, pipeline_requests_max=1, body_timeout_ms=1_000)
    with Served(settings, handlers.routes()) as server, server.connect() as sock:
        head, body = post(b"12345").split(b"12345")[0], b"12345"
        sock.sendall(get("/hold") + get("/echo?a") + head + body[:2])
        server.wait(lambda: len(handlers.held) == 1)
        # As if it had lasted long: the clock is not ours to move.
        (connection,) = server.app.connections
        later = server.app.now_ms() + 60_000
        server.call(lambda: connection.tick(later))
        server.call(lambda: connection.tick(later + 60_000))
        server.call(lambda: connection.tick(later + 120_000))
        sock.sendall(body[2:])
        release(server, handlers, 0)
        assert [read_response(sock).body for _ in range(3)] == [b"held", b"a", body]


def test_a_stream_behind_an_answer_that_nobody_takes(server: Served, handlers: Handlers) -> None:
    """Its handler can tell that it is stuck, and close it."""
    outlets: list[Http1Outlet] = []
    with server.connect() as sock:
        sock.sendall(get("/hold") + get("/stream"))
        server.wait(lambda: len(handlers.held) == 1)
        (connection,) = server.app.connections
        queue = connection.queue
        server.wait(lambda: len(queue) == 2 and queue[1].outlet is not None)
        outlets.append(queue[1].outlet)
        server.call(lambda: handlers.held[0].answer(200, bytes(64 << 20), b"text/plain"))
        assert not outlets[0].room
        server.wait(lambda: outlets[0].stuck_ms > 0)
        assert read_response(sock).status == 200
        server.wait(lambda: outlets[0].room)
        assert outlets[0].stuck_ms == 0


@pytest.mark.parametrize("where", ["on_abort", "on_closed"])
def test_an_error_when_the_client_goes(
    server: Served, handlers: Handlers, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """The requests behind it hear of it nevertheless."""
    with server.connect() as sock:
        sock.sendall(get("/hold") + get("/stream" if where == "on_closed" else "/hold"))
        server.wait(lambda: len(handlers.held) > 0)
        (connection,) = server.app.connections
        queue = connection.queue
        server.wait(lambda: len(queue) == 2 and (queue[1].outlet or len(handlers.held) == 2))
        ended: list[int] = []
        for exchange in queue:
            exchange.on_answered = lambda _exchange, status: ended.append(status)
        server.call(lambda: setattr(queue[0], "on_abort", fail))
        if where == "on_closed":
            server.call(lambda: setattr(queue[1].outlet, "on_closed", fail))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    server.wait(lambda: len(ended) == 2)
    assert "ZeroDivisionError" in caplog.text


def fail() -> None:
    raise ZeroDivisionError


def test_a_stop_while_a_connection_is_made(handlers: Handlers) -> None:
    """It has come too late to be told, and must not keep the server up."""
    with Served(SETTINGS, handlers.routes()) as server:
        server.call(server.app.drain)
        with server.connect() as sock:
            assert sock.recv(1) == b""
        server.wait(lambda: not server.app.connections)


@pytest.mark.parametrize("version", ["2.0", "0.9"])
def test_another_version_behind_the_right_one(server: Served, version: str) -> None:
    with server.connect() as sock:
        sock.sendall(get("/echo?a") + get("/echo?b").replace(b"1.1", version.encode()))
        assert read_response(sock).body == b"a"
        assert read_response(sock).status == 400
        assert sock.recv(1) == b""


def test_a_drain_with_an_answer_behind_a_stream(server: Served) -> None:
    with server.connect() as sock:
        sock.sendall(get("/stream") + get("/echo?b"))
        server.wait(lambda: bool(server.app.connections))
        (connection,) = server.app.connections
        server.wait(lambda: len(connection.queue) == 2 and connection.queue[1].answered)
        server.call(server.app.drain)
        server.call(lambda: connection.outlet.close())
        assert read_all(sock).endswith(b"\r\n\r\nb")


def test_a_refusal_behind_a_stream_that_ended_before_its_turn(
    server: Served, handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as sock:
        sock.sendall(get("/hold") + get("/stream") + b"malformed\r\n\r\n")
        server.wait(lambda: len(handlers.held) == 1)
        (connection,) = server.app.connections
        server.wait(lambda: len(connection.queue) == 3 and connection.queue[2].answered)
        server.call(lambda: connection.queue[1].outlet.close())
        release(server, handlers, 0)
        data = read_all(sock)
        assert data.count(b"HTTP/1.1 200") == 2
        assert data.count(b"HTTP/1.1 400") == 1
    assert not caplog.records
