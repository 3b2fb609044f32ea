"""What a watch or a WebSocket may make a server hold (native §1.9d), and that it lets go of it."""

from __future__ import annotations

from typing import Any

from tests.support.live_readers import Live, StartLive
from tests.support.websocket_client import Client

NODES = [f"node-{n}" for n in range(1_000)]


def held(live: Live) -> int:
    return live.metrics.sources.holders.bytes_of("watch_session")


def ask(live: Live, topics: Any = None, **body: Any) -> Any:
    return live.ask("POST", "/v0/watch", {"topics": topics or {"jobs": {}}, **body})


def test_a_session_of_too_many_nodes_is_refused(start: StartLive) -> None:
    """The setting is named, and nothing is kept."""
    live = start(watch_session_bytes_max=16 * 1024)
    live.append("jobs", 1)
    refused = ask(live, node=NODES)
    assert (refused.status, refused.code) == (400, "invalid_request")
    error = refused.json["error"]
    assert error["detail"] == {"limit": "watch_session_bytes_max", "max": 16 * 1024}
    assert "HEADRACE_WATCH_SESSION_BYTES_MAX" in error["message"]
    assert (live.api.watch_sessions, held(live)) == (0, 0)
    assert ask(live, node=NODES[:100]).status == 200


def test_a_pattern_counts_with_its_length(start: StartLive) -> None:
    live = start(watch_session_bytes_max=16 * 1024)
    assert ask(live, {"x" * 20_000 + "*": {}}).status == 400
    assert ask(live, {"x*": {}}).status == 200


def test_all_sessions_together_are_bounded(start: StartLive) -> None:
    """The bound is of the sum; what ends makes room."""
    live = start(watch_session_bytes_max=8 * 1024, watch_sessions_bytes_max=20 * 1024)
    live.append("jobs", 1)
    sessions = [ask(live, node=NODES[:50]).json for _ in range(3)]
    refused = ask(live, node=NODES[:50])
    assert (refused.status, refused.code) == (429, "throttled")
    assert refused.json["error"]["detail"]["limit"] == "watch_sessions_bytes_max"
    client = Client(live)
    client.send("subscribe", topic="jobs", node=NODES[:80])
    assert client.read()[0]["code"] == "throttled"
    watcher = live.open(sessions[0])
    watcher.events()
    live.engine.delete_topic("jobs").result()
    assert watcher.names() == ["topic-deleted"]
    live.append("jobs", 1)
    assert ask(live, node=NODES[:50]).status == 200


def test_everything_is_given_back(live: Live) -> None:
    """Of sessions that end, expire, or are copied for a second stream; of patterns that grow."""
    live.append("jobs", 1)
    live.append("other", 1)
    session = live.session("jobs other o*", node=NODES)
    first = held(live)
    assert first > 60_000
    watcher, second = live.open(session), live.open(session)
    assert held(live) == 2 * first
    live.append("one", 1)
    watcher.events()
    second.events()
    assert held(live) > 2 * first
    live.engine.delete_topic("one").result()
    watcher.events()
    second.events()
    assert held(live) == 2 * first
    watcher.outlet.hang_up()
    assert held(live) == first
    second.outlet.hang_up()
    live.wait(1_000)
    assert held(live) == first
    live.clock.advance(400_000)
    live.api.tick()
    assert held(live) == 0


def test_a_websocket_is_bounded_like_a_session(start: StartLive) -> None:
    live = start(watch_session_bytes_max=8 * 1024)
    for name in ("a", "b", "c"):
        live.append(name, 1)
    client = Client(live)
    client.send("subscribe", topic="a", node=NODES)
    [refused] = client.read()
    assert (refused["op"], refused["code"]) == ("error", "invalid_request")
    assert "HEADRACE_WATCH_SESSION_BYTES_MAX" in refused["message"]
    assert held(live) == 0
    client.send("subscribe", topics={"a": {}, "b": {}}, node=NODES[:50])
    client.read()
    both = held(live)
    assert 3_500 < both < 8_192
    client.send("subscribe", topic="c", node=NODES[50:100])
    [refused] = client.read()
    assert refused["code"] == "invalid_request", "the connection has its share"
    client.send("subscribe", topic="a", node=NODES[:50])  # again
    client.read()
    assert held(live) == both
    client.send("unsubscribe", topics=["a"])
    client.read()
    assert 0 < held(live) < both
    live.engine.delete_topic("b").result()
    client.read()
    assert held(live) == 0
    client.send("subscribe", topic="c")
    client.read()
    client.outlet.hang_up()
    assert held(live) == 0
