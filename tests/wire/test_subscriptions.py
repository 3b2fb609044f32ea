"""Subscriptions over the wire, with receivers on real sockets (durable_streams)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.testing.process import ServerProcess
from tests.support.speakers import Reply, Speaker
from tests.support.webhook_receivers import WebhookReceiver, call

SETTINGS = {"ds_webhook_loopback": "true"}
ROOT = "/v1/stream/"
SUBSCRIPTIONS = ROOT + "__ds/subscriptions/"
JSON = {"content-type": "application/json"}
DONE = b'{"done":true}'


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as receiver:
        yield receiver


def send(speak: Speaker, method: str, path: str, body: object = None, **headers: str) -> Reply:
    data = None if body is None else json.dumps(body).encode()
    reply = speak.send(method, path, data, {**JSON, **headers})
    assert reply.headers["x-content-type-options"] == "nosniff"
    return reply


def keys_of(speak: Speaker) -> list[dict[str, str]]:
    reply = speak.send("GET", ROOT + "__ds/jwks.json", None, {})
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/jwk-set+json"
    assert reply.headers["cache-control"] == "public, max-age=300"
    keys: list[dict[str, str]] = json.loads(reply.body)["keys"]
    return keys


def cursors_of(speak: Speaker, id: str) -> dict[str, str]:
    record = send(speak, "GET", SUBSCRIPTIONS + id).json
    return {link["path"]: link["acked_offset"] for link in record["streams"]}


def subscribe(speak: Speaker, id: str, receiver: WebhookReceiver, **fields: object) -> Any:
    asked = {"type": "webhook", "webhook": {"url": receiver.url}, **fields}
    reply = send(speak, "PUT", SUBSCRIPTIONS + id, asked)
    assert reply.status == 201, reply
    return reply.json


def test_a_webhook_arrives_signed_and_done_acks_it(
    speak: Speaker, server: ServerProcess, receiver: WebhookReceiver, topic: str
) -> None:
    receiver.answer = (200, DONE)
    record = subscribe(speak, topic, receiver, pattern=f"{topic}/*")
    signing = record["webhook"]["signing"]
    assert signing["jwks_url"] == f"{server.url}{ROOT}__ds/jwks.json"
    put = send(speak, "PUT", f"{ROOT}{topic}/a%20b", [{"event": 1}])
    tail = put.headers["stream-next-offset"]
    received = receiver.next()
    received.verify(keys_of(speak))
    assert f"kid={signing['kid']}," in received.headers["webhook-signature"]
    assert received.headers["content-type"] == "application/json"
    told = received.json
    assert (told["subscription_id"], told["generation"]) == (topic, 1)
    assert told["callback_url"] == f"{server.url}{SUBSCRIPTIONS}{topic}/callback"
    assert told["streams"] == [
        {
            "path": f"{topic}/a%20b",
            "link_type": "glob",
            "acked_offset": "-1",
            "tail_offset": tail,
            "has_pending": True,
        }
    ]
    # A second wake comes only when the first one is dealt with.
    post = send(speak, "POST", f"{ROOT}{topic}/a%20b", {"event": 2})
    assert receiver.next().json["generation"] == 2
    while cursors_of(speak, topic) != {f"{topic}/a%20b": post.headers["stream-next-offset"]}:
        pass
    assert send(speak, "DELETE", SUBSCRIPTIONS + topic).status == 204


def test_a_callback_needs_no_key_and_is_fenced_afterwards(
    speak: Speaker, receiver: WebhookReceiver, topic: str
) -> None:
    subscribe(speak, topic, receiver, streams=[f"{topic}/a"])
    send(speak, "PUT", f"{ROOT}{topic}/a", ["x"])
    told = receiver.next().json
    said = {
        "wake_id": told["wake_id"],
        "generation": told["generation"],
        "acks": [{"stream": f"{topic}/a", "offset": told["streams"][0]["tail_offset"]}],
        "done": True,
    }
    token = told["callback_token"]
    assert call(told["callback_url"], said, token) == (200, {"ok": True, "next_wake": False})
    status, body = call(told["callback_url"], said, token)
    assert (status, body["error"]["code"]) == (409, "FENCED")
    status, body = call(told["callback_url"], said, token + "x")
    assert (status, body["error"]["code"]) == (401, "TOKEN_INVALID")


def test_a_webhook_is_sent_again_until_it_is_taken(
    speak: Speaker, receiver: WebhookReceiver, topic: str
) -> None:
    receiver.answer = (500, b"")
    subscribe(speak, topic, receiver, pattern=f"{topic}/*")
    send(speak, "PUT", f"{ROOT}{topic}/a", ["x"])
    first = receiver.next()
    receiver.answer = (200, DONE)
    second = receiver.next()
    assert second.json["wake_id"] == first.json["wake_id"]
    second.verify(keys_of(speak))


def test_pull_wake(speak: Speaker, topic: str) -> None:
    wake = f"wake-{topic}"
    assert send(speak, "PUT", ROOT + wake, []).status == 201
    asked = {"type": "pull-wake", "pattern": f"{topic}/*", "wake_stream": wake}
    assert send(speak, "PUT", SUBSCRIPTIONS + topic, asked).status == 201
    put = send(speak, "PUT", f"{ROOT}{topic}/a", ["x"])
    claim = send(speak, "POST", f"{SUBSCRIPTIONS}{topic}/claim", {"worker": "w1"})
    assert claim.status == 200
    claimed = claim.json
    tail = put.headers["stream-next-offset"]
    assert [stream["tail_offset"] for stream in claimed["streams"]] == [tail]
    busy = send(speak, "POST", f"{SUBSCRIPTIONS}{topic}/claim", {"worker": "w2"})
    assert busy.status == 409
    assert busy.json["error"]["code"] == "ALREADY_CLAIMED"
    said = {"wake_id": claimed["wake_id"], "generation": claimed["generation"]}
    bearer = {"authorization": f"Bearer {claimed['token']}"}
    acks = {"acks": [{"stream": f"{topic}/a", "offset": tail}]}
    ack = send(speak, "POST", f"{SUBSCRIPTIONS}{topic}/ack", said | acks, **bearer)
    assert (ack.status, ack.json) == (200, {"ok": True, "next_wake": False})
    release = send(speak, "POST", f"{SUBSCRIPTIONS}{topic}/release", said, **bearer)
    assert (release.status, release.body) == (204, b"")
    assert cursors_of(speak, topic) == {f"{topic}/a": tail}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "subscriptions/none", 404, "SUBSCRIPTION_NOT_FOUND"),
        ("POST", "subscriptions/none/claim", 404, "SUBSCRIPTION_NOT_FOUND"),
        ("POST", "subscriptions/none/ack", 401, "TOKEN_INVALID"),
        ("PATCH", "subscriptions/none", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "subscriptions", 404, "SUBSCRIPTION_NOT_FOUND"),
        ("PUT", "other", 404, "SUBSCRIPTION_NOT_FOUND"),
        ("PUT", "subscriptions/a%2Fb", 400, "INVALID_REQUEST"),
        ("PUT", "subscriptions/" + "a" * 201, 400, "INVALID_REQUEST"),
        ("POST", "jwks.json", 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_refusals_have_one_form(
    speak: Speaker, method: str, path: str, status: int, code: str
) -> None:
    asked = {"type": "pull-wake", "pattern": "a", "wake_stream": "w", "worker": "w1"}
    reply = send(speak, method, f"{ROOT}__ds/{path}", asked)
    assert (reply.status, reply.json["error"]["code"]) == (status, code)
    assert set(reply.json) == {"error"} and reply.json["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"type":1}'])
def test_bodies_that_are_none(speak: Speaker, body: bytes) -> None:
    reply = speak.send("PUT", SUBSCRIPTIONS + "broken", body, JSON)
    assert (reply.status, reply.json["error"]["code"]) == (400, "INVALID_REQUEST")
    assert send(speak, "GET", SUBSCRIPTIONS + "broken").status == 404


def test_a_server_that_may_not_reach_its_machine_says_so(
    servers,
    topic: str,
    receiver: WebhookReceiver,  # type: ignore[no-untyped-def]
) -> None:
    plain = servers.speaker(servers.with_settings(), "h1")
    asked = {"type": "webhook", "pattern": topic, "webhook": {"url": receiver.url}}
    reply = send(plain, "PUT", SUBSCRIPTIONS + topic, asked)
    assert (reply.status, reply.json["error"]["code"]) == (400, "WEBHOOK_URL_REJECTED")


# Keys


KEYS = "all,reader:read,writer:rw,mine:rw:ds:mine/,deleter:delete:ds:mine/"


@pytest.fixture
def guarded(speak_to) -> Speaker:  # type: ignore[no-untyped-def]
    speaker: Speaker = speak_to(api_keys=KEYS, **SETTINGS)
    return speaker


def ask(speak: Speaker, key: str, method: str, path: str, body: object = None) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return send(speak, method, path, body, **headers).status


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"pattern": "mine/*"}, 201),
        ({"pattern": "mine/a/**"}, 201),
        ({"pattern": "mine/**/a"}, 201),
        ({"streams": ["mine/a"]}, 201),
        ({"pattern": "%6Dine/*"}, 201),
        ({"pattern": "mine/**"}, 403),  # it matches `mine`, which is beside `mine/`
        ({"pattern": "*"}, 403),
        ({"pattern": "**"}, 403),
        ({"pattern": "*/a"}, 403),
        ({"pattern": "mine*/a"}, 403),
        ({"pattern": "yours/*"}, 403),
        ({"pattern": "mine/*", "streams": ["yours/a"]}, 403),
        ({"pattern": "mine/*", "wake_stream": "yours/w"}, 403),
        ({"streams": ["mine/../yours"]}, 400),  # no stream has such a name
    ],
)
def test_a_key_subscribes_within_its_prefixes(
    guarded: Speaker, topic: str, fields: dict[str, object], status: int
) -> None:
    asked = {"type": "pull-wake", "wake_stream": "mine/wake", **fields}
    assert ask(guarded, "mine", "PUT", SUBSCRIPTIONS + topic, asked) == status


def test_scopes_and_prefixes_of_what_is_there(guarded: Speaker, topic: str) -> None:
    one = SUBSCRIPTIONS + topic
    asked = {"type": "pull-wake", "wake_stream": "yours/w", "pattern": "yours/*"}
    assert ask(guarded, "", "PUT", one, asked) == 401
    assert ask(guarded, "reader", "PUT", one, asked) == 403
    assert ask(guarded, "writer", "PUT", one, asked) == 201
    assert ask(guarded, "reader", "GET", one) == 200
    assert ask(guarded, "reader", "DELETE", one) == 403
    for method, path in (("GET", one), ("POST", one + "/claim")):
        assert ask(guarded, "mine", method, path, {"worker": "w"}) == 403
    assert ask(guarded, "deleter", "DELETE", one) == 403
    assert ask(guarded, "mine", "POST", one + "/streams", {"streams": ["mine/a"]}) == 403
    assert ask(guarded, "all", "DELETE", one) == 204


def test_tokens_and_published_keys_need_no_key(
    guarded: Speaker, topic: str, receiver: WebhookReceiver
) -> None:
    asked = {"type": "webhook", "streams": [topic], "webhook": {"url": receiver.url}}
    assert ask(guarded, "writer", "PUT", SUBSCRIPTIONS + topic, asked) == 201
    assert ask(guarded, "writer", "PUT", ROOT + topic, ["x"]) == 201
    received = receiver.next()
    received.verify(keys_of(guarded))
    told = received.json
    said = {"wake_id": told["wake_id"], "generation": told["generation"]}
    assert call(told["callback_url"], said, told["callback_token"])[0] == 200
    assert call(told["callback_url"], said, "writer")[0] == 401
