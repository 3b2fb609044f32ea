"""The WebSocket data plane (native §8)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.expected_answers import two_appended
from tests.support.seqs import json_seqs

SECONDS_MAX = 20


class Socket:
    """One connection; messages are JSON."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, op: str, **fields: object) -> None:
        self.connection.send(json.dumps({"op": op, **fields}))

    def receive(self) -> dict[str, Any]:
        message = self.connection.recv(SECONDS_MAX)
        assert isinstance(message, str)
        return json.loads(message)

    def until(self, op: str) -> list[dict[str, Any]]:
        """Messages up to the first of this kind."""
        seen = [self.receive()]
        while seen[-1]["op"] != op:
            seen.append(self.receive())
        return seen

    def next(self, op: str) -> dict[str, Any]:
        return self.until(op)[-1]

    def ask(self, op: str, **fields: object) -> dict[str, Any]:
        """Send a command and take the very next message as its answer."""
        self.send(op, **fields)
        return self.receive()

    def publish(self, topic: str, *payloads: object, **fields: object) -> None:
        records = [{"data": payload} for payload in payloads]
        self.send("publish", topic=topic, records=records, **fields)


@pytest.fixture
def dial(server) -> Iterator[Callable[..., Socket]]:
    """Connections to the module's server."""
    with ExitStack() as stack:

        def dial(to: Any = None, **headers: str) -> Socket:
            opening = connect(
                f"ws://{(to or server).address}/v0/ws",
                additional_headers={k.replace("_", "-"): v for k, v in headers.items()},
                compression=None,
                proxy=None,
                open_timeout=SECONDS_MAX,
            )
            return Socket(stack.enter_context(opening))

        yield dial


@pytest.fixture
def socket(dial) -> Socket:
    return dial()


@pytest.fixture
def speak(servers, server):
    return servers.speaker(server, "h1")


def test_ping(socket) -> None:
    """§8: `pong` with the request_id, whatever JSON it is; null if absent."""
    for request_id in (1, "a", {"x": [None]}, None):
        answer = socket.ask("ping", request_id=request_id)
        assert answer == {"op": "pong", "request_id": request_id}
    assert socket.ask("ping") == {"op": "pong", "request_id": None}


def test_protocol_pings_are_answered(socket) -> None:
    """§8: ping and pong of the protocol are honoured."""
    assert socket.connection.ping().wait(SECONDS_MAX)


def test_subscribe_and_read(socket, speak, topic) -> None:
    """§8: `subscribed`, then `record` and `caught_up`, live too."""
    speak.append(topic, "a", "b")
    answer = socket.ask("subscribe", topic=topic, request_id=7)
    assert (answer["op"], answer["request_id"]) == ("subscribed", 7)
    state = {k: answer["topics"][topic][k] for k in ("from_seq", "head_seq", "earliest_seq")}
    assert state == {"from_seq": 0, "head_seq": 2, "earliest_seq": 1}
    record, caught_up = socket.until("caught_up")
    assert (record["op"], record["topic"], json_seqs(record)) == ("record", topic, [1, 2])
    assert {k: record[k] for k in ("from_seq", "to_seq", "head_seq")} == {
        "from_seq": 0,
        "to_seq": 2,
        "head_seq": 2,
    }
    assert (caught_up["topic"], caught_up["head_seq"]) == (topic, 2)
    speak.append(topic, "c")
    assert json_seqs(socket.next("record")) == [3]


def test_subscribe_to_many(socket, speak, topic) -> None:
    """§8: `topics` map with cursors of their own; tail."""
    for end in "abc":
        speak.append(f"{topic}-{end}", 1, 2)
    topics = {f"{topic}-a": {"from_seq": 1}, f"{topic}-b": {"tail": True}, f"{topic}-c": {}}
    answer = socket.ask("subscribe", topics=topics)
    assert {name: t["from_seq"] for name, t in answer["topics"].items()} == {
        f"{topic}-a": 1,
        f"{topic}-b": 2,
        f"{topic}-c": 0,
    }
    seen = [m for _ in range(3) for m in socket.until("caught_up")]
    records = {m["topic"]: json_seqs(m) for m in seen if m["op"] == "record"}
    assert records == {f"{topic}-a": [2], f"{topic}-c": [1, 2]}


def test_tail_of_one(socket, speak, topic) -> None:
    """§8: `tail` and `from_seq` apply to `topic`."""
    speak.append(topic, 1, 2, 3)
    assert socket.ask("subscribe", topic=topic, tail=True)["topics"][topic]["from_seq"] == 3
    assert socket.until("caught_up")[0]["op"] == "caught_up"


def test_subscribing_again_replaces(socket, speak, topic) -> None:
    """§8: cursor and options."""
    speak.ok("POST", f"/v0/topics/{topic}", {"records": [{"data": 1, "tag": "t"}]})
    socket.ask("subscribe", topic=topic)
    assert "$tag" not in socket.next("record")["records"][0]
    socket.next("caught_up")
    socket.send("subscribe", topic=topic, from_seq=0, include_tags=True, include_data=False)
    socket.next("subscribed")
    again = socket.next("record")["records"][0]
    assert again["$tag"] == "t" and "data" not in again


