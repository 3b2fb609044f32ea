"""A server is killed and started again, and goes on where it was (durable_streams)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.core.clock import ManualClock
from tests.support.subscribed_servers import ROOT, SUBSCRIPTIONS, SubscribedServer

StartServer = Callable[..., SubscribedServer]


def test_a_restart_goes_on_where_it_was(start: StartServer) -> None:
    server = start()
    server.subscribe("s", pattern="events/*", description="kept")
    tail = server.append("events/a")
    server.answer(server.the_post(), 200, b'{"done":true}')
    record = server.record("s")
    keys = server.call("GET", ROOT + "__ds/jwks.json").reply
    server = start()
    assert server.record("s") == record
    assert server.cursors("s") == {"events/a": tail}
    assert server.call("GET", ROOT + "__ds/jwks.json").reply == keys
    assert not server.posts.open
    server.append("events/a")
    assert server.the_post().json["generation"] == 2


def test_a_restart_sends_what_was_not_answered(start: StartServer) -> None:
    server = start()
    server.subscribe("s", pattern="*")
    server.append("a")
    first = server.the_post().json
    server = start()
    second = server.the_post()
    assert second.json == first
    server.answer(second, 200, b'{"done":true}')
    assert not start().posts.open


def test_a_restart_keeps_the_schedule_of_retries(start: StartServer) -> None:
    server = start()
    server.subscribe("s", pattern="*")
    server.append("a")
    server.answer(server.the_post(), 500)
    server.wait(1_300)
    server.answer(server.the_post(), 500)
    server = start()
    assert server.record("s")["status"] == "failed"
    assert not server.posts.open
    server.wait(1_500)
    assert not server.posts.open
    server.wait(1_000)
    server.answer(server.the_post(), 500)
    server.wait(3_000)
    assert not server.posts.open, "the third pause is of four seconds"


def test_a_restart_keeps_leases_and_tokens(start: StartServer) -> None:
    server = start()
    server.subscribe("p", pattern="*", wake_stream="w/x", lease_ttl_ms=10_000)
    tail = server.append("a")
    claimed = server.claim("p").json
    server = start()
    assert server.claim("p", "w2").code == "ALREADY_CLAIMED"
    server.wait(5_000)
    acks = [{"stream": "a", "offset": tail}]
    assert server.report("p", "ack", claimed, acks=acks).status == 200
    server = start()
    server.wait(10_000)
    assert server.report("p", "ack", claimed).code == "FENCED"
    assert server.cursors("p") == {"a": tail}


def test_a_restart_ends_what_ran_out_meanwhile(start: StartServer, clock: ManualClock) -> None:
    server = start()
    server.subscribe("p", pattern="*", wake_stream="w/x", lease_ttl_ms=10_000)
    server.append("a")
    claimed = server.claim("p").json
    server.engine.abandon()
    clock.advance(10_000)
    server = start()
    assert server.report("p", "ack", claimed).code == "FENCED"
    assert server.claim("p", "w2").json["generation"] == claimed["generation"] + 1


def test_a_deleted_subscription_stays_deleted(start: StartServer) -> None:
    server = start()
    server.subscribe("s", pattern="*")
    server.call("DELETE", SUBSCRIPTIONS + "s")
    server = start()
    assert server.call("GET", SUBSCRIPTIONS + "s").code == "SUBSCRIPTION_NOT_FOUND"
    assert server.engine.read("_subscriptions").result().records == []


def test_streams_that_came_and_went_while_nobody_looked(start: StartServer) -> None:
    """What is not written down follows from the streams themselves."""
    server = start()
    server.subscribe("s", pattern="events/*", streams=["manual"])
    for path in ("events/a", "events/b", "manual"):
        server.append(path)
    server.be_done()
    b = server.cursors("s")["events/b"]
    other = start(loads=False)
    for path in ("events/a", "manual"):
        other.engine.streams.delete(f"ds:{path}").result()
    other.call("PUT", ROOT + "manual", ["new"])
    other.call("PUT", ROOT + "events/c", ["new"])
    server = start()
    assert server.cursors("s") == {"manual": "-1", "events/b": b, "events/c": "-1"}
    assert {s["path"] for s in server.the_post().json["streams"] if s["has_pending"]} == {
        "manual",
        "events/c",
    }


def test_what_is_kept_does_not_grow_without_a_bound(start: StartServer) -> None:
    server = start()
    server.subscribe("s", pattern="*")
    for _ in range(300):
        server.append("a")
        server.answer(server.the_post(), 200, b'{"done":true}')
    tail = server.cursors("s")
    page = server.engine.read("_subscriptions", limit=1_000).result()
    assert sum(len(record.data) for record in page.records) < 40 << 10
    generation = 300
    server = start()
    assert server.cursors("s") == tail
    server.append("a")
    assert server.the_post().json["generation"] == generation + 1


def test_a_large_subscription_is_kept_in_portions(start: StartServer) -> None:
    server = start()
    streams = [f"many/{number}" for number in range(900)]
    server.subscribe("s", streams=streams)
    more = [f"more/{number}" for number in range(900)]
    server.call("POST", SUBSCRIPTIONS + "s/streams", {"streams": more})
    server = start()
    assert len(server.cursors("s")) == 1_800


def test_bounds_are_refused_by_name(start: StartServer) -> None:
    server = start(subscription_bytes_max=2_048, subscriptions_bytes_max=3_072)
    assert server.subscribe("s", streams=[f"a/{n}" for n in range(9)]).status == 400
    assert server.subscribe("s", streams=["a/1", "a/2", "a/3"]).status == 201
    add = {"streams": [f"b/{n}" for n in range(9)]}
    assert server.call("POST", SUBSCRIPTIONS + "s/streams", add).status == 400
    assert server.subscribe("t", streams=["a/1", "a/2", "a/3"]).status == 201
    assert server.subscribe("u", streams=["a/1", "a/2", "a/3"]).status == 429


def test_a_stream_too_many_is_created_and_not_linked(
    start: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(subscription_bytes_max=2_048)
    server.subscribe("s", pattern="a/*")
    for number in range(12):
        server.append(f"a/{number}")
    assert 1 <= len(server.cursors("s")) < 12
    assert caplog.text.count("is not linked to every stream") == 1
