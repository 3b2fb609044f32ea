"""Writing the same bytes to many connections: what the kernel takes, and what it does not."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from headrace.server.fan_out import DIRECT_MIN, write_to_all
from headrace.wire.exchange import Outlet

SMALL_BYTES = 4_096


class SocketOutlet(Outlet):
    """A stream on one end of a pair of sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = socket.socketpair()
        for end in (self.near, self.far):
            end.setblocking(False)
        self.direct = True
        self.rest: list[bytes] = []  # what went through the transport

    @property
    def descriptor(self) -> int:
        return self.near.fileno() if self.direct and not self.rest else -1

    def framed(self, data: bytes) -> bytes:
        return b"<%b>" % data

    def write(self, data: bytes) -> None:
        self.write_framed(self.framed(data))

    def write_framed(self, framed: bytes) -> None:
        self.rest.append(framed)

    def received(self) -> bytes:
        """What came through the socket."""
        try:
            return self.far.recv(1 << 20)
        except BlockingIOError:
            return b""

    def shut(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture
def outlets() -> Iterator[list[SocketOutlet]]:
    """More than enough to be written to directly."""
    made = [SocketOutlet() for _ in range(3 * DIRECT_MIN)]
    yield made
    for outlet in made:
        outlet.shut()


def test_everybody_gets_all_of_it_in_order(outlets: list[SocketOutlet]) -> None:
    for number in range(50):
        write_to_all(outlets, b"%d" % number)
    expected = b"".join(b"<%d>" % number for number in range(50))
    assert [outlet.received() for outlet in outlets] == [expected] * len(outlets)
    assert not any(outlet.rest for outlet in outlets)


def test_a_few_are_written_through_their_transports(outlets: list[SocketOutlet]) -> None:
    few = outlets[: DIRECT_MIN - 1]
    write_to_all(few, b"data")
    assert [outlet.rest for outlet in few] == [[b"<data>"]] * len(few)
    assert not any(outlet.received() for outlet in few)


def test_who_cannot_be_written_to_directly_gets_it_through_the_transport(
    outlets: list[SocketOutlet],
) -> None:
    """One with unsent bytes, one that closes, one that is encrypted: or all are of that kind."""
    held = outlets[3], outlets[5]
    for outlet in held:
        outlet.direct = False
    write_to_all(outlets, b"data")
    for outlet in outlets:
        assert outlet.rest == ([b"<data>"] if outlet in held else [])
        assert outlet.received() == (b"" if outlet in held else b"<data>")
        outlet.direct = False
    write_to_all(outlets, b"more")
    assert all(outlet.rest[-1] == b"<more>" for outlet in outlets)


def test_what_the_kernel_does_not_take_goes_on_through_the_transport(
    outlets: list[SocketOutlet],
) -> None:
    """A part of it, nothing of it, or an error, which the transport finds for itself."""
    slow, left = outlets[4], outlets[7]
    slow.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BYTES)
    left.far.close()
    data = b"x" * 100_000
    write_to_all(outlets, data)
    write_to_all(outlets, b"more")
    taken = slow.received()
    assert 0 < len(taken) < len(data)
    assert taken + b"".join(slow.rest) == b"<%b><more>" % data
    assert left.rest == [b"<%b>" % data, b"<more>"]
    for outlet in outlets:
        if outlet not in (slow, left):
            received = outlet.received() + b"".join(outlet.rest)
            assert received == b"<%b><more>" % data


def test_streams_of_tests_are_written_one_by_one() -> None:
    class Plain(Outlet):
        def __init__(self) -> None:
            super().__init__()
            self.data = b""

        def write(self, data: bytes) -> None:
            self.data += data

    plain = [Plain() for _ in range(DIRECT_MIN)]
    write_to_all(plain, b"data")
    assert {outlet.data for outlet in plain} == {b"data"}
