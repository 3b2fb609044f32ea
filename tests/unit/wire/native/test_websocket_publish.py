"""Publishing over a WebSocket, and what a key may do there."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.wire.native import websocket_publish
from tests.support.exchanges import GivenKey
from tests.support.expected_answers import two_appended
from tests.support.live_readers import Live
from tests.support.websocket_client import Client, ops


@pytest.fixture
def client(live: Live) -> Client:
    return Client(live)


# Publishing


def test_publishing(client: Client) -> None:
    ack = client.ask("publish", request_id="r", topic="jobs", records=[{"data": 1}, {"data": 2}])
    performance = ack.pop("performance")
    assert ack == {"op": "ack", "request_id": "r", **two_appended("jobs")}
    assert set(performance) == {"server_total_ms", "wal_append_ms", "fsync_ms"}
    ack = client.ask("publish", topic="jobs", records=[{"data": 3}], return_seqs=False)
    assert ack["seqs"] is None and ack["last_seq"] == 3


def test_the_ack_comes_before_the_record(live: Live, client: Client) -> None:
    live.append("jobs", 0)
    client.send("subscribe", topic="jobs", tail=True)
    client.read()
    for value in range(5):
        client.send("publish", topic="jobs", records=[{"data": value}])
    messages = client.read()
    acked = 0
    for message in messages:
        if message["op"] == "ack":
            acked = message["last_seq"]
        elif message["op"] == "record":
            assert message["to_seq"] <= acked
    assert ops(messages).count("ack") == 5
    assert messages[-1] == {"op": "caught_up", "topic": "jobs", "head_seq": 6}


def test_all_of_a_publish_arrives(live: Live, client: Client) -> None:
    record = {"data": {"a": 1}, "tag": "t", "meta": {"m": 1}}
    client.ask("publish", topic="jobs", node="n", records=[record, {"data": 2, "node": "own"}])
    first, second = live.engine.read("jobs").result().records
    assert (first.data, first.tag, first.node, first.meta) == (b'{"a": 1}', "t", "n", b'{"m": 1}')
    assert (second.tag, second.node, second.meta) == (None, "own", None)


def test_a_publish_may_be_repeated(client: Client) -> None:
    fields: dict[str, Any] = {"topic": "jobs", "records": [{"data": 1}], "idempotency_key": "k"}
    assert client.ask("publish", **fields)["deduped"] is False
    assert client.ask("publish", **fields)["deduped"] is True


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "jobs", "records": []}, "invalid_request"),
        ({"topic": "no/name", "records": [{"data": 1}]}, "invalid_request"),
        ({"topic": "jobs", "records": [{"data": 1}], "create": False}, "topic_not_found"),
        ({"topic": "jobs", "records": [{"data": 1, "tag": "t" * 300}]}, "invalid_request"),
        ({"topic": "jobs", "records": [{"data": "x" * (1 << 20)}]}, "record_too_large"),
        ({"topic": "jobs", "records": [{"tag": "no data"}]}, "invalid_json"),
    ],
)
def test_what_cannot_be_published(live: Live, fields: dict[str, Any], code: str) -> None:
    client = Client(live)
    error = client.ask("publish", request_id=1, **fields)
    assert (error["op"], error["code"], error["request_id"]) == ("error", code, 1)
    assert not live.engine.topics()


def test_a_config_is_applied_where_the_topic_is_created(live: Live, client: Client) -> None:
    config = {"durability": "fsync"}
    ack = client.ask("publish", topic="jobs", records=[{"data": 1}], config=config)
    assert ack["created"]
    assert live.engine.topic("jobs").config.durability == "fsync"


def test_publishes_in_progress_are_bounded(
    live: Live, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_publish, "PUBLISHES_MAX", 2)
    live.engine.put_topic("jobs", {"durability": "fsync"}).result()
    for number in range(3):
        client.send("publish", request_id=number, topic="jobs", records=[{"data": 1}])
    told = {m["request_id"]: (m["op"], m.get("code")) for m in client.read()}
    assert told == {0: ("ack", None), 1: ("ack", None), 2: ("error", "throttled")}


# Keys


def test_scopes_are_checked_command_by_command(live: Live) -> None:
    live.append("mine:1", 1)
    live.append("theirs", 1)
    reader = Client(live, GivenKey("read", "mine:"))
    assert reader.ask("subscribe", topic="mine:1")["op"] == "subscribed"
    assert reader.ask("subscribe", topic="theirs")["code"] == "forbidden"
    assert reader.ask("subscribe", topics={"mine:1": {}, "theirs": {}})["code"] == "forbidden"
    records = [{"data": 1}]
    assert reader.ask("publish", topic="mine:1", records=records)["code"] == "forbidden"
    assert reader.ask("unsubscribe", topic="mine:1")["op"] == "unsubscribed"
    assert reader.ask("ping")["op"] == "pong"
    writer = Client(live, GivenKey("write", "mine:"))
    assert writer.ask("subscribe", topic="mine:1")["code"] == "forbidden"
    assert writer.ask("publish", topic="mine:1", records=records)["op"] == "ack"
    assert writer.ask("publish", topic="theirs", records=records)["code"] == "forbidden"
    with_config = {"topic": "mine:1", "records": records, "config": {}}
    assert writer.ask("publish", **with_config)["code"] == "forbidden"
    assert Client(live, GivenKey("write admin")).ask("publish", **with_config)["op"] == "ack"
