"""Requests that are sent at once on one connection, their answers, and what was counted of them."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import NamedTuple


class Answer(NamedTuple):
    """An answer over HTTP/1.1."""

    status: bytes  # with the version before it
    headers: list[bytes]  # their names, sorted
    body: bytes


def pipelined(connection: socket.socket, requests: Sequence[bytes]) -> list[Answer]:
    """Send requests together, and return the answers, each of which tells its length."""
    connection.sendall(b"".join(requests))
    data, found = b"", list[Answer]()
    while len(found) < len(requests):
        head, separator, rest = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if not separator or length is None or len(rest) < int(length[1]):
            more = connection.recv(1 << 20)
            assert more, data
            data += more
            continue
        body, data = rest[: int(length[1])], rest[int(length[1]) :]
        names = sorted(line.partition(b":")[0] for line in head.splitlines()[1:])
        found.append(Answer(head[:12], names, body))
    assert not data, "more than was asked for"
    return found


def counted(connection: socket.socket, names: tuple[str, ...]) -> list[str]:
    """The lines of the metrics that begin with these names; the connection ends with that."""
    connection.sendall(
        b"GET /v0/metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n"
        b"Connection: close\r\n\r\n"
    )
    data = b""
    while more := connection.recv(1 << 20):
        data += more
    return sorted(line for line in data.decode().splitlines() if line.startswith(names))
