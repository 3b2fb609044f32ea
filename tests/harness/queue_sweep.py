"""Crashes of an engine with a queue: at every disk call, in every way, and what must hold then.

A queue is used in every way by dice; what was asked and answered lies as marks in the trace of the
disk.  After a crash the marks are told to a `JobLedger`, which judges what the next engine says, as
it judges workers of a served process.  A class that a power loss may take records of is held to
less: no job is there twice, and every job that is there can be claimed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headrace.core.clock import ManualClock
from headrace.core.limits import KIB
from headrace.core.runtime import Ticket
from headrace.engine.engine import Engine
from headrace.engine.queues.answers import Claimed, Job
from headrace.engine.queues.calls import Ack, Claim
from headrace.engine.queues.dead_letters import Redrive
from headrace.storage.block import Record
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import SimDisk
from tests.harness.crash_points import (
    Point,
    Sweeper,
    crash_by_dice,
    hash_of,
    run_sweeper,
)
from tests.harness.engine_driver import SMALL, Driver, Setup, batch_of
from tests.harness.events import Violation
from tests.harness.job_ledger import Grant, JobLedger, Letter
from tests.harness.model import NewRecord
from tests.harness.scene import Stage

LEASES_MS = (200, 1_000, 60_000)
DELAYS_MS = (0, 0, 700)
MAX_DELIVERIES = 3
NODES = ("a", "b", "c")
TURNS = 26
LATER_MS = (0, 1, 500, 5_000)
LONG_MS = 10_000_000
SECOND_ONE_IN = 4
ALL = 1_000

Told = Callable[["Teller"], None]


class Mark(NamedTuple):
    """Something that a ledger is told, in its place."""

    tell: Told


class Now(NamedTuple):
    """Engine time."""

    ms: int


@dataclass(frozen=True)
class Kind:
    """A queue, its dead letters, and the engine."""

    durability: str
    durable: bool
    dead: str = ""  # "": created on the way
    setup: Setup = field(default_factory=Setup)
    redrive: bool = False


_EAGER = Setup(replace(SMALL, checkpoint_wal_bytes=8 * KIB), shuffled=True)
_SHARDS = Setup(replace(SMALL, wal_shards=3))
WORKLOADS: dict[str, Kind] = {
    "fsync_durable": Kind("fsync", True),
    "fsync_eager": Kind("fsync", True, "fsync", _EAGER),
    "fsync_shards": Kind("fsync", True, "disk", _SHARDS),
    "fsync_free": Kind("fsync", False, "memory", _EAGER),
    "disk_durable": Kind("disk", True, "fsync", _SHARDS),
    "disk_free": Kind("disk", False),
    "memory_durable": Kind("memory", True, "memory", _EAGER),
    "redrive": Kind("fsync", True, "fsync", _SHARDS, redrive=True),
    "redrive_eager": Kind("disk", False, "disk", _EAGER, redrive=True),
}


class Teller:
    """A ledger, and the leases it knows by their ids."""

    def __init__(self, kind: Kind, marks: Sequence[object]) -> None:
        self.ledger = JobLedger("q", kind.durable, MAX_DELIVERIES)
        self.grants: dict[str, Grant] = {}
        self.asked: dict[int, Any] = {}
        self.life = 1
        self.now = ManualClock().wall_ms()
        self.redriven = False
        for mark in marks:
            if isinstance(mark, Mark):
                mark.tell(self)
            elif isinstance(mark, Now):
                self.now = mark.ms
        for what, asked, leases, lease_ms in self.asked.values():
            self.ledger.lost(what, asked, [self.grants[i] for i in leases], lease_ms)

    def given(self, node: str, lease_ms: int, jobs: Sequence[Job], *, bound: bool) -> None:
        for job in jobs:
            self.grants[job.lease_id] = self.ledger.granted(
                job.data.decode(), job.seq, job.lease_id, node,
                deadline=job.deadline, lease_ms=lease_ms, deliveries=job.deliveries,
                bound=bound, life=self.life,
            )  # fmt: skip

    def drop(self, leases: Sequence[str]) -> None:
        self.ledger.dropped([self.grants[lease] for lease in leases])

    def ask(self, number: int, what: str, leases: list[str], lease_ms: int) -> None:
        self.asked[number] = (what, self.ledger.ask(self.life), leases, lease_ms)

    def answer(self, number: int, skipped: list[int], deadlines: dict[int, int], ms: int) -> None:
        what, asked, leases, _ = self.asked.pop(number)
        grants = [self.grants[lease] for lease in leases]
        if what == "extend":
            self.ledger.extended(asked, grants, deadlines)
            return
        self.ledger.done(what, asked, grants, skipped)
        if what == "nack":
            self.ledger.delayed(asked, grants, skipped, ms)


class Play:
    """One run of a workload."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind = kind
        self.stage = Stage(kind.setup, seed)
        self.disk, self.dice = self.stage.disk, self.stage.dice
        self.driver = self.stage.open()
        self.serial = 0
        self.calls = 0
        self.held: list[tuple[Job, str]] = []
        self.connections: dict[int, list[str]] = {}  # number -> leases
        config: dict[str, object] = {
            "type": "queue", "durability": kind.durability, "leases_durable": kind.durable,
            "max_deliveries": MAX_DELIVERIES, "dead_letter": "dead",
        }  # fmt: skip
        self.engine.put_topic("q", config).result()
        if kind.dead:
            self.engine.put_topic("dead", {"durability": kind.dead}).result()
        for turn in range(TURNS):
            self.turn(turn)
        self.driver.finish()
        self.driver.abandon()

    @property
    def engine(self) -> Engine:
        return self.driver.engine

    def mark(self, tell: Told) -> None:
        self.disk.mark(Mark(tell))

    def turn(self, turn: int) -> None:
        dice = self.dice
        if turn % 3 == 0:
            self.append(1 + dice.below(4))
        self.claim()
        self.pace()
        for _ in range(2):
            self.use()
            self.pace()
        if dice.below(6) == 0:
            self.engine.checkpoint()
            self.driver.steps(dice.below(9))
        if dice.below(5) == 0:
            self.driver.finish()
            self.advance((100, 300, 1_100, 61_000)[dice.below(4)])
        if self.connections and dice.below(4) == 0:
            self.hang_up(sorted(self.connections)[0])
        if self.kind.redrive and turn % 9 == 8 and "dead" in self.engine.state.by_name:
            self.driver.finish()
            self.mark(lambda teller: setattr(teller, "redriven", True))
            self.engine.queues.redrive("dead", Redrive())
        if turn in (11, 18):
            self.restart(clean=dice.coin())

    def pace(self) -> None:
        self.stage.pace(self.driver)
        self.advance(0)  # it may have taken its time

    def advance(self, ms: int) -> None:
        self.stage.clock.advance(ms)
        self.disk.mark(Now(self.stage.clock.wall_ms()))

    def append(self, count: int) -> None:
        names = [f"job {self.serial + n}" for n in range(1, count + 1)]
        self.serial += count
        records = [
            NewRecord(name.encode(), "t", "n", json.dumps({"job": name}).encode()) for name in names
        ]
        self.mark(lambda teller: teller.ledger.sent.update(names))

        def done(ticket: Ticket[Any]) -> None:
            first = ticket.result().first_seq
            self.mark(lambda teller: teller.ledger.appended(names, first))

        self.engine.append("q", batch_of(records)).when_done(done)

    def claim(self) -> None:
        """Claim for one worker, or for several at once."""
        together = (1, 1, 2, 3)[self.dice.below(4)]
        self.engine.queues.claim_all([self._new_claim() for _ in range(together)])

    def _new_claim(self) -> Claim:
        dice = self.dice
        node = NODES[dice.below(len(NODES))]
        lease_ms = LEASES_MS[dice.below(len(LEASES_MS))]
        connection: int | None = None
        if dice.below(3) == 0:
            connection = self.engine.queues.connect("q", lambda: False)
            self.connections[connection] = []

        def done(ticket: Ticket[Claimed]) -> None:
            jobs = ticket.result().jobs
            self.held += [(job, node) for job in jobs]
            bound = connection is not None
            self.mark(lambda teller: teller.given(node, lease_ms, jobs, bound=bound))
            leases = [job.lease_id for job in jobs]
            if connection in self.connections:
                self.connections[connection] += leases
            elif bound:  # the worker was gone before
                self.mark(lambda teller: teller.drop(leases))

        claim = Claim(self.engine.runtime, "q", node, 1 + dice.below(4), lease_ms, connection)
        claim.when_done(done)
        return claim

    def use(self) -> None:
        """Acknowledge, give back or extend some jobs of one node, or come late with them."""
        dice, queues = self.dice, self.engine.queues
        if not self.held:
            return
        node = self.held[dice.below(len(self.held))][1]
        jobs = [job for job, holder in self.held if holder == node][: 1 + dice.below(3)]
        jobs = list({job.seq: job for job in jobs}.values())
        what = ("ack", "ack", "nack", "nack", "extend", "nothing")[dice.below(6)]
        if what == "nothing":
            return
        if what != "extend":
            self.held = [(job, holder) for job, holder in self.held if job not in jobs]
        if what == "ack":
            # In one go, or one ack for each job, all at once.
            parts = [jobs] if dice.coin() else [[job] for job in jobs]
            queues.ack_all([self._new_ack(node, part) for part in parts])
            return
        delay_ms = DELAYS_MS[dice.below(len(DELAYS_MS))]
        lease_ms = LEASES_MS[dice.below(len(LEASES_MS))]
        seqs, leases = [job.seq for job in jobs], [job.lease_id for job in jobs]
        done = self._asked(what, leases, lease_ms, delay_ms)
        if what == "nack":
            queues.nack("q", node, seqs, delay_ms, leases).when_done(done)
        else:
            queues.extend("q", node, seqs, lease_ms, leases).when_done(done)

    def _new_ack(self, node: str, jobs: Sequence[Job]) -> Ack:
        leases = [job.lease_id for job in jobs]
        ack = Ack(self.engine.runtime, "q", node, [job.seq for job in jobs], leases)
        ack.when_done(self._asked("ack", leases))
        return ack

    def _asked(
        self, what: str, leases: list[str], lease_ms: int = 0, delay_ms: int = 0
    ) -> Callable[[Ticket[Any]], None]:
        """Note that something is asked; return what notes the answer."""
        self.calls += 1
        number = self.calls
        self.mark(lambda teller: teller.ask(number, what, leases, lease_ms))

        def done(ticket: Ticket[Any]) -> None:
            answer = ticket.result()
            deadlines = dict(answer.deadlines) if what == "extend" else {}
            skipped = list(answer.skipped)
            self.mark(lambda teller: teller.answer(number, skipped, deadlines, delay_ms))

        return done

    def hang_up(self, connection: int) -> None:
        leases = self.connections.pop(connection)
        self.mark(lambda teller: teller.drop(leases))
        self.engine.queues.disconnect(connection)

    def restart(self, *, clean: bool) -> None:
        if clean:
            self.driver.finish()
            self.mark(lambda teller: teller.ledger.stopping(teller.life))
            self.engine.close()
        else:
            self.driver.abandon()
        self.connections.clear()
        self.mark(_next_life)
        self.advance(50)
        self.driver = self.stage.open()


