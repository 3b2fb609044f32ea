"""Crashes of an engine with routers: at every disk call, in every way, and what must hold then.

Only this file judges routers after a crash.  `explore.py` makes the crashes; the topics that
routers feed are not in its oracle, because nobody appends to them, so here are their rules: what a
reader was shown of a destination is there again, byte for byte and under the same seqs, as far as
its class promises; copies are in the order of the source, none twice; every record that the source
still has is there after a read; and whatever is missing is announced.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from headrace.core.clock import ManualClock
from headrace.engine.routers.state import RouterOptions
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import SimDisk
from tests.harness.crash_points import (
    Point,
    Sweeper,
    crash_by_dice,
    hash_of,
    run_sweeper,
)
from tests.harness.engine_driver import Driver, Setup
from tests.harness.events import Loss, Violation
from tests.harness.model import NewRecord
from tests.harness.router_workloads import WORKLOADS as WORKLOADS
from tests.harness.router_workloads import (
    Acknowledged,
    Expected,
    Play,
    Routed,
    Shown,
    Topic,
    look,
)
from tests.harness.scene import Stage

AGAIN_ONE_IN = 2  # states that are killed and started once more
SECOND_ONE_IN = 4  # states whose recovery, or what followed it, is crashed in turn


class RouterExplorer(Sweeper):
    """Looks at states of routers."""

    module = "router_sweep"

    def perform(self) -> SimDisk:
        self.kind = WORKLOADS[self.workload]
        self.play = Play(Stage(self.kind.setup, self.seed))
        self.kind.run(self.play)
        return self.play.stage.disk

    def judge(self, point: Point, image: SimDisk) -> None:
        events = self.disk.marks_until(point.position)
        setup = self._recover_and_use(point, image, events)
        dice = Dice(self.seed, point.position, point.seed, hash_of(point.mode), 2)
        if dice.below(SECOND_ONE_IN):
            return
        self.report.second += 1
        again = crash_by_dice(image, dice)
        loss: Loss = "power" if "power" in (point.loss, again.loss) else "kill"
        driver = Driver(again.image(image), setup, self._later(), 11)
        driver.recover()
        names = sorted(driver.engine.state.by_name)
        self._check({name: look(driver, name) for name in names}, events, loss)
        driver.abandon()

    def _later(self) -> ManualClock:
        return ManualClock(self.play.stage.clock.wall_ms() + 1_000)

    def _recover_and_use(self, point: Point, image: SimDisk, events: Sequence[object]) -> Setup:
        dice = Dice(self.seed, point.position, point.seed, hash_of(point.mode))
        clock = self._later()
        setup = self.kind.setup
        if setup.settings.wal_shards > 1:
            shards = 1 + dice.below(3)
            setup = replace(setup, settings=replace(setup.settings, wal_shards=shards))
        driver = Driver(image, setup, clock, point.position)
        driver.recover()
        names = sorted(driver.engine.state.by_name)
        topics = {name: look(driver, name) for name in names}
        self._check(topics, events, point.loss)
        self._go_on(driver, topics)
        if dice.coin():
            driver.engine.checkpoint().result()
        if dice.below(AGAIN_ONE_IN) == 0:
            later = {name: look(driver, name) for name in names}
            driver.abandon()
            self._start_again(image, setup, clock, later)
        else:
            driver.abandon()
        return setup

    def _start_again(
        self, image: SimDisk, setup: Setup, clock: ManualClock, later: dict[str, Topic]
    ) -> None:
        """Kill the engine: the next one shows what it showed."""
        killed = image.image(image.position, "all", 0, power_loss=False)
        second = Driver(killed, setup, clock, 7)
        second.recover()
        again = {name: look(second, name) for name in later}
        for name, before in later.items():
            if second.engine.topic(name).config.durability == "ephemeral":
                continue
            after = again[name]
            if self.workload == "classes":  # every restart takes something from a source
                after = before._replace(records=after.records)
            if after != before:
                raise Violation(f"{name} was {before!r:.600}, and is {after!r:.600} after a kill")
        second.abandon()

    def _go_on(self, driver: Driver, topics: dict[str, Topic]) -> None:
        """What is written after the crash is forwarded too, once."""
        for name in topics:
            if (
                driver.engine.state.by_name[name].id
                in driver.engine.routers.directory.forwarder.sources
            ):
                driver.append(name, NewRecord(b"after " + name.encode(), "a"))
        driver.finish()
        wanted: dict[tuple[str, str], int] = {}  # copies by source and destination
        for router in driver.engine.routers.page().routers:
            if router.filter is None or router.filter[2] in ("a", "a*"):
                pair = (router.source, router.dest)
                wanted[pair] = wanted.get(pair, 0) + 1
        for (source, dest), copies in wanted.items():
            if driver.engine.topic(dest).config.discard == "reject":
                continue  # it may be full
            data = b"after " + source.encode()
            found = sum(record.data == data for record in look(driver, dest).records.values())
            if found != copies and self.workload != "mirror":
                raise Violation(f"{dest} has {found} copies of {data!r}, not {copies}")

    # Rules

    def _check(self, topics: dict[str, Topic], events: Sequence[object], loss: Loss) -> None:
        shown: dict[str, Topic] = {}
        routers: dict[str, RouterOptions | None] = {}
        for event in events:
            if isinstance(event, Shown):
                shown = shown | event.topics if event.topics else {}
            elif isinstance(event, Routed):
                routers[event.name] = event.options
            elif isinstance(event, Acknowledged) and event.source not in topics:
                _all_there(event, topics)
        for expected in self.kind.expected:
            topic = topics.get(expected.dest)
            before = shown.get(expected.dest)
            if topic is None:
                if before is not None:
                    raise Violation(f"{expected.dest} is gone")
                continue
            _dense(expected.dest, topic)
            if before is not None and (loss == "kill" or expected.durability == "fsync"):
                _same(expected.dest, before, topic)
            self._copies(expected, topic, topics, routers, loss)

    def _copies(
        self,
        expected: Expected,
        topic: Topic,
        topics: dict[str, Topic],
        routers: dict[str, RouterOptions | None],
        loss: Loss,
    ) -> None:
        known = {d: n for records in self.play.written.values() for d, n in records.items()}
        copied = [known[r.data] for r in topic.records.values() if r.data in known]
        serials = [serial for serial, _ in copied]
        if self.workload == "mirror":
            if any(serials.count(serial) > 5 for serial in serials):
                raise Violation(f"{expected.dest}: a record went round more than eight times")
            return
        if expected.twins:
            return
        if len(set(serials)) != len(serials):
            raise Violation(f"{expected.dest} has a record twice: {serials}")
        if serials != sorted(serials) and self.workload != "coming_and_going":
            raise Violation(f"{expected.dest} is not in the order of its source: {serials}")
        others = (b"direct", b"after ")
        strangers = [
            r for r in topic.records.values() if r.data not in known and r.data[:6] not in others
        ]
        if strangers:
            raise Violation(f"{expected.dest} has {strangers}, which nobody wrote")
        there = routers and any(
            o is not None and (o.source, o.dest) == (expected.source, expected.dest)
            for o in routers.values()
        )
        source = topics.get(expected.source)
        if not there or source is None or not expected.complete:
            return
        have = {record.data for record in topic.records.values()}
        for record in source.records.values():
            match = expected.filter
            if match is not None and record.tag != match.tag:
                continue
            if record.data not in have:
                raise Violation(f"{expected.dest} has no copy of {record} of {expected.source}")


def _dense(name: str, topic: Topic) -> None:
    """Every seq is a record or announced: nobody deletes from destinations here."""
    missing = set(range(1, topic.head + 1)) - topic.records.keys()
    for first, last, _ in topic.announced:
        missing -= set(range(first, last + 1))
    if missing:
        raise Violation(f"{name}: seqs {sorted(missing)} are missing without a word")


def _all_there(written: Acknowledged, topics: dict[str, Topic]) -> None:
    """What a source held that is deleted was copied, whatever the classes: it was on disk first."""
    for dest in written.dests:
        missing = written.data - {record.data for record in topics[dest].records.values()}
        if missing:
            raise Violation(f"{dest} has no copies of {missing} of {written.source}, which is gone")


def _same(name: str, before: Topic, after: Topic) -> None:
    """What was shown is there again."""
    if after.head < before.head:
        raise Violation(f"{name}: the head fell from {before.head} to {after.head}")
    for seq, record in before.records.items():
        if after.records.get(seq) != record:
            raise Violation(f"{name}: seq {seq} was {record}, is {after.records.get(seq)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the states the command line names; 1 if any is wrong."""
    return run_sweeper(RouterExplorer, WORKLOADS, arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main())
