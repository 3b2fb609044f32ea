"""Publishes of one turn, over one WebSocket or many: handed over and answered together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from headrace.engine.appending.pending_append import PendingAppend
from headrace.wire import turn_appends
from tests.support.live_readers import Live, StartLive
from tests.support.websocket_client import Client, ops


class HandedOver:
    """Which appends the engine got together."""

    def __init__(self, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[list[str]] = []
        self.failure: Exception | None = None
        self._append_all = live.engine.append_all
        monkeypatch.setattr(live.engine, "append_all", self._note)

    def _note(self, asked: Sequence[PendingAppend], *answered: Any, **how: Any) -> None:
        self.groups.append([pending.name for pending in asked])
        if self.failure is not None:
            raise self.failure
        self._append_all(asked, *answered, **how)


@pytest.fixture
def handed_over(live: Live, monkeypatch: pytest.MonkeyPatch) -> HandedOver:
    return HandedOver(live, monkeypatch)


def send_at_once(client: Client, *commands: dict[str, Any]) -> None:
    """Send commands so that the server reads all of them at once."""
    for command in commands:
        client.protocol.send_text(json.dumps(command).encode())
    data = b"".join(client.protocol.data_to_send())
    assert client.outlet.on_data is not None
    client.outlet.on_data(data)


def publish(topic: str, number: int, **fields: Any) -> dict[str, Any]:
    records = [{"data": number}]
    return {"op": "publish", "request_id": number, "topic": topic, "records": records, **fields}


def data_of(live: Live, topic: str) -> list[Any]:
    return [json.loads(record.data) for record in live.engine.read(topic).result().records]


def test_publishes_of_a_turn_are_handed_over_together(live: Live, handed_over: HandedOver) -> None:
    first, second = Client(live), Client(live)
    first.outlet.take(), second.outlet.take()
    send_at_once(first, publish("a", 1), publish("b", 2))
    send_at_once(second, publish("a", 3))
    send_at_once(first, publish("a", 4))
    assert not handed_over.groups
    live.run()
    assert handed_over.groups == [["a", "b", "a", "a"]]
    assert (data_of(live, "a"), data_of(live, "b")) == ([1, 3, 4], [2])
    assert len(second.outlet.written) == 1
    # "b" is created in between, which has an entry of its own in the log.
    assert [ack["request_id"] for ack in first.read()] == [1, 2, 4]
    assert [ack["request_id"] for ack in second.read()] == [3]


def test_acknowledgements_of_a_connection_are_written_together(live: Live) -> None:
    live.append("a", 0)
    client = Client(live)
    client.read()
    send_at_once(client, *(publish("a", number) for number in range(20)))
    live.run()
    assert len(client.outlet.written) == 1
    acks = client.read()
    assert [(ack["op"], ack["request_id"], ack["seqs"]) for ack in acks] == [
        ("ack", number, [number + 2]) for number in range(20)
    ]


def test_one_that_is_refused_leaves_the_others(live: Live, handed_over: HandedOver) -> None:
    live.append("a", 0)
    client = Client(live)
    send_at_once(
        client,
        publish("a", 1),
        publish("a", 2, expected_head_seq=7),  # the engine refuses
        publish("_own", 3),  # refused before it gets there
        publish("a", 4),
        publish("none", 5, create=False),
    )
    told = {m["request_id"]: (m["op"], m.get("code")) for m in client.read()}
    assert told == {
        1: ("ack", None),
        2: ("error", "head_mismatch"),
        3: ("error", "invalid_request"),
        4: ("ack", None),
        5: ("error", "topic_not_found"),
    }
    assert handed_over.groups == [["a", "a", "a", "none"]]
    assert data_of(live, "a") == [0, 1, 4]
    assert client.ask("publish", topic="a", records=[{"data": 6}])["head_seq"] == 4


def test_a_client_that_leaves_takes_nothing_back(live: Live) -> None:
    """What it sent before is stored, and the others are acknowledged."""
    live.append("a", 0)
    leaving, staying = Client(live), Client(live)
    send_at_once(leaving, publish("a", 1))
    send_at_once(staying, publish("a", 2))
    send_at_once(leaving, publish("a", 3))
    leaving.outlet.hang_up()
    assert [ack["request_id"] for ack in staying.read()] == [2]
    assert data_of(live, "a") == [0, 1, 2, 3]


def test_a_server_that_stops_stores_what_has_come(live: Live) -> None:
    live.append("a", 0)
    client = Client(live)
    client.read()
    send_at_once(client, publish("a", 1))
    live.context.drain()
    assert [m.get("code") for m in client.read()] == ["server_shutting_down"]
    assert client.outlet.closed
    assert data_of(live, "a") == [0, 1]


def test_a_subscription_in_the_turn_of_a_publish_is_sent_its_record(live: Live) -> None:
    """The tail is what was acknowledged, and the acknowledgement comes before the record."""
    live.append("a", 0)
    client = Client(live)
    send_at_once(client, publish("a", 1), {"op": "subscribe", "topic": "a", "tail": True})
    messages = client.read()
    assert ops(messages) == ["subscribed", "caught_up", "ack", "record", "caught_up"]
    assert messages[3]["from_seq"] == 1 and messages[3]["to_seq"] == 2


def test_a_turn_that_fails_is_told_to_all_and_does_not_hold_up_the_next(
    live: Live, handed_over: HandedOver, caplog: pytest.LogCaptureFixture
) -> None:
    clients = [Client(live), Client(live)]
    handed_over.failure = ZeroDivisionError("as if the engine had a bug")
    for client in clients:
        send_at_once(client, publish("a", 1), publish("a", 2))
    for client in clients:
        assert [(m["request_id"], m["code"]) for m in client.read()] == [
            (1, "internal"),
            (2, "internal"),
        ]
    assert "a WebSocket command failed" in caplog.text
    handed_over.failure = None
    assert clients[0].ask("publish", topic="a", records=[{"data": 3}])["op"] == "ack"


def test_a_turn_is_bounded(start: StartLive, monkeypatch: pytest.MonkeyPatch) -> None:
    live = start(turn_requests_max=3)
    handed_over = HandedOver(live, monkeypatch)
    client = Client(live)
    send_at_once(client, *(publish("a", number) for number in range(5)))
    assert [len(group) for group in handed_over.groups] == [3]
    live.run()
    assert [len(group) for group in handed_over.groups] == [3, 2]
    monkeypatch.setattr(turn_appends, "TURN_BYTES_MAX", 100)
    send_at_once(client, publish("a", 5), publish("a", 6))
    assert [len(group) for group in handed_over.groups] == [3, 2, 2]
    assert data_of(live, "a") == list(range(7))


def test_publishes_that_wait_for_the_turn_count_as_in_progress(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.wire.native.websocket_publish.PUBLISHES_MAX", 2)
    client = Client(live)
    for _ in range(2):  # the second time they have been given back
        send_at_once(client, *(publish("a", number) for number in range(3)))
        told = {m["request_id"]: m.get("code") for m in client.read()}
        assert told == {0: None, 1: None, 2: "throttled"}


NAMES = ("disk", "fsync", "full", "no/name", "_own")


def command_of(dice: Random, number: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    kind = dice.randrange(8)
    if kind == 0:
        fields["idempotency_key"] = f"k{dice.randrange(3)}"
    elif kind == 1:
        fields["expected_head_seq"] = dice.randrange(6)
    elif kind == 2:
        fields["return_seqs"] = False
    elif kind == 3:
        fields["records"] = [{"data": number, "tag": "t"}, {"data": None, "meta": {"a": 1}}]
    elif kind == 4:
        fields["create"] = False
    return publish(dice.choice(NAMES) if dice.random() < 0.9 else f"new{number}", number, **fields)


@pytest.mark.parametrize("seed", range(5))
def test_a_turn_is_answered_as_one_by_one(start: StartLive, seed: int) -> None:
    """The same commands, together and each by itself: the same answers, records and counts."""
    outcomes = []
    for turn_requests_max in (1_000, 1):
        dice = Random(seed)
        live = start(turn_requests_max=turn_requests_max)
        live.engine.put_topic("fsync", {"durability": "fsync"}).result()
        full = {"cap_records": 5, "discard": "reject"}
        live.engine.put_topic("full", full).result()
        clients = [Client(live) for _ in range(4)]
        told: list[list[Any]] = [[] for _ in clients]
        number = 0
        for _ in range(30):
            for _ in range(dice.randrange(1, 8)):
                sent = range(number, number + dice.randrange(1, 4))
                send_at_once(dice.choice(clients), *(command_of(dice, n) for n in sent))
                number = sent.stop
            for answers, client in zip(told, clients, strict=True):
                came = client.read()
                for message in came:
                    message.pop("performance", None)
                # Refusals that need no engine come first; all others in the order of the commands.
                answers.append(sorted(came, key=lambda message: message["request_id"]))
        text = live.metrics.registry.text()
        counted = [line for line in text.splitlines() if "append_records_total{" in line]
        names = list(live.engine.topic_names())
        stored = {name: data_of(live, name) for name in names}
        outcomes.append((told, stored, counted))
    assert outcomes[0] == outcomes[1]
    assert sum(map(len, outcomes[0][1].values())) > 50