def _next_life(teller: Teller) -> None:
    teller.life += 1


class QueueExplorer(Sweeper):
    """Looks at states of queues."""

    module = "queue_sweep"

    def perform(self) -> SimDisk:
        self.kind = WORKLOADS[self.workload]
        self.play = Play(self.kind, self.seed)
        return self.play.disk

    def judge(self, point: Point, image: SimDisk) -> None:
        marks = self.disk.marks_until(point.position)
        dice = Dice(self.seed, point.position, point.seed, hash_of(point.mode))
        safe = self.kind.durability == "fsync"
        if dice.below(SECOND_ONE_IN) == 0:
            self.report.second += 1
            second = image.copy()
            self._recover(second, marks, 0)[0].abandon()
            again = crash_by_dice(second, dice)
            strict = safe or point.loss == again.loss == "kill"
            self._judge(again.image(second), marks, dice, strict=strict)
        self._judge(image, marks, dice, strict=safe or point.loss == "kill")

    def _recover(
        self, image: SimDisk, marks: Sequence[object], later_ms: int
    ) -> tuple[Driver, Teller]:
        teller = Teller(self.kind, marks)
        teller.life += 1
        driver = Driver(image, self.kind.setup, ManualClock(teller.now + later_ms), self.seed)
        driver.recover()
        driver.finish()
        return driver, teller

    # Rules

    def _judge(self, image: SimDisk, marks: Sequence[object], dice: Dice, *, strict: bool) -> None:
        later_ms = LATER_MS[dice.below(len(LATER_MS))]
        driver, teller = self._recover(image, marks, later_ms)
        engine = driver.engine
        if "q" not in engine.state.by_name:
            _expect(not teller.ledger.jobs, "the queue is gone")
            return
        self._places(engine, teller, strict)
        if strict and not teller.redriven:
            self._leases(engine, teller)
        # In the end each job can be claimed, or is dead.
        seen: set[int] = set()
        for _ in range(MAX_DELIVERIES + 2):
            driver.clock.advance(LONG_MS)
            seen |= {job.seq for job in engine.queues.claim("q", "y", ALL).result().jobs}
            driver.finish()
        left = {record.seq for record in _records(engine, "q")}
        _expect(left <= seen, f"{left - seen} can never be claimed")
        self._places(engine, teller, strict)
        driver.abandon()

    def _places(self, engine: Engine, teller: Teller, strict: bool) -> None:
        live, dead = _records(engine, "q"), _records(engine, "dead")
        everywhere = Counter(record.data.decode() for record in (*live, *dead))
        twice = [name for name, times in everywhere.items() if times > 1]
        _expect(not twice, f"{twice} are there twice")
        counts = engine.queues.counts("q")
        _expect(
            counts.ready + counts.in_flight + counts.delayed == len(live), f"{counts} of {live}"
        )
        if not strict:
            return
        ledger = teller.ledger
        if teller.redriven:
            lost = ledger.jobs.keys() - ledger.ended() - everywhere.keys()
            _expect(not lost, f"{lost} are lost")
            return
        _expect(counts.dead_lettered == len(dead), f"{counts}, and {len(dead)} dead letters")
        letters = [Letter(r.data.decode(), json.loads(r.meta or b"{}")) for r in dead]
        ledger.check_places({record.seq: record.data.decode() for record in live}, letters)

    def _leases(self, engine: Engine, teller: Teller) -> None:
        """Nobody gets what is held; who holds it still does, and who does not is refused."""
        ledger, queues = teller.ledger, engine.queues
        ledger.check_history()
        now = engine.state.clock.now_ms()
        live = {record.seq for record in _records(engine, "q")}
        last = [grants[-1] for seq, grants in ledger.grants.items() if seq in live]
        teller.given("x", LEASES_MS[2], queues.claim("q", "x", ALL, LEASES_MS[2]).result().jobs,
                     bound=False)  # fmt: skip
        ledger.check_history()
        for grant in last:
            kept = self.kind.durable and not grant.bound and not grant.released
            held = kept and min(grant.ends, grant.ends_at_most) >= now
            asked = ledger.ask(teller.life)
            answer = queues.extend(
                "q", grant.node, [grant.seq], LEASES_MS[2], [grant.lease_id]
            ).result()
            _expect(not held or answer.extended == 1, f"{grant} is no longer held")
            ledger.extended(asked, [grant], dict(answer.deadlines))
        ledger.check_history()


def _records(engine: Engine, name: str) -> list[Record]:
    """Everything in a topic; a page ends where something was lost."""
    found: list[Record] = []
    cursor, head = 0, 1 if name in engine.state.by_name else 0
    while cursor < head:
        page = engine.read(name, cursor, limit=ALL).result()
        found += page.records
        cursor, head = page.next_from_seq, page.head_seq
    return found


def _expect(holds: bool, complaint: str) -> None:
    if not holds:
        raise Violation(complaint)


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the states the command line names; 1 if any is wrong."""
    return run_sweeper(QueueExplorer, WORKLOADS, arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main())
