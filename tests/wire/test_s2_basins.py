"""Basins and streams of the S2 API, as clients see them (s2 §4)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.speakers import Reply, Speaker

JSON = {"content-type": "application/json"}


def send(
    speak: Speaker, method: str, path: str, body: object = None, basin: str = "", **headers: str
) -> Reply:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if basin:
        sent["s2-basin"] = basin
    data = None if body is None else json.dumps(body).encode()
    return speak.send(method, path, data, {**(JSON if data else {}), **sent})


def code(reply: Reply) -> tuple[int, str]:
    assert set(reply.json) == {"code", "message"} and reply.json["message"]
    return reply.status, reply.json["code"]


def create(speak: Speaker, topic: str, **config: Any) -> str:
    """A new basin."""
    name = f"basin-of-{topic}"
    assert send(speak, "POST", "/v1/basins", {"basin": name, "config": config}).status == 201
    return name


def test_a_basin_is_created_found_and_deleted(speak: Speaker, topic: str) -> None:
    """§4a, §5c, §14d: it is shown as it was set, and gone once its streams are."""
    name = f"basin-of-{topic}"
    made = send(speak, "POST", "/v1/basins", {"basin": name, "config": None, "location": None})
    assert (made.status, made.headers["s2-provision-result"]) == (201, "created")
    assert list(made.json) == ["name", "location", "created_at", "deleted_at", "state"]
    assert (made.json["name"], made.json["deleted_at"], made.json["state"]) == (
        name, None, "active",
    )  # fmt: skip
    config = send(speak, "GET", f"/v1/basins/{name}").json
    assert config == {
        "default_stream_config": None, "stream_cipher": None,
        "create_stream_on_append": False, "create_stream_on_read": False,
    }  # fmt: skip
    assert send(speak, "POST", "/v1/streams", {"stream": "s"}, name).status == 201
    gone = send(speak, "DELETE", f"/v1/basins/{name}")
    assert (gone.status, gone.body) == (202, b"")
    while True:  # it is pending until its streams are gone
        left = send(speak, "DELETE", f"/v1/basins/{name}")
        if left.status == 404:
            break
        assert left.status == 202
    assert code(send(speak, "GET", f"/v1/basins/{name}")) == (404, "basin_not_found")


def test_a_list_is_sorted_and_paged(speak: Speaker, topic: str) -> None:
    """§4d, §3d: by name, behind a name, with a prefix."""
    names = [f"list-{topic}-{letter}" for letter in "abc"]
    for name in reversed(names):
        send(speak, "PUT", f"/v1/basins/{name}")
    path = f"/v1/basins?prefix=list-{topic}-"
    everything = send(speak, "GET", path).json
    assert [basin["name"] for basin in everything["basins"]] == names
    assert not everything["has_more"]
    first = send(speak, "GET", f"{path}&limit=2&start_after=").json
    assert [basin["name"] for basin in first["basins"]] == names[:2] and first["has_more"]
    rest = send(speak, "GET", f"{path}&limit=0&start_after={names[1]}").json
    assert [basin["name"] for basin in rest["basins"]] == names[2:] and not rest["has_more"]
    before = send(speak, "GET", f"{path}&start_after=aaaa").json
    assert len(before["basins"]) == 3
    exact = send(speak, "GET", f"{path}&limit=3").json
    assert not exact["has_more"]


def test_a_request_token_makes_a_creation_repeatable(speak: Speaker, topic: str) -> None:
    """§4a, §4c: with the same configuration, or with one that says the same."""
    basin = f"basin-of-{topic}"
    body = {"basin": basin, "config": {"create_stream_on_append": True}}
    results = []
    for token in ("one", "one", "two", ""):
        reply = send(speak, "POST", "/v1/basins", body, s2_request_token=token)
        results.append((reply.status, reply.headers.get("s2-provision-result")))
    assert results == [(201, "created"), (201, "noop"), (409, None), (409, None)]
    other = {**body, "config": {"create_stream_on_read": True}}
    again = send(speak, "POST", "/v1/basins", other, s2_request_token="one")
    assert code(again) == (409, "resource_already_exists")
    long = send(speak, "POST", "/v1/basins", body, s2_request_token="x" * 37)
    assert code(long) == (400, "bad_header")
    stream = {"stream": "s", "config": {"storage_class": None, "timestamping": {}}}
    first = send(speak, "POST", "/v1/streams", stream, basin, s2_request_token="one")
    second = send(speak, "POST", "/v1/streams", {"stream": "s"}, basin, s2_request_token="one")
    assert [first.headers["s2-provision-result"], second.headers["s2-provision-result"]] == [
        "created", "noop",
    ]  # fmt: skip


def test_put_replaces_and_patch_merges(speak: Speaker, topic: str) -> None:
    """§4b, §4c, §5d: whole, or field by field."""
    path = f"/v1/basins/basin-of-{topic}"
    config = {"create_stream_on_append": True, "default_stream_config": {"storage_class": "x"}}
    results = []
    for body in (None, {"config": config}, {"config": config}, {}):
        reply = send(speak, "PUT", path, body)
        results.append((reply.status, reply.headers["s2-provision-result"]))
    assert results == [(201, "created"), (200, "updated"), (200, "noop"), (200, "updated")]
    nested = {"default_stream_config": {"timestamping": {"mode": "arrival"}}}
    assert send(speak, "PATCH", path, nested).status == 200
    uncapped = {"default_stream_config": {"timestamping": {"uncapped": True}}}
    merged = send(speak, "PATCH", path, uncapped).json["default_stream_config"]
    assert merged["timestamping"] == {"mode": "arrival", "uncapped": True}
    assert merged["retention_policy"] is None
    reset = send(speak, "PATCH", path, {"default_stream_config": None}).json
    assert reset["default_stream_config"] is None
    null = send(speak, "PATCH", path, {"create_stream_on_append": None})
    assert code(null) == (400, "bad_json")


def test_a_location_is_echoed(speak: Speaker, topic: str) -> None:
    """§16f: and a basin keeps it."""
    body = {"basin": f"basin-of-{topic}", "location": "aws:us-east-1"}
    assert send(speak, "POST", "/v1/basins", body).json["location"] == "aws:us-east-1"
    moved = send(speak, "PUT", f"/v1/basins/basin-of-{topic}", {"location": "elsewhere"})
    assert code(moved) == (422, "invalid")
    bad = send(speak, "POST", "/v1/basins", {"basin": "other-basin", "location": "a b"})
    assert code(bad) == (400, "bad_json")


def test_a_stream_is_resolved_when_it_is_created(speak: Speaker, topic: str) -> None:
    """§5a, §5b, §5c, §5d: a later change of its basin does not touch it."""
    default = {"retention_policy": {"age": 60}, "timestamping": {"mode": "client-require"}}
    basin = create(speak, topic, default_stream_config=default, stream_cipher="aes-256-gcm")
    body = {"stream": "a/b", "config": {"timestamping": {"uncapped": True}}}
    made = send(speak, "POST", "/v1/streams", body, basin)
    assert list(made.json) == ["name", "created_at", "deleted_at", "cipher"]
    assert (made.status, made.json["name"], made.json["cipher"]) == (201, "a/b", "aes-256-gcm")
    wanted = {
        "storage_class": "express",
        "retention_policy": {"age": 60},
        "timestamping": {"mode": "client-require", "uncapped": True},
        "delete_on_empty": {"min_age_secs": 0},
    }
    path = "/v1/streams/a%2Fb"
    assert send(speak, "GET", path, None, basin).json == wanted
    later = {"default_stream_config": {"retention_policy": {"age": 90}}}
    send(speak, "PATCH", f"/v1/basins/{basin}", later)
    assert send(speak, "GET", path, None, basin).json == wanted
    changes = {"retention_policy": None, "timestamping": {"mode": None}}
    changed = send(speak, "PATCH", path, changes, basin).json
    assert changed["retention_policy"] == {"age": 90}
    assert changed["timestamping"] == {"mode": "client-require", "uncapped": True}
    put = send(speak, "PUT", path, {"retention_policy": {"infinite": {}}}, basin)
    assert (put.status, put.headers["s2-provision-result"]) == (200, "updated")
    replaced = send(speak, "GET", path, None, basin).json
    assert replaced["retention_policy"] == {"infinite": {}}
    assert replaced["timestamping"] == {"mode": "client-require", "uncapped": False}
    topic_name = f"s2:{basin}/a%2Fb"
    native = speak.send("GET", f"/v0/topics/{topic_name.replace('/a', '%2Fa')}", None, {})
    assert native.status == 200, native


def test_a_change_of_retention_counts_on_the_live_stream(speak: Speaker, topic: str) -> None:
    """§5e, §17b: the topic has the new age, and its class."""
    basin = create(speak, topic)
    send(speak, "PUT", "/v1/streams/s", None, basin)
    send(speak, "PATCH", "/v1/streams/s", {"retention_policy": {"age": 60}}, basin)
    found = speak.send("GET", f"/v0/topics/s2:{basin}%2Fs", None, {}).json
    assert found["config"]["ttl_ms"] == 60_000 and found["config"]["durability"] == "fsync"


@pytest.mark.parametrize("name", ["a/b c", "ü/é", "x" * 512, "%2F", "a?b#c", "_", "records"])
def test_names_are_one_segment(speak: Speaker, topic: str, name: str) -> None:
    """§3a: percent-encoded, whatever they are made of."""
    basin = create(speak, topic)
    quoted = "".join(f"%{byte:02X}" for byte in name.encode())
    assert send(speak, "PUT", f"/v1/streams/{quoted}", None, basin).json["name"] == name
    listed = send(speak, "GET", f"/v1/streams?prefix={quoted}", None, basin).json["streams"]
    assert [stream["name"] for stream in listed] == [name]
    assert send(speak, "DELETE", f"/v1/streams/{quoted}", None, basin).status == 202
    assert send(speak, "GET", "/v1/streams", None, basin).json["streams"] == []


def test_streams_are_listed_in_pages(speak: Speaker, topic: str) -> None:
    basin = create(speak, topic)
    for name in ("b/2", "a/1", "b/1"):
        send(speak, "POST", "/v1/streams", {"stream": name}, basin)
    first = send(speak, "GET", "/v1/streams?prefix=b/&limit=1", None, basin).json
    assert [stream["name"] for stream in first["streams"]] == ["b/1"] and first["has_more"]
    path = "/v1/streams?prefix=b/&limit=1&start_after=b/1"
    second = send(speak, "GET", path, None, basin).json
    assert [stream["name"] for stream in second["streams"]] == ["b/2"] and not second["has_more"]


@pytest.mark.parametrize(
    ("method", "path", "body", "basin", "answer"),
    [
        ("POST", "/v1/basins", {"basin": "short"}, "", (400, "bad_json")),
        ("POST", "/v1/basins", {"config": {}}, "", (400, "bad_json")),
        ("POST", "/v1/basins", {"basin": "my-basin", "config": {"stream_cipher": "rot13"}}, "",
         (400, "bad_json")),
        ("PUT", "/v1/basins/UPPER-CASE", None, "", (400, "bad_path")),
        ("GET", "/v1/basins?limit=x", None, "", (400, "bad_query")),
        ("GET", "/v1/basins?prefix=UPPER", None, "", (400, "bad_query")),
        ("GET", "/v1/basins/not-there-1", None, "", (404, "basin_not_found")),
        ("PATCH", "/v1/basins/not-there-1", {}, "", (404, "basin_not_found")),
        ("DELETE", "/v1/basins/not-there-1", None, "", (404, "basin_not_found")),
        ("GET", "/v1/streams", None, "", (400, "bad_header")),
        ("GET", "/v1/streams", None, "x", (400, "bad_header")),
        ("GET", "/v1/streams", None, "not-there-1", (404, "basin_not_found")),
        ("POST", "/v1/streams", {"stream": "s"}, "not-there-1", (404, "basin_not_found")),
        ("PUT", "/v1/streams/s", None, "not-there-1", (404, "basin_not_found")),
        ("PATCH", "/v1/streams/s", {}, "not-there-1", (404, "basin_not_found")),
        ("GET", "/v1/streams/s", None, "not-there-1", (404, "stream_not_found")),
        ("DELETE", "/v1/streams/s", None, "not-there-1", (404, "stream_not_found")),
        ("POST", "/v1/streams", {"stream": ".."}, "not-there-1", (400, "bad_json")),
        ("POST", "/v1/streams", {"stream": ""}, "not-there-1", (400, "bad_json")),
        ("GET", "/v1/streams/%2E", None, "not-there-1", (400, "bad_path")),
        ("GET", "/v1/streams/%00", None, "not-there-1", (400, "bad_path")),
        ("GET", "/v1/streams/%FF", None, "not-there-1", (400, "bad_path")),
        ("GET", "/v1/streams/" + "x" * 513, None, "not-there-1", (400, "bad_path")),
        ("PUT", "/v1/streams/s", {"retention_policy": {"age": 0}}, "not-there-1", (422, "invalid")),
    ],
)  # fmt: skip
def test_what_is_wrong_has_its_code(
    speak: Speaker, method: str, path: str, body: object, basin: str, answer: tuple[int, str]
) -> None:
    """§2a, §2b, §2f, §2g: by where it stood."""
    assert code(send(speak, method, path, body, basin)) == answer


def test_a_body_says_that_it_is_json(speak: Speaker, topic: str) -> None:
    body = json.dumps({"basin": f"basin-of-{topic}"}).encode()
    for content_type in ("", "text/plain", "application/x-www-form-urlencoded"):
        sent = {"content-type": content_type} if content_type else {}
        assert code(speak.send("POST", "/v1/basins", body, sent)) == (400, "bad_json")
    reply = speak.send("POST", "/v1/basins", body, {"content-type": "application/x+json; a=b"})
    assert reply.status == 201


def test_what_is_not_served_has_no_body(speak: Speaker) -> None:
    """§2e: neither a path that is none nor a method."""
    for method, path, status in (
        ("GET", "/v1/streams/a/b/c", 404),
        ("POST", "/v1/basins/my-basin", 405),
        ("DELETE", "/v1/basins", 405),
        ("GET", "/v1/basins/my-basin/x", 404),
    ):
        reply = speak.send(method, path, None, {})
        assert (reply.status, reply.body) == (status, b"")


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_probes_say_that_the_server_is_there(speak: Speaker, path: str) -> None:
    reply = speak.send("GET", path, None, {})
    assert (reply.status, reply.body) == (200, b"OK")


def test_a_body_is_unpacked_only_as_far_as_any_call_needs(speak: Speaker, topic: str) -> None:
    """§3c: 20 KB can be millions of records."""
    packed = gzip.compress(b'{"records":[' + b"{}," * 3_000_000 + b"{}]}")
    headers = {
        "content-type": "application/json",
        "content-encoding": "gzip",
        "s2-basin": "no-such",
    }
    refused = speak.send("POST", f"/v1/streams/{topic}/records", packed, headers)
    assert (refused.status, refused.json["code"]) == (422, "invalid")
    assert "2097152" in refused.json["message"]


def test_nothing_is_unpacked_for_who_may_not_call(
    speak_to: Callable[..., Speaker], topic: str
) -> None:
    """What is no gzip at all is 401 too: it was not looked at."""
    speak = speak_to(api_keys="root")
    path = f"/v1/streams/{topic}/records"
    sent = {**JSON, "content-encoding": "gzip", "s2-basin": "my-basin"}
    for size in (10, 200_000):
        refused = speak.send("POST", path, b"x" * size, sent)
        assert code(refused) == (401, "authn")
        unknown = speak.send("POST", path, b"x" * size, {**sent, "authorization": "Bearer nobody"})
        assert code(unknown) == (401, "authn")
        known = speak.send("POST", path, b"x" * size, {**sent, "authorization": "Bearer root"})
        assert code(known) == (422, "invalid")
