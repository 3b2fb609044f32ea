"""`GET /v0/ws`: commands, what comes back and in which order, and how a connection ends."""

from __future__ import annotations

from typing import Any

import pytest
from websockets.frames import Opcode
from websockets.utils import accept_key

from headrace.storage.block import Batch
from headrace.wire import websocket_stream
from headrace.wire.native import websocket as native_ws
from tests.support.checkout import ROOT
from tests.support.live_readers import Live, StartLive
from tests.support.seqs import json_seqs
from tests.support.websocket_client import SECRET, Client, ops, upgrade


@pytest.fixture
def client(live: Live) -> Client:
    return Client(live)


# The handshake


def test_the_handshake(live: Live) -> None:
    asked = upgrade(live)
    assert asked.status == 101
    assert asked.reply_headers == {b"sec-websocket-accept": accept_key(SECRET).encode()}
    assert live.streams.of_kind["ws"] == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_websocket_version": "8"},
        {"sec_websocket_version": ""},
        {"sec_websocket_key": ""},
        {"sec_websocket_key": "short"},
        {"sec_websocket_key": "ä" * 24},
    ],
)
def test_a_bad_handshake_is_refused(live: Live, headers: dict[str, str]) -> None:
    assert upgrade(live, **headers).status == 400
    assert live.streams.limits.open == 0


def test_a_plain_request_is_refused(live: Live) -> None:
    assert live.ask("GET", "/v0/ws").status == 400


def test_http2_has_no_keys(live: Live) -> None:
    asked = live.ask("GET", "/v0/ws", upgrade_to=b"websocket", sec_websocket_version="13")
    assert (asked.status, asked.reply_headers) == (101, {})


def test_slots_are_shared_with_watches(start: StartLive) -> None:
    live = start(max_sse_connections=2)
    live.append("jobs", 1)
    client, watcher = Client(live), live.watch("jobs")
    assert (upgrade(live).status, upgrade(live).code) == (429, "throttled")
    client.outlet.hang_up()
    assert live.streams.of_kind["ws"] == 0
    assert upgrade(live).status == 101
    assert watcher.outlet.room


# Commands that are none


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"7", b'{"op":"fly"}', b"{}", b'{"op":"publish"}', b'{"op":"ping"} x', b"[" * 9999],
)
def test_what_is_no_command(client: Client, text: bytes) -> None:
    client.send_text(text)
    [error] = client.read()
    assert (error["op"], error["code"], error["request_id"]) == ("error", "invalid_json", None)


def test_a_wrong_field_is_told_where_the_fields_are(client: Client) -> None:
    client.send_text(b'{"op":"subscribe","topic":5}')
    [error] = client.read()
    page, _, anchor = error["message"].split("; ")[1].split()[0].partition("#")
    assert f"## {anchor}".lower() in (ROOT / page).read_text(encoding="utf-8").lower()
    assert error["message"]


def test_the_request_id_of_what_is_no_command(client: Client) -> None:
    assert client.ask("fly", request_id=[7])["request_id"] == [7]


def test_binary_is_not_supported(client: Client) -> None:
    client.protocol.send_binary(b'{"op":"ping"}')
    client._flush()
    [error] = client.read()
    assert (error["op"], error["code"]) == ("error", "unsupported_message")


def test_text_that_is_not_utf8_closes(client: Client) -> None:
    client.send_text(b'{"op":"ping","x":"\xff"}')
    client.read()
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == 1007
    assert client.outlet.closed


def test_a_message_that_is_too_large_closes(start: StartLive) -> None:
    live = start(websocket_message_bytes_max=1024)
    client = Client(live)
    client.send_text(b'"' + b"x" * 2_000 + b'"')
    client.read()
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == 1009
    assert client.outlet.closed
    assert live.streams.of_kind["ws"] == 0


@pytest.mark.parametrize("request_id", [1, "a", None, {"x": [1.50]}, True])
def test_ping_and_request_ids(client: Client, request_id: Any) -> None:
    assert client.ask("ping", request_id=request_id) == {"op": "pong", "request_id": request_id}


def test_a_request_id_that_is_absent_is_null(client: Client) -> None:
    assert client.ask("ping") == {"op": "pong", "request_id": None}


def test_fragments_and_pings_of_the_protocol(client: Client) -> None:
    text = b'{"op":"ping","request_id":1}'
    client.protocol.send_text(text[:5], fin=False)
    client.protocol.send_ping(b"hello")
    client.protocol.send_continuation(text[5:], fin=True)
    client._flush()
    assert client.read() == [{"op": "pong", "request_id": 1}]
    [pong] = [frame for frame in client.frames if frame.opcode is Opcode.PONG]
    assert pong.data == b"hello"


# Following


