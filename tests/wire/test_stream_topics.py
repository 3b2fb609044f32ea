"""Streams as topics: what native calls see of them, and what is refused (durable_streams §18)."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from headrace.client import Client
from headrace.core.errors import StreamClosed, StreamConflict
from tests.support.speakers import Speaker
from tests.support.stream_requests import JSON, OCTETS, TEXT, Streams, topic_of

CONFLICT = 409, "stream_conflict"


@pytest.fixture
def streams(speak: Speaker) -> Streams:
    return Streams(speak)


def stream_of(speak: Speaker, path: str) -> Any:
    return speak.state(topic_of(path))["stream"]


def listed(speak: Speaker, prefix: str) -> dict[str, Any]:
    found = speak.ok("GET", f"/v0/topics?prefix={quote(prefix, safe='')}")["topics"]
    return {entry["topic"]: entry.get("stream") for entry in found}


# What is seen


def test_the_state_of_a_stream(streams: Streams, topic: str) -> None:
    """§18a, native §12h: in the state and in a list; a topic has nothing of it."""
    speak = streams.speak
    streams.create(topic, "Text/Plain; charset=utf-8", stream_ttl="60")
    seen = {"dialect": "ds", "content_type": "Text/Plain; charset=utf-8", "closed": False}
    assert stream_of(speak, topic) == {**seen, "ttl_s": 60}
    streams.create(f"{topic}/b", JSON, stream_expires_at="2099-01-01T00:00:00Z")
    streams("POST", f"{topic}/b", stream_closed="true")
    closed = {"dialect": "ds", "content_type": JSON, "closed": True}
    expires = {"expires": "2099-01-01T00:00:00Z"}
    assert stream_of(speak, f"{topic}/b") == {**closed, **expires}
    assert listed(speak, f"ds:{topic}") == {
        f"ds:{topic}": {**seen, "ttl_s": 60},
        f"ds:{topic}/b": {**closed, **expires},
    }
    speak.append(topic, 1)
    assert "stream" not in speak.state(topic)
    assert listed(speak, topic) == {topic: None}


def test_a_fork_names_its_source(speak_to, topic: str) -> None:
    """§18a: `forked_from`, but to no key that may not use that name."""
    streams = Streams(speak_to(api_keys="root,few:rw:ds:open"))
    root, few = ({"authorization": f"Bearer {key}"} for key in ("root", "few"))
    streams.create(f"secret/{topic}", **root)
    streams.create(f"open/{topic}", stream_forked_from=f"/v1/stream/secret/{topic}", **root)
    path = f"/v0/topics/{topic_of(f'open/{topic}')}"
    found = streams.speak("GET", path, headers=root).json["stream"]
    assert found["forked_from"] == f"ds:secret/{topic}"
    assert "forked_from" not in streams.speak("GET", path, headers=few).json["stream"]
    path = f"/v0/topics?prefix={topic_of(f'open/{topic}')}"
    pages = [streams.speak("GET", path, headers=key) for key in (root, few)]
    assert [page.body.count(b"forked_from") for page in pages] == [1, 0]
    assert b"secret" not in pages[1].body


def test_a_message_is_what_was_sent_whatever_its_meta_says(streams: Streams, topic: str) -> None:
    """§18b: `$encoding` of a native writer is its own word, and no matter for the stream."""
    streams.create(topic, JSON)
    record = {"data": "aGk=", "meta": {"$encoding": "base64"}}
    streams.speak.ok("POST", f"/v0/topics/{topic_of(topic)}", {"records": [record]})
    assert streams.read(topic) == b'["aGk="]'
    (read,) = streams.speak.diff(topic_of(topic))["records"]
    assert (read["data"], read["meta"]) == ("aGk=", {"$encoding": "base64"})


def test_records_are_read_as_of_any_topic(streams: Streams, topic: str) -> None:
    """§18b: base64 for bytes, JSON for messages, at the full length of a name."""
    speak = streams.speak
    path = f"{topic}/" + "é" * ((597 - len(topic) - 1) // 2)
    encoded = quote(path)
    streams.create(encoded, OCTETS, b"\xff\x00")
    (record,) = speak.diff(topic_of(path))["records"]
    assert base64.b64decode(record["data"]) == b"\xff\x00"
    assert record["meta"] == {"$encoding": "base64"}
    streams.create(f"{topic}-json", JSON, b'[{"a": 1},[2]]')
    found = speak.diff(topic_of(f"{topic}-json"))["records"]
    assert [record["data"] for record in found] == [{"a": 1}, [2]]
    with Client(speak.server.url) as client:
        page = client.diff_arrow(f"ds:{path}")
        assert (page.content_type, page.table["data"].to_pylist()) == (OCTETS, [b"\xff\x00"])
        assert client.diff_arrow(f"ds:{topic}-json").content_type == JSON
        assert client.segments(f"ds:{path}").content_type == OCTETS
        client.append(topic, [1])
        assert client.diff_arrow(topic).content_type is None
        assert client.segments(topic).content_type is None
        stream = client.topic(f"ds:{path}").stream
        assert stream is not None and stream.content_type == OCTETS


def test_a_watch_follows_streams(streams: Streams, topic: str) -> None:
    """§18b: by name and by pattern."""
    speak = streams.speak
    streams.create(f"{topic}/a", JSON, b"1")
    asked = {"topics": {f"ds:{topic}/*": {"from_seq": 0}}}
    wid = speak.ok("POST", "/v0/watch", asked)["wid"]
    with speak.stream(f"/v0/watch/{wid}") as live:
        first = live.next("record").data
        assert first["topic"] == f"ds:{topic}/a"
        streams.create(f"{topic}/b", JSON, b'{"later":true}')
        second = live.next("record").data
    assert (second["topic"], second["records"][0]["data"]) == (f"ds:{topic}/b", {"later": True})


# Appends


def test_native_appends(streams: Streams, topic: str) -> None:
    """§18c: records of the kind of an open stream, which its readers see; nothing else."""
    speak = streams.speak
    streams.create(f"{topic}/json", JSON)
    speak.append(topic_of(f"{topic}/json"), {"a": 1}, 2)
    assert streams.read(f"{topic}/json") == b'[{"a": 1},2]'
    streams.create(f"{topic}/text", TEXT, b"x")
    record = {"records": [{"data": 1}]}
    bytes_path = f"/v0/topics/{topic_of(f'{topic}/text')}"
    speak.refused(*CONFLICT, "POST", bytes_path, record)
    with Client(speak.server.url) as client:
        client.append_arrow(f"ds:{topic}/text", pa.table({"data": [b"\xff"]}))
        with pytest.raises(StreamConflict):
            client.append_arrow(f"ds:{topic}/json", pa.table({"data": [b"1"]}))
    streams("POST", f"{topic}/json", stream_closed="true")
    path = f"/v0/topics/{topic_of(f'{topic}/json')}"
    speak.refused(409, "stream_closed", "POST", path, record)
    with Client(speak.server.url) as client, pytest.raises(StreamClosed):
        client.append(f"ds:{topic}/json", [1])
    assert (streams.read(f"{topic}/json"), streams.read(f"{topic}/text")) == (
        b'[{"a": 1},2]', b"x\xff",
    )  # fmt: skip


@pytest.mark.parametrize("prefix", ["ds:", "s2:"])
def test_no_native_call_creates_one(speak: Speaker, topic: str, prefix: str) -> None:
    """§18f: 400, by a PUT, an append, a router and a dead letter."""
    name, path = f"{prefix}{topic}", f"/v0/topics/{quote(prefix + topic, safe='')}"
    speak.refused(400, "invalid_request", "PUT", path, {})
    speak.refused(400, "invalid_request", "POST", path, {"records": [{"data": 1}]})
    for body in ({"source": topic, "dest": name}, {"source": name, "dest": topic}):
        speak.refused(400, "invalid_request", "PUT", f"/v0/routers/{topic}", body)
    queue = {"type": "queue", "max_deliveries": 1, "dead_letter": name}
    speak.refused(400, "invalid_request", "PUT", f"/v0/topics/{topic}", queue)
    assert listed(speak, name) == {}


# What only the dialect may do

CONFIGS: list[dict[str, Any]] = [
    {},
    {"ttl_ms": 1},
    {"cap_records": 1},
    {"cap_bytes": 1},
    {"durability": "ephemeral"},
    {"type": "queue"},
]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_config_stays(streams: Streams, topic: str, config: dict[str, Any]) -> None:
    """§18d: no TTL, no cap, no class, not even the same again."""
    streams.create(topic, JSON, b"[1,2,3]")
    before = streams.speak.state(topic_of(topic))
    streams.speak.refused(*CONFLICT, "PUT", f"/v0/topics/{topic_of(topic)}", config)
    after = streams.speak.state(topic_of(topic))
    assert (after["config"], after["count"]) == (before["config"], 3)


def test_records_and_streams_stay(streams: Streams, topic: str) -> None:
    """§18d: no delete, by seq, by tag or of all; the protocol deletes."""
    streams.create(topic, JSON, b"[1,2,3]")
    path = f"/v0/topics/{topic_of(topic)}"
    for body in ({"before_seq": 3}, {"match": "x"}):
        streams.speak.refused(*CONFLICT, "POST", f"{path}/delete", body)
    for query in ("", "?if_empty=true"):
        streams.speak.refused(*CONFLICT, "DELETE", path + query)
    assert streams.read(topic) == b"[1,2,3]"
    assert streams.status("DELETE", topic) == 204
    streams.speak.refused(404, "topic_not_found", "GET", path)


@pytest.mark.parametrize("call", ["claim", "ack", "nack", "extend"])
def test_queue_calls(streams: Streams, topic: str, call: str) -> None:
    """§18d: no stream is a queue."""
    streams.create(topic, JSON, b"[1]")
    body: dict[str, Any] = {"node": "w", "lease_ms": 1_000}
    body |= {} if call == "claim" else {"seqs": [1]}
    path = f"/v0/topics/{topic_of(topic)}/{call}"
    reply = streams.speak("POST", path, body)
    assert (reply.status, reply.error["code"]) in {CONFLICT, (409, "not_a_queue")}
    assert streams.read(topic) == b"[1]"


# Destinations


def refused_router(speak: Speaker, topic: str, dest: str) -> tuple[int, str]:
    body = {"source": topic, "dest": dest}
    reply = speak("PUT", f"/v0/routers/{topic}", body)
    return reply.status, "" if reply.status < 300 else reply.error["code"]


def test_routers(streams: Streams, topic: str) -> None:
    """§18b, §18e: from any stream; into one of JSON that is open."""
    speak = streams.speak
    streams.create(f"{topic}/bytes", TEXT, b"x")
    streams.create(f"{topic}/shut", JSON, stream_closed="true")
    streams.create(f"{topic}/json", JSON)
    assert refused_router(speak, topic, f"ds:{topic}/bytes") == CONFLICT
    assert refused_router(speak, topic, f"ds:{topic}/shut") == (409, "stream_closed")
    assert refused_router(speak, topic, f"ds:{topic}/json") == (201, "")
    speak.append(topic, {"n": 1})
    assert speak.diff(topic_of(f"{topic}/json"))["records"][0]["data"] == {"n": 1}
    assert streams.read(f"{topic}/json") == b'[{"n": 1}]'
    from_bytes = {"source": f"ds:{topic}/bytes", "dest": f"{topic}.copy", "backfill": True}
    speak.ok("PUT", f"/v0/routers/{topic}.b", from_bytes)
    assert speak.diff(f"{topic}.copy")["records"][0]["data"] == base64.b64encode(b"x").decode()


def test_a_stream_that_closes_stops_its_router(streams: Streams, topic: str) -> None:
    """§18e: what a closed destination does not take stays with the source, and nothing breaks."""
    speak = streams.speak
    streams.create(topic, JSON)
    speak.ok("PUT", f"/v0/routers/{topic}", {"source": topic, "dest": f"ds:{topic}"})
    speak.append(topic, 1)
    assert speak.diff(topic_of(topic))["head_seq"] == 1
    assert streams.status("POST", topic, stream_closed="true") == 204
    speak.append(topic, 2)
    assert speak.state(topic_of(topic))["head_seq"] == 1
    assert streams.read(topic) == b"[1]"
    assert speak.state(topic)["head_seq"] == 2


def test_dead_letters(streams: Streams, topic: str) -> None:
    """§18e: never into a stream, when it is declared and when it was there before."""
    speak = streams.speak
    streams.create(topic, JSON)
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": f"ds:{topic}"}
    reply = speak("PUT", f"/v0/topics/{topic}", config)
    assert reply.status in (400, 409), reply
    speak.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_a_redrive(streams: Streams, topic: str) -> None:
    """§18e: no letter goes to a stream, not even one that says it came from there."""
    speak = streams.speak
    streams.create(topic, JSON, b"[1]")
    forged = {"$dead_letter_from": f"ds:{topic}", "$dead_letter_seq": "1"}
    body = {"records": [{"data": 2, "meta": {**forged, "$dead_letter_deliveries": "1"}}]}
    speak.ok("POST", f"/v0/topics/{topic}.dead", body)
    asked = speak.ok("POST", f"/v0/topics/{topic}.dead/redrive", {"to": f"ds:{topic}"})
    assert (asked["moved"], asked["skipped"]) == (0, 1)
    assert speak.state(f"{topic}.dead")["count"] == 1
    speak.refused(*CONFLICT, "POST", f"/v0/topics/{topic_of(topic)}/redrive", {})
    assert streams.read(topic) == b"[1]"


def test_pipelines(streams: Streams, topic: str) -> None:
    """§18b, §18e: a long name as a source; as a destination a JSON stream that is open."""
    speak = streams.speak
    long = f"{topic}/" + "x" * (597 - len(topic) - 1)
    for name, kind in ((long, OCTETS), (f"{topic}/bytes", TEXT), (f"{topic}/json", JSON)):
        streams.create(name, kind)

    def declare(dest: str) -> tuple[int, str]:
        source = {"topic": f"ds:{long}", "alias": "s"}
        body = {"sources": [source], "sql": "select raw from s", "dest": {"topic": dest}}
        reply = speak("PUT", f"/v0/pipelines/{topic}", body)
        return reply.status, "" if reply.status < 300 else reply.error["code"]

    assert declare(f"ds:{topic}/bytes") == CONFLICT
    assert declare(f"ds:{topic}/none") == (404, "topic_not_found")
    assert declare(f"ds:{topic}/json") == (201, "")
    speak.ok("DELETE", f"/v0/pipelines/{topic}")


# What is not there


def test_an_expired_stream_is_absent(streams: Streams, topic: str) -> None:
    """§18g: 404 to reads and state, and in no list."""
    speak = streams.speak
    streams.create(f"{topic}/old", JSON, stream_expires_at="2001-01-01T00:00:00Z")
    streams.create(f"{topic}/new", JSON)
    path = f"/v0/topics/{topic_of(f'{topic}/old')}"
    speak.refused(404, "topic_not_found", "GET", path)
    speak.refused(404, "topic_not_found", "POST", f"{path}/diff", {})
    assert list(listed(speak, f"ds:{topic}/")) == [f"ds:{topic}/new"]


def test_a_stream_that_is_kept_for_its_forks_is_absent(streams: Streams, topic: str) -> None:
    """§18g: the source is gone for native callers; the fork has its records."""
    speak = streams.speak
    streams.create(f"{topic}/source", JSON, b"[1,2]")
    streams.create(f"{topic}/fork", JSON, stream_forked_from=f"/v1/stream/{topic}/source")
    assert streams.status("DELETE", f"{topic}/source") == 204
    path = f"/v0/topics/{topic_of(f'{topic}/source')}"
    speak.refused(404, "topic_not_found", "GET", path)
    speak.refused(404, "topic_not_found", "POST", f"{path}/diff", {})
    speak.refused(404, "topic_not_found", "POST", path, {"records": [{"data": 1}], "create": False})
    assert list(listed(speak, f"ds:{topic}/")) == [f"ds:{topic}/fork"]
    records = speak.diff(topic_of(f"{topic}/fork"))["records"]
    assert [record["data"] for record in records] == [1, 2]
