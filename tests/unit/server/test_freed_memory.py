"""When the heap is trimmed, and which bodies count towards it."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.core.settings import Settings
from headrace.server.app import App
from headrace.server.freed_memory import (
    LET_GO_BYTES_MIN,
    REST_BYTES_MAX,
    FreedMemory,
    trim_heap,
)
from headrace.server.transport_exchange import FREE_BODY_BYTES
from headrace.wire.exchange import Exchange
from headrace.wire.routes import READ, WRITE, Route
from tests.support.http2_client import Client
from tests.support.served_app import Served, read_response

BODY = b"x" * 1_000_000


class Trims:
    """A heap that counts how often it was trimmed, and bodies that arrive and are let go."""

    def __init__(self) -> None:
        self.count = self._arrived = self._held = 0
        self._freed = FreedMemory(self._trim)

    def _trim(self) -> None:
        self.count += 1

    def second(self, arrived: int = 0, held: int = 0) -> int:
        """Let bytes arrive, all of which are let go but `held`; how often it was trimmed so far."""
        self._arrived += arrived
        self._freed.look(self._arrived, held)
        return self.count


FAULTS = """
import resource
from headrace.server.freed_memory import _malloc_trim, keep_freed_blocks

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        bytes(b"x") * (1 << 20), bytes(b"y") * (1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

cold = faults()
keep_freed_blocks()
faults()
print(cold, faults(), _malloc_trim is not None)
"""


def test_blocks_that_were_let_go_are_used_again_and_not_asked_for_anew() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, timeout=60
    )
    cold, kept, glibc = done.stdout.split()
    if glibc == "True":
        assert int(kept) < int(cold) // 10, done.stdout


def test_it_waits_for_the_end_of_a_rush() -> None:
    heap = Trims()
    assert [heap.second(LET_GO_BYTES_MIN) for _ in range(10)] == [0] * 10
    assert [heap.second(1_000) for _ in range(3)] == [1, 1, 1]


def test_little_is_not_worth_it_until_it_is_much() -> None:
    heap = Trims()
    seconds = LET_GO_BYTES_MIN // REST_BYTES_MAX
    assert [heap.second(REST_BYTES_MAX) for _ in range(seconds)] == [0] * (seconds - 1) + [1]
    assert heap.second(REST_BYTES_MAX) == 1


def test_a_body_that_was_in_use_at_a_trim_is_given_back_by_the_next() -> None:
    heap = Trims()
    heap.second(2 * LET_GO_BYTES_MIN, held=LET_GO_BYTES_MIN)
    assert [heap.second(held=LET_GO_BYTES_MIN) for _ in range(2)] == [1, 1]
    assert heap.second() == 2


def test_what_arrives_slowly_does_not_put_it_off() -> None:
    heap = Trims()
    heap.second(2 * LET_GO_BYTES_MIN, held=LET_GO_BYTES_MIN)
    assert heap.second(REST_BYTES_MAX, held=LET_GO_BYTES_MIN + REST_BYTES_MAX) == 1


def test_the_real_one_returns() -> None:
    trim_heap()


def answer(exchange: Exchange) -> None:
    exchange.answer(200, b"{}")


def take(exchange: Exchange) -> None:
    def piece(data: bytes) -> None:
        if not data:
            exchange.answer(200, b"{}")

    exchange.on_body = piece


ROUTES = [
    Route("POST", "/whole", answer, frozenset({WRITE})),
    Route("POST", "/pieces", take, frozenset({READ}), streamed=True),
]


@pytest.fixture
def server() -> Iterator[Served]:
    with Served(Settings(), ROUTES) as served:
        yield served


def arrived(app: App) -> int:
    return app.budget.taken + app.passing_bytes


@pytest.mark.parametrize("path", ["/whole", "/pieces"])
@pytest.mark.parametrize("protocol", ["h1", "h2"])
def test_bodies_count(server: Served, protocol: str, path: str) -> None:
    post(server, protocol, path, BODY)
    # The beginning of a body is free, and however much of it comes with the head.
    assert len(BODY) - FREE_BODY_BYTES <= arrived(server.app) <= len(BODY)


@pytest.mark.parametrize("protocol", ["h1", "h2"])
def test_what_is_unpacked_counts(server: Served, protocol: str) -> None:
    post(server, protocol, "/whole", gzip.compress(BODY, 1), (b"content-encoding", b"gzip"))
    assert len(BODY) - FREE_BODY_BYTES <= arrived(server.app) <= len(BODY) * 1.1


def post(
    server: Served, protocol: str, path: str, body: bytes, *headers: tuple[bytes, bytes]
) -> None:
    if protocol == "h2":
        with Client(server) as client:
            assert client.post(path.encode(), body, headers).status == 200
        return
    with server.connect() as sock:
        more = b"".join(b"%b: %b\r\n" % header for header in headers)
        head = b"POST %b HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n"
        sock.sendall(head % (path.encode(), more, len(body)) + body)
        assert read_response(sock)[0] == 200
