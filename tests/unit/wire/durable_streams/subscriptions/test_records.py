"""Records of subscriptions: drafts count when they are whole, old ones go (durable_streams)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from headrace.testing.simdisk import SimDisk
from tests.support.subscribed_servers import SUBSCRIPTIONS, SubscribedServer

StartServer = Callable[..., SubscribedServer]
CREATED = {
    "event": "created",
    "config": {"type": "pull-wake", "pattern": "other/*", "wake_stream": "w"},
    "life": "1f",
    "created_ms": 1,
    "origin": "",
}


def write(server: SubscribedServer, id: str, *events: dict[str, object], draft: bool) -> None:
    payload = json.dumps({"events": events, "draft": draft}).encode()
    server.engine.append("_subscriptions", Batch([payload], tags=[id])).result()


def test_a_draft_without_its_end_does_not_count(start: StartServer) -> None:
    """A crash came while a subscription was created, or written anew."""
    server = start()
    server.subscribe("s", pattern="*")
    tail = server.append("a")
    server.be_done()
    write(server, "s", CREATED, draft=True)
    write(server, "s", {"event": "linked", "links": [["b", 1, "-1"]]}, draft=True)
    write(server, "t", CREATED, draft=True)
    server = start()
    assert server.cursors("s") == {"a": tail}
    assert server.call("GET", SUBSCRIPTIONS + "t").status == 404
    # What happens afterwards is of the whole one.
    tail = server.append("a")
    server.be_done()
    assert start().cursors("s") == {"a": tail}


def test_a_whole_draft_takes_the_place_of_what_was_before(start: StartServer) -> None:
    """A crash came before the older records were deleted."""
    server = start()
    server.subscribe("s", pattern="*")
    server.append("a")
    server.be_done()
    write(server, "s", CREATED, draft=True)
    write(server, "s", {"event": "standing", "generation": 9}, draft=True)
    assert start().record("s")["pattern"] == "other/*"


def test_a_delete_that_was_cut_short_is_finished(start: StartServer) -> None:
    server = start()
    server.subscribe("s", pattern="*")
    server.subscribe("t", pattern="*")
    write(server, "s", {"event": "deleted"}, draft=False)
    server = start()
    assert server.call("GET", SUBSCRIPTIONS + "s").status == 404
    tags = {record.tag for record in server.engine.read("_subscriptions").result().records}
    assert tags == {"t"}


@pytest.mark.parametrize(
    "event",
    [
        {"event": "of a later version"},
        {"event": "linked", "links": [["b", 1, "no cursor"]]},
        {"event": "woken"},
    ],
)
def test_what_cannot_be_read_is_refused_and_not_guessed(
    start: StartServer, event: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    server = start()
    server.subscribe("s", pattern="*")
    write(server, "s", event, draft=False)
    server = start()
    assert server.call("GET", SUBSCRIPTIONS + "s").status >= 400
    assert "the subscriptions cannot be read" in caplog.text
    assert "cannot be read" in server.context.problems()["subscriptions"]
    # Streams are served all the same.
    server.append("a")


def test_events_are_summed_up_and_older_records_deleted(start: StartServer) -> None:
    server = start()
    server.subscribe("s", pattern="*")
    for _ in range(120):
        server.append("a")
        server.be_done()
    before = server.engine.find("_subscriptions")
    assert before is not None
    head = before.head
    page = server.engine.read("_subscriptions", limit=1_000).result()
    assert len(page.records) < head / 2, "most records are gone"
    cursors = server.cursors("s")
    server = start()
    assert server.cursors("s") == cursors


def test_a_tick_during_recovery_costs_no_subscription(
    start: StartServer, clock: ManualClock, disk: SimDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be read before the engine is ready; that is no damage, and is tried again."""
    server = start()
    server.subscribe("s", pattern="*")
    server.append("a")
    server.engine.abandon()
    engine = Engine(disk, StepRuntime(clock), server.engine.settings, random=SeededRandom(1))
    server = SubscribedServer(engine, clock)
    known: list[bool] = []

    def tick(_part: float) -> None:
        known.append(engine.find("_subscriptions") is not None)
        server.wait(0)

    engine.recover(tick)
    assert any(known), "no tick came late enough"
    assert "cannot be read" not in caplog.text
    assert not server.context.problems()
    server.wait(0)
    assert server.the_post().json["subscription_id"] == "s"
    engine.abandon()
