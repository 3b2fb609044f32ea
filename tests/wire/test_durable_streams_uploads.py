"""Bodies of streams as they arrive: in pieces, compressed, cut off, and too large."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator

import pytest

from headrace.testing.process import ServerProcess
from tests.support.served_app import Response, read_response

SETTINGS = {"record_bytes_max": 4_096, "body_bytes_max": 65_536, "meta_bytes_max": 1_024}


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[socket.socket]:
    with socket.create_connection((server.host, server.port), timeout=30) as sock:
        yield sock


def ask(sock: socket.socket, method: str, path: str, body: bytes = b"", *headers: str) -> Response:
    lines = [f"{method} /v1/stream/{path} HTTP/1.1", "Host: localhost", *headers]
    if not any(header.startswith("Transfer-Encoding") for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    sock.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    return read_response(sock)


TEXT = "Content-Type: text/plain"


def test_a_body_may_come_in_chunks(connection: socket.socket, topic: str) -> None:
    chunked = "Transfer-Encoding: chunked"
    created = ask(connection, "PUT", topic, b"2\r\nab\r\n0\r\n\r\n", TEXT, chunked)
    assert created.status == 201
    appended = ask(connection, "POST", topic, b"1\r\nc\r\n2\r\nde\r\n0\r\n\r\n", TEXT, chunked)
    assert appended.status == 204
    empty = ask(connection, "POST", topic, b"0\r\n\r\n", TEXT, chunked)
    assert empty.status == 400
    assert ask(connection, "GET", topic).body == b"abcde"


def test_a_body_may_be_compressed(connection: socket.socket, topic: str) -> None:
    packed = gzip.compress(b"text" * 100)
    assert ask(connection, "PUT", topic, packed, TEXT, "Content-Encoding: gzip").status == 201
    assert ask(connection, "POST", topic, packed, TEXT, "Content-Encoding: gzip").status == 204
    assert ask(connection, "GET", topic).body == b"text" * 200


@pytest.mark.parametrize(
    "cut",
    [
        b"Content-Length: 10\r\n\r\nhalf",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
)
def test_a_body_that_breaks_off_appends_nothing(
    server: ServerProcess, connection: socket.socket, topic: str, cut: bytes
) -> None:
    assert ask(connection, "PUT", topic, b"", TEXT).status == 201
    with socket.create_connection((server.host, server.port), timeout=30) as broken:
        head = f"POST /v1/stream/{topic} HTTP/1.1\r\nHost: localhost\r\n{TEXT}\r\n".encode()
        broken.sendall(head + cut)
        broken.shutdown(socket.SHUT_WR)
        while broken.recv(65_536):
            pass
    assert ask(connection, "GET", topic).body == b""
    with socket.create_connection((server.host, server.port), timeout=30) as broken:
        head = f"PUT /v1/stream/{topic}-new HTTP/1.1\r\nHost: localhost\r\n{TEXT}\r\n".encode()
        broken.sendall(head + cut)
        broken.shutdown(socket.SHUT_WR)
        while broken.recv(65_536):
            pass
    assert ask(connection, "GET", f"{topic}-new").status == 404


@pytest.mark.parametrize("size", [4_097, 65_537])
def test_a_body_that_is_too_large_is_told_so(
    connection: socket.socket, topic: str, size: int
) -> None:
    """By the engine, which takes no such record; and by the transport, which takes no such body."""
    assert ask(connection, "PUT", topic, b"x" * 4_096, TEXT).status == 201
    refused = ask(connection, "POST", topic, b"x" * size, TEXT)
    assert refused.status == 413
    assert refused.headers[b"x-content-type-options"] == b"nosniff"


def test_messages_together_may_be_larger_than_one(connection: socket.socket, topic: str) -> None:
    json = "Content-Type: application/json"
    assert ask(connection, "PUT", topic, b"", json).status == 201
    message = b'"%b"' % (b"x" * 4_000)
    assert ask(connection, "POST", topic, b"[%b,%b]" % (message, message), json).status == 204
    too_large = b'"%b"' % (b"x" * 5_000)
    assert ask(connection, "POST", topic, b"[1,%b]" % too_large, json).status == 413
    assert ask(connection, "GET", topic).body == b"[%b,%b]" % (message, message)


def test_spaces_around_a_value_are_not_of_it(connection: socket.socket, topic: str) -> None:
    assert ask(connection, "PUT", topic, b"", TEXT + " ", "Stream-TTL:\t60 \t").status == 201
    for sequence in range(3):  # of a head that is parsed, and of one that is known by then
        numbered = ("Producer-Id: p ", "Producer-Epoch: 0 ", f"Producer-Seq: {sequence} ")
        assert ask(connection, "POST", topic, b"x", TEXT, *numbered).status == 200
    closed = ask(connection, "POST", topic, b"end", TEXT, "Stream-Closed: true ")
    assert (closed.status, closed.headers[b"stream-closed"]) == (204, b"true")
    looked = ask(connection, "GET", topic)
    assert (looked.headers[b"content-type"], looked.body) == (b"text/plain", b"xxxend")


def test_a_fork_right_behind_its_source(connection: socket.socket, topic: str) -> None:
    """Both come in one packet, so that the source is still on its way to the log."""
    requests = [
        f"PUT /v1/stream/{topic} HTTP/1.1\r\nHost: localhost\r\n{TEXT}\r\n"
        "Content-Length: 2\r\n\r\nab",
        f"PUT /v1/stream/{topic}/fork HTTP/1.1\r\nHost: localhost\r\n"
        f"Stream-Forked-From: /v1/stream/{topic}\r\nContent-Length: 1\r\n\r\nc",
    ]
    connection.sendall("".join(requests).encode())
    assert [read_response(connection).status for _ in requests] == [201, 201]
    assert ask(connection, "GET", f"{topic}/fork").body == b"abc"
