"""Diffs that come together: each is read, refused, counted and answered as it would be alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.engine.reading.page_rows import ReadRequest
from headrace.metrics.requests import Metrics
from headrace.storage.block import KIND_BYTES, KIND_JSON, Batch
from headrace.testing.simdisk import SimDisk
from headrace.wire import long_poll
from headrace.wire.exchange import ARROW_STREAM, JSON
from headrace.wire.native import diff
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.native.routes import topic_routes
from headrace.wire.routes import RouteTable
from headrace.wire.server_context import ServerContext
from tests.support.engines import open_engines
from tests.support.exchanges import AnsweredExchange

TURNS = 12
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "capped": {"cap_records": 6},
    "brief": {"ttl_ms": 300},
    "nodes": {"dedupe_node": True},
}
NAMES = (*CONFIGS, "mixed", "tagged", "sealed", "nowhere", "bad name")


class Reads:
    """The routes of topics without sockets, and diffs to send to them."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.metrics = Metrics()
        self.context = ServerContext(engine, engine.settings, self.metrics)
        self.table = RouteTable([NativeDialect(topic_routes(self.context))])
        self._memos: dict[object, dict[object, object]] = {}  # as whole heads have them

    def run(self) -> None:
        assert isinstance(self.engine.runtime, StepRuntime)
        self.engine.runtime.run()

    def diff(
        self, topic: str, body: bytes | dict[str, Any] = b"", *, plural: str = "topics",
        remembered: bool = True, **headers: str,
    ) -> AnsweredExchange:  # fmt: skip
        """A request that has not been handed over; header names have `_` for `-`."""
        sent = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        sent.setdefault(b"content-type", JSON)
        path = f"/v0/{plural}/{topic.replace(' ', '%20')}/diff"
        exchange = AnsweredExchange("POST", path, "", sent, self.clock.monotonic_ns())
        exchange.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        exchange.route, exchange.params = self.table.match("POST", path)
        if remembered:
            head = (path, *sorted(sent.items()), len(exchange.body))
            exchange.memo = self._memos.setdefault(head, {})
        return exchange

    def turn(self, exchanges: Sequence[AnsweredExchange]) -> None:
        """Hand over what came in one turn, by route as a server does."""
        routes: dict[int, list[AnsweredExchange]] = {}
        for exchange in exchanges:
            routes.setdefault(id(exchange.route), []).append(exchange)
        for together in routes.values():
            route = together[0].route
            assert route is not None and route.turn_handler is not None
            route.turn_handler(together)

    def alone(self, exchanges: Sequence[AnsweredExchange]) -> None:
        """Hand over one by one."""
        for exchange in exchanges:
            assert exchange.route is not None
            exchange.route.handler(exchange)

    def counted(self) -> list[str]:
        lines = self.metrics.registry.text().splitlines()
        return [line for line in lines if "_read_" in line and not line.startswith("#")]


@pytest.fixture
def reads(request: pytest.FixtureRequest) -> Any:
    clock = ManualClock()
    with open_engines(clock) as start:
        yield Reads(start(), clock)


def fill(engine: Engine, dice: Random, count: int) -> None:
    """Records of all kinds: singles and batches, with and without nodes, tags and metas."""
    for number in range(count):
        engine.append("plain", [{"n": number}]).result()
        engine.append("capped", [number]).result()
        engine.append("brief", [number] * dice.randrange(1, 3)).result()
        node = ("a", "b", None)[dice.randrange(3)]
        engine.append("nodes", Batch([b"%d" % number], nodes=node)).result()
        kind = dice.randrange(2)
        engine.append("mixed", Batch([b"%d" % number], kind=kind)).result()
        engine.append("mixed", Batch([b"1"] * dice.randrange(1, 4), metas=None)).result()
        engine.append("tagged", Batch([b"2"], tags=["t"], metas=[b'{"k":1}'])).result()
        engine.append("sealed", [number]).result()


def prepare(start: Callable[..., Engine], clock: ManualClock, seed: int) -> Reads:
    disk = SimDisk()
    engine = start(disk)
    for name, config in CONFIGS.items():
        engine.put_topic(name, config).result()
    fill(engine, Random(seed), 8)
    engine.delete("tagged", match="t").result()
    engine.checkpoint().result()
    engine.state.forget_blocks(engine.state.by_name["sealed"])
    for segment in engine.state.catalog.segments():
        engine.state.cache.drop(segment.meta.file_id, 100)
    disk.cached = False  # the first read of it takes a while
    fill(engine, Random(seed + 1), 8)
    engine.append("tagged", Batch([b"3"], tags=["u"])).result()
    return Reads(engine, clock)


