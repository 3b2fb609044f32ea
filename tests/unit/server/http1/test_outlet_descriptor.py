"""When the same bytes may be written to the sockets of many streams, beside their transports."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from headrace.server.fan_out import DIRECT_MIN, write_to_all
from headrace.wire.exchange import Outlet
from tests.support.served_app import Served
from tests.support.transport_routes import Handlers

BIG = 24 << 20  # more than any kernel takes for a client
REQUEST = b"GET /stream HTTP/1.%d\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def opened(
    served: Served, handlers: Handlers, clients: ExitStack, minor: int = 1
) -> tuple[socket.socket, Outlet]:
    """A client's socket, and the stream that it has asked for."""
    count = len(handlers.outlets)
    client = clients.enter_context(served.connect())
    client.sendall(REQUEST % minor)
    served.wait(lambda: len(handlers.outlets) > count)
    received(client, b"first\n\r\n" if minor else b"first\n")
    return client, handlers.outlets[count]


def received(client: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = client.recv(65_536)
        assert piece, data
        data += piece
    return data


def test_every_client_gets_a_chunk(served: Served, handlers: Handlers, clients: ExitStack) -> None:
    pairs = [opened(served, handlers, clients) for _ in range(DIRECT_MIN + 1)]
    outlets = [outlet for _, outlet in pairs]
    assert served.call(lambda: min(outlet.descriptor for outlet in outlets)) >= 0
    served.call(lambda: write_to_all(outlets, b"one"))
    served.call(lambda: write_to_all(outlets, b"two"))
    for client, _ in pairs:
        assert received(client, b"two\r\n") == b"3\r\none\r\n3\r\ntwo\r\n"


def test_what_is_unsent_goes_first(served: Served, handlers: Handlers, clients: ExitStack) -> None:
    pairs = [opened(served, handlers, clients) for _ in range(DIRECT_MIN + 1)]
    outlets = [outlet for _, outlet in pairs]
    client, slow = pairs[3]
    served.call(lambda: slow.write(b"x" * BIG))
    assert served.call(lambda: slow.descriptor) == -1
    served.call(lambda: write_to_all(outlets, b"end"))
    assert len(received(client, b"3\r\nend\r\n")) > BIG
    for other, outlet in pairs:
        if outlet is not slow:
            assert received(other, b"end\r\n") == b"3\r\nend\r\n"
    assert served.call(lambda: slow.descriptor) >= 0, "and then again"


def test_one_that_closes_is_not_written_to(
    served: Served, handlers: Handlers, clients: ExitStack
) -> None:
    """Its descriptor may be another connection's by now."""
    _, outlet = opened(served, handlers, clients)

    def closing() -> int:
        transport = outlet._connection.transport  # type: ignore[attr-defined]
        assert outlet.descriptor == transport.get_extra_info("socket").fileno()
        transport.abort()
        return outlet.descriptor

    assert served.call(closing) == -1


def test_one_that_ended_is_not_written_to(
    served: Served, handlers: Handlers, clients: ExitStack
) -> None:
    client, outlet = opened(served, handlers, clients)
    served.call(outlet.close)
    assert served.call(lambda: outlet.descriptor) == -1
    assert received(client, b"\r\n\r\n") == b"0\r\n\r\n"


def test_a_stream_without_chunks_is_written_through_its_transport(
    served: Served, handlers: Handlers, clients: ExitStack
) -> None:
    """HTTP/1.0: others of its kind have chunks, and what is framed for them is not for it."""
    _, outlet = opened(served, handlers, clients, minor=0)
    assert served.call(lambda: outlet.descriptor) == -1
