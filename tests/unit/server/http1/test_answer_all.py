"""Requests of a turn that are answered together: each gets its own answer, over any transport."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.server.http1.connection import Http1Connection
from tests.support.memory_transport import in_a_loop
from tests.support.turn_http2 import Http2TurnClient
from tests.support.turn_servers import TurnClient, TurnServer, append, http

CLASSES = ("disk", "memory")


@pytest.fixture
def server() -> Iterator[TurnServer]:
    with TurnServer() as server:
        for name in CLASSES:
            server.ask(http("PUT", f"/v0/topics/{name}", {"durability": name}))
        yield server


def test_a_turn_of_both_transports_and_two_classes_is_answered_and_counted(
    server: TurnServer,
) -> None:
    clients = [*server.connect(2), *server.connect(1, Http2TurnClient), *server.connect(2)]
    for turn in range(4):  # from the second on the heads are known
        for number, client in enumerate(clients):
            client.send(append(CLASSES[number % 2], number))
        server.end_turn()
        said = [client.hear() for client in clients]
        assert all(len(answers) == 1 for answers in said)
        for number, (answer,) in enumerate(said):
            assert answer.status == 200
            assert answer.json["topic"] == CLASSES[number % 2]
            before = turn * (3, 2)[number % 2] + number // 2
            assert answer.json["seqs"] == [before + 1]
    counts = [line.rpartition(" ")[2] for line in server.counters("headrace_append_records_total")]
    assert counts == ["12", "8"]
    (answered,) = server.counters('headrace_http_requests_total.*POST.*/topics/.topic.".*"200"')
    assert answered.endswith(" 20")


def test_an_answer_that_cannot_be_written_is_the_matter_of_its_connection(
    server: TurnServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clients: list[TurnClient] = server.connect(3)
    for _ in range(3):
        for client in clients:
            client.send(append("disk", 1))
        server.end_turn()
    for client in clients:
        assert [answer.status for answer in client.hear()] == [200] * 3
        client.send(append("disk", 2))
    write, broken = Http1Connection.answered_alone, clients[1].protocol

    def fail(self: Http1Connection, *arguments: Any) -> None:
        if self is broken:
            raise RuntimeError("no such socket")
        write(self, *arguments)

    monkeypatch.setattr(Http1Connection, "answered_alone", fail)
    in_a_loop(server.end_turn)
    said = [[answer.json["seqs"] for answer in client.hear()] for client in clients]
    assert said == [[[10]], [], [[12]]]
    assert "an error after the answer" in caplog.text
