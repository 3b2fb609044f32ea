"""Caps on the whole (native §1.9): exactly N, also when many ask at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

RECORD = {"records": [{"data": 1}]}


def test_topics(speak_to) -> None:
    """§1.9: N and no more under a race; 429 with its detail; what exists still works."""
    speak = speak_to(max_topics=10)
    names = [f"t{n}" for n in range(40)]

    def create(name: str):
        if int(name[1:]) % 2:
            return speak("PUT", f"/v0/topics/{name}")
        return speak("POST", f"/v0/topics/{name}", RECORD)

    with ThreadPoolExecutor(16) as pool:
        replies = dict(zip(names, pool.map(create, names), strict=True))
    created = [name for name, reply in replies.items() if reply.status == 201]
    refused = [reply for reply in replies.values() if reply.status != 201]
    assert (len(created), len(refused)) == (10, 30)
    for reply in refused:
        assert (reply.status, reply.error["code"]) == (429, "throttled")
        assert reply.error["detail"] == {"limit": "max_topics", "max": 10}
        assert reply.headers["retry-after"] == "1"
    assert len(speak.ok("GET", "/v0/topics")["topics"]) == 10
    for name in created:
        assert speak("PUT", f"/v0/topics/{name}", {"ttl_ms": 0}).status == 200
        assert speak("POST", f"/v0/topics/{name}", RECORD).status == 200
    speak.ok("DELETE", f"/v0/topics/{created[0]}")
    assert speak("PUT", "/v0/topics/another").status == 201
    for name in [*created, "another"]:
        speak.ok("DELETE", f"/v0/topics/{name}")


def test_a_bad_record_is_told_before_the_cap(speak_to) -> None:
    """§3.5: per-record limits come before the topic is created."""
    speak = speak_to(max_topics=10)
    names = [f"one{n}" for n in range(10)]
    for name in names:
        speak.ok("PUT", f"/v0/topics/{name}")
    body = {"records": [{"data": 1, "tag": "x" * 300}]}
    speak.refused(400, "invalid_request", "POST", "/v0/topics/two", body)
    speak.refused(400, "invalid_request", "POST", "/v0/topics/no%20good", RECORD)
    speak.refused(429, "throttled", "POST", "/v0/topics/two", RECORD)
    for name in names:
        speak.ok("DELETE", f"/v0/topics/{name}")


def test_total_bytes(speak_to, topic) -> None:
    """§1.9, §3.5: over the cap 429 `max_total_bytes`; equal is fine; freeing makes room."""
    speak = speak_to(max_total_bytes=100)
    speak.append(topic, "x" * 58)  # 60 bytes as JSON
    path = f"/v0/topics/{topic}"
    body = {"records": [{"data": "y" * 39}]}
    detail = speak.refused(429, "throttled", "POST", path, body)
    assert detail == {"limit": "max_total_bytes", "max": 100}
    assert speak.append(topic, "y" * 38)["first_seq"] == 2
    speak.refused(429, "throttled", "POST", path, RECORD)
    speak.ok("POST", f"{path}/delete", {"before_seq": 2})
    assert speak.append(topic, "z" * 58)["first_seq"] == 3
    speak.ok("DELETE", path)
    assert speak.append(topic, "x" * 98)["first_seq"] == 1
    speak.ok("DELETE", path)


def test_a_refused_creating_append_creates_nothing(speak_to, topic) -> None:
    """§3.5: atomic."""
    speak = speak_to(max_total_bytes=100)
    body = {"records": [{"data": "x" * 200}]}
    speak.refused(429, "throttled", "POST", f"/v0/topics/{topic}", body)
    speak.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_total_bytes_under_a_race(speak_to, topic) -> None:
    """§1.9: the quota admits exactly what fits, whoever comes first."""
    speak = speak_to(max_total_bytes=100)
    speak.ok("PUT", f"/v0/topics/{topic}", {"durability": "fsync"})
    body = {"records": [{"data": "x" * 8}]}
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: speak("POST", f"/v0/topics/{topic}", body), range(20)))
    assert sorted(reply.status for reply in replies) == [200] * 10 + [429] * 10
    assert speak.state(topic)["bytes"] == 100
    speak.ok("DELETE", f"/v0/topics/{topic}")


def test_zero_is_no_bound(speak_to, topic) -> None:
    """§1.9: `0` = unlimited."""
    speak = speak_to(max_topics=0, max_total_bytes=0, max_watch_sessions=0)
    for n in range(30):
        speak.append(f"{topic}-{n}", 1)
    assert len(speak.ok("GET", f"/v0/topics?prefix={topic}-")["topics"]) == 30


def test_keys_are_bounded(servers) -> None:
    """§3.5: a full table of idempotency keys is 429, never early forgetting."""
    server = servers.start(idempotency_entries_max=5)
    speak = servers.speaker(server, "h1")
    for n in range(5):
        assert speak.append("t", 1, idempotency_key=f"k{n}")["deduped"] is False
    for protocol in ("h1", "h2c"):
        speak = servers.speaker(server, protocol)
        body = {**RECORD, "idempotency_key": "one-more"}
        speak.refused(429, "throttled", "POST", "/v0/topics/t", body)
        assert speak.append("t", 1, idempotency_key="k0")["deduped"] is True
        assert speak.append("t", 1)["deduped"] is False


# Watches


def test_watch_sessions(speak_to, topic) -> None:
    """§1.9: exactly N under a race; 429 with its detail."""
    speak = speak_to(max_watch_sessions=5)
    speak.append(topic, 1)
    already = document(speak)["watch_sessions"]
    body = {"topics": {topic: {}}}
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: speak("POST", "/v0/watch", body), range(20)))
    admitted = [reply for reply in replies if reply.status == 200]
    refused = [reply for reply in replies if reply.status != 200]
    assert len(admitted) == 5 - already
    for reply in refused:
        assert (reply.status, reply.error["code"]) == (429, "throttled")
        assert reply.error["detail"] == {"limit": "max_watch_sessions", "max": 5}
        assert reply.headers["retry-after"] == "1"
    assert document(speak)["watch_sessions"] == 5


def document(speak) -> dict:
    return speak("GET", "/v0/metrics", None, {"accept": "application/json"}).json


def test_idle_sessions_are_reclaimed(servers, protocol, topic) -> None:
    """§7.1: idle ones, without a stream, make room after their time."""
    speak = servers.speaker(
        servers.with_settings(max_watch_sessions=1, watch_session_ttl_ms=1), protocol
    )
    speak.append(topic, 1)
    body = {"topics": {topic: {}}}
    for _ in range(3):
        while speak("POST", "/v0/watch", body).status != 200:
            pass


def test_streams(speak_to, topic) -> None:
    """§1.9: N streams and no more; no detail; the slot is free once a stream has ended."""
    speak = speak_to(max_sse_connections=2)
    speak.append(topic, 1)
    url = speak.ok("POST", "/v0/watch", {"topics": {topic: {}}})["stream_url"]
    with speak.stream(url) as one:
        one.next("caught-up")
        with speak.stream(url) as two:
            assert two.status == 200
            assert document(speak)["sse_connections"] == 2
            reply = speak("GET", url, None, {"accept": "text/event-stream"})
            assert (reply.status, reply.error["code"]) == (429, "throttled")
            assert reply.headers["retry-after"] == "1"
            assert "detail" not in reply.error
        while document(speak)["sse_connections"] == 2:
            pass
        with speak.stream(url) as again:
            assert again.status == 200
