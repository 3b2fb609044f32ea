"""A crash at every disk call of a queue's life: leases hold, acks stay, dead letters come once.

What was asked and answered lies as marks in the disk's trace, so that for each position it is known
what had been promised.  The same promises are checked after a crash of the recovery itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime, Ticket
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.queues.answers import Claimed
from headrace.engine.queues.dead_letters import Redrive
from headrace.storage.block import Batch
from headrace.testing.diskmodel import MODES, Dice
from headrace.testing.simdisk import SimDisk
from tests.harness.crash_points import CUT, KILL, Point
from tests.support.queue_calls import contents

LEASE_MS = 60_000
MAX_DELIVERIES = 2
STATES_MIN = 100


class Asked(NamedTuple):
    """A call began: an ack or a nack of these jobs, or a redrive of all."""

    what: str
    seqs: tuple[int, ...] = ()


class Answered(NamedTuple):
    """A call was answered; `jobs`: seq, node, lease id, deadline, deliveries."""

    what: str
    seqs: tuple[int, ...] = ()
    jobs: tuple[tuple[int, str, str, int, int], ...] = ()


class Now(NamedTuple):
    """Engine time."""

    ms: int


def open_engine(disk: SimDisk, clock: ManualClock, shards: int, seed: int = 1) -> Engine:
    settings = Settings(wal_file_bytes=1 << 16, wal_batch_bytes_max=1 << 14, wal_shards=shards)
    engine = Engine(disk, StepRuntime(clock), settings, random=SeededRandom(seed))
    engine.recover()
    return engine


class Play:
    """A queue that is used in every way, on a disk that remembers."""

    def __init__(self, seed: int, durability: str, dead: str, shards: int) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.dice = Dice(seed, 0x90B5)
        self.shards = shards
        self.engine = open_engine(self.disk, self.clock, shards, seed)
        self.jobs = 0
        self.held: list[tuple[int, str, str]] = []
        self.engine.put_topic(
            "q",
            {
                "type": "queue", "durability": durability, "leases_durable": True,
                "max_deliveries": MAX_DELIVERIES, "dead_letter": "dead", "lease_ms": LEASE_MS,
            },
        ).result()  # fmt: skip
        if dead:
            self.engine.put_topic("dead", {"durability": dead}).result()
        for turn in range(22):
            self.turn(turn)
            self.disk.mark(Now(self.engine.state.clock.now_ms()))
        self.engine.runtime.run()  # type: ignore[attr-defined]
        self.engine.abandon()

    def turn(self, turn: int) -> None:
        queues, dice = self.engine.queues, self.dice
        if turn % 3 == 0:
            count = 1 + dice.below(4)
            seqs = tuple(range(self.jobs + 1, self.jobs + count + 1))
            self.jobs += count
            ticket: Ticket[Any] = self.engine.append("q", Batch([b"job %d" % s for s in seqs]))
            self.when_done(ticket, Answered("append", seqs))
        node = "ab"[dice.below(2)]
        queues.claim("q", node, 1 + dice.below(4)).when_done(lambda t: self.claimed(node, t))
        self.pace()
        choice = dice.below(5)
        mine = [job for job in self.held if job[1] == node][: 1 + dice.below(3)]
        if mine and choice < 4:
            seqs, ids = tuple(job[0] for job in mine), [job[2] for job in mine]
            self.held = [job for job in self.held if job not in mine]
            if choice < 2:
                self.disk.mark(Asked("ack", seqs))
                self.when_done(queues.ack("q", node, seqs, ids), Answered("ack", seqs))
            else:
                self.disk.mark(Asked("nack", seqs))
                queues.nack("q", node, seqs, (0, 700)[choice == 3], ids)
        self.pace()
        if turn in (6, 13, 19):
            self.engine.checkpoint()
            self.pace()
        if turn in (5, 9, 15):
            self.engine.runtime.run()  # type: ignore[attr-defined]
            self.clock.advance((800, LEASE_MS + 1)[turn == 9])
        if turn == 17 and "dead" in self.engine.state.by_name:
            self.engine.runtime.run()  # type: ignore[attr-defined]
            self.disk.mark(Asked("redrive"))
            queues.redrive("dead", Redrive())

    def pace(self) -> None:
        for _ in range((1_000, 1, 3, 0)[self.dice.below(4)]):
            if not self.engine.runtime.step():  # type: ignore[attr-defined]
                break

    def when_done(self, ticket: Ticket[Any], event: Answered) -> None:
        def done(answer: Ticket[Any]) -> None:
            assert answer.error is None, answer.error
            if event.what == "ack":
                lost = set(answer.result().skipped)  # its lease had run out
                self.disk.mark(event._replace(seqs=tuple(s for s in event.seqs if s not in lost)))
            else:
                self.disk.mark(event)

        ticket.when_done(done)

    def claimed(self, node: str, ticket: Ticket[Claimed]) -> None:
        jobs = ticket.result().jobs
        marks = [(job.seq, node, job.lease_id, job.deadline, job.deliveries) for job in jobs]
        self.disk.mark(Answered("claim", (), tuple(marks)))
        self.held += [(job.seq, node, job.lease_id) for job in jobs]


class Promise:
    """What had been promised at a position."""

    def __init__(self, marks: list[object]) -> None:
        self.appended: set[int] = set()
        self.acking: set[int] = set()
        self.acked: set[int] = set()
        self.held: dict[int, tuple[int, str, str, int, int]] = {}
        self.deliveries: Counter[int] = Counter()
        self.redriven = False
        self.now = 1_700_000_000_000
        for mark in marks:
            if isinstance(mark, Now):
                self.now = mark.ms
            elif isinstance(mark, Asked):
                self.redriven |= mark.what == "redrive"
                for seq in mark.seqs:
                    self.held.pop(seq, None)
                if mark.what == "ack":
                    self.acking.update(mark.seqs)
            elif isinstance(mark, Answered):
                if mark.what == "append":
                    self.appended.update(mark.seqs)
                elif mark.what == "ack":
                    self.acked.update(mark.seqs)
                for job in mark.jobs:
                    self.held[job[0]] = job
                    self.deliveries[job[0]] = job[4]


def judge(image: SimDisk, marks: list[object], shards: int) -> SimDisk:
    """Start on the image and check every promise; returns the disk after the recovery."""
    promise = Promise(marks)
    clock = ManualClock(promise.now)
    engine = open_engine(image, clock, shards, seed=99)
    engine.runtime.run()  # type: ignore[attr-defined]
    recovered = image.copy()
    if "q" not in engine.state.by_name:
        assert not promise.appended
        return recovered
    check_places(engine, promise)
    live = {r.seq for r in engine.read("q", limit=1_000).result().records}
    # Nobody gets what is held, and who holds it still does.
    now = engine.state.clock.now_ms()
    held = {s: job for s, job in promise.held.items() if job[3] >= now and s in live}
    first = engine.queues.claim("q", "x", 1_000).result().jobs
    assert not held.keys() & {job.seq for job in first}, "held by two"
    for job in first:
        assert job.deliveries > promise.deliveries[job.seq] or promise.redriven
    for seq, node, lease_id, *_ in held.values():
        assert engine.queues.extend("q", node, [seq], LEASE_MS, [lease_id]).result().extended == 1
    # In the end each job is claimed or dead.
    seen = {job.seq for job in first}
    for _ in range(MAX_DELIVERIES + 2):
        clock.advance(LEASE_MS * 20)
        seen |= {job.seq for job in engine.queues.claim("q", "y", 1_000).result().jobs}
    left = {r.seq for r in engine.read("q", limit=1_000).result().records}
    assert left <= seen, f"{left - seen} can never be claimed"
    check_places(engine, promise)
    engine.abandon()
    return recovered


def check_places(engine: Engine, promise: Promise) -> None:
    live = contents(engine, "q")
    dead = contents(engine, "dead") if "dead" in engine.state.by_name else []
    everywhere = Counter(live + dead)
    for seq in promise.appended - promise.acking:
        assert everywhere[b"job %d" % seq] == 1, f"job {seq}: {live}, {dead}"
    for data, times in everywhere.items():
        assert times == 1, f"{data!r} is there {times} times: {live}, {dead}"
    for seq in promise.acked:
        assert not everywhere[b"job %d" % seq], f"job {seq} was acknowledged"
    counts = engine.queues.counts("q")
    assert counts.ready + counts.in_flight + counts.delayed == len(live)
    assert counts.dead_lettered >= len(dead)
    assert promise.redriven or counts.dead_lettered == len(dead)


def points(play: Play, modes: tuple[str, ...]) -> Iterator[Point]:
    """Every position; with several logs, where there are many, every second one."""
    for position in range(0, play.disk.crash_points, 1 if play.shards == 1 else 2):
        for mode in modes:
            point = Point(position, mode, position)
            if mode != CUT or point.can_cut(play.disk):
                yield point


@pytest.mark.parametrize(
    ("seed", "durability", "dead", "shards", "modes"),
    [
        (1, "fsync", "", 1, (KILL, CUT, *MODES)),
        (2, "fsync", "fsync", 1, (KILL, CUT, *MODES)),
        (3, "disk", "", 1, (KILL, CUT)),
        (4, "fsync", "disk", 3, (KILL, *MODES)),
        (5, "memory", "memory", 2, (KILL, CUT)),
        (6, "fsync", "memory", 4, (KILL, *MODES)),
    ],
)
def test_every_crash_point_of_a_queue(
    seed: int, durability: str, dead: str, shards: int, modes: tuple[str, ...]
) -> None:
    play = Play(seed, durability, dead, shards)
    states = 0
    for point in points(play, modes):
        marks = play.disk.marks_until(point.position)
        states += 1
        try:
            judge(point.image(play.disk), marks, shards)
        except AssertionError as error:
            error.add_note(f"at {point}")
            raise
    print(f"{states} states")
    assert states >= STATES_MIN


def test_the_play_reaches_everything() -> None:
    """The sweep is worth nothing if nothing is held, buried or revived in it."""
    play = Play(1, "fsync", "", 1)
    marks = play.disk.marks_until(play.disk.position)
    whats = Counter(mark.what for mark in marks if isinstance(mark, (Asked, Answered)))
    assert min(whats[what] for what in ("append", "claim", "ack", "nack", "redrive")) >= 1
    final = open_engine(play.disk.copy(), play.clock, 1)
    assert final.queues.counts("q").dead_lettered > 0
    assert final.state.topic("q").queue.moves > 0  # type: ignore[union-attr]
    final.abandon()


def test_a_recovery_that_crashes_is_recovered() -> None:
    """What a recovery finishes, a move say, is finished by the next one where it crashed."""
    play = Play(1, "fsync", "disk", 3)
    states = 0
    for position in range(0, play.disk.crash_points, 5):
        image = Point(position, KILL, position).image(play.disk)
        marks = play.disk.marks_until(position)
        engine = open_engine(image, ManualClock(Promise(marks).now), 3)
        engine.runtime.run()  # type: ignore[attr-defined]
        engine.abandon()
        for again in range(0, image.crash_points, 5):
            judge(image.image(again, "subset", again), marks, 3)
            states += 1
    assert states >= STATES_MIN
