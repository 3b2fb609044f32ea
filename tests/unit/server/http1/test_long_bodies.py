"""Bodies of known length that go past the parser: whole, bounded, and followed by what follows."""

from __future__ import annotations

import random
import socket
from itertools import pairwise

import pytest

from headrace.server.http1.reader import UNPARSED_BYTES_MIN, RequestReader
from tests.support.served_app import Served, read_response

LENGTH = 5 * UNPARSED_BYTES_MIN


def head(length: int, *lines: bytes) -> bytes:
    said = (b"Host: localhost", b"Content-Length: %d" % length, *lines)
    return b"POST /echo HTTP/1.1\r\n" + b"\r\n".join(said) + b"\r\n\r\n"


def send_in_pieces(sock: socket.socket, data: bytes, piece: int) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(0, len(data), piece):
        sock.sendall(data[at : at + piece])


@pytest.mark.parametrize("piece", [1_000, UNPARSED_BYTES_MIN - 1, UNPARSED_BYTES_MIN, 1 << 20])
def test_bodies_of_any_length_and_what_follows_them_are_told_apart(
    served: Served, piece: int
) -> None:
    random.seed(piece)
    lengths = [LENGTH, UNPARSED_BYTES_MIN, UNPARSED_BYTES_MIN + 1, 0, 7, LENGTH + 1, 1, LENGTH]
    bodies = [random.randbytes(length) for length in lengths]
    with served.connect() as sock:
        for first, second in pairwise(bodies):
            both = head(len(first)) + first + head(len(second)) + second
            send_in_pieces(sock, both, piece)
            assert read_response(sock).body == first
            assert read_response(sock).body == second


def test_a_long_body_may_look_like_requests(served: Served) -> None:
    inner = b"GET /echo?inner HTTP/1.1\r\nHost: localhost\r\n\r\n"
    body = inner * (LENGTH // len(inner))
    with served.connect() as sock:
        send_in_pieces(sock, head(len(body)) + body + inner, 10_000)
        assert read_response(sock).body == body
        assert read_response(sock).body == b"inner"


def test_nothing_is_served_behind_a_long_body_of_the_last_request(served: Served) -> None:
    body = bytes(LENGTH)
    with served.connect() as sock:
        whole = head(LENGTH, b"Connection: close") + body
        send_in_pieces(sock, whole + b"GET /echo?more HTTP/1.1\r\nHost: localhost\r\n\r\n", 50_000)
        assert read_response(sock).body == body
        rest = b""
        try:
            while piece := sock.recv(1 << 16):
                rest += piece
        except ConnectionResetError:
            pass
        assert b"more" not in rest


def test_a_client_that_leaves_in_a_long_body_leaves_nothing_behind(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(head(LENGTH) + bytes(LENGTH - 1))
        served.wait(lambda: served.app.budget.used > LENGTH // 2)
    served.wait(lambda: served.app.budget.used == 0)
    with served.connect() as sock:
        sock.sendall(head(LENGTH) + bytes(LENGTH))
        assert read_response(sock).body == bytes(LENGTH)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(MemoryError(), 503, "out_of_resources"), (RuntimeError("no"), 500, "internal")],
)
def test_a_long_body_that_cannot_be_taken_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    def fails(_reader: RequestReader) -> None:
        raise error

    with served.connect() as sock:
        sock.sendall(head(LENGTH) + bytes(LENGTH - 1))
        served.wait(lambda: served.app.budget.used > LENGTH // 2)
        with monkeypatch.context() as patch:
            patch.setattr(RequestReader, "on_message_complete", fails)
            sock.sendall(b"x")
            response = read_response(sock)
        assert response.status == status and response.json["error"]["code"] == code
    served.wait(lambda: served.app.budget.used == 0)
