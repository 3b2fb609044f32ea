"""A handler that pauses a body over HTTP/1.1: the socket is not read, and nothing is lost."""

from __future__ import annotations

import random
import re
import socket
import struct
import threading
import time

import pytest

from headrace.core.runtime import StepRuntime
from headrace.metrics.requests import Metrics
from headrace.server.access import AccessControl
from headrace.server.app import App
from headrace.server.auth import KeyRing
from headrace.server.http1.connection import Http1Connection
from headrace.server.http1.heads import KnownHeads
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.routes import RouteTable
from tests.support.memory_transport import MemoryTransport
from tests.support.served_app import Served, read_response
from tests.support.upload_server import upload_handlers, upload_server
from tests.support.uploads import BODY_BYTES, MIB, PIECE, UploadHandlers, expected_hash
from tests.support.uploads import UPLOAD_SETTINGS as SETTINGS

# As fixtures: `handlers` and `served`.
__all__ = ["upload_handlers", "upload_server"]

# What one read of the socket brings at most: all that a paused body may hold.
READ_BYTES = 256 * 1024


def post(path: str, length: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


def get(query: str) -> bytes:
    return f"GET /echo?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


class Sender(threading.Thread):
    """Sends a body and a request behind it, and counts what the socket has taken."""

    def __init__(self, sock: socket.socket, path: str, size: int) -> None:
        super().__init__()
        self._sock = sock
        self._head = post(path, size)
        self._size = size
        self.sent = 0

    def run(self) -> None:
        self._sock.sendall(self._head)
        while self.sent < self._size:
            self._sock.sendall(PIECE)
            self.sent += len(PIECE)
        self._sock.sendall(get("behind"))

    def stands_still(self) -> int:
        """Wait until nothing more is taken; how much was."""
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < 0.5:
            if self.sent != seen:
                seen, since = self.sent, time.monotonic()
            time.sleep(0.01)
        return seen


def test_holds_the_client_at_a_bound_and_goes_on(served: Served, handlers: UploadHandlers) -> None:
    with served.connect() as sock, served.connect() as other:
        sender = Sender(sock, "/paused", BODY_BYTES)
        sender.start()
        served.wait(lambda: len(handlers.uploads) == 1)
        upload = handlers.uploads[0]
        held_at = sender.stands_still()
        assert held_at < BODY_BYTES // 4, "the kernel's buffers, not the server's memory"
        assert served.call(lambda: upload.kept_bytes) <= READ_BYTES
        assert upload.bytes == 0
        other.sendall(get("other"))
        assert read_response(other).body == b"other"
        served.call(upload.resume)
        assert read_response(sock).body == b"%d" % BODY_BYTES
        assert upload.hash.hexdigest() == expected_hash(BODY_BYTES)
        assert read_response(sock).body == b"behind"
        sender.join()
        assert upload.ended == 1


def test_pauses_after_each_piece(served: Served, handlers: UploadHandlers) -> None:
    with served.connect() as sock:
        sock.sendall(post("/paused", 8 * MIB))
        served.wait(lambda: len(handlers.uploads) == 1)
        upload = handlers.uploads[0]
        upload.each = True
        served.call(upload.resume)
        for _ in range(8 * MIB // len(PIECE)):
            sock.sendall(PIECE)
        assert read_response(sock).body == b"%d" % (8 * MIB)
        assert upload.hash.hexdigest() == expected_hash(8 * MIB)


def test_loses_nothing_that_came_with_the_paused_body(
    served: Served, handlers: UploadHandlers
) -> None:
    """Body, its end and the requests behind it in one read."""
    with served.connect() as sock:
        sock.sendall(post("/paused", 3) + b"abc" + get("1") + post("/paused", 2) + b"de" + get("2"))
        served.wait(lambda: len(handlers.uploads) >= 1)
        time.sleep(0.1)
        assert [u.bytes for u in handlers.uploads] == [0] * len(handlers.uploads)
        served.call(handlers.uploads[0].resume)
        assert read_response(sock).body == b"3"
        assert read_response(sock).body == b"1"
        served.wait(lambda: len(handlers.uploads) == 2)
        served.call(handlers.uploads[1].resume)
        assert [read_response(sock).body for _ in range(2)] == [b"2", b"2"]


def test_a_paused_body_is_not_timed_out(served: Served, handlers: UploadHandlers) -> None:
    with served.connect() as sock:
        sock.sendall(post("/paused", 6) + b"abc")
        served.wait(lambda: len(handlers.uploads) == 1)
        time.sleep(3 * SETTINGS.body_timeout_ms / 1000)
        served.call(handlers.uploads[0].resume)
        sock.sendall(b"def")
        assert read_response(sock).body == b"6"
        sock.sendall(post("/upload", 6) + b"abc")
        assert read_response(sock).status == 408, "a body that is not paused still is"


@pytest.mark.parametrize("reset", [True, False])
def test_a_client_that_leaves_while_paused(
    served: Served, handlers: UploadHandlers, reset: bool
) -> None:
    """A reset is noticed at the next tick, an orderly end when the handler wants more."""
    sock = served.connect()
    sock.sendall(post("/paused", BODY_BYTES) + PIECE)
    served.wait(lambda: len(handlers.uploads) == 1)
    upload = handlers.uploads[0]
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    if not reset:
        time.sleep(1.5)
        assert not upload.aborted
        served.call(upload.resume)
    served.wait(lambda: upload.aborted == 1)
    assert (upload.ended, served.call(lambda: upload.kept_bytes)) == (0, 0)
    served.wait(lambda: not served.app.connections)


def test_a_lost_connection_ends_a_paused_body(served: Served, handlers: UploadHandlers) -> None:
    with served.connect() as sock:
        sock.sendall(post("/paused", BODY_BYTES) + PIECE)
        served.wait(lambda: len(handlers.uploads) == 1)
        (connection,) = served.call(lambda: list(served.app.connections))
        served.call(connection.transport.abort)  # type: ignore[attr-defined]
        upload = handlers.uploads[0]
        served.wait(lambda: upload.aborted == 1)
        served.call(upload.resume)  # which is too late, and harmless
        assert served.call(lambda: (upload.bytes, upload.kept_bytes)) == (0, 0)


def test_an_answer_while_paused_drops_the_rest(served: Served, handlers: UploadHandlers) -> None:
    with served.connect() as sock:
        sender = Sender(sock, "/paused", 16 * MIB)
        sender.start()
        served.wait(lambda: len(handlers.uploads) == 1)
        upload = handlers.uploads[0]
        served.call(lambda: upload.exchange.answer(200, b"enough"))
        assert read_response(sock).body == b"enough"
        assert read_response(sock).body == b"behind"
        sender.join()
        assert upload.bytes == 0


def test_a_body_waits_for_recovery(handlers: UploadHandlers) -> None:
    with Served(SETTINGS, handlers.routes(), live=False) as served, served.connect() as sock:
        sender = Sender(sock, "/upload", 16 * MIB)
        sender.start()
        served.wait(lambda: served.app.parked == 1)
        assert sender.stands_still() < 16 * MIB
        served.call(served.app.go_live)
        assert read_response(sock).body == b"%d" % (16 * MIB)
        assert read_response(sock).body == b"behind"
        sender.join()


@pytest.mark.parametrize("when", ["with the head", "later"])
def test_a_handler_that_fails_on_its_body(served: Served, when: str) -> None:
    with served.connect() as sock:
        if when == "later":
            sock.sendall(post("/broken", 3))
            time.sleep(0.05)
            sock.sendall(b"abc")
        else:
            sock.sendall(post("/broken", 3) + b"abc")
        assert read_response(sock).status == 500


def test_drain_lets_a_paused_body_finish(served: Served, handlers: UploadHandlers) -> None:
    with served.connect() as sock:
        sock.sendall(post("/paused", 6) + b"abc")
        served.wait(lambda: len(handlers.uploads) == 1)
        served.call(served.app.drain)
        served.call(handlers.uploads[0].resume)
        sock.sendall(b"def")
        response = read_response(sock)
        assert (response.body, response.headers[b"connection"]) == (b"6", b"close")
        assert sock.recv(1) == b""


def requests_in_random_forms(draw: random.Random) -> tuple[bytes, list[bytes]]:
    """Requests behind each other, and what must be answered to them."""
    raw, answers = b"", []
    for number in range(draw.randint(1, 6)):
        body = draw.randbytes(draw.choice([0, 1, 10, 5_000]))
        path = draw.choice(["/paused", "/upload", "/echo"])
        if draw.random() < 0.3:
            raw += get(str(number))
            answers.append(b"%d" % number)
            continue
        if draw.random() < 0.5:
            raw += post(path, len(body)) + body
        else:
            raw += f"POST {path} HTTP/1.1\r\nHost: localhost\r\n".encode()
            raw += b"Transfer-Encoding: chunked\r\n\r\n"
            half = len(body) // 2
            for piece in (body[:half], body[half:]):
                raw += b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
            raw += b"0\r\n\r\n"
        answers.append(body if path == "/echo" else b"%d" % len(body))
    return raw, answers


@pytest.mark.parametrize("seed", range(150))
def test_pauses_at_random(seed: int) -> None:
    """However reads are cut and bodies are paused, each request is answered, once, in order."""
    draw = random.Random(seed)
    handlers, runtime = UploadHandlers(), StepRuntime()
    access = AccessControl(SETTINGS, KeyRing([]))
    app = App(SETTINGS, RouteTable([NativeDialect(handlers.routes())]), access, runtime, Metrics())
    app.go_live()
    transport, connection = MemoryTransport(), Http1Connection(app, KnownHeads())
    connection.connection_made(transport)
    rest, answers = requests_in_random_forms(draw)
    for _ in range(10_000):
        if rest and not transport.paused:
            size = draw.choice([1, 7, 100, 10_000])
            connection.data_received(rest[:size])
            rest = rest[size:]
        for upload in handlers.uploads:
            if upload.ended:
                continue
            if draw.random() < 0.5 and upload.paused:
                upload.resume()
            elif draw.random() < 0.2 and not upload.paused:
                upload.pause()
        runtime.run()
        if not rest and len(re.findall(rb"HTTP/1\.1 200 OK", transport.sent)) == len(answers):
            break
    bodies = []
    while transport.sent:
        head, _, tail = transport.sent.partition(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        bodies.append(tail[:length])
        transport.sent = tail[length:]
    assert bodies == answers
    assert not transport.paused and not transport.closed
    connection.connection_lost(None)
    assert app.budget.used == 0