def test_publish(socket, speak, topic) -> None:
    """§8: `ack` with every field; seqs null when not wanted; keys; create and config."""
    socket.publish(topic, 1, 2, request_id="r", config={"cap_records": 5})
    ack = socket.receive()
    assert isinstance(ack.pop("performance")["server_total_ms"], float)
    ack.pop("epoch", None)
    assert ack == {"op": "ack", "request_id": "r", **two_appended(topic)}
    assert speak.state(topic)["config"]["cap_records"] == 5
    socket.publish(topic, 3, return_seqs=False, node="n", idempotency_key="k")
    assert socket.receive()["seqs"] is None
    socket.publish(topic, 3, idempotency_key="k")
    assert socket.receive()["deduped"] is True
    assert speak.diff(topic)["records"][2]["$node"] == "n"


def test_the_publisher_sees_its_ack_first(socket, topic) -> None:
    """§8: before the `record` of that write."""
    socket.publish(topic, 0)
    socket.next("ack")
    socket.ask("subscribe", topic=topic, tail=True)
    socket.next("caught_up")
    for n in range(20):
        socket.publish(topic, n, request_id=n)
        seen = socket.until("record")
        assert [m["op"] for m in seen if m["op"] != "caught_up"] == ["ack", "record"]
        assert seen[-1]["records"][0]["data"] == n


def test_many_publishes_at_once_are_answered_in_order(socket, topic) -> None:
    """§8: acks in the order of the commands, contiguous seqs."""
    for n in range(100):
        socket.publish(topic, n, request_id=n)
    acks = [socket.receive() for _ in range(100)]
    assert [ack["request_id"] for ack in acks] == list(range(100))
    assert [ack["first_seq"] for ack in acks] == list(range(1, 101))


def test_unsubscribed_is_the_last(socket, speak, topic) -> None:
    """§8: after it nothing but acks arrives for that topic."""
    speak.append(topic, 1)
    socket.ask("subscribe", topic=topic)
    socket.next("caught_up")
    answer = socket.ask("unsubscribe", topic=topic, request_id=1)
    assert answer == {"op": "unsubscribed", "request_id": 1, "topics": [topic]}
    for n in range(5):
        socket.publish(topic, n)
        assert socket.receive()["op"] == "ack"
    speak.append(topic, "other")
    assert socket.ask("ping")["op"] == "pong"
    assert socket.ask("unsubscribe", topics=[topic])["op"] == "unsubscribed"


def test_a_node_filter_hides_equal_nodes_only(socket, speak, topic) -> None:
    """§8."""
    for node in ("me", "you", None):
        speak.append(topic, node, node=node)
    socket.ask("subscribe", topic=topic, node="me")
    assert json_seqs(socket.next("record")) == [2, 3]


