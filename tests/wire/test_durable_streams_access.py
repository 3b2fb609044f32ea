"""Who may use which streams: keys, scopes, prefixes and web pages."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.speakers import Speaker

PAGE = "https://app.example"
SETTINGS = {
    "api_keys": "all,reader:read,writer:write,mine:rw:ds:mine/,deleter:delete,"
    "forker:write:ds:mine/",
    "cors_origins": PAGE,
}
TEXT = {"content-type": "text/plain"}


def ask(
    speak: Speaker, key: str, method: str, path: str, body: bytes | None = None, **headers: str
) -> int:
    sent = {**TEXT, "authorization": f"Bearer {key}", **headers}
    reply = speak.send(method, f"/v1/stream/{path}", body, sent)
    assert reply.headers["x-content-type-options"] == "nosniff"
    return reply.status


def test_each_method_needs_its_scope(speak: Speaker, topic: str) -> None:
    assert ask(speak, "unknown", "PUT", topic) == 401
    assert ask(speak, "reader", "PUT", topic) == 403
    assert ask(speak, "writer", "PUT", topic) == 201
    assert ask(speak, "reader", "POST", topic, b"x") == 403
    assert ask(speak, "writer", "POST", topic, b"x") == 204
    assert ask(speak, "writer", "HEAD", topic) == 403
    assert ask(speak, "reader", "HEAD", topic) == ask(speak, "reader", "GET", topic) == 200
    assert ask(speak, "writer", "GET", topic) == 403
    assert ask(speak, "writer", "DELETE", topic) == 403
    assert ask(speak, "deleter", "DELETE", topic) == 204


def test_a_key_has_its_prefixes(speak: Speaker, topic: str) -> None:
    assert ask(speak, "mine", "PUT", topic) == 403
    assert ask(speak, "mine", "PUT", f"mine/{topic}") == 201
    assert ask(speak, "mine", "PUT", f"%6Dine/{topic}-2") == 201
    assert ask(speak, "mine", "POST", f"mine/{topic}", b"x") == 204
    for method in ("POST", "GET", "HEAD", "PATCH"):
        assert ask(speak, "mine", method, "yours") == 403
    assert ask(speak, "mine", "PATCH", f"mine/{topic}") == 405


def test_a_fork_needs_the_right_to_read_its_source(speak: Speaker, topic: str) -> None:
    for path in (topic, f"mine/{topic}"):
        assert ask(speak, "all", "PUT", path, b"secret") == 201
    own, others = f"/v1/stream/mine/{topic}", f"/v1/stream/{topic}"
    target = f"mine/{topic}-fork"
    assert ask(speak, "mine", "PUT", target, None, **{"stream-forked-from": others}) == 403
    disguised = others.replace("/stream/", "/stream/mine/../")
    assert ask(speak, "mine", "PUT", target, None, **{"stream-forked-from": disguised}) == 400
    assert ask(speak, "forker", "PUT", target, None, **{"stream-forked-from": own}) == 403
    assert ask(speak, "all", "HEAD", target) == 404
    assert ask(speak, "mine", "PUT", target, None, **{"stream-forked-from": own}) == 201


def test_what_a_stream_forgets_is_for_those_who_configure(speak: Speaker, topic: str) -> None:
    retention = {"stream-retention-age": "60"}
    assert ask(speak, "writer", "PUT", topic, None, **retention) == 403
    assert ask(speak, "all", "PUT", topic, None, **retention) == 201
    assert ask(speak, "writer", "PUT", topic, None, **retention) == 200


def test_a_stream_that_has_expired_is_configured_by_nobody_else(speak: Speaker, topic: str) -> None:
    """Its name is taken until it is removed, a moment later."""
    retention = {"stream-retention-age": "60"}
    assert ask(speak, "writer", "PUT", topic, None, **{"stream-ttl": "0"}) == 201
    assert ask(speak, "writer", "PUT", topic, None, **retention) == 403
    assert ask(speak, "all", "PUT", topic, None, **retention) == 201
    other = {"stream-retention-age": "61"}
    assert ask(speak, "writer", "PUT", topic, None, **other) == 403


def test_a_key_learns_no_link_that_it_may_not_use(speak: Speaker, topic: str) -> None:
    """The same subscription asked for again showed what others had linked to it."""
    path, streams = f"__ds/subscriptions/{topic}", {"streams": [f"secret/{topic}"]}
    asked = {"type": "pull-wake", "pattern": "mine/*", "wake_stream": "mine/wake"}
    body, more = json.dumps(asked).encode(), json.dumps(streams).encode()
    assert ask(speak, "mine", "PUT", path, body) == 201
    assert ask(speak, "mine", "PUT", path, body) == ask(speak, "mine", "GET", path) == 200
    assert ask(speak, "all", "POST", f"{path}/streams", more) == 204
    for key, status in (("mine", 403), ("all", 200)):
        assert ask(speak, key, "PUT", path, body) == ask(speak, key, "GET", path) == status


@pytest.mark.parametrize("origin", [PAGE, "https://other.example"])
def test_a_browsers_question_is_always_answered(speak: Speaker, topic: str, origin: str) -> None:
    question = {
        "origin": origin,
        "access-control-request-method": "GET",
        "access-control-request-headers": "if-none-match",
    }
    for path in (f"/{topic}", f"/{topic}/a/b", "/", ""):
        reply = speak.send("OPTIONS", f"/v1/stream{path}", None, question)
        assert reply.status == 204
        assert "if-none-match" in reply.headers["access-control-allow-headers"].lower()
        assert "PUT" in reply.headers["access-control-allow-methods"]
        granted = reply.headers.get("access-control-allow-origin")
        assert granted == (PAGE if origin == PAGE else None)


def test_a_page_sees_the_headers_of_an_answer(speak: Speaker, topic: str) -> None:
    headers = {**TEXT, "authorization": "Bearer all", "origin": PAGE}
    for method, body in (("PUT", None), ("POST", b"x"), ("POST", b"x"), ("POST", b"x")):
        reply = speak.send(method, f"/v1/stream/{topic}", body, headers)
        assert reply.headers["access-control-allow-origin"] == PAGE
        exposed = reply.headers["access-control-expose-headers"]
        assert "Stream-Next-Offset" in exposed and "Stream-SSE-Data-Encoding" in exposed


def test_no_page_is_granted_anything_unless_it_is_listed(
    speak_to: Callable[..., Speaker], topic: str
) -> None:
    speak = speak_to()
    question = {"origin": PAGE, "access-control-request-method": "PUT"}
    reply = speak.send("OPTIONS", f"/v1/stream/{topic}", None, question)
    assert reply.status == 204
    assert "access-control-allow-origin" not in reply.headers
    refused = speak.send("PUT", f"/v1/stream/{topic}", None, {**TEXT, "origin": PAGE})
    assert refused.status == 403
    assert refused.headers["x-content-type-options"] == "nosniff"
    assert speak.send("HEAD", f"/v1/stream/{topic}", None, {}).status == 404
