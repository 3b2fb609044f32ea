"""`POST /v0/watch` and `GET /v0/watch/{wid}`: what is refused, and what a session is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headrace.testing.simdisk import SimDisk
from tests.support.exchanges import GivenKey
from tests.support.live_readers import Live, StartLive


def test_a_session_says_where_it_begins(live: Live) -> None:
    live.append("jobs", 1, 2, 3)
    live.append("events", "a")
    epochs = [live.engine.topic(name).epoch for name in ("jobs", "events")]
    said = live.session({"jobs": {"from_seq": 1}, "events": {"tail": True}})
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", said["wid"])
    assert said["stream_url"] == "/v0/watch/" + said["wid"]
    assert said["session_ttl_ms"] == 300_000
    assert said["topics"] == {
        "jobs": {"from_seq": 1, "head_seq": 3, "earliest_seq": 1, "epoch": epochs[0]},
        "events": {"from_seq": 1, "head_seq": 1, "earliest_seq": 1, "epoch": epochs[1]},
    }
    assert isinstance(said["performance"]["server_total_ms"], float)


def test_no_wid_is_given_twice(live: Live) -> None:
    live.append("jobs", 1)
    assert len({live.session("jobs")["wid"] for _ in range(20)}) == 20


@pytest.mark.parametrize("body", [{}, {"topics": {}}, {"boxes": {}}, {"topics": None}])
def test_a_watch_of_nothing_is_refused(live: Live, body: Any) -> None:
    asked = live.ask("POST", "/v0/watch", body)
    assert (asked.status, asked.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    "wrong",
    [
        {"topics": {"jobs": {"from_seq": -1}}},
        {"topics": {"jobs": {"from_seq": 1.5}}},
        {"topics": {"jobs": {"from_seq": "1"}}},
        {"topics": {"jobs": {"from_seq": 1 << 64}}},
        {"topics": {"jobs": {"tail": 1}}},
        {"topics": ["jobs"]},
        {"limit": -1},
        {"limit": True},
        {"heartbeat_ms": "1s"},
        {"max_batch_bytes": -1},
        {"node": 7},
        {"consistency": "sometimes"},
        {"cursor": "not an id"},
    ],
)
def test_values_of_the_wrong_type_are_refused(live: Live, wrong: dict[str, Any]) -> None:
    live.append("jobs", 1)
    asked = live.ask("POST", "/v0/watch", {"topics": {"jobs": {}}, **wrong})
    assert (asked.status, asked.code) == (400, "invalid_request")


def test_what_is_not_known_is_ignored_and_null_is_absent(live: Live) -> None:
    live.append("jobs", 1)
    body: Any = {"topics": {"jobs": {"from": "tail"}}, "colour": 1, "limit": None, "node": None}
    assert live.ask("POST", "/v0/watch", body).status == 200
    assert live.ask("POST", "/v0/watch", {"topics": {"jobs": None}}).status == 200


def test_content_type_and_json_are_checked_first(live: Live) -> None:
    asked = live.ask("POST", "/v0/watch", b"{}", content_type="text/plain")
    assert (asked.status, asked.code) == (415, "unsupported_media_type")
    asked = live.ask("POST", "/v0/watch", b"{")
    assert (asked.status, asked.code) == (400, "invalid_request")


def test_too_many_topics_are_refused_before_they_are_looked_up(start: StartLive) -> None:
    live = start(topics_per_watch_max=3)
    asked = live.ask("POST", "/v0/watch", {"topics": {f"t{n}": {} for n in range(4)}})
    assert (asked.status, asked.code) == (400, "invalid_request")
    asked = live.ask("POST", "/v0/watch", {"topics": {f"t{n}": {} for n in range(3)}})
    assert asked.status == 404


def test_an_unknown_topic_is_not_found_unless_lenient(live: Live) -> None:
    live.append("jobs", 1)
    body: Any = {"topics": {"jobs": {}, "ghost": {}}}
    asked = live.ask("POST", "/v0/watch", body)
    assert (asked.status, asked.code) == (404, "topic_not_found")
    assert asked.json["error"]["detail"] == {"topic": "ghost"}
    asked = live.ask("POST", "/v0/watch?lenient=true", body)
    assert list(asked.json["topics"]) == ["jobs"]
    assert live.engine.topics() and all(t.topic != "ghost" for t in live.engine.topics())


def test_a_prefix_key_may_not_watch_other_names(live: Live) -> None:
    live.append("mine:1", 1)
    live.append("theirs", 1)
    key = GivenKey("read", "mine:")
    asked = live.ask("POST", "/v0/watch", {"topics": {"mine:1": {}, "theirs": {}}}, key=key)
    assert (asked.status, asked.code) == (403, "forbidden")
    for pattern, status in (("mine:*", 200), ("mine:1*", 200), ("min*", 403), ("*", 403)):
        asked = live.ask("POST", "/v0/watch", {"topics": {pattern: {}}}, key=key)
        assert asked.status == status, pattern


def test_the_session_cap_admits_exactly_so_many(start: StartLive) -> None:
    live = start(max_watch_sessions=2)
    live.append("jobs", 1)
    live.session("jobs")
    live.session("jobs")
    asked = live.ask("POST", "/v0/watch", {"topics": {"jobs": {}}})
    assert (asked.status, asked.code) == (429, "throttled")
    assert asked.json["error"]["detail"] == {"limit": "max_watch_sessions", "max": 2}
    assert asked.reply_headers[b"retry-after"] == b"1"
    assert live.api.watch_sessions == 2


def test_an_idle_session_is_forgotten_after_its_time(start: StartLive) -> None:
    live = start(max_watch_sessions=1, watch_session_ttl_ms=300_000)
    live.append("jobs", 1)
    session = live.session("jobs")
    watcher = live.open(session)
    live.clock.advance(400_000)
    assert live.ask("POST", "/v0/watch", {"topics": {"jobs": {}}}).status == 429, "it has a stream"
    watcher.outlet.hang_up()
    live.clock.advance(300_000)
    assert live.open(session).outlet.room, "not longer than its time"
    live.run()
    next(iter(live.streams._streams)).finish()
    live.clock.advance(300_001)
    asked = live.ask("GET", session["stream_url"])
    assert (asked.status, asked.code) == (404, "not_found")
    live.session("jobs")


def test_l17_a_session_is_unknown_after_a_restart(live: Live, start: StartLive) -> None:
    live.append("jobs", 1)
    session = live.session("jobs")
    disk = live.engine.state.fs
    assert isinstance(disk, SimDisk)
    live.engine.close()
    asked = start(disk.copy()).ask("GET", session["stream_url"])
    assert (asked.status, asked.code) == (404, "not_found")


def test_consistency_strong_needs_a_topic_that_is_stored(live: Live) -> None:
    live.append("scratch", 1, config={"durability": "ephemeral"})
    for consistency, status in (("strong", 400), ("eventual", 200)):
        body = {"topics": {"scratch": {}}, "consistency": consistency}
        assert live.ask("POST", "/v0/watch", body).status == status


def test_limits_are_clamped(start: StartLive) -> None:
    live = start()
    live.append("jobs", *range(1_500))
    events = live.watch("jobs", limit=5_000).events()
    assert [len(e.seqs) for e in events if e.event == "record"] == [1_000, 500]
    events = live.watch("jobs", limit=0).events()
    assert [len(e.seqs) for e in events if e.event == "record"] == [256] * 5 + [220]


def test_a_batch_is_never_larger_than_what_may_be_pending(start: StartLive) -> None:
    live = start(stream_pending_bytes=2_500)
    live.append("big", *("x" * 1_000 for _ in range(5)))
    live.append("big", "x" * 5_000)
    for asked in (0, 1 << 30):
        events = live.watch("big", max_batch_bytes=asked).events()
        assert [len(e.seqs) for e in events if e.event == "record"] == [2, 2, 1, 1]


# Streams


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("text/event-stream", 200),
        ("text/html, text/event-stream", 200),
        ("*/*", 200),
        ("", 200),
        ("application/json", 406),
    ],
)
def test_accept_is_checked(live: Live, accept: str, status: int) -> None:
    live.append("jobs", 1)
    session = live.session("jobs")
    asked = live.ask("GET", session["stream_url"], accept=accept)
    assert asked.status == status
    if status == 406:
        assert asked.code == "not_acceptable"


def test_accept_comes_before_the_wid_and_the_wid_before_the_key(live: Live) -> None:
    asked = live.ask("GET", "/v0/watch/wid_ghost", accept="application/json")
    assert asked.status == 406
    asked = live.ask("GET", "/v0/watch/wid_ghost", key=GivenKey())
    assert (asked.status, asked.code) == (404, "not_found")
    assert live.ask("GET", "/v0/watch/wid_ghost").status == 404


def test_a_stream_has_the_headers_of_one(live: Live) -> None:
    live.append("jobs", 1)
    asked = live.ask("GET", live.session("jobs")["stream_url"])
    assert asked.content_type == b"text/event-stream"
    assert asked.reply_headers[b"cache-control"] == b"no-store"
    assert asked.reply_headers[b"x-accel-buffering"] == b"no"


def test_head_opens_no_stream(live: Live) -> None:
    live.append("jobs", 1)
    asked = live.ask("HEAD", live.session("jobs")["stream_url"])
    assert (asked.status, asked.content_type) == (200, b"text/event-stream")
    assert live.streams.of_kind["sse"] == 0


def test_only_the_key_that_created_a_session_may_open_it(live: Live) -> None:
    live.append("jobs", 1)
    mine, other = GivenKey(), GivenKey()
    asked = live.ask("POST", "/v0/watch", {"topics": {"jobs": {}}}, key=mine)
    url = asked.json["stream_url"]
    for key in (None, other):
        refused = live.ask("GET", url, key=key)
        assert (refused.status, refused.code) == (401, "unauthorized")
    assert live.ask("GET", url, key=mine).status == 200


def test_a_slot_is_there_again_as_soon_as_a_stream_ends(start: StartLive) -> None:
    live = start(max_sse_connections=2)
    live.append("jobs", 1)
    session = live.session("jobs")
    first, _second = live.open(session), live.open(session)
    asked = live.ask("GET", session["stream_url"])
    assert (asked.status, asked.code) == (429, "throttled")
    assert "detail" not in asked.json["error"]
    first.outlet.hang_up()
    assert live.ask("GET", session["stream_url"]).status == 200
    assert live.streams.of_kind["sse"] == 2


def test_streams_are_billed_to_the_key_of_their_session(start: StartLive) -> None:
    live = start(max_sse_connections_per_key=1)
    live.append("jobs", 1)
    keys = GivenKey(), GivenKey()
    body: Any = {"topics": {"jobs": {}}}
    urls = [live.ask("POST", "/v0/watch", body, key=key).json["stream_url"] for key in keys]
    assert live.ask("GET", urls[0], key=keys[0]).status == 200
    assert live.ask("GET", urls[0], key=keys[0]).status == 429
    assert live.ask("GET", urls[1], key=keys[1]).status == 200


def test_the_cap_of_a_key_is_nothing_without_keys(start: StartLive) -> None:
    live = start(max_sse_connections_per_key=1)
    live.append("jobs", 1)
    session = live.session("jobs")
    assert [live.ask("GET", session["stream_url"]).status for _ in range(3)] == [200] * 3


# Boxes


def test_a_watch_of_boxes_speaks_of_boxes(live: Live) -> None:
    live.append("jobs", {"v": 1})
    body = {"node": "worker-eu-1", "boxes": {"jobs": {"from_seq": 0}}}
    said = live.ask("POST", "/v0/watch", body).json
    assert said["boxes"]["jobs"]["head_seq"] == 1
    assert "topics" not in said
    watcher = live.open(said)
    record, caught_up = watcher.events()
    assert (record.data["box"], caught_up.data["box"]) == ("jobs", "jobs")
    assert "topic" not in record.data
    live.engine.delete_topic("jobs").result()
    [gone] = watcher.events()
    assert gone.event == "box-deleted"
    assert gone.data == {"box": "jobs", "head_seq": 1, "reason": "deleted"}


def test_an_unknown_box_is_a_box_that_is_not_found(live: Live) -> None:
    asked = live.ask("POST", "/v0/watch", {"boxes": {"ghost": {"from_seq": 0}}})
    assert (asked.status, asked.code) == (404, "box_not_found")
    assert asked.json["error"]["detail"] == {"box": "ghost"}


def test_curl_without_a_content_type_works(live: Live) -> None:
    live.append("jobs", 1)
    form = "application/x-www-form-urlencoded"
    asked = live.ask("POST", "/v0/watch", b'{"boxes":{"jobs":{}}}', content_type=form)
    assert asked.status == 200
