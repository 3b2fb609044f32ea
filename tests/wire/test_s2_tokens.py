"""Access tokens, locations and metrics of the S2 API (s2 §16)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.speakers import Reply, Speaker

ALL_NAMES = {"prefix": ""}
KEYS = "root,reader:read,writer:write,mine:rw:s2:my-,deleter:delete"


def send(
    speak: Speaker, method: str, path: str, body: object = None, basin: str = "", bearer: str = ""
) -> Reply:
    headers = {"s2-basin": basin} if basin else {}
    if bearer:
        headers["authorization"] = f"Bearer {bearer}"
    if body is not None:
        headers["content-type"] = "application/json"
    data = None if body is None else json.dumps(body).encode()
    return speak.send(method, path, data, headers)


def code(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["code"]


def issue(speak: Speaker, id: str, bearer: str = "", **fields: Any) -> str:
    reply = send(speak, "POST", "/v1/access-tokens", {"id": id, **fields}, bearer=bearer)
    assert reply.status == 201, reply
    assert list(reply.json) == ["access_token"] and reply.headers["cache-control"] == "no-store"
    token: str = reply.json["access_token"]
    return token


def make_basin(speak: Speaker, topic: str, *streams: str, bearer: str = "") -> str:
    basin = f"basin-of-{topic}"
    assert send(speak, "PUT", f"/v1/basins/{basin}", bearer=bearer).status == 201
    for stream in streams:
        body = {"stream": stream}
        assert send(speak, "POST", "/v1/streams", body, basin, bearer).status == 201
    return basin


def test_a_token_is_held_to_its_scope_and_revoked(speak: Speaker, topic: str) -> None:
    """§16a, §16b: on every call, from its issue to its end."""
    basin = make_basin(speak, topic, "a/1", "b/1")
    scope = {
        "basins": {"exact": basin}, "streams": {"prefix": "a/"},
        "op_groups": {"basin": {"read": True}}, "ops": ["delete-stream"],
    }  # fmt: skip
    token = issue(speak, topic, scope=scope)
    listed = send(speak, "GET", "/v1/streams", None, basin, token).json["streams"]
    assert [stream["name"] for stream in listed] == ["a/1"]
    assert send(speak, "GET", "/v1/streams/a%2F1", None, basin, token).status == 200
    denied = (403, "permission_denied")
    assert code(send(speak, "GET", "/v1/streams/b%2F1", None, basin, token)) == denied
    assert code(send(speak, "POST", "/v1/streams", {"stream": "a/2"}, basin, token)) == denied
    assert code(send(speak, "GET", "/v1/basins", bearer=token)) == denied
    assert code(send(speak, "DELETE", "/v1/streams/b%2F1", None, basin, token)) == denied
    assert send(speak, "DELETE", "/v1/streams/a%2F1", None, basin, token).status == 202
    found = send(speak, "GET", f"/v1/access-tokens?prefix={topic}&limit=1").json
    (shown,) = found["access_tokens"]
    assert (shown["id"], shown["expires_at"], shown["auto_prefix_streams"]) == (topic, None, False)
    assert shown["scope"] == scope and not found["has_more"]
    gone = send(speak, "DELETE", f"/v1/access-tokens/{topic}")
    assert (gone.status, gone.body) == (204, b"")
    assert code(send(speak, "GET", "/v1/streams", None, basin, token)) == (401, "authn")
    again = send(speak, "DELETE", f"/v1/access-tokens/{topic}")
    assert code(again) == (404, "access_token_not_found")


def test_auto_prefix_is_not_seen(speak: Speaker, topic: str) -> None:
    """§16d: it is added to what comes and taken from what goes."""
    basin = make_basin(speak, topic, "team/1", "other")
    groups = {"basin": {"read": True, "write": True}, "stream": {"read": True, "write": True}}
    scope = {"basins": ALL_NAMES, "streams": {"prefix": "team/"}, "op_groups": groups}
    token = issue(speak, topic, scope=scope, auto_prefix_streams=True)
    made = send(speak, "POST", "/v1/streams", {"stream": "2"}, basin, token)
    assert made.json["name"] == "2"
    path = "/v1/streams?prefix=&start_after=1"
    listed = send(speak, "GET", path, None, basin, token).json["streams"]
    assert [stream["name"] for stream in listed] == ["2"]
    body = {"records": [{"body": "x"}]}
    assert send(speak, "POST", "/v1/streams/2/records", body, basin, token).status == 200
    tail = send(speak, "GET", "/v1/streams/team%2F2/records/tail", None, basin)
    assert tail.json["tail"]["seq_num"] == 1
    assert send(speak, "GET", "/v1/streams/other", None, basin, token).status == 404


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"id": "t", "scope": {}}, 422, "Access token permissions cannot be empty"),
        ({"id": "t", "scope": {"op_groups": {"account": {"read": False}}}}, 422,
         "Access token permissions cannot be empty"),
        ({"id": "t", "scope": {"ops": ["read"], "streams": {"exact": "x"}},
          "auto_prefix_streams": True}, 422,
         "Auto prefixing is only allowed for streams with prefix matching"),
        ({"id": "t", "scope": {"ops": ["read"]}, "expires_at": "2020-01-01T00:00:00Z"}, 422, ""),
        ({"id": "t", "scope": {"ops": ["read"]}, "expires_at": "tomorrow"}, 400, ""),
        ({"id": "t", "scope": {"ops": ["write-all"]}}, 400, ""),
        ({"id": "t", "scope": {"ops": ["read"], "basins": {}}}, 400, ""),
        ({"id": "", "scope": {"ops": ["read"]}}, 400, ""),
        ({"id": "x" * 97, "scope": {"ops": ["read"]}}, 400, ""),
        ({"scope": {"ops": ["read"]}}, 400, ""),
    ],
)  # fmt: skip
def test_a_token_that_cannot_be_is_refused(
    speak: Speaker, body: object, status: int, message: str
) -> None:
    """§16a: by what is wrong with it."""
    reply = send(speak, "POST", "/v1/access-tokens", body)
    assert code(reply) == (status, "invalid" if status == 422 else "bad_json")
    assert message in reply.json["message"]


def test_a_token_issues_no_more_than_it_has(speak: Speaker, topic: str) -> None:
    """§16a: no other names, no other operations, and for no longer."""
    mine = {
        "basins": {"prefix": "my-"}, "access_tokens": {"prefix": topic},
        "ops": ["list-basins", "issue-access-token"],
    }  # fmt: skip
    expires = "2099-01-01T00:00:00.000Z"
    parent = issue(speak, topic, scope=mine, expires_at=expires)

    def child(suffix: str, **fields: object) -> tuple[int, str]:
        body = {"id": topic + suffix, **fields}
        reply = send(speak, "POST", "/v1/access-tokens", body, bearer=parent)
        return reply.status, reply.json.get("code", "")

    narrow = {"basins": {"exact": "my-basin"}, "ops": ["list-basins"]}
    assert child("-a", scope=narrow) == (201, "")
    listed = send(speak, "GET", f"/v1/access-tokens?prefix={topic}-a").json["access_tokens"]
    assert listed[0]["expires_at"] == expires
    assert child("-a", scope=narrow) == (409, "resource_already_exists")
    assert child("-b", scope={"basins": ALL_NAMES, "ops": ["list-basins"]}) == (422, "invalid")
    assert child("-b", scope={"ops": ["create-basin"]}) == (422, "invalid")
    assert child("-b", scope=narrow, expires_at="2099-01-02T00:00:00Z") == (422, "invalid")
    reply = send(speak, "POST", "/v1/access-tokens", {"id": "x", "scope": narrow}, bearer=parent)
    assert code(reply) == (403, "permission_denied")


def test_with_keys_an_admin_issues_the_first_token(
    speak_to: Callable[..., Speaker], topic: str
) -> None:
    """§16b, §16c: other keys may do what their scopes and prefixes say."""
    speak = speak_to(api_keys=KEYS)
    basins = ("GET", "/v1/basins")
    assert code(send(speak, *basins)) == (401, "authn")
    assert code(send(speak, *basins, bearer="unknown")) == (401, "authn")
    basin = make_basin(speak, topic, "s", bearer="root")
    body = {"id": topic, "scope": {"ops": ["list-basins"], "basins": ALL_NAMES}}
    for key in ("reader", "writer", "mine", "deleter"):
        refused = send(speak, "POST", "/v1/access-tokens", body, bearer=key)
        assert code(refused) == (403, "permission_denied")
    token = issue(speak, topic, "root", scope=body["scope"])
    assert basin in send(speak, *basins, bearer=token).body.decode()
    assert speak.send("GET", "/v0/topics", None, {"authorization": f"Bearer {token}"}).status == 401
    for key, method, status in (
        ("reader", "GET", 200), ("writer", "GET", 403), ("writer", "DELETE", 403),
        ("mine", "GET", 403), ("writer", "PUT", 403), ("deleter", "DELETE", 202),
        ("writer", "PUT", 201), ("root", "PUT", 200),
    ):  # fmt: skip
        assert send(speak, method, "/v1/streams/s", None, basin, key).status == status, key


def test_locations(speak_to: Callable[..., Speaker]) -> None:
    """§16f: those of the setting; a basin keeps the one that was the default."""
    speak = speak_to(s2_locations="here, there")
    locations = send(speak, "GET", "/v1/locations").json
    assert [location["name"] for location in locations] == ["here", "there"]
    assert all(isinstance(location["is_private"], bool) for location in locations)
    chosen = send(speak, "PUT", "/v1/locations/default", "there")
    assert (chosen.status, chosen.json["name"]) == (200, "there")
    assert send(speak, "GET", "/v1/locations/default").json["name"] == "there"
    assert code(send(speak, "PUT", "/v1/locations/default", "nowhere")) == (422, "invalid")
    assert code(send(speak, "PUT", "/v1/locations/default", {"name": "here"})) == (400, "bad_json")
    made = send(speak, "PUT", "/v1/basins/located-basin")
    assert made.json["location"] == "there"
    assert send(speak, "PUT", "/v1/locations/default", "here").status == 200
    assert send(speak, "DELETE", "/v1/basins/located-basin").status == 202


def metrics(speak: Speaker, path: str, set: str, **more: object) -> Any:
    now = int(time.time())
    query = {"set": set, "start": now - 3_600, "end": now + 1, **more}
    text = "&".join(f"{name}={value}" for name, value in query.items())
    return send(speak, "GET", f"/v1/metrics{path}?{text}")


def test_metrics_are_what_was_done(speak: Speaker, topic: str) -> None:
    """§16e: operations, bytes and storage."""
    basin = make_basin(speak, topic, "s")
    body = {"records": [{"body": "x" * 100}, {"body": "y"}]}
    for _ in range(3):
        assert send(speak, "POST", "/v1/streams/s/records", body, basin).status == 200
    read = send(speak, "GET", "/v1/streams/s/records?seq_num=0", None, basin)
    assert len(read.json["records"]) == 6

    def total(set: str) -> dict[str, tuple[str, float]]:
        found = metrics(speak, f"/{basin}", set, interval="hour").json["values"]
        sums = (value["accumulation"] for value in found)
        return {one["name"]: (one["unit"], sum(v for _, v in one["values"])) for one in sums}

    assert total("append-ops") == {"express": ("operations", 3.0)}
    assert total("append-throughput") == {"express": ("bytes", 3 * (8 + 100 + 8 + 1.0))}
    assert total("read-ops") == {"streaming": ("operations", 0), "unary": ("operations", 1.0)}
    assert total("read-throughput") == {"read": ("bytes", 3 * (8 + 100 + 8 + 1.0))}
    assert total("basin-ops")["append"] == ("operations", 3.0)
    (storage,) = metrics(speak, f"/{basin}", "storage").json["values"]
    (stream,) = metrics(speak, f"/{basin}/s", "storage").json["values"]
    assert storage["gauge"]["unit"] == stream["gauge"]["unit"] == "bytes"
    assert storage["gauge"]["values"][-1][1] == stream["gauge"]["values"][-1][1] > 300
    (label,) = metrics(speak, "", "active-basins").json["values"]
    assert basin in label["label"]["values"]
    account = metrics(speak, "", "account-ops").json["values"]
    names = {value["accumulation"]["name"] for value in account}
    assert {"create-basin", "account-metrics"} <= names and "append" not in names


def test_metrics_of_what_is_not_there_are_empty(speak: Speaker) -> None:
    """§16e: and no 404."""
    reply = metrics(speak, "/not-there-1", "storage")
    assert reply.json["values"] == [{"gauge": {"name": "storage", "unit": "bytes", "values": []}}]
    (stream,) = metrics(speak, "/not-there-1/s", "storage").json["values"]
    assert stream["gauge"]["values"] == []
    old = metrics(speak, "/not-there-1", "append-ops", start=1, end=2)
    assert old.json["values"] == []


@pytest.mark.parametrize(
    ("path", "query", "answer"),
    [
        ("", {"set": "storage"}, (400, "bad_query")),
        ("", {"set": "account-ops", "start": "x"}, (400, "bad_query")),
        ("", {"set": "account-ops", "interval": "year"}, (400, "bad_query")),
        ("", {"set": "account-ops", "start": ""}, (422, "invalid")),
        ("", {"set": "account-ops", "start": 5, "end": 4}, (422, "invalid")),
        ("", {"set": "account-ops", "end": 4_000_000_000}, (422, "invalid")),
        ("", {"set": "account-ops", "start": 0, "end": 90 * 86_400 + 1}, (422, "invalid")),
        ("", {"set": "estimated-billable-usage", "interval": "minute"}, (422, "invalid")),
        ("/my-basin", {"set": "storage", "interval": "minute"}, (422, "invalid")),
        ("/my-basin/s", {"set": "storage", "interval": "hour"}, (422, "invalid")),
        ("/no", {"set": "storage"}, (400, "bad_path")),
    ],
)
def test_metrics_refuse_what_they_cannot_tell(
    speak: Speaker, path: str, query: dict[str, Any], answer: tuple[int, str]
) -> None:
    """§16e: by what cannot be told."""
    assert code(metrics(speak, path, **query)) == answer


def test_a_range_of_ninety_days_is_told(speak: Speaker) -> None:
    now = int(time.time())
    assert metrics(speak, "", "account-ops", start=now - 90 * 86_400, end=now).status == 200
