"""Who is woken, by whom a wake is ended, and how far a subscription then is (durable_streams)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.subscribed_servers import ROOT, SUBSCRIPTIONS, SubscribedServer


def test_a_new_stream_of_a_pattern_is_linked_before_its_first_data(
    server: SubscribedServer,
) -> None:
    assert server.subscribe("s", pattern="events/*").status == 201
    tail = server.append("events/a")
    post = server.the_post()
    assert post.json["streams"] == [
        {
            "path": "events/a",
            "link_type": "glob",
            "acked_offset": "-1",
            "tail_offset": tail,
            "has_pending": True,
        }
    ]
    assert server.cursors("s") == {"events/a": "-1"}


def test_a_stream_that_is_there_is_linked_at_its_tail(server: SubscribedServer) -> None:
    tail = server.append("events/a")
    other = server.append("other/a")
    server.subscribe("s", pattern="events/*", streams=["other/a", "not/yet"])
    assert server.cursors("s") == {"other/a": other, "not/yet": "-1", "events/a": tail}
    assert not server.posts.open
    server.append("not/yet")
    streams = server.the_post().json["streams"]
    pending = {stream["path"]: stream["has_pending"] for stream in streams}
    assert pending == {"not/yet": True, "other/a": False, "events/a": False}


def test_an_empty_stream_is_linked_and_wakes_nobody(server: SubscribedServer) -> None:
    server.subscribe("s", pattern="**")
    server.call("PUT", ROOT + "a/b", [])
    assert server.cursors("s") == {"a/b": "-1"}
    assert not server.posts.open


def test_done_at_once_acks_what_the_webhook_told_of(server: SubscribedServer) -> None:
    server.subscribe("s", pattern="*")
    told = server.append("a")
    post = server.the_post()
    later = server.append("a")
    server.answer(post, 200, b'{"done":true}')
    assert server.cursors("s") == {"a": told}
    second = server.the_post()
    assert second.json["generation"] == post.json["generation"] + 1
    assert second.json["wake_id"] != post.json["wake_id"]
    server.answer(second, 200, b'{"done":true}')
    assert server.cursors("s") == {"a": later}
    assert not server.posts.open


@pytest.mark.parametrize(
    ("body", "whole"),
    [(b"", True), (b'{"done":false}', True), (b'{"done":1}', True), (b"<html>", True),
     (b'{"done":true}', False), (b"\xff", True), (b"[]", True)],
)  # fmt: skip
def test_only_done_true_acks(server: SubscribedServer, body: bytes, whole: bool) -> None:
    server.subscribe("s", pattern="*")
    server.append("a")
    server.answer(server.the_post(), 200, body, whole=whole)
    assert server.cursors("s") == {"a": "-1"}
    assert server.record("s")["status"] == "active"


def test_a_callback_acks_ends_the_wake_and_is_fenced_when_it_comes_again(
    server: SubscribedServer,
) -> None:
    server.subscribe("s", pattern="*")
    tail = server.append("a")
    post = server.the_post()
    wake = post.json
    assert wake["callback_url"] == f"http://streams.example.com{SUBSCRIPTIONS}s/callback"
    acks = [{"stream": "a", "offset": tail}]
    # The receiver may call back before it has answered.
    answer = server.report("s", "callback", wake, acks=acks, done=True)
    assert (answer.status, answer.json) == (200, {"ok": True, "next_wake": False})
    assert server.cursors("s") == {"a": tail}
    server.answer(post, 500)
    assert server.record("s")["status"] == "active"
    again = server.report("s", "callback", wake, acks=acks, done=True)
    assert (again.status, again.code) == (409, "FENCED")


def test_a_callback_that_is_not_done_holds_the_lease(server: SubscribedServer) -> None:
    server.subscribe("s", pattern="*", lease_ttl_ms=10_000)
    server.append("a")
    post = server.the_post()
    server.answer(post, 202)
    for _ in range(3):
        server.wait(9_000)
        assert server.report("s", "callback", post.json).json == {"ok": True, "next_wake": False}
    server.wait(10_000)
    assert server.report("s", "callback", post.json).code == "FENCED"
    assert server.the_post().json["generation"] == post.json["generation"] + 1


def test_a_webhook_that_fails_is_sent_again_with_growing_pauses(server: SubscribedServer) -> None:
    server.subscribe("s", pattern="*")
    server.append("a")
    first = server.the_post()
    server.answer(first, 503)
    assert server.record("s")["status"] == "failed"
    for pause_ms in (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000):
        server.wait(pause_ms * 8 // 10 - 1)
        assert not server.posts.open
        server.wait(pause_ms * 4 // 10 + 2)
        post = server.the_post()
        assert post.json["wake_id"] == first.json["wake_id"]
        assert post.json["callback_token"] == first.json["callback_token"]
        server.answer(post, 0, failure="connection refused")
    server.wait(80_000)
    server.answer(server.the_post(), 204)
    assert server.record("s")["status"] == "active"


def test_a_redirect_is_no_success(server: SubscribedServer) -> None:
    server.subscribe("s", pattern="*")
    server.append("a")
    server.answer(server.the_post(), 302, b'{"done":true}')
    assert server.record("s")["status"] == "failed"
    assert server.cursors("s") == {"a": "-1"}


def test_pull_wake_claim_ack_and_release(server: SubscribedServer) -> None:
    server.call("PUT", ROOT + "wake/pool", [])
    server.subscribe("p", pattern="events/*", wake_stream="wake/pool", lease_ttl_ms=1_000)
    assert server.claim("p").code == "NO_PENDING_WORK"
    tail = server.append("events/a")
    assert [
        (event["type"], event["subscription_id"], event["stream"], event["generation"])
        for event in server.events_of("wake/pool")
    ] == [("wake", "p", "events/a", 1)]
    claimed = server.claim("p").json
    assert (claimed["generation"], claimed["lease_ttl_ms"]) == (1, 1_000)
    assert [stream["tail_offset"] for stream in claimed["streams"]] == [tail]
    busy = server.claim("p", "w2")
    assert (busy.status, busy.code) == (409, "ALREADY_CLAIMED")
    assert busy.json["error"]["current_holder"] == "w1"
    assert busy.json["error"]["generation"] == 1
    acks = [{"stream": "events/a", "offset": tail}]
    answer = server.report("p", "ack", claimed, acks=acks, done=True)
    assert answer.json == {"ok": True, "next_wake": False}
    assert server.report("p", "ack", claimed, acks=acks).code == "FENCED"
    server.append("events/a")
    claimed = server.claim("p", "w2").json
    assert server.report("p", "release", claimed).status == 204
    # What was given back is still to be done.
    assert [event["generation"] for event in server.events_of("wake/pool")] == [1, 2, 3]
    assert server.report("p", "release", claimed).code == "FENCED"


def test_a_claim_does_not_wait_for_the_wake_event(server: SubscribedServer) -> None:
    server.subscribe("p", pattern="events/*", wake_stream="wake/pool")
    exchange = server.begin("PUT", ROOT + "events/a", ["x"])
    while not exchange.answered:
        assert server.runtime.step()
    # Nothing has been told of the append yet, and the wake stream does not even exist.
    assert server.claim("p").status == 200


def test_a_wake_event_is_written_once_its_stream_is_there(server: SubscribedServer) -> None:
    server.subscribe("p", pattern="events/*", wake_stream="wake/pool")
    server.append("events/a")
    assert server.record("p")["status"] == "failed"
    server.call("PUT", ROOT + "wake/pool", [])
    server.wait(1_300)
    assert [event["generation"] for event in server.events_of("wake/pool")] == [1]
    assert server.record("p")["status"] == "active"


def test_the_wake_stream_never_wakes_its_own_subscription(server: SubscribedServer) -> None:
    server.call("PUT", ROOT + "wake", [])
    server.subscribe("p", pattern="**", wake_stream="wake")
    server.append("a")
    claimed = server.claim("p").json
    acks = [{"stream": "a", "offset": claimed["streams"][0]["tail_offset"]}]
    answer = server.report("p", "ack", claimed, acks=acks, done=True)
    assert answer.json["next_wake"] is False
    assert list(server.cursors("p")) == ["a"]
    refused = server.call("POST", SUBSCRIPTIONS + "p/streams", {"streams": ["wake"]})
    assert refused.code == "INVALID_REQUEST"


def test_a_lease_that_runs_out_frees_the_wake(server: SubscribedServer) -> None:
    server.call("PUT", ROOT + "wake", [])
    server.subscribe("p", streams=["a"], wake_stream="wake", lease_ttl_ms=5_000)
    tail = server.append("a")
    claimed = server.claim("p").json
    server.wait(4_000)
    assert server.report("p", "ack", claimed).status == 200
    server.wait(4_999)
    assert server.claim("p", "w2").code == "ALREADY_CLAIMED"
    server.wait(1)
    late = server.report("p", "ack", claimed, acks=[{"stream": "a", "offset": tail}])
    assert late.code == "FENCED" and server.cursors("p") != {"a": tail}
    assert server.claim("p", "w2").json["generation"] == claimed["generation"] + 1


def test_acks_move_forward_up_to_the_tail_and_all_or_none(server: SubscribedServer) -> None:
    server.subscribe("p", pattern="*", wake_stream="w/x")
    first, tail = server.append("a"), server.append("a")
    other = server.append("b")
    claimed = server.claim("p").json

    def ack(*acks: tuple[str, str]) -> str:
        pairs = [{"stream": stream, "offset": offset} for stream, offset in acks]
        answer = server.report("p", "ack", claimed, acks=pairs)
        return "ok" if answer.status == 200 else f"{answer.status} {answer.code}"

    beyond = tail[:-1] + "9"
    assert ack(("a", tail), ("b", beyond)) == "409 INVALID_OFFSET"
    assert server.cursors("p") == {"a": "-1", "b": "-1"}
    assert ack(("a", first), ("b", other)) == "ok"
    assert ack(("a", first)) == "ok"
    assert ack(("a", tail)) == "ok"
    for bad in (("a", first), ("a", "-1"), ("a", "now"), ("a", "x"), ("c", tail), ("", tail)):
        assert ack(bad) == "409 INVALID_OFFSET", bad
    assert server.cursors("p") == {"a": tail, "b": other}


def test_a_token_of_another_subscription_or_none_is_refused(server: SubscribedServer) -> None:
    for id in ("p", "q"):
        server.subscribe(id, pattern="*", wake_stream="w/x")
    server.append("a")
    mine, other = server.claim("p").json, server.claim("q").json
    assert server.report("p", "ack", mine, token=other["token"]).status == 401
    assert server.report("p", "ack", mine, token="1.x").code == "TOKEN_INVALID"
    no_token = server.call("POST", SUBSCRIPTIONS + "p/ack", {"wake_id": mine["wake_id"]})
    assert (no_token.status, no_token.code) == (401, "TOKEN_INVALID")
    for field, value in (("generation", 2), ("wake_id", "w_1"), ("generation", None)):
        assert server.report("p", "ack", mine | {field: value}).code == "FENCED"


def test_a_deleted_subscription_takes_no_ack_even_when_it_is_made_again(
    server: SubscribedServer,
) -> None:
    server.subscribe("p", pattern="*", wake_stream="w/x")
    tail = server.append("a")
    claimed = server.claim("p").json
    assert server.call("DELETE", SUBSCRIPTIONS + "p").status == 204
    assert server.call("DELETE", SUBSCRIPTIONS + "p").status == 204
    acks = [{"stream": "a", "offset": tail}]
    assert server.report("p", "ack", claimed, acks=acks).code == "SUBSCRIPTION_NOT_FOUND"
    server.subscribe("p", streams=["b"], pattern="*", wake_stream="w/x")
    server.append("a")
    assert server.claim("p").json["generation"] == claimed["generation"]
    assert server.report("p", "ack", claimed, acks=acks).status == 401


def test_an_answer_to_a_deleted_subscription_changes_nothing(server: SubscribedServer) -> None:
    server.subscribe("s", pattern="*")
    server.append("a")
    post = server.the_post()
    server.call("DELETE", SUBSCRIPTIONS + "s")
    server.subscribe("s", pattern="*")
    before = server.cursors("s")
    server.answer(post, 200, b'{"done":true}')
    assert server.cursors("s") == before


def test_streams_that_come_and_go_are_not_counted_for_ever(
    start: Callable[..., SubscribedServer],
) -> None:
    """Empty streams wake nobody, so no event of the subscription corrected what was counted."""
    bound = 4 * 1024
    server = start(subscriptions_bytes_max=bound, subscription_bytes_max=bound)
    assert server.subscribe("s", pattern="events/*", wake_stream="w").status == 201
    for number in range(30):
        assert server.call("PUT", f"{ROOT}events/{number}", []).status == 201
        assert server.cursors("s") == {f"events/{number}": "-1"}
        assert server.call("DELETE", f"{ROOT}events/{number}").status == 204
    assert server.subscribe("other", pattern="others/*", wake_stream="w").status == 201


@pytest.mark.parametrize("path", ["logs/", "logs//a", "/logs", "/logs/", "//", "logs/a%20b/"])
def test_a_stream_is_acked_by_the_path_that_the_wake_has(
    server: SubscribedServer, path: str
) -> None:
    server.subscribe("p", pattern="**", streams=["logs"], wake_stream="w/x")
    tails = {}
    for number, url in enumerate(("logs", path)):
        put = server.call("PUT", ROOT + url, [number])
        tails[number] = put.reply_headers[b"stream-next-offset"].decode()
    claimed = server.claim("p").json
    acks = [{"stream": s["path"], "offset": s["tail_offset"]} for s in claimed["streams"]]
    assert [ack["offset"] for ack in acks] == list(tails.values())
    assert server.report("p", "ack", claimed, acks=acks, done=True).json["next_wake"] is False
    assert list(server.cursors("p").values()) == list(tails.values())


@pytest.mark.parametrize(
    "body",
    [b'{"done":' + b"[" * 30_000, b'{"done":true,"x":' + b"[" * 9_000 + b"]" * 9_000 + b"}"],
    ids=["cut", "whole"],
)
def test_an_answer_that_nests_deeply_takes_the_wake_and_no_more(
    server: SubscribedServer, body: bytes
) -> None:
    """It raised where nobody listened: the wake was never sent again, and looked healthy."""
    server.subscribe("s", pattern="*", lease_ttl_ms=1_000)
    tail = server.append("a")
    first = server.the_post()
    server.answer(first, 200, body)
    server.wait(1_000)
    second = server.the_post()
    assert second.json["generation"] == first.json["generation"] + 1
    server.answer(second, 200, b'{"done":true}')
    assert server.cursors("s") == {"a": tail}


def test_a_stream_that_is_not_there_yet_is_acked_as_the_wake_has_it(
    server: SubscribedServer,
) -> None:
    """Whoever acked each stream of a wake at its tail was refused, wake after wake."""
    server.subscribe("p", streams=["a", "not/yet"], wake_stream="w")
    tail = server.append("a")
    claimed = server.claim("p").json
    acks = [{"stream": s["path"], "offset": s["tail_offset"]} for s in claimed["streams"]]
    assert [ack["stream"] for ack in acks] == ["a", "not/yet"]
    assert server.report("p", "ack", claimed, acks=acks, done=True).json["next_wake"] is False
    assert server.cursors("p") == {"a": tail, "not/yet": "-1"}
    server.append("not/yet")
    again = server.claim("p").json
    pending = {stream["path"]: stream["has_pending"] for stream in again["streams"]}
    assert pending == {"not/yet": True, "a": False}
    beyond = [{"stream": "not/yet", "offset": tail}]
    assert server.report("p", "ack", again, acks=beyond).code == "INVALID_OFFSET"
