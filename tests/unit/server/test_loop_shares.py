"""Connections that have more to do than one request take turns: nobody waits for all of it."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.cli.compose import compose
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.metrics.requests import Metrics
from headrace.server.access import AccessControl
from headrace.server.app import App
from headrace.server.auth import KeyRing
from headrace.server.http1.connection import Http1Connection
from headrace.server.http1.heads import KnownHeads
from headrace.server.http2.connection import PREFACE
from headrace.server.loop_shares import SLICE_NS_MAX
from headrace.testing.simdisk import SimDisk
from headrace.wire.exchange import Exchange
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.routes import READ, Route, RouteTable
from tests.support.hostile_http2 import END_HEADERS, END_STREAM, HEADERS, SETTINGS, head_block
from tests.support.http2_client import frame
from tests.support.memory_transport import MemoryTransport

REQUESTS = 8
REQUEST_NS = SLICE_NS_MAX * 3 // 5  # two of them are more than a slice


class FineClock(ManualClock):
    """A clock that can be moved by less than a millisecond."""

    passed_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.passed_ns


class Place:
    """A server without sockets, whose requests take a while each."""

    def __init__(self) -> None:
        self.clock = FineClock()
        self.runtime = StepRuntime(self.clock)
        routes = [Route("GET", "/work", self.work, scopes=READ)]
        settings = Settings()
        access = AccessControl(settings, KeyRing.parse(""))
        table = RouteTable([NativeDialect(routes)])
        self.app = App(settings, table, access, self.runtime, Metrics())
        self.app.go_live()
        self.worked: list[str] = []

    def work(self, exchange: Exchange) -> None:
        self.worked.append(exchange.query)
        self.clock.passed_ns += REQUEST_NS
        exchange.answer(200, exchange.query.encode(), b"text/plain")

    def connect(self) -> MemoryTransport:
        transport = MemoryTransport()
        transport.protocol = Http1Connection(self.app, KnownHeads())
        transport.protocol.connection_made(transport)
        return transport


def http1(names: list[str]) -> bytes:
    return b"".join(b"GET /work?%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % n.encode() for n in names)


def http2(names: list[str]) -> bytes:
    head = END_HEADERS | END_STREAM
    blocks = [head_block(b"/work?" + name.encode()) for name in names]
    sent = [frame(HEADERS, head, 2 * n + 1, block) for n, block in enumerate(blocks)]
    return b"".join([PREFACE, frame(SETTINGS, 0, 0), *sent])


@pytest.mark.parametrize("speak", [http1, http2])
def test_what_comes_meanwhile_is_served_before_the_rest_of_a_burst(speak: object) -> None:
    assert callable(speak)
    place = Place()
    greedy, modest = place.connect(), place.connect()
    names = [f"greedy{n}" for n in range(REQUESTS)]
    greedy.protocol.data_received(speak(names))
    assert place.worked == names[:2]
    modest.protocol.data_received(http1(["modest"]))
    place.runtime.run()
    assert place.worked == [*names[:2], "modest", *names[2:]]
    answered = [bytes(greedy.sent).find(name.encode()) for name in names]
    assert answered == sorted(answered) and answered[0] > 0


@pytest.mark.parametrize("speak", [http1, http2])
def test_those_that_are_behind_share_a_slice(speak: object) -> None:
    assert callable(speak)
    place = Place()
    for number in range(10):
        place.connect().protocol.data_received(speak([f"{number}"] * REQUESTS))
    # The first has a slice for itself, the next one half of it: one request is more.
    assert place.worked == ["0", *map(str, range(10))]
    place.worked.clear()
    place.runtime.step()  # a turn gives those that are behind a slice, and not one to each
    assert place.worked == ["0", "1"]
    place.runtime.run()
    assert place.worked[:10] == [*map(str, range(10))]
    left = {f"{n}": REQUESTS - (2 if n == 0 else 1) for n in range(10)}
    assert Counter(place.worked) == left
    assert place.app.shares.slice_ns == SLICE_NS_MAX


def test_a_request_that_comes_alone_is_served_at_once_however_long_ago_the_last_one_was() -> None:
    place = Place()
    transport = place.connect()
    for number in range(REQUESTS):  # from the second on, the head is known
        transport.protocol.data_received(http1(["same"]))
        assert len(place.worked) == number + 1
        place.clock.advance(1_000)


def test_a_read_has_one_slice_whether_its_heads_are_known_or_not() -> None:
    place = Place()
    transport = place.connect()
    for _ in range(2):
        transport.protocol.data_received(http1(["known"]))
    place.worked.clear()
    names = ["known", "known", *(f"new{n}" for n in range(REQUESTS))]
    transport.protocol.data_received(http1(names))
    assert place.worked == names[:2]
    place.runtime.run()
    assert place.worked == names


@pytest.mark.parametrize("speak", [http1, http2])
def test_one_that_leaves_while_it_is_behind_is_not_counted_any_more(speak: object) -> None:
    assert callable(speak)
    place = Place()
    transport = place.connect()
    transport.protocol.data_received(speak([f"{n}" for n in range(REQUESTS)]))
    assert place.app.shares.slice_ns < SLICE_NS_MAX
    assert place.app.shares.waiting_requests() > 0
    transport.protocol.connection_lost(None)
    place.runtime.run()
    assert place.worked == ["0", "1"]
    assert place.app.shares.slice_ns == SLICE_NS_MAX
    assert place.app.shares.waiting_requests() == 0


def test_requests_of_those_that_are_behind_are_counted() -> None:
    place = Place()
    shares = place.app.shares
    first, second = place.connect(), place.connect()
    first.protocol.data_received(http1(["first"] * REQUESTS))
    assert shares.waiting_requests() == REQUESTS - 2
    first.protocol.data_received(http1(["first"]))
    assert shares.waiting_requests() == REQUESTS - 1, "what has arrived since waits, too"
    second.protocol.data_received(http1(["second"] * REQUESTS))
    assert shares.waiting_requests() == 2 * REQUESTS - 2
    # Of frames that were not looked at yet nobody knows how many requests they are.
    place.connect().protocol.data_received(http2(["third"] * REQUESTS))
    assert shares.waiting_requests() == 2 * REQUESTS - 1
    place.runtime.run()
    assert shares.waiting_requests() == 0


def test_g5_the_governor_of_a_server_counts_those_that_are_behind() -> None:
    """However little of a flood comes into one turn, the governor sees all of it."""
    engine = Engine(SimDisk(), StepRuntime(ManualClock()), random=SeededRandom(1))
    server = compose(engine.settings, engine, KeyRing.parse(""))
    assert engine.throttle.waiting_requests() == 0
    server.app.shares.go_on_later(lambda: None, lambda: REQUESTS)
    assert engine.throttle.waiting_requests() == REQUESTS
    engine.abandon()
