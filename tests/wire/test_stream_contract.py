"""Durable Streams over the wire, section by section of the contract (durable_streams §1 to §17)."""

from __future__ import annotations

import json
import threading

import pytest

from tests.support.speakers import Speaker
from tests.support.stream_requests import JSON, OCTETS, TEXT, ZERO, Streams, next_offset, topic_of

SETTINGS = {"ds_long_poll_ms": 300}


@pytest.fixture
def streams(speak: Speaker) -> Streams:
    return Streams(speak)


def test_a_path_is_one_stream(streams: Streams, topic: str) -> None:
    """§1: segments, percent-decoded; what could be two names is refused; 597 bytes; 413."""
    streams.create(f"{topic}/a%20b/é".replace("é", "%C3%A9"))
    assert streams.status("HEAD", f"{topic}/a%20b/%c3%a9") == 200
    for path in (f"{topic}%2Fa", f"{topic}/%00", f"{topic}/%zz", f"{topic}/100%"):
        assert streams.status("PUT", path) == 400, path
    assert streams.status("PUT", f"__ds/{topic}") == 404
    longest = topic + "x" * (597 - len(topic))
    streams.create(longest)
    assert streams.status("PUT", longest + "x") == 400
    kept = "Text/PLAIN; charset=utf-8"
    streams.create(f"{topic}-typed", kept)
    assert streams("HEAD", f"{topic}-typed").headers["content-type"] == kept
    streams.append(f"{topic}-typed", b"x", "text/plain")
    large = bytes((1 << 20) + 1)
    assert streams.status("POST", f"{topic}-typed", large, content_type=TEXT) == 413
    assert streams.read(f"{topic}-typed") == b"x"


def test_creating(streams: Streams, topic: str) -> None:
    """§2: 201, 200, 409, the first data, defaults, headers that are wrong."""
    made = streams.create(topic, TEXT, b"first", stream_ttl="60")
    assert made.headers["location"].endswith(f"/v1/stream/{topic}")
    assert made.headers["location"].startswith("http://")
    again = streams("PUT", topic, b"first", content_type="TEXT/plain", stream_ttl="60")
    assert (again.status, next_offset(again)) == (200, next_offset(made))
    assert streams.read(topic) == b"first"
    for other in ({"content_type": JSON, "stream_ttl": "60"}, {"content_type": TEXT}):
        assert streams.status("PUT", topic, **other) == 409, other
    assert streams("PUT", f"{topic}-bare").headers["content-type"] == OCTETS
    streams.create(f"{topic}-json", JSON, b"[]")
    assert streams.read(f"{topic}-json") == b"[]"
    wrong = [{"stream_ttl": text} for text in ("abc", "-1", "+60", "00060", "60.5", "1e3")]
    wrong += [{"stream_expires_at": "tomorrow"}]
    wrong += [{"stream_ttl": "1", "stream_expires_at": "2030-01-31T12:00:00Z"}]
    for headers in wrong:
        assert streams.status("PUT", f"{topic}-wrong", **headers) == 400, headers
        assert streams.status("HEAD", f"{topic}-wrong") == 404, headers
    shut = streams.create(f"{topic}-shut", TEXT, b"all", stream_closed="true")
    assert shut.headers["stream-closed"] == "true"


def test_appending(streams: Streams, topic: str) -> None:
    """§3: 204 and the tail, the order of the checks, `Stream-Seq`, JSON."""
    streams.create(topic)
    first = streams("POST", topic, b"a", content_type=TEXT)
    assert first.status == 204
    assert streams("HEAD", topic).headers["stream-next-offset"] == next_offset(first)
    assert streams.status("POST", topic, b"a") == 400
    assert streams.status("POST", topic, content_type=TEXT) == 400
    assert streams.status("POST", f"{topic}-none", b"a", content_type=TEXT) == 404
    assert streams.status("POST", topic, b"1", content_type=JSON) == 409
    for seq, status in (("2", 204), ("10", 409), ("2", 409), ("20", 204), ("a", 204), ("A", 409)):
        assert streams.status("POST", topic, b".", content_type=TEXT, stream_seq=seq) == status, seq
    assert streams.read(topic) == b"a..."
    name = f"{topic}-json"
    streams.create(name, JSON)
    for body in (b"[1,[2,3]]", b'"x"', b"null"):
        streams.append(name, body, JSON)
    for body in (b"[]", b"{", b"\xff"):
        assert streams.status("POST", name, body, content_type=JSON) == 400, body
    assert json.loads(streams.read(name)) == [1, [2, 3], "x", None]


