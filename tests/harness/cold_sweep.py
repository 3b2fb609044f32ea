"""Crashes of an engine whose topics let go what a lake has: what readers get back after them.

Only this file judges `cold_reads` after a crash.  The rules: what somebody deleted is never given
back, wherever it is kept, also not when the topic lets go more; every other seq is a record, byte
for byte, or announced; and what the lake has, of what the topic was told to be there, is a record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from headrace.core.clock import ManualClock
from headrace.testing.simdisk import SimDisk
from tests.harness.crash_points import Point, Sweeper, run_sweeper
from tests.harness.engine_driver import Driver, Setup
from tests.harness.events import Loss, Violation
from tests.harness.memory_archive import MemoryHistory
from tests.harness.model import NewRecord, Rec, config_of, matches
from tests.harness.router_workloads import Topic, look
from tests.harness.scene import Stage

COLD = {"cold_reads": "lake"}
CONFIGS = {
    "records": {"durability": "fsync", "cap_records": 4, **COLD},
    "bytes": {"durability": "disk", "cap_bytes": 120, **COLD},
    "held": {"durability": "fsync", "cap_records": 2, "retain_until_archived": True, **COLD},
    "ttl": {"durability": "disk", "ttl_ms": 250, **COLD},
}
# The same without, which one workload switches to and back.
PLAIN = {name: {**config, "cold_reads": ""} for name, config in CONFIGS.items()}
TURNS = 9
MATCHES = ("a", "chat-42:*", "b")


class Deletion(NamedTuple):
    """These seqs are to be deleted; `done`: and that was acknowledged."""

    name: str
    seqs: frozenset[int]
    done: bool


class Play:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.stage = Stage(Setup(shuffled=seed % 2 == 0), seed)
        self.history = MemoryHistory()
        self.written: dict[str, dict[int, NewRecord]] = {name: {} for name in CONFIGS}
        self.driver = self.stage.open()
        self.driver.engine.read_archive_from(self.history)

    def append(self, name: str) -> None:
        records = self.stage.records(1 + self.stage.dice.below(3), tagged=True)
        config = config_of(**CONFIGS[name])
        first = self.driver.append(name, *records, config=config).result().first_seq
        assert first is not None
        self.written[name] |= dict(enumerate(records, first))

    def archive(self, name: str) -> None:
        engine, dice = self.driver.engine, self.stage.dice
        topic = engine.state.by_name[name]
        mark = self.history.take(engine, name, max(0, topic.head - dice.below(4)))
        if dice.below(3):
            self.driver.archived(name, mark)

    def delete(self, name: str) -> None:
        """By tag, or up to a seq, which may be below what the topic holds."""
        dice, disk = self.stage.dice, self.stage.disk
        head = self.driver.engine.state.by_name[name].head
        before = None if dice.below(2) else max(1, head - dice.below(8))
        match = MATCHES[dice.below(len(MATCHES))] if before is None or dice.below(2) else None
        seqs = frozenset(
            seq
            for seq, record in self.written[name].items()
            if seq <= head
            and (before is None or seq < before)
            and (match is None or matches(_rec(record), match))
        )
        disk.mark(Deletion(name, seqs, False))
        ticket = self.driver.delete(name, before, match)
        ticket.when_done(
            lambda done: disk.mark(Deletion(name, seqs, True)) if done.error is None else None
        )


def cold(play: Play) -> None:
    """Topics with `cold_reads` from the start."""
    stage, driver = play.stage, play.driver
    for turn in range(TURNS):
        for name in CONFIGS:
            play.append(name)
            stage.pace(driver)
            if stage.dice.below(3):
                play.archive(name)
            if stage.dice.below(3) == 0:
                play.delete(name)
            stage.pace(driver)
        stage.clock.advance(60)
        if turn in (2, 5):
            stage.checkpoint(driver)
            driver.steps(stage.dice.below(9))
    driver.finish()


def toggled(play: Play) -> None:
    """Topics where it is switched off and on again, with deletes in between."""
    stage, driver = play.stage, play.driver
    for turn in range(TURNS):
        for name in ("records", "bytes"):
            play.append(name)
            if stage.dice.below(2):
                play.archive(name)
            if stage.dice.below(3) == 0:
                play.delete(name)
            if stage.dice.below(3) == 0:
                config = (CONFIGS if turn % 2 else PLAIN)[name]
                driver.put(name, config_of(**config))
            stage.pace(driver)
            if stage.dice.below(3) == 0:
                play.delete(name)
        if turn in (3, 6):
            stage.checkpoint(driver)
            driver.steps(stage.dice.below(9))
    driver.finish()


WORKLOADS: dict[str, Callable[[Play], None]] = {"cold": cold, "toggled": toggled}


class ColdExplorer(Sweeper):
    """Looks at states of topics whose past is in a lake."""

    module = "cold_sweep"

    def perform(self) -> SimDisk:
        self.play = Play(self.seed)
        WORKLOADS[self.workload](self.play)
        return self.play.stage.disk

    def judge(self, point: Point, image: SimDisk) -> None:
        events = self.disk.marks_until(point.position)
        deletions = [event for event in events if isinstance(event, Deletion)]
        written = {name: dict(known) for name, known in self.play.written.items()}
        clock = ManualClock(self.play.stage.clock.wall_ms() + 1_000)
        driver = self._open(image, clock, point.position)
        names = sorted(driver.engine.state.by_name)
        for name in names:
            self._check(driver, name, written, deletions, point.loss)
        # What is left goes, too: then all that was deleted is the lake's to keep to itself.
        for name in names:
            for _ in range(5):
                record = NewRecord(b"after %d" % len(written[name]), "after")
                first = driver.append(name, record).result().first_seq
                assert first is not None
                written[name][first] = record
        driver.finish()
        for name in names:
            self._check(driver, name, written, deletions, point.loss)
        driver.abandon()
        again = self._open(image.image(image.position, "all", 0, power_loss=False), clock, 7)
        for name in names:
            self._check(again, name, written, deletions, point.loss)
        again.abandon()

    def _open(self, image: SimDisk, clock: ManualClock, seed: int) -> Driver:
        driver = Driver(image, self.play.stage.setup, clock, seed)
        driver.engine.read_archive_from(self.play.history)
        driver.recover()
        return driver

    def _check(
        self,
        driver: Driver,
        name: str,
        written: dict[str, dict[int, NewRecord]],
        deletions: Sequence[Deletion],
        loss: Loss,
    ) -> None:
        topic, seen = driver.engine.state.by_name[name], look(driver, name)
        mine = [deletion for deletion in deletions if deletion.name == name]
        maybe = _union(deletion.seqs for deletion in mine)
        surely: set[int] = set()
        if loss == "kill" or topic.needs_sync:
            surely = _union(deletion.seqs for deletion in mine if deletion.done)
        _judge_served(name, seen, written[name], surely)
        told = {seq for first, last, _ in seen.announced for seq in range(first, last + 1)}
        silent = set(range(1, seen.head + 1)) - seen.records.keys() - told - maybe
        if silent:
            raise Violation(f"{name}: seqs {sorted(silent)} are missing without a word")
        if topic.deleted is None:
            return
        life = self.play.history.life(topic.id, topic.epoch)
        due = {seq for seq in life.rows if topic.deleted.since <= seq <= topic.archived_seq}
        due -= maybe | seen.records.keys()
        if due and min(due) <= topic.evict_floor:
            raise Violation(f"{name}: seqs {sorted(due)} are in the lake and not given out")
        if self.workload == "cold" and topic.deleted.since != 1:
            raise Violation(f"{name}: deletes are known from {topic.deleted.since} on")


def _union(parts: Iterable[frozenset[int]]) -> set[int]:
    found: set[int] = set()
    return found.union(*parts)


def _judge_served(name: str, seen: Topic, written: dict[int, NewRecord], deleted: set[int]) -> None:
    back = deleted & seen.records.keys()
    if back:
        raise Violation(f"{name}: seqs {sorted(back)} were deleted, and are back")
    for seq, record in seen.records.items():
        due = written.get(seq)
        if due is None or (record.data, record.tag, record.node, record.meta) != tuple(due):
            raise Violation(f"{name}: seq {seq} is {record}, {due} was written")


def _rec(record: NewRecord) -> Rec:
    return Rec(*record, 0, 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the states the command line names; 1 if any is wrong."""
    return run_sweeper(ColdExplorer, WORKLOADS, arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main())