def test_subscribing_to_one_topic(live: Live, client: Client) -> None:
    live.append("jobs", {"v": 1}, {"v": 2}, {"v": 3})
    epoch = live.engine.topic("jobs").epoch
    client.send("subscribe", request_id=1, topic="jobs", from_seq=1)
    subscribed, record, caught_up = client.read()
    assert subscribed == {
        "op": "subscribed",
        "request_id": 1,
        "topics": {"jobs": {"from_seq": 1, "head_seq": 3, "earliest_seq": 1, "epoch": epoch}},
    }
    ts = live.clock.wall_ms()
    assert record == {
        "op": "record",
        "topic": "jobs",
        "from_seq": 1,
        "to_seq": 3,
        "head_seq": 3,
        "records": [
            {"$seq": 2, "$ts": ts, "data": {"v": 2}},
            {"$seq": 3, "$ts": ts, "data": {"v": 3}},
        ],
    }
    assert caught_up == {"op": "caught_up", "topic": "jobs", "head_seq": 3}
    live.append("jobs", {"v": 4})
    assert ops(client.read()) == ["record", "caught_up"]


def test_subscribing_to_many_topics(live: Live, client: Client) -> None:
    live.append("a", 1)
    live.append("b", 1, 2)
    client.send("subscribe", topics={"a": {"tail": True}, "b": {"from_seq": 1}, "ghost": None})
    [error] = client.read()
    assert (error["op"], error["code"]) == ("error", "topic_not_found")
    live.append("a", 2)
    assert client.read() == [], "all or none"
    client.send("subscribe", topics={"a": {"tail": True}, "b": {"from_seq": 1}, "ghost": None},
                lenient=True)  # fmt: skip
    subscribed, *rest = client.read()
    assert set(subscribed["topics"]) == {"a", "b"}
    assert [(m["op"], m["topic"]) for m in rest] == [
        ("caught_up", "a"),
        ("record", "b"),
        ("caught_up", "b"),
    ]


def test_subscribing_to_nothing(client: Client) -> None:
    refused: list[dict[str, Any]] = [{}, {"topics": {}}, {"topic": None}]
    for fields in refused:
        assert client.ask("subscribe", **fields)["code"] == "invalid_request"


def test_subscribing_to_too_much(start: StartLive, monkeypatch: pytest.MonkeyPatch) -> None:
    live = start(topics_per_watch_max=2)
    monkeypatch.setattr(native_ws, "SUBSCRIPTIONS_MAX", 3)
    client = Client(live)
    for name in "abcd":
        live.append(name, 1)
    too_many: dict[str, Any] = {name: {} for name in "abc"}
    assert client.ask("subscribe", topics=too_many)["code"] == "invalid_request"
    assert client.ask("subscribe", topics={"a": {}, "b": {}})["op"] == "subscribed"
    assert client.ask("subscribe", topics={"a": {}, "c": {}})["op"] == "subscribed"
    assert client.ask("subscribe", topics={"d": {}})["code"] == "invalid_request"


def test_subscribing_again_replaces(live: Live, client: Client) -> None:
    live.append("jobs", *range(3))
    client.send("subscribe", topic="jobs", tail=True)
    assert ops(client.read()) == ["subscribed", "caught_up"]
    client.send("subscribe", topic="jobs", from_seq=1, include_data=False)
    _, record, _ = client.read()
    assert [set(r) for r in record["records"]] == [{"$seq", "$ts"}] * 2
    live.append("jobs", 3)
    record, _ = client.read()
    assert json_seqs(record) == [4], "once"


def test_the_defaults_and_options_of_a_subscription(live: Live, client: Client) -> None:
    batch = Batch([b"1", b"2"], tags=["t", "t"], nodes=["me", "you"], metas=[b"{}", b"{}"])
    live.engine.append("jobs", batch).result()
    client.send("subscribe", topic="jobs")
    record = client.read()[1]
    assert [set(r) for r in record["records"]] == [{"$seq", "$ts", "$node", "data", "meta"}] * 2
    client.send("subscribe", topic="jobs", node="me", include_tags=True, include_meta=False)
    record = client.read()[1]
    assert json_seqs(record) == [2], "only equal nodes are hidden"
    assert set(record["records"][0]) == {"$seq", "$ts", "$node", "$tag", "data"}
    live.append("long", *range(1_500))
    client.send("subscribe", topic="long")
    records = [m for m in client.read() if m["op"] == "record"]
    assert [len(m["records"]) for m in records] == [1_000, 500]
    client.send("subscribe", topic="long", limit=1, max_batch_bytes=1)
    assert ops(client.read()).count("record") == 1_500


def test_a_gap_has_the_reason_of_the_engine(live: Live, client: Client) -> None:
    for value in range(6):
        live.append("jobs", value, config={"cap_records": 3})
    client.send("subscribe", topic="jobs")
    _, lost, record, _ = client.read()
    assert lost == {
        "op": "tombstone",
        "topic": "jobs",
        "reason": "cap",
        "gap_from": 1,
        "gap_to": 3,
        "earliest_seq": 4,
        "head_seq": 6,
    }
    assert json_seqs(record) == [4, 5, 6]