def test_closing(streams: Streams, topic: str) -> None:
    """§4: with data and without, again, and what is refused afterwards."""
    streams.create(topic)
    ignored = streams.append(topic, b"a", stream_closed="yes")
    assert "stream-closed" not in ignored.headers
    closed = streams.append(topic, b"b", stream_closed="TRUE")
    assert closed.headers["stream-closed"] == "true"
    again = streams("POST", topic, stream_closed="true")
    assert (again.status, next_offset(again)) == (204, next_offset(closed))
    late = streams("POST", topic, b"c", content_type=TEXT)
    assert (late.status, late.headers["stream-closed"]) == (409, "true")
    assert next_offset(late) == next_offset(closed)
    assert streams.read(topic) == b"ab"


def test_a_waiting_reader_is_told_of_the_end(streams: Streams, topic: str) -> None:
    """§4c, §11: a live reader gets what the closing request brought, then the end."""
    streams.create(topic)
    with streams.speak.stream(f"/v1/stream/{topic}?offset=-1&live=sse") as live:
        closing = threading.Thread(
            target=streams.append, args=(topic, b"end"), kwargs={"stream_closed": "true"}
        )
        closing.start()
        events = live.read().decode()
        closing.join()
    assert "event: data\ndata:end\n\nevent: control\n" in events
    assert '"streamClosed":true' in events
    assert events.rstrip().endswith("}")


def test_producers(streams: Streams, topic: str) -> None:
    """§5: repeats, gaps, epochs, and the tuple that closed a stream."""
    streams.create(topic)

    def send(epoch: str, seq: str, **headers: str) -> tuple[int, dict[str, str]]:
        sent = {"producer_id": "p", "producer_epoch": epoch, "producer_seq": seq, **headers}
        reply = streams("POST", topic, b".", content_type=TEXT, **sent)
        return reply.status, reply.headers

    assert streams.status("POST", topic, b".", content_type=TEXT, producer_id="p") == 400
    for bad in ("-1", "1e3", "1abc", str(1 << 53)):
        assert send("0", bad)[0] == 400, bad
    assert [send("0", seq)[0] for seq in ("0", "1", "0")] == [200, 200, 204]
    assert send("0", "0")[1]["producer-seq"] == "1"
    status, headers = send("0", "5")
    assert (status, headers["producer-expected-seq"], headers["producer-received-seq"]) == (
        409, "2", "5",
    )  # fmt: skip
    assert send("1", "1")[0] == 400
    assert send("1", "0")[0] == 200
    status, headers = send("0", "2")
    assert (status, headers["producer-epoch"]) == (403, "1")
    assert send("1", "1", stream_closed="true")[0] == 200
    status, headers = send("1", "1", stream_closed="true")
    assert (status, headers["stream-closed"]) == (204, "true")
    assert send("1", "2")[0] == 409
    assert streams.read(topic) == b"...."


def test_looking_and_deleting(streams: Streams, topic: str) -> None:
    """§6: HEAD, DELETE, and a path that is used again."""
    streams.create(topic, TEXT, b"old", stream_expires_at="2099-01-01T00:00:00+01:00")
    found = streams("HEAD", topic).headers
    assert found["stream-expires-at"] == "2099-01-01T00:00:00+01:00"
    assert found["cache-control"] == "no-store"
    before = found["stream-next-offset"]
    assert [streams.status("DELETE", topic) for _ in range(2)] == [204, 404]
    assert streams.status("GET", topic) == 404
    streams.create(topic, TEXT, b"new")
    assert streams.read(topic) == b"new"
    assert streams.status("GET", f"{topic}?offset={before}") == 410


