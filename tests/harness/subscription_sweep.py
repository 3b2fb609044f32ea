"""Crashes of a server with subscriptions: at every disk call, in every way, and what holds then.

A webhook and a pull-wake subscription are used in every way by dice; what was asked and answered
lies as marks in the trace of the disk.  After a crash the marks are told to a `Ledger`, and the
next server is judged by it:

* a subscription that was confirmed is there, one whose delete was confirmed is not;
* a cursor is where the last confirmed ack put it, or where one that was not answered would;
* a generation that anybody has seen is never given to another wake;
* a lease that was confirmed is still held, and its token works; a wake that is over stays over;
* what is new wakes somebody in the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from headrace.core.clock import ManualClock
from headrace.core.limits import KIB
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import SimDisk
from headrace.wire.durable_streams.offsets import offset_text
from headrace.wire.durable_streams.subscriptions import records
from headrace.wire.outbound import PostResult
from tests.harness.crash_points import Point, Sweeper, crash_by_dice, hash_of, run_sweeper
from tests.harness.engine_driver import SMALL, Driver, Setup
from tests.harness.events import Violation
from tests.harness.scene import Stage
from tests.support.exchanges import AnsweredExchange
from tests.support.subscribed_servers import HOOK, ROOT, SUBSCRIPTIONS, NotedPost, SubscribedServer

TURNS = 24
# So few that subscriptions are written anew while they are used.
EVENTS_BYTES_MIN = 512
LEASE_MS = 5_000
STREAMS = ("e/0", "e/1", "e/2")
SECOND_ONE_IN = 4
# Longer than any lease, and than any pause between two attempts.
LONG_MS = 100_000
DONE = b'{"done":true}'
ASKED: dict[str, dict[str, object]] = {
    "hook": {
        "type": "webhook", "pattern": "e/*", "webhook": {"url": HOOK}, "lease_ttl_ms": LEASE_MS
    },
    "pull": {
        "type": "pull-wake", "streams": list(STREAMS), "wake_stream": "wake",
        "lease_ttl_ms": LEASE_MS,
    },
}  # fmt: skip
WORKLOADS: dict[str, Setup] = {
    "plain": Setup(),
    "eager": Setup(replace(SMALL, checkpoint_wal_bytes=8 * KIB), shuffled=True),
    "shards": Setup(replace(SMALL, wal_shards=3)),
}

Told = Callable[["Ledger"], None]


class Mark(NamedTuple):
    """Something that a ledger is told, in its place."""

    tell: Told


@dataclass
class Held:
    """A wake that somebody has, who knows until when."""

    wake: dict[str, Any]
    until_ms: int
    unsure: bool = False  # something was asked that may have ended it


@dataclass
class Known:
    """What its clients know of one subscription."""

    there: bool | None = False  # None: something was asked, and not answered
    ending: bool = False  # its delete was asked for behind what is answered
    acked: dict[str, str] = field(default_factory=dict)  # confirmed
    asked: dict[str, set[str]] = field(default_factory=dict)  # and not confirmed
    wakes: dict[int, str] = field(default_factory=dict)  # ids by generation, as far as seen
    over: list[dict[str, Any]] = field(default_factory=list)
    held: Held | None = None


class Ledger:
    """What all clients know."""

    def __init__(self, marks: Sequence[object]) -> None:
        self.subscriptions = {id: Known() for id in ASKED}
        self.tails: dict[str, str] = {}
        self.keys: set[str] = set()
        self.now_ms = ManualClock().wall_ms()
        for mark in marks:
            if isinstance(mark, Mark):
                mark.tell(self)


class Play:
    """One run of a workload."""

    def __init__(self, setup: Setup, seed: int) -> None:
        self.stage = Stage(setup, seed)
        self.disk, self.dice = self.stage.disk, self.stage.dice
        self.posts: list[NotedPost] = []
        self.wakes: dict[str, dict[str, Any]] = {}  # the last one that each client has
        self.acks = self.claims = self.lives = 0
        self.start()
        for path in ("wake", *STREAMS[:2]):
            self.server.call("PUT", ROOT + path, [])
        for id in ASKED:
            self.create(id)
        for turn in range(TURNS):
            self.turn(turn)
        self.driver.finish()
        self.driver.abandon()

    def start(self) -> None:
        self.lives += 1
        self.driver = self.stage.open()
        self.server = SubscribedServer(self.driver.engine, self.stage.clock)
        self.server.wait(0)

    def mark(self, tell: Told) -> None:
        self.disk.mark(Mark(tell))

    def turn(self, turn: int) -> None:
        dice = self.dice
        self.append(STREAMS[dice.below(len(STREAMS))])
        self.take_posts()
        for _ in range(2):
            what = (self.claim, self.ack, self.ack, self.release, self.answer, self.answer,
                    self.call_back)[dice.below(7)]  # fmt: skip
            what()
            self.pace()
        if dice.below(5) == 0:
            self.advance((100, 900, 1_300, LEASE_MS, LONG_MS)[dice.below(5)])
        if dice.below(6) == 0:
            self.driver.engine.checkpoint()
        if dice.below(9) == 0:
            self.delete(list(ASKED)[dice.below(2)])
        for id in ASKED:
            if dice.below(3) == 0:
                self.create(id)
        if turn in (9, 17):
            self.restart()

    def pace(self) -> None:
        self.stage.pace(self.driver)
        self.advance(0)
        self.take_posts()

    def advance(self, ms: int) -> None:
        if ms:
            self.driver.finish()
        # Known before it has come: what is due then happens while it is waited for.
        now_ms = self.stage.clock.wall_ms() + ms
        self.mark(lambda ledger: setattr(ledger, "now_ms", now_ms))
        if ms:
            self.server.wait(ms)

    def restart(self) -> None:
        if self.dice.coin():
            self.driver.finish()
            self.server.dialect.drain()
            self.driver.engine.close()
        else:
            self.driver.abandon()
        self.posts.clear()
        self.start()

    # Streams

    def append(self, path: str) -> None:
        def heard(answer: AnsweredExchange) -> None:
            if answer.status < 300:
                tail = answer.reply_headers[b"stream-next-offset"].decode()
                self.mark(lambda ledger: ledger.tails.update({path: tail}))

        if self.driver.engine.find(f"ds:{path}") is None:
            self.server.begin("PUT", ROOT + path, ["first"], heard)
        else:
            self.server.begin("POST", ROOT + path, "more", heard)

    # Subscriptions

    def create(self, id: str) -> None:
        """Ask for a subscription; it may be there."""

        def heard(answer: AnsweredExchange) -> None:
            assert answer.status in (200, 201), answer.reply
            webhook = answer.json.get("webhook")
            created = answer.status == 201
            cursors = {link["path"]: link["acked_offset"] for link in answer.json["streams"]}

            def tell(ledger: Ledger) -> None:
                if webhook is not None:
                    ledger.keys.add(webhook["signing"]["kid"])
                ending = ledger.subscriptions[id].ending
                if created:
                    ledger.subscriptions[id] = Known(acked=cursors, ending=ending)
                ledger.subscriptions[id].there = None if ending else True

            self.mark(tell)

        self.driver.finish()

        def tell(ledger: Ledger) -> None:
            ledger.subscriptions[id].ending = False
            if not ledger.subscriptions[id].there:
                ledger.subscriptions[id].there = None

        self.mark(tell)
        self.server.begin("PUT", SUBSCRIPTIONS + id, ASKED[id], heard)

    def delete(self, id: str) -> None:
        def asked(ledger: Ledger) -> None:
            ledger.subscriptions[id].there = None
            ledger.subscriptions[id].ending = True

        def answered(ledger: Ledger) -> None:
            ledger.subscriptions[id] = Known()

        self.mark(asked)
        self.wakes.pop(id, None)
        path = SUBSCRIPTIONS + id
        self.server.begin("DELETE", path, None, lambda _: self.mark(answered))

    # Wakes

    def claim(self) -> None:
        def heard(answer: AnsweredExchange) -> None:
            if answer.status == 200:
                self.claims += 1
                wake = self.wakes["pull"] = answer.json
                self.mark(lambda ledger: _seen(ledger, "pull", wake, until_ms))

        self.driver.finish()  # nobody else claims, so an answer is about this one
        until_ms = self.stage.clock.wall_ms() + LEASE_MS
        self.server.begin("POST", SUBSCRIPTIONS + "pull/claim", {"worker": "w"}, heard)

    def ack(self) -> None:
        self._say("pull", "ack", done=self.dice.coin())

    def release(self) -> None:
        if self.dice.below(3) == 0:
            self._say("pull", "release", done=True)

    def call_back(self) -> None:
        self._say("hook", "callback", done=self.dice.coin())

    def _say(self, id: str, action: str, *, done: bool) -> None:
        wake = self.wakes.get(id)
        if wake is None:
            return
        acks = [] if action == "release" else _acks_of(wake, self.dice)
        now_ms = self.stage.clock.wall_ms()

        def asked(ledger: Ledger) -> None:
            known = ledger.subscriptions[id]
            for ack in acks:
                known.asked.setdefault(ack["stream"], set()).add(ack["offset"])
            if done and known.held is not None:
                known.held.unsure = True

        def heard(answer: AnsweredExchange) -> None:
            if answer.status >= 300:
                return
            self.acks += 1

            def tell(ledger: Ledger) -> None:
                known = ledger.subscriptions[id]
                known.acked.update({ack["stream"]: ack["offset"] for ack in acks})
                if done:
                    known.held = None
                    known.over.append(wake)
                elif known.held is not None:
                    known.held.until_ms = now_ms + LEASE_MS

            self.mark(tell)

        self.mark(asked)
        said = {"wake_id": wake["wake_id"], "generation": wake["generation"], "acks": acks}
        token = wake.get("token") or wake["callback_token"]
        self.server.begin(
            "POST", f"{SUBSCRIPTIONS}{id}/{action}", said | {"done": done}, heard,
            authorization=f"Bearer {token}",
        )  # fmt: skip

    def take_posts(self) -> None:
        for post in self.server.posts.open:
            wake = self.wakes["hook"] = post.json
            self.mark(partial(_seen, id="hook", wake=wake))
        self.posts += self.server.posts.open
        self.server.posts.open.clear()

    def answer(self) -> None:
        """Be the receiver of a webhook."""
        if not self.posts:
            return
        post = self.posts.pop(0)
        choice = self.dice.below(3)
        if choice == 0:
            tails = {s["path"]: s["tail_offset"] for s in post.json["streams"]}

            def asked(ledger: Ledger) -> None:
                for path, tail in tails.items():
                    ledger.subscriptions["hook"].asked.setdefault(path, set()).add(tail)

            self.mark(asked)
        body = DONE if choice == 0 else b""
        post.done(PostResult((200, 202, 500)[choice], body))


def _seen(ledger: Ledger, id: str, wake: dict[str, Any], until_ms: int | None = None) -> None:
    """Somebody has a wake; `until_ms`: and a lease that was confirmed."""
    known = ledger.subscriptions[id]
    known.wakes[wake["generation"]] = wake["wake_id"]
    known.held = None if until_ms is None else Held(wake, until_ms)


def _acks_of(wake: dict[str, Any], dice: Dice) -> list[dict[str, str]]:
    return [
        {"stream": stream["path"], "offset": stream["tail_offset"]}
        for stream in wake["streams"]
        if stream["has_pending"] and dice.below(3)
    ]


class SubscriptionExplorer(Sweeper):
    """Looks at states of subscriptions."""

    module = "subscription_sweep"

    def perform(self) -> SimDisk:
        self.play = Play(WORKLOADS[self.workload], self.seed)
        return self.play.disk

    def judge(self, point: Point, image: SimDisk) -> None:
        ledger = Ledger(self.disk.marks_until(point.position))
        dice = Dice(self.seed, point.position, point.seed, hash_of(point.mode))
        if dice.below(SECOND_ONE_IN) == 0:
            self.report.second += 1
            second = image.copy()
            self._start(second, ledger)[0].abandon()
            self._judge(crash_by_dice(second, dice).image(second), ledger)
        self._judge(image, ledger)

    def _start(self, image: SimDisk, ledger: Ledger) -> tuple[Driver, SubscribedServer]:
        clock = ManualClock(ledger.now_ms)
        driver = Driver(image, WORKLOADS[self.workload], clock, self.seed)
        driver.recover()
        server = SubscribedServer(driver.engine, clock)
        server.wait(0)
        return driver, server

    def _judge(self, image: SimDisk, ledger: Ledger) -> None:
        driver, server = self._start(image, ledger)
        keys = server.call("GET", ROOT + "__ds/jwks.json").reply.decode()
        _expect(all(kid in keys for kid in ledger.keys), f"a key is gone: {keys}")
        for id, known in ledger.subscriptions.items():
            answer = server.call("GET", SUBSCRIPTIONS + id)
            there = answer.status == 200
            _expect(known.there in (None, there), f"{id} is there: {there}, not {known.there}")
            if known.there:
                _judge_cursors(server, id, answer.json, known, ledger)
                _judge_wakes(server, id, known, ledger.now_ms)
        for id, known in ledger.subscriptions.items():
            if known.there:
                _judge_news(server, id)  # which takes its time
        driver.abandon()


def _judge_cursors(
    server: SubscribedServer, id: str, record: dict[str, Any], known: Known, ledger: Ledger
) -> None:
    """What was confirmed is there, and nothing that nobody asked for."""
    cursors = {link["path"]: link["acked_offset"] for link in record["streams"]}
    for path, heard in ledger.tails.items():
        tail = _tail(server, path)
        _expect(tail >= heard, f"{path} ends at {tail}, before what was acknowledged: {heard}")
        acked = known.acked.get(path, "-1")
        allowed = {acked, *(offset for offset in known.asked.get(path, ()) if offset > acked)}
        at = cursors.get(path)
        _expect(at in allowed, f"{id} is at {at} in {path}, not one of {sorted(allowed)}")
        # Of the stream as it is, which may have more than was acknowledged: an append whose
        # answer nobody heard can be read after a restart, and acked.
        _expect(at == "-1" or str(at) <= tail, f"{id} is at {at}, beyond {path}: {tail}")


def _judge_wakes(server: SubscribedServer, id: str, known: Known, now_ms: int) -> None:
    """A wake that was seen is the same, or over for ever; a lease that was confirmed holds."""
    action = "callback" if id == "hook" else "ack"
    for wake in known.over:
        answer = server.report(id, action, wake)
        _expect(answer.status == 409, f"{id}: a wake that was over goes on")
    held = known.held
    if held is not None and not held.unsure and held.until_ms > now_ms:
        busy = server.claim(id, "other")
        _expect(busy.status == 409, f"{id}: what is held was given away")
        answer = server.report(id, action, held.wake)
        _expect(answer.status == 200, f"{id}: a lease is lost: {answer.reply!r}")


def _judge_news(server: SubscribedServer, id: str) -> None:
    """In the end each cursor can get to the tail, by wakes that nobody has seen before."""
    server.wait(LONG_MS)
    for _ in range(3):
        if id == "hook":
            server.be_done()
        else:
            claimed = server.claim(id, "judge")
            if claimed.status == 200:
                acks = [
                    {"stream": stream["path"], "offset": stream["tail_offset"]}
                    for stream in claimed.json["streams"]
                    if stream["has_pending"]
                ]
                server.report(id, "ack", claimed.json, acks=acks, done=True)
        server.wait(LONG_MS)
    cursors = server.cursors(id)
    for path in STREAMS:
        if server.engine.find(f"ds:{path}") is None:
            continue
        tail, at = _tail(server, path), cursors.get(path)
        empty = not server.engine.streams.info(f"ds:{path}").head_seq
        _expect(at == tail or empty, f"{id} stays at {at} of {path}, before {tail}")


def _tail(server: SubscribedServer, path: str) -> str:
    return offset_text(server.engine.streams.info(f"ds:{path}").tail).decode()


def _expect(holds: bool, why: str) -> None:
    if not holds:
        raise Violation(why)


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the states the command line names; 1 if any is wrong."""
    records.EVENTS_BYTES_MIN = EVENTS_BYTES_MIN  # type: ignore[misc]
    return run_sweeper(SubscriptionExplorer, sorted(WORKLOADS), arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main())