def test_unsubscribing(live: Live, client: Client) -> None:
    for name in "abc":
        live.append(name, 1)
    client.send("subscribe", topics={"a": {}, "b": {}, "c": {}})
    client.read()
    assert client.ask("unsubscribe", request_id=1, topic="a") == {
        "op": "unsubscribed",
        "request_id": 1,
        "topics": ["a"],
    }
    assert client.ask("unsubscribe", topic="ghost", topics=["b"])["topics"] == ["b"]
    for name in "abc":
        live.append(name, 2)
    assert {m["topic"] for m in client.read()} == {"c"}


def test_after_unsubscribed_nothing_but_acks_comes(live: Live, client: Client) -> None:
    client.send("publish", topic="jobs", records=[{"data": 1}])
    client.read()
    client.send("subscribe", topic="jobs")
    client.read()
    client.send("publish", topic="jobs", records=[{"data": 2}])
    client.send("unsubscribe", topic="jobs")
    client.send("publish", topic="jobs", records=[{"data": 3}])
    messages = ops(client.read())
    live.wait(200)
    messages += ops(client.read())
    assert sorted(messages) == ["ack", "ack", "unsubscribed"]


def test_a_topic_that_is_deleted(live: Live, client: Client) -> None:
    live.append("jobs", 1)
    live.append("other", 1)
    client.send("subscribe", topics={"jobs": {}, "other": {}})
    client.read()
    live.engine.delete_topic("jobs").result()
    [gone] = client.read()
    assert gone == {"op": "topic_deleted", "topic": "jobs", "head_seq": 0, "reason": "deleted"}
    live.append("other", 2)
    assert ops(client.read()) == ["record", "caught_up"]
    assert not client.outlet.closed
    live.append("jobs", 1)
    client.send("subscribe", topic="jobs")
    assert ops(client.read()) == ["subscribed", "record", "caught_up"]


def test_messages_are_framed_once_for_all(live: Live) -> None:
    live.append("jobs", 1)
    clients = [Client(live) for _ in range(3)]
    for client in clients:
        client.send("subscribe", topic="jobs", tail=True)
        client.read()
    live.append("jobs", 2)
    live.run()
    written = [client.outlet.written for client in clients]
    assert all(data[0] is written[0][0] for data in written)
    assert all(ops(client.read()) == ["record", "caught_up"] for client in clients)


# Flow and the end


def test_a_full_connection_reads_the_log_later(live: Live, client: Client) -> None:
    live.append("jobs", 0)
    client.send("subscribe", topic="jobs", tail=True)
    client.read()
    client.outlet.fill()
    for value in range(10):
        live.append("jobs", value)
    assert client.read() == []
    client.outlet.drain()
    record, _ = client.read()
    assert len(record["records"]) == 10


def test_answers_that_nobody_reads_are_bounded(
    live: Live, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_stream, "REPLIES_UNREAD_MAX", 10)
    client.outlet.fill()
    for _ in range(11):
        client.send("ping")
    assert client.outlet.closed
    assert live.streams.of_kind["ws"] == 0


def test_who_takes_nothing_for_too_long_is_told(start: StartLive) -> None:
    live = start(slow_consumer_timeout_ms=5_000)
    client = Client(live)
    client.outlet.fill()
    live.wait(4_500)
    assert not client.outlet.closed
    live.wait(6_000)
    assert client.outlet.closed
    assert ops(client.read()) == ["error"]


def test_an_idle_connection_is_pinged(live: Live, client: Client) -> None:
    live.wait(15_000)
    assert client.read() == []
    assert [frame.opcode for frame in client.frames] == [Opcode.PING]
    client._flush()
    assert not client.outlet.closed


def test_at_a_stop_every_connection_is_told(live: Live, client: Client) -> None:
    live.context.drain()
    [error] = client.read()
    assert (error["op"], error["code"]) == ("error", "server_shutting_down")
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == 1001
    assert client.outlet.closed


def test_a_client_that_closes(live: Live, client: Client) -> None:
    live.append("jobs", 1)
    client.send("subscribe", topic="jobs")
    client.read()
    client.protocol.send_close(1000, "bye")
    client._flush()
    client.read()
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == 1000
    assert client.outlet.closed
    assert live.streams.limits.open == 0
    assert not live.engine.state.by_name["jobs"].waiters


@pytest.mark.parametrize("how", ["end", "hang up"])
def test_a_client_that_goes(live: Live, client: Client, how: str) -> None:
    client.send("publish", topic="jobs", records=[{"data": 1}])
    if how == "end":
        assert client.outlet.on_data is not None
        client.outlet.on_data(b"")
    else:
        client.outlet.hang_up()
    live.run()
    assert live.streams.of_kind["ws"] == 0
    assert live.engine.topic("jobs").head_seq == 1, "what was published stays"