def test_offsets(streams: Streams, topic: str) -> None:
    """§7: they sort, `-1` and `now` and zero, what is refused, what is gone."""
    tails = [next_offset(streams.create(topic))]
    tails += [next_offset(streams.append(topic, b"%d" % n)) for n in range(3)]
    assert tails == sorted(set(tails))
    bodies = [streams.read(topic, f"?offset={at}") for at in ("-1", ZERO, *tails)]
    assert bodies == [b"012", b"012", b"012", b"12", b"2", b""]
    assert streams.read(topic, "?offset=now") == b""
    bad = ["", "a", "1", "0_0", "-2", "%20-1", "9" * 16 + "_" + "9" * 16, "-1&offset=-1"]
    for text in bad:
        assert streams.status("GET", f"{topic}?offset={text}") == 400, text


def test_catching_up(streams: Streams, topic: str) -> None:
    """§8: the bytes, how far the answer goes, and what `now` is."""
    streams.create(topic, OCTETS, bytes(range(256)))
    reply = streams("GET", topic)
    assert (reply.body, reply.headers["stream-up-to-date"]) == (bytes(range(256)), "true")
    assert "stream-closed" not in reply.headers
    at_tail = streams("GET", f"{topic}?offset={next_offset(reply)}")
    assert (at_tail.body, next_offset(at_tail)) == (b"", next_offset(reply))
    streams("POST", topic, stream_closed="true")
    assert streams("GET", topic).headers["stream-closed"] == "true"
    streams.create(f"{topic}-json", JSON, b"[1]")
    now = streams("GET", f"{topic}-json?offset=now")
    assert (now.body, now.headers["stream-up-to-date"]) == (b"[]", "true")


def test_what_caches_may_do(streams: Streams, topic: str) -> None:
    """§9: tags, 304, and never more than it is safe to keep."""
    made = streams.create(topic, TEXT, b"a")
    reply = streams("GET", topic)
    tag = reply.headers["etag"]
    assert streams.status("GET", topic, if_none_match=tag) == 304
    streams("POST", topic, stream_closed="true")
    assert streams.status("GET", topic, if_none_match=tag) == 200
    for at in ("-1", ZERO):
        caching = streams("GET", f"{topic}?offset={at}").headers["cache-control"]
        assert caching == "public, no-cache", at
    own = streams("GET", f"{topic}?offset={next_offset(made)}").headers["cache-control"]
    assert own.startswith("public, max-age=") and "immutable" not in own
    now = streams("GET", f"{topic}?offset=now")
    assert (now.headers["cache-control"], now.headers.get("etag")) == ("no-store", None)
    assert streams("GET", f"{topic}-none").headers["cache-control"] == "no-store"


def test_long_polls(streams: Streams, topic: str) -> None:
    """§10: at once where there is data, at the tail until its time is over, or the end."""
    tail = next_offset(streams.create(topic, TEXT, b"a"))
    assert streams.status("GET", f"{topic}?live=long-poll") == 400
    there = streams("GET", f"{topic}?offset=-1&live=long-poll")
    assert (there.status, there.body) == (200, b"a")
    cursor = there.headers["stream-cursor"]
    idle = streams("GET", f"{topic}?offset={tail}&live=long-poll&cursor={cursor}")
    assert (idle.status, idle.headers["stream-up-to-date"]) == (204, "true")
    assert int(idle.headers["stream-cursor"]) > int(cursor)
    streams("POST", topic, stream_closed="true")
    ended = streams("GET", f"{topic}?offset={tail}&live=long-poll")
    assert (ended.status, ended.headers["stream-closed"]) == (204, "true")


