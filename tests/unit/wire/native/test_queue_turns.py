"""Claims and acks of a turn, without sockets: who is answered, and what is kept of heads."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.engine.engine import Engine
from headrace.wire.exchange import Exchange
from headrace.wire.native import queues as native_queues
from headrace.wire.native.queues import queue_routes
from headrace.wire.response_memory import ResponseMemory
from headrace.wire.routes import Route
from tests.support.exchanges import ListExchange
from tests.support.live_readers import Live
from tests.support.queue_calls import add, counts, make

Send = Callable[..., list[ListExchange]]


@pytest.fixture
def send(live: Live) -> Send:
    """Returns what sends the bodies of one call in one turn."""
    by_place: dict[tuple[str, str], Route] = {}
    for row in queue_routes(live.engine, live.metrics, ResponseMemory(1 << 30)):
        _, _, plural, _, call = row.template.split("/")
        by_place[plural, call] = row._replace(dialect=live.table.dialects[0])

    def send(call: str, bodies: Sequence[object], noun: str = "topics", **given: Any) -> Any:
        route = by_place[noun, call]
        exchanges = []
        for body in bodies:
            path = f"/v0/{noun}/jobs/{call}"
            headers = {b"content-type": b"application/json"}
            exchange = ListExchange(live.clock, "POST", path, "", headers, 0)
            exchange.route, exchange.params = (
                route._replace(dialect=live.table.dialects[0]),
                ("jobs",),
            )
            exchange.body = body if isinstance(body, bytes) else json.dumps(body).encode()
            for name, value in given.items():
                setattr(exchange, name, value)
            exchanges.append(exchange)
        turn: list[Exchange] = [*exchanges]
        assert route.turn_handler is not None
        if given.pop("gone", None):
            exchanges[0].answered = True
        route.turn_handler(turn)
        live.run()
        return exchanges

    return send


def bodies(exchanges: Sequence[ListExchange]) -> list[dict[str, Any]]:
    return [json.loads(one.reply) for one in exchanges]


def queue(engine: Engine, jobs: int, **config: Any) -> None:
    make(engine, **config)
    add(engine, jobs)


def test_h3_a_client_that_left_before_its_turn_ended_gets_no_lease(live: Live, send: Send) -> None:
    queue(live.engine, 4)
    gone, stays = send("claim", [{"node": "a", "max": 2}, {"node": "b", "max": 2}], gone=True)
    assert not gone.reply
    assert [job["$seq"] for job in bodies([stays])[0]["claimed"]] == [1, 2]
    assert counts(live.engine) == (2, 2, 0, 0)


def test_what_an_ack_said_holds_although_its_client_left(live: Live, send: Send) -> None:
    queue(live.engine, 2)
    send("claim", [{"node": "a", "max": 2}])
    send("ack", [{"node": "a", "seqs": [1, 2]}], gone=True)
    assert counts(live.engine) == (0, 0, 0, 0)


def test_a_claim_whose_answer_cannot_be_made_does_not_keep_the_others_from_theirs(
    live: Live, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue(live.engine, 2)
    shown, failures = native_queues.jobs_out, [ValueError("no")]

    def fails_once(leased: Any) -> Any:
        if failures:
            raise failures.pop()
        return shown(leased)

    monkeypatch.setattr(native_queues, "jobs_out", fails_once)
    first, second = send("claim", [{"node": "a"}, {"node": "b"}])
    assert (first.status, second.status) == (500, 200)
    assert bodies([second])[0]["count"] == 1


@pytest.mark.parametrize("noun", ["topics", "boxes"])
def test_heads_that_are_known_are_answered_as_others(live: Live, send: Send, noun: str) -> None:
    queue(live.engine, 9)
    memo: dict[object, object] = {}
    claim = {"node": "a", "max": 2}
    first, second, third = (
        send("claim", [claim], noun, memo=memo)[0],
        send("claim", [claim], noun, memo=memo)[0],
        send("claim", [claim], noun)[0],
    )
    assert len(memo) == 1
    found = bodies([first, second, third])
    assert [one["ready"] for one in found] == [7, 5, 3]
    names = ({"topics": "topic", "boxes": "box"}[noun], "claimed", "count", "ready", "performance")
    assert {tuple(one) for one in found} == {names}
    refused = send("claim", [{"node": 5}, b""], noun, memo=memo)
    assert [one.status for one in refused] == [400, 400]
    memo.clear()
    refused = send("claim", [claim], noun, memo=memo, headers={b"content-type": b"text/plain"})
    assert refused[0].status == 415 and not memo


def test_what_was_done_to_jobs_is_counted_once_a_turn(
    live: Live, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue(live.engine, 9)
    counted: list[tuple[str, int]] = []
    monkeypatch.setattr(live.metrics, "jobs", lambda *what: counted.append(what))
    claimed = send("claim", [{"node": "a", "max": 2}, {"node": "a", "max": 3}])
    seqs = [[job["$seq"] for job in one["claimed"]] for one in bodies(claimed)]
    send("ack", [{"node": "a", "seqs": some} for some in seqs])
    assert counted == [("claimed", 5), ("acked", 5)]
