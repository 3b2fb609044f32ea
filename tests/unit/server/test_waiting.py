"""Requests that wait for topics of class `memory` (rule F0b, native §10a): which, and how long."""

from __future__ import annotations

import pytest

from headrace.cli.compose import compose
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import NotReady
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.topics.loading import LoadingTopics
from headrace.server.auth import KeyRing
from headrace.server.waiting import WaitingRequests
from headrace.testing.simdisk import SimDisk
from headrace.wire.dialect import Dialect
from headrace.wire.exchange import Exchange
from headrace.wire.request_memory import Budget
from headrace.wire.routes import Route


class Asked(Exchange):
    """A request that notes what it was told."""

    told: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.told = error


def about(name: str | None, *, probe: bool = False) -> Asked:
    """A request about a topic, or about none."""
    exchange = Asked("GET", "/", "", {}, 0)
    exchange.route = Route(
        "GET", "/{topic}", lambda _: None, name_param=name is not None, unready=probe,
        dialect=Dialect(),
    )  # fmt: skip
    exchange.params = [name] if name is not None else []
    return exchange


class Served:
    """What waits for an engine, and what was run of it."""

    def __init__(self, **settings: int) -> None:
        self.loading = LoadingTopics()
        self.ran: list[Exchange] = []
        made = Settings(**settings)  # type: ignore[arg-type]
        self.waiting = WaitingRequests(made, Budget(1 << 20), self.loading, self.ran.append)

    def waits(self, exchange: Exchange) -> bool:
        assert exchange.route is not None
        return self.waiting.wanted_by(exchange, exchange.route)


def test_f0b_only_what_needs_them_waits() -> None:
    """Before the engine is ready all but probes; then those about a topic that is not back."""
    served = Served()
    cache, orders, every, probe = *map(about, ("cache", "orders", None)), about(None, probe=True)
    assert [served.waits(e) for e in (cache, orders, every, probe)] == [True, True, True, False]
    for exchange in (cache, orders, every):
        served.waiting.park(exchange, 0)
    served.loading.begin(["cache", "other"], lambda: 0.5)
    served.waiting.go_live()
    assert served.ran == [orders]
    assert [served.waits(e) for e in (cache, orders, every, probe)] == [True, False, True, False]
    served.loading.end("other")
    assert served.ran == [orders]
    served.loading.end("cache")
    assert served.ran == [orders, cache, every] and not len(served.waiting)
    assert not any(served.waits(e) for e in (cache, orders, every, probe))


def test_f0b_the_wait_is_bounded_and_says_how_far_it_is() -> None:
    """In time, in number, and not for what will not come."""
    served = Served(parked_ms_max=100, parked_requests_max=1)
    served.loading.begin(["cache"], lambda: 0.25)
    served.waiting.go_live()
    cache = about("cache")
    served.waiting.park(cache, 0)
    with pytest.raises(NotReady, match="topics of class memory"):
        served.waiting.park(about(None), 0)
    served.waiting.refuse_late(99)
    assert cache.told is None
    served.waiting.refuse_late(100)
    assert isinstance(cache.told, NotReady) and cache.told.detail["topic"] == "cache"
    assert cache.told.detail["replay_progress"] == 0.25 and cache.told.detail["retry_after_s"] == 1
    served.loading.fail("the disk is broken")
    with pytest.raises(NotReady) as caught:
        served.waiting.park(about("cache"), 0)
    assert caught.value.detail["reason"] == "recovery_failed"


def test_f0b_a_server_waits_for_the_topics_of_its_engine() -> None:
    """The application asks the very engine it serves, also when nothing is missing yet."""
    engine = Engine(SimDisk(), StepRuntime(ManualClock()), random=SeededRandom(1))
    server = compose(engine.settings, engine, KeyRing.parse(""))
    engine.recover()
    server.app.go_live()
    engine.loading.begin(["cache"], lambda: 0.5)
    cache = about("cache")
    assert cache.route is not None and server.app.waiting.wanted_by(cache, cache.route)
    engine.abandon()