@pytest.mark.parametrize(
    ("content_type", "body", "data", "encoding"),
    [
        (TEXT, b"a\r\nevent: x\rb\nc", "data:a\ndata:event: x\ndata:b\ndata:c", None),
        (JSON, b'{"a": 1}', 'data:[{"a": 1}]', None),
        (OCTETS, b"\xff\x00", "data:/wA=", "base64"),
    ],
)
def test_events(streams, topic, content_type, body, data, encoding) -> None:
    """§11: pairs of events, lines, base64, and the end of a closed stream."""
    streams.create(topic, content_type, body, stream_closed="true")
    assert streams.status("GET", f"{topic}?live=sse") == 400
    with streams.speak.stream(f"/v1/stream/{topic}?offset=-1&live=sse") as live:
        assert live.headers.get("stream-sse-data-encoding") == encoding
        assert live.headers["content-type"] == "text/event-stream"
        text = live.read().decode()
    before, _, control = text.partition("\n\nevent: control\ndata:")
    assert before == f"event: data\n{data}"
    said = json.loads(control)
    assert (said["upToDate"], said["streamClosed"]) == (True, True)
    assert "streamCursor" not in said


def test_expiry(streams: Streams, topic: str) -> None:
    """§12: what is past its time is not there, and its path is free."""
    streams.create(topic, TEXT, stream_expires_at="2001-01-01T00:00:00Z")
    assert [streams.status(method, topic) for method in ("HEAD", "GET", "DELETE")] == [404] * 3
    streams.create(f"{topic}-now", TEXT, stream_ttl="0")
    assert streams.status("GET", f"{topic}-now") == 404
    streams.create(topic, JSON, b"1")
    assert streams.read(topic) == b"[1]"


def test_forks(streams: Streams, topic: str) -> None:
    """§13: the inherited part, sub-offsets, refusals, and a source that is kept for its forks."""
    source = f"/v1/stream/{topic}"
    first = next_offset(streams.create(topic, TEXT, b"one "))
    streams.append(topic, b"two ")
    fork = streams(
        "PUT", f"{topic}-f", b"mine", stream_forked_from=source, stream_fork_offset=first
    )
    assert (fork.status, fork.headers["content-type"]) == (201, TEXT)
    streams.append(topic, b"three")
    assert streams.read(f"{topic}-f") == b"one mine"
    assert streams.read(f"{topic}-f", f"?offset={first}") == b"mine"
    cut = {"stream_forked_from": source, "stream_fork_offset": first}
    assert streams.status("PUT", f"{topic}-s", **cut, stream_fork_sub_offset="2") == 201
    assert streams.read(f"{topic}-s") == b"one tw"
    assert streams.status("PUT", f"{topic}-x", **cut, stream_fork_sub_offset="5") == 400
    assert streams.status("PUT", f"{topic}-x", **cut, content_type=JSON) == 409
    beyond = "9" * 16 + "_" + "9" * 16
    assert (
        streams.status("PUT", f"{topic}-x", stream_forked_from=source, stream_fork_offset=beyond)
        == 400
    )
    assert streams.status("PUT", f"{topic}-x", stream_forked_from=source + "-none") == 404
    assert streams.status("DELETE", topic) == 204
    assert [streams.status(method, topic) for method in ("GET", "HEAD", "DELETE")] == [410] * 3
    assert streams.status("PUT", topic, content_type=TEXT) == 409
    assert streams.status("PUT", f"{topic}-x", stream_forked_from=source) == 409
    assert streams.read(f"{topic}-f") == b"one mine"
    for name in (f"{topic}-f", f"{topic}-s"):
        assert streams.status("DELETE", name) == 204
    streams.create(topic, TEXT, b"anew")


def test_subscriptions(streams: Streams, topic: str) -> None:
    """§14: made once, looked at, and addresses that are refused."""
    streams.create(f"{topic}/jobs", JSON)
    streams.create(f"{topic}/wakes", JSON)
    path = f"__ds/subscriptions/{topic}"
    asked = {"type": "pull-wake", "pattern": f"{topic}/jobs", "wake_stream": f"{topic}/wakes"}

    def put(name: str, body: object) -> tuple[int, dict[str, object]]:
        reply = streams("PUT", name, json.dumps(body).encode(), content_type=JSON)
        return reply.status, json.loads(reply.body)

    assert put(path, asked)[0] == 201
    assert put(path, asked)[0] == 200
    assert put(path, {**asked, "pattern": "**"})[0] == 409
    hook = {"type": "webhook", "pattern": "**", "webhook": {"url": "http://169.254.169.254/"}}
    status, refused = put(f"{path}-hook", hook)
    assert status == 400 and "WEBHOOK_URL_REJECTED" in str(refused)
    keys = streams("GET", "__ds/jwks.json")
    assert keys.headers["content-type"] == "application/jwk-set+json"
    assert all(key["crv"] == "Ed25519" for key in json.loads(keys.body)["keys"])
    assert streams.status("DELETE", path) == 204


