"""Subscriptions are made, confirmed, changed and refused (durable_streams)."""

from __future__ import annotations

import pytest

from tests.support.subscribed_servers import HOOK, ROOT, SUBSCRIPTIONS, SubscribedServer


def test_links_by_name_come_and_go(server: SubscribedServer) -> None:
    server.append("events/a")
    server.subscribe("s", pattern="events/*")
    add = {"streams": ["events/a", "manual/b c", "manual/d"]}
    assert server.call("POST", SUBSCRIPTIONS + "s/streams", add).status == 204
    links = {link["path"]: link["link_type"] for link in server.record("s")["streams"]}
    assert links == {"events/a": "explicit", "manual/b%20c": "explicit", "manual/d": "explicit"}
    for path in ("events%2Fa", "manual%2Fb%20c", "manual%2Fb%20c", "never%2Fthere"):
        assert server.call("DELETE", f"{SUBSCRIPTIONS}s/streams/{path}").status == 204
    links = {link["path"]: link["link_type"] for link in server.record("s")["streams"]}
    assert links == {"events/a": "glob", "manual/d": "explicit"}


def test_a_stream_that_goes_takes_its_cursor_with_it(server: SubscribedServer) -> None:
    server.subscribe("s", pattern="events/*", streams=["manual"])
    for path in ("events/a", "manual"):
        server.append(path)
    server.be_done()
    for path in ("events/a", "manual"):
        assert server.call("DELETE", ROOT + path).status == 204
    server.runtime.run()
    assert server.cursors("s") == {"manual": "-1"}
    server.append("manual")
    assert server.the_post().json["streams"][0]["has_pending"] is True


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({}, 200, ""),
        ({"pattern": "/events/*/"}, 200, ""),
        ({"pattern": "events/**"}, 409, "SUBSCRIPTION_ALREADY_EXISTS"),
        ({"streams": ["a"]}, 409, "SUBSCRIPTION_ALREADY_EXISTS"),
        ({"lease_ttl_ms": 2_000}, 409, "SUBSCRIPTION_ALREADY_EXISTS"),
        ({"description": "other"}, 409, "SUBSCRIPTION_ALREADY_EXISTS"),
        ({"webhook": {"url": HOOK + "2"}}, 409, "SUBSCRIPTION_ALREADY_EXISTS"),
    ],
)
def test_the_same_again_is_confirmed(
    server: SubscribedServer, change: dict[str, object], status: int, code: str
) -> None:
    same = {"pattern": "events/*", "lease_ttl_ms": 1_000, "description": "mine"}
    first = server.subscribe("s", **same)
    assert first.status == 201
    again = server.subscribe("s", **(same | change))
    assert again.status == status
    if code:
        assert again.code == code
    else:
        assert again.json == first.json
    record = server.record("s")
    assert set(record) == {
        "id", "subscription_id", "type", "pattern", "streams", "webhook", "lease_ttl_ms",
        "created_at", "status", "description",
    }  # fmt: skip
    assert record["webhook"]["signing"]["jwks_url"] == (
        "http://streams.example.com/v1/stream/__ds/jwks.json"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "mail", "pattern": "a"},
        {"webhook": {"url": HOOK}},
        {"pattern": "", "streams": []},
        {"pattern": "a//b"},
        {"pattern": "%zz"},
        {"streams": ["__ds/x"]},
        {"streams": [""]},
        {"streams": [1]},
        {"streams": ["a\x00b"]},
        {"pattern": "a", "lease_ttl_ms": 999},
        {"pattern": "a", "lease_ttl_ms": 600_001},
        {"pattern": "a", "lease_ttl_ms": 1.5},
        {"pattern": "a", "webhook": None},
        {"pattern": "a", "webhook": {"url": ""}},
        {"pattern": "a", "wake_stream": ""},
        {"streams": ["w"], "wake_stream": "w"},
        {"pattern": "/".join(["**", "a"] * 9)},
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_kept(
    server: SubscribedServer, fields: dict[str, object]
) -> None:
    answer = server.subscribe("s", **fields)
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST"), answer.reply
    assert server.call("GET", SUBSCRIPTIONS + "s").code == "SUBSCRIPTION_NOT_FOUND"
    assert server.engine.find("_subscriptions") is None


def test_unsafe_urls_are_refused(server: SubscribedServer) -> None:
    for url in ("http://hooks.example.com/", "https://10.0.0.1/", "http://127.0.0.1:1/", "x"):
        answer = server.subscribe("s", pattern="a", webhook={"url": url})
        assert (answer.status, answer.code) == (400, "WEBHOOK_URL_REJECTED")


def test_without_a_subscription_nobody_listens(server: SubscribedServer) -> None:
    journal, before = server.hub.journal, server.hub.journal.number
    server.append("a")
    assert journal.number == before
    server.subscribe("s", pattern="*")
    server.append("a")
    assert journal.number > before
    server.call("DELETE", SUBSCRIPTIONS + "s")
    after = journal.number
    server.append("a")
    assert journal.number == after and not server.hub._by_prefix