def drawn(reads: Reads, dice: Random) -> AnsweredExchange:
    """A diff of some kind, which may well be refused, or have to wait."""
    name = NAMES[dice.randrange(len(NAMES))]
    topic = reads.engine.find(name)
    body: dict[str, Any] = {}
    if dice.randrange(4):
        body["from_seq"] = (0, 0, 3, 8, 16, 900)[dice.randrange(6)]
    if dice.randrange(3) == 0:
        body["limit"] = dice.randrange(1, 6)
    kind = dice.choice((*range(10), 4, 4, 10, 10, 10, 10))
    if kind == 0:
        body = {"from_ts": 1_700_000_000_000 + dice.randrange(-10, 400)}
    elif kind == 1:
        body = {"last": dice.randrange(5)}
    elif kind == 2:
        body["epoch"] = dice.randrange(3)
    elif kind == 3:
        body["node"] = ("a", ["a", "b"], "z")[dice.randrange(3)]
    elif kind == 4:
        body |= {"wait_ms": 200, "from_seq": 0 if topic is None else topic.head}
    elif kind == 5:
        body["max_batch_bytes"] = dice.randrange(1, 30)
    elif kind == 6:
        body = {"from_seq": 1, "last": 1}
    elif kind == 7:
        body["unknown"] = 1
    elif kind == 8:
        body |= {"include_tags": bool(dice.randrange(2)), "include_meta": bool(dice.randrange(2))}
    elif kind == 9:
        body["from_seq"] = 1 << 70
    sent: bytes | dict[str, Any] = body
    if dice.randrange(12) == 0:
        sent = (b"", b"{", b'{"limit":0}')[dice.randrange(3)]
    headers = {}
    if dice.randrange(8) == 0:
        headers["accept"] = ARROW_STREAM.decode()
    if dice.randrange(12) == 0:
        headers["content_type"] = "text/plain"
    return reads.diff(
        name,
        sent,
        plural=("topics", "topics", "boxes")[dice.randrange(3)],
        remembered=bool(dice.randrange(4)),
        **headers,
    )


def drawn_turn(reads: Reads, dice: Random) -> list[AnsweredExchange]:
    """The diffs of a turn, of which some ask for the same, or the same of another topic."""
    asked = []
    for _ in range(1 + dice.randrange(10)):
        asked.append(drawn(reads, dice))
        if dice.randrange(2):
            name = dice.choice((asked[-1].params[0], *CONFIGS))
            asked.append(reads.diff(name, asked[-1].body))
    # Each route has its own order, in which a server hands over a turn.
    return sorted(asked, key=lambda one: one.path.startswith("/v0/boxes"))


def said(exchange: AnsweredExchange) -> object:
    """What a client was told, but for how long it took."""
    names = sorted(exchange.reply_headers)
    if exchange.content_type == ARROW_STREAM:
        table = pa.ipc.open_stream(exchange.reply).read_all()
        return exchange.status, names, table.to_pylist(), table.schema.metadata
    body = json.loads(exchange.reply)
    return exchange.status, names, {**body, "performance": sorted(body.get("performance", ()))}


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_turn_is_the_same_as_its_diffs_one_by_one(seed: int) -> None:
    """Answers, refusals in the middle, what waits, what is counted and what is touched."""
    found = []
    for together in (True, False):
        clock = ManualClock()
        with open_engines(clock) as start:
            reads = prepare(start, clock, seed)
            dice, told = Random(seed), []
            for number in range(TURNS):
                asked = drawn_turn(reads, dice)
                (reads.turn if together else reads.alone)(asked)
                waiting = len(reads.context.polls.waiting)
                reads.run()
                if number % 3 == 0:
                    fill(reads.engine, dice, 1)
                for _ in range(30):
                    clock.advance(10)
                    reads.run()
                assert not reads.context.polls.waiting
                assert all(one.answered for one in asked)
                told.append((waiting, [said(one) for one in asked]))
            touched = {name: t.last_read_ms for name, t in reads.engine.state.by_name.items()}
            found.append((told, touched, reads.counted()))
    assert found[0] == found[1]
    answers = [answer for _, turn in found[0][0] for answer in turn]
    assert {answer[0] for answer in answers} >= {200, 400, 404, 415}  # type: ignore[index]
    assert any(waiting for waiting, _ in found[0][0])
    bodies = [answer[2] for answer in answers if answer[0] == 200]  # type: ignore[index]
    reasons = [b["tombstone"]["reason"] for b in bodies if isinstance(b, dict) and b["tombstone"]]
    assert {"cap", "recreated"} <= set(reasons)