def test_errors_and_web_pages(streams: Streams, topic: str) -> None:
    """§15: one line of text, headers on every answer, and OPTIONS."""
    for method, status in (("GET", 404), ("PUT", 201), ("GET", 200), ("PATCH", 405)):
        reply = streams(method, topic)
        assert reply.status == status, method
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cross-origin-resource-policy"] == "cross-origin"
    refused = streams("GET", f"{topic}?offset=x")
    assert refused.headers["content-type"] == "text/plain; charset=utf-8"
    assert refused.body.count(b"\n") == 0 and b"offset" in refused.body
    asked = streams("OPTIONS", f"{topic}-none")
    assert asked.status == 204
    assert "if-none-match" in asked.headers["access-control-allow-headers"].lower()
    assert "access-control-allow-origin" not in asked.headers


def test_retention(streams: Streams, topic: str) -> None:
    """§17a: what is gone is 410; what is left is read from the beginning."""
    made = streams.create(topic, TEXT, stream_retention_bytes="3", stream_retention_age="60")
    found = streams("HEAD", topic).headers
    assert (found["stream-retention-bytes"], found["stream-retention-age"]) == ("3", "60")
    streams.append(topic, b"ab")
    streams.append(topic, b"cd")
    assert streams.read(topic) == b"cd"
    assert streams.status("GET", f"{topic}?offset={next_offset(made)}") == 410


def test_if_match(streams: Streams, topic: str) -> None:
    """§17b: stored only where the stream ends, else 412 with where that is."""
    start = next_offset(streams.create(topic))
    sent = {"content_type": TEXT, "if_match": f'"{start}"'}
    stored = streams("POST", topic, b"a", **sent)
    assert stored.status == 204
    missed = streams("POST", topic, b"b", **sent)
    assert (missed.status, next_offset(missed)) == (412, next_offset(stored))
    assert streams.status("POST", topic, b"b", content_type=TEXT, if_match="x") == 400
    assert streams.read(topic) == b"a"


def test_the_durability_of_new_streams(speak_to, topic: str) -> None:
    """§17c: `fsync`, or what the setting says."""
    for settings, durability in (({}, "fsync"), ({"ds_durability": "disk"}, "disk")):
        streams = Streams(speak_to(**settings))
        streams.create(f"{topic}-{durability}")
        state = streams.speak.state(topic_of(f"{topic}-{durability}"))
        assert state["config"]["durability"] == durability


def test_keys(speak_to, topic: str) -> None:
    """§16: scopes by method, prefixes by topic, forks and retention."""
    speak = speak_to(api_keys="all,w:write:ds:a,r:read:ds:a/,d:delete")
    streams = Streams(speak)

    def status(key: str, method: str, path: str, **headers: str) -> int:
        return streams.status(method, path, authorization=f"Bearer {key}", **headers)

    assert streams.status("PUT", f"a/{topic}x") == 401
    assert streams.status("OPTIONS", f"a/{topic}x") == 204
    assert status("w", "PUT", f"a/{topic}x") == 201
    assert status("w", "PUT", f"b/{topic}x") == 403
    assert status("r", "GET", f"a/{topic}x") == 200
    assert status("w", "GET", f"a/{topic}x") == 403
    assert status("r", "GET", f"ab{topic}") == 403
    assert status("r", "PUT", f"a/{topic}y") == 403
    assert status("w", "PUT", f"a/{topic}kept", stream_retention_age="9") == 403
    assert status("all", "PUT", f"b/{topic}secret") == 201
    assert (
        status("w", "PUT", f"a/{topic}fork", stream_forked_from=f"/v1/stream/b/{topic}secret")
        == 403
    )
    assert status("w", "DELETE", f"a/{topic}x") == 403
    assert status("d", "DELETE", f"a/{topic}x") == 204