def test_a_tombstone_keeps_its_reason(socket, speak, topic) -> None:
    """§8: the engine's reason, not `from_seq_too_old`."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"cap_records": 1})
    speak.append(topic, 1, 2, 3)
    socket.ask("subscribe", topic=topic)
    tombstone = socket.next("tombstone")
    assert {k: tombstone[k] for k in ("topic", "reason", "gap_from", "gap_to")} == {
        "topic": topic,
        "reason": "cap",
        "gap_from": 1,
        "gap_to": 2,
    }
    assert json_seqs(socket.next("record")) == [3]


def test_a_deleted_topic_is_told(socket, speak, topic) -> None:
    """§8, §7.3: at once; the connection goes on."""
    speak.append(topic, 1)
    socket.ask("subscribe", topic=topic)
    socket.next("caught_up")
    speak.ok("DELETE", f"/v0/topics/{topic}")
    gone = socket.next("topic_deleted")
    assert (gone["topic"], gone["reason"]) == (topic, "deleted")
    assert socket.ask("ping")["op"] == "pong"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"op": "subscribe"}, "invalid_request"),
        ({"op": "subscribe", "topic": "absent-topic"}, "topic_not_found"),
        ({"op": "subscribe", "topics": {"absent-topic": {}}}, "topic_not_found"),
        ({"op": "publish", "topic": "w", "records": []}, "invalid_request"),
        ({"op": "publish", "topic": "no good", "records": [{"data": 1}]}, "invalid_request"),
        ({"op": "publish", "topic": "absent", "records": [{"data": 1}], "create": False},
         "topic_not_found"),
        ({"op": "publish", "topic": "w", "records": [{"data": 1}] * 10_001}, "batch_too_large"),
    ],
)  # fmt: skip
def test_refused_commands(socket, command, code) -> None:
    """§8: `error {request_id, code, message}`, and the connection goes on."""
    answer = socket.ask(**{**command, "request_id": "x"})
    assert (answer["op"], answer["request_id"], answer["code"]) == ("error", "x", code)
    assert answer["message"]
    assert socket.ask("ping")["op"] == "pong"


@pytest.mark.parametrize("text", ["{", "[]", "5", '{"op":"dance"}', '{"op":5}', "{}", "", "nul"])
def test_what_is_no_command(socket, text) -> None:
    """§8: code `invalid_json`, and the connection goes on."""
    socket.connection.send(text)
    answer = socket.receive()
    assert (answer["op"], answer["code"]) == ("error", "invalid_json")
    assert socket.ask("ping")["op"] == "pong"


def test_binary_messages(socket) -> None:
    """§8: code `unsupported_message`."""
    socket.connection.send(b"\x00\x01")
    answer = socket.receive()
    assert (answer["op"], answer["code"]) == ("error", "unsupported_message")
    assert socket.ask("ping")["op"] == "pong"


def test_lenient_subscriptions(socket, speak, topic) -> None:
    """§8: unknown topics are dropped."""
    speak.append(topic, 1)
    answer = socket.ask("subscribe", topics={topic: {}, f"{topic}-no": {}}, lenient=True)
    assert list(answer["topics"]) == [topic]


def test_plain_requests_to_the_socket(speak) -> None:
    """§8: without an upgrade it is a refusal, not a hang."""
    assert speak("GET", "/v0/ws").status in (400, 426)


def test_a_foreign_page_cannot_connect(dial) -> None:
    """§1.10: `Origin` is checked on upgrades when there are no keys."""
    with pytest.raises(InvalidStatus) as caught:
        dial(origin="http://evil.example")
    assert caught.value.response.status_code == 403


def test_a_message_that_is_too_large(dial, servers) -> None:
    """§8: bounded; 1009, and only this connection."""
    server = servers.with_settings(websocket_message_bytes_max=2_000)
    socket = dial(server)
    assert socket.ask("ping")["op"] == "pong"
    socket.connection.send("x" * 5_000)
    with pytest.raises(ConnectionClosed) as caught:
        socket.receive()
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1009
    assert dial(server).ask("ping")["op"] == "pong"


def test_connections_are_counted(dial, servers, speak) -> None:
    """§8, §1.9: against the SSE caps, 429 before the upgrade; a slot is free when one leaves."""
    server = servers.with_settings(max_sse_connections=2)
    first, second = dial(server), dial(server)
    assert first.ask("ping")["op"] == second.ask("ping")["op"] == "pong"
    with pytest.raises(InvalidStatus) as caught:
        dial(server)
    assert caught.value.response.status_code == 429
    assert caught.value.response.headers["retry-after"] == "1"
    first.connection.close()
    while True:  # until the server has noticed
        try:
            assert dial(server).ask("ping")["op"] == "pong"
            return
        except InvalidStatus:
            continue


def test_shutdown_is_told(dial, servers) -> None:
    """§7.6, §8: `error` with `server_shutting_down`, then the end."""
    server = servers.start()
    socket = dial(server)
    socket.ask("ping")
    server.process.terminate()
    assert socket.next("error")["code"] == "server_shutting_down"
    with pytest.raises(ConnectionClosed):
        socket.receive()
    assert server.process.wait(SECONDS_MAX) == 0


def test_a_subscription_begins_after_what_routers_owe(speak, socket, topic) -> None:
    """What was written to the source before is before it, also where that takes many syncs."""
    source, dest, other = f"{topic}-a", f"{topic}-b", f"{topic}-c"
    speak.ok("PUT", f"/v0/topics/{dest}", {"durability": "fsync"})
    speak.ok("PUT", f"/v0/routers/{topic}", {"source": source, "dest": dest})
    speak.append(other, "x")
    records = [{"data": number} for number in range(10_000)]
    for _ in range(2):
        speak.ok("POST", f"/v0/topics/{source}", {"records": records})
    socket.send("subscribe", topic=other, request_id=1)
    socket.send("subscribe", topic=dest, tail=True, request_id=2)
    socket.send("ping", request_id=3)  # nobody has to wait for that
    seen = socket.until("subscribed")
    while seen[-1].get("request_id") != 2:
        seen += socket.until("subscribed")
    assert seen[-1]["topics"][dest] | {"epoch": 0} == {
        "from_seq": 20_000, "head_seq": 20_000, "earliest_seq": 1, "epoch": 0,
    }  # fmt: skip
    speak.append(source, "new")
    while (record := socket.next("record"))["topic"] != dest:
        pass
    assert json_seqs(record) == [20_001]


def test_an_unsubscribe_reaches_a_subscription_that_waits(speak, socket, topic) -> None:
    source, dest = f"{topic}-a", f"{topic}-b"
    speak.ok("PUT", f"/v0/topics/{dest}", {"durability": "fsync"})
    speak.ok("PUT", f"/v0/routers/{topic}", {"source": source, "dest": dest})
    records = [{"data": number} for number in range(10_000)]
    for _ in range(2):
        speak.ok("POST", f"/v0/topics/{source}", {"records": records})
    socket.send("subscribe", topic=dest, request_id=1)
    socket.send("unsubscribe", topic=dest, request_id=2)
    told = {}
    while len(told) < 2:
        message = socket.receive()
        if message["op"] in ("subscribed", "unsubscribed"):
            told[message["op"]] = message["topics"]
    assert told["unsubscribed"] == [dest]
    speak.append(source, "new")
    speak.diff(dest)
    assert socket.ask("ping", request_id=3)["op"] == "pong"