def asked_for(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ReadRequest]]:
    """Every read that the engine is asked for from here on."""
    heard: list[tuple[str, ReadRequest]] = []
    consume = reads.engine.consume

    def listen(name: str, request: ReadRequest) -> object:
        heard.append((name, request))
        return consume(name, request)

    monkeypatch.setattr(reads.engine, "consume", listen)
    return heard


def test_what_is_asked_for_twice_is_read_once(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        reads.engine.append(name, [name]).result()
    heard = asked_for(reads, monkeypatch)
    body = {"from_seq": 0}
    same = [reads.diff("a", body) for _ in range(3)]
    others = [
        reads.diff("b", body),  # another topic, another body, another form of the answer
        reads.diff("a", {"from_seq": 0, "limit": 1}),
        reads.diff("a", body, accept=ARROW_STREAM.decode()),
    ]
    reads.turn([*same, *others])
    assert [name for name, _ in heard] == ["a", "b", "a", "a"]
    assert [said(one) for one in same] == [said(same[0])] * 3
    assert [record["data"] for record in same[2].json["records"]] == ["a"]
    assert [record["data"] for record in others[0].json["records"]] == ["b"]
    assert others[2].content_type == ARROW_STREAM
    reads.turn([reads.diff("a", body)])
    assert len(heard) == 5, "nothing is kept beyond the turn"


def test_records_of_other_kinds_are_shown_as_what_they_are(reads: Reads) -> None:
    for kind in (KIND_JSON, KIND_BYTES, KIND_JSON):
        reads.engine.append("a", Batch([b"1"], kind)).result()
    asked = reads.diff("a", {})
    reads.turn([asked])
    assert [record["data"] for record in asked.json["records"]] == [1, "MQ==", 1]


def test_another_content_type_is_refused_beside_the_same_body(reads: Reads) -> None:
    reads.engine.append("a", [1]).result()
    asked = [reads.diff("a", {}), reads.diff("a", {}, content_type="text/plain")]
    reads.turn(asked)
    assert [one.status for one in asked] == [200, 415]


def test_a_head_without_a_body_says_nothing_of_one_with_a_body(reads: Reads) -> None:
    reads.engine.append("a", [1]).result()
    bare = reads.diff("a", b"", content_type="text/plain")
    sends = reads.diff("a", b"{}", content_type="text/plain")
    sends.memo = bare.memo
    reads.turn([bare, sends])
    assert [one.status for one in (bare, sends)] == [200, 415]


def test_pages_are_kept_for_others_up_to_a_bound(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        reads.engine.append(name, ["x" * 100]).result()
    heard = asked_for(reads, monkeypatch)
    monkeypatch.setattr(diff, "SHARED_BYTES_MAX", 300)  # two of them
    reads.turn([reads.diff(name, {}) for name in ("a", "b", "a", "c", "a", "c")])
    assert [name for name, _ in heard] == ["a", "b", "c", "a"]


def test_a_page_is_not_shared_once_memory_is_short(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that clients do not take make the pages behind them smaller, in a turn, too."""
    reads.engine.append("a", ["x" * 1_000] * 100).result()
    memory = reads.context.memory
    first, second = reads.diff("a", {}), reads.diff("a", {})
    answer = first.answer

    def fill_memory(*given: Any) -> None:
        """As a client does that takes nothing."""
        answer(*given)
        memory.used = memory.limit

    monkeypatch.setattr(first, "answer", fill_memory)
    reads.turn([first, second])
    assert first.json["caught_up"] and not second.json["caught_up"]


def test_a_page_that_was_told_before_tells_of_the_head_as_it_is_now(reads: Reads) -> None:
    reads.engine.append("a", [1, 2]).result()
    first_page = {"from_seq": 0, "limit": 1}
    found = []
    for value in (3, 4, 5):
        for _ in range(2):
            asked = reads.diff("a", first_page)
            reads.turn([asked])
            found.append((asked.json["head_seq"], asked.json["lag"], asked.json["next_from_seq"]))
        reads.engine.append("a", [value]).result()
    assert found == [(2, 1, 1)] * 2 + [(3, 2, 1)] * 2 + [(4, 3, 1)] * 2


@pytest.mark.parametrize("together", [1, 300, 64 << 10])
def test_however_many_are_answered_together_each_has_its_own_page(
    reads: Reads, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(diff, "TOGETHER_BYTES_MAX", together)
    for number in range(7):
        reads.engine.append(f"t{number}", ["x" * 100 * number]).result()
    asked = [reads.diff(f"t{number % 7}", {}) for number in range(20)]
    reads.turn([*asked[:9], reads.diff("nowhere", {}), *asked[9:]])
    lengths = [len(one.json["records"][0]["data"]) for one in asked]
    assert lengths == [100 * (number % 7) for number in range(20)]


# Diffs that wait


def waiting(reads: Reads, count: int, topic: str = "a", **body: Any) -> list[AnsweredExchange]:
    asked = [reads.diff(topic, {"from_seq": 1, "wait_ms": 1_000, **body}) for _ in range(count)]
    reads.turn(asked)
    assert len(reads.context.polls.waiting) >= count
    return asked


def test_polls_that_one_append_wakes_are_read_once(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        reads.engine.append(name, [1]).result()
    polls, others = waiting(reads, 3), waiting(reads, 1, limit=1)
    elsewhere = waiting(reads, 1, "b")
    heard = asked_for(reads, monkeypatch)
    reads.engine.append("a", [2]).result()
    reads.engine.append("a", [3]).result()
    reads.run()
    assert [(name, request.limit) for name, request in heard] == [("a", 256), ("a", 1)]
    assert all(one.answered for one in (*polls, *others)) and not elsewhere[0].answered
    assert [said(one) for one in polls] == [said(polls[0])] * 3
    seqs = [record["$seq"] for record in polls[0].json["records"]]
    assert seqs[0] == 2 and [record["$seq"] for record in others[0].json["records"]] == [2]
    assert "headrace_read_records_total" in reads.counted()[0]
    reads.engine.delete_topic("b").result()
    reads.run()
    assert elsewhere[0].status == 404 and not reads.context.polls.waiting


def test_as_many_polls_are_read_together_as_the_bound_says(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "READ_TOGETHER_MAX", 4)
    reads.engine.append("a", [1]).result()
    polls = waiting(reads, 9)
    ticket = reads.engine.append("a", [2])
    runtime = reads.engine.runtime
    assert isinstance(runtime, StepRuntime)
    seen = []
    while runtime.step():
        seen.append(sum(one.answered for one in polls))
    assert ticket.done and set(seen) == {0, 4, 8, 9}


def test_one_poll_that_fails_leaves_the_others_alone(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads.engine.append("a", [1]).result()
    first, second, third = polls = waiting(reads, 3)
    monkeypatch.setattr(second, "answer", lambda *_: 1 // 0)
    failed: list[BaseException] = []
    monkeypatch.setattr(second, "fail", failed.append)
    reads.engine.append("a", [2]).result()
    reads.run()
    assert first.status == third.status == 200 and len(polls) == 3
    assert isinstance(failed[0], ZeroDivisionError) and not reads.context.polls.waiting


def test_a_poll_whose_client_leaves_between_the_wake_and_the_read_is_dropped(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads.engine.append("a", [1]).result()
    (poll,) = waiting(reads, 1)
    heard = asked_for(reads, monkeypatch)
    polls = reads.context.polls
    wake = polls.wake

    def leave(woken: Any) -> None:
        wake(woken)
        poll.answered = True  # as a transport does
        assert poll.on_abort is not None
        poll.on_abort()

    monkeypatch.setattr(polls, "wake", leave)
    reads.engine.append("a", [2]).result()
    reads.run()
    assert poll.status == 0 and not heard and not polls.waiting


def test_a_stop_between_the_wake_and_the_read_is_answered_with_the_record(reads: Reads) -> None:
    reads.engine.append("a", [1]).result()
    (poll,) = waiting(reads, 1)
    ticket = reads.engine.append("a", [2])
    runtime = reads.engine.runtime
    assert isinstance(runtime, StepRuntime)
    while not ticket.done:
        assert runtime.step()
    reads.context.polls.drain()
    reads.run()
    assert [record["$seq"] for record in poll.json["records"]] == [2]
