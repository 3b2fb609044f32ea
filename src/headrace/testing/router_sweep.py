"""Crashes of an engine with routers: at every disk call, in every way, and what must hold then.

Only this file judges routers after a crash.  `explore.py` makes the crashes; the topics that
routers feed are not in its oracle, because nobody appends to them, so here are their rules: what a
reader was shown of a destination is there again, byte for byte and under the same seqs, as far as
its class promises; copies are in the order of the source, none twice; every record that the source
still has is there after a read; and whatever is missing is announced.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from headrace.core.clock import ManualClock, SystemClock
from headrace.engine.routers.state import RouterOptions
from headrace.testing.diskmodel import MODES, Dice, Mode
from headrace.testing.driver import Driver, Setup
from headrace.testing.events import Loss, Violation
from headrace.testing.explore import CUT, KILL, Point, Report, State, hash_of
from headrace.testing.explore import Finding as Finding
from headrace.testing.model import NewRecord
from headrace.testing.router_workloads import WORKLOADS as WORKLOADS
from headrace.testing.router_workloads import Expected, Play, Routed, Shown, Topic, look
from headrace.testing.simdisk import SimDisk
from headrace.testing.stage import Stage

SECOND_ONE_IN = 4  # states whose recovery, or what followed it, is crashed in turn


class RouterExplorer:
    """Looks at states of one workload run with one seed."""

    def __init__(self, workload: str, seed: int) -> None:
        self.workload = workload
        self.seed = seed
        self.kind = WORKLOADS[workload]
        self.play = Play(Stage(self.kind.setup, seed))
        self.kind.run(self.play)
        self.disk = self.play.stage.disk
        self.report = Report()

    def sweep(
        self,
        *,
        damage: int = 0,
        modes: Sequence[Mode] = MODES,
        stride: int = 1,
        deadline_ns: int | None = None,
    ) -> Report:
        clock = SystemClock()
        for position in range(damage % stride, self.disk.crash_points, stride):
            if deadline_ns is not None and clock.monotonic_ns() > deadline_ns:
                break
            for point, image in self._images(position, modes, damage):
                self.look(point, image)
        return self.report

    def _images(
        self, position: int, modes: Sequence[Mode], damage: int
    ) -> Iterator[tuple[Point, SimDisk]]:
        for mode in (KILL, CUT):
            killed = Point(position, mode, damage)
            if mode == KILL or killed.can_cut(self.disk):
                yield killed, killed.image(self.disk)
        for crash in self.disk.images(
            modes, damage, start=position, stop=position + 1, distinct=True
        ):
            yield Point(position, crash.mode, damage), crash.disk

    def look(self, point: Point, image: SimDisk) -> None:
        """Judge one state."""
        self.report.states += 1
        state = State(self.workload, self.seed, (point,), "router_sweep")
        try:
            self._judge(point, image)
        except Violation as violation:
            self.report.findings.append(Finding(state, str(violation)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            reason = f"{type(error).__name__}: {error}"
            self.report.findings.append(Finding(state, reason))

    def _judge(self, point: Point, image: SimDisk) -> None:
        events = self.disk.marks_until(point.position)
        setup = self._recover_and_use(point, image, events)
        dice = Dice(self.seed, point.position, point.seed, hash_of(point.mode), 2)
        if dice.below(SECOND_ONE_IN):
            return
        self.report.second += 1
        again = Point(
            dice.below(image.crash_points),
            (KILL, CUT, *MODES)[dice.below(8)],
            dice.below(1 << 16),
        )
        loss: Loss = "power" if "power" in (point.loss, again.loss) else "kill"
        driver = Driver(again.image(image), setup, self._later(), 11)
        driver.recover()
        names = sorted(driver.engine.core.by_name)
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
        names = sorted(driver.engine.core.by_name)
        topics = {name: look(driver, name) for name in names}
        self._check(topics, events, point.loss)
        self._go_on(driver, topics)
        if dice.coin():
            driver.engine.checkpoint().result()
        later = {name: look(driver, name) for name in names}
        driver.abandon()
        second = Driver(image.image(image.position, "all", 0, power_loss=False), setup, clock, 7)
        second.recover()
        again = {name: look(second, name) for name in names}
        for name in names:
            if second.engine.topic(name).config.durability == "ephemeral":
                continue
            before, after = later[name], again[name]
            if self.workload == "classes":  # every restart takes something from a source
                after = before._replace(records=after.records)
            if after != before:
                raise Violation(f"{name} was {before!r:.600}, and is {after!r:.600} after a kill")
        second.abandon()
        return setup

    def _go_on(self, driver: Driver, topics: dict[str, Topic]) -> None:
        """What is written after the crash is forwarded too, once."""
        for name in topics:
            if driver.engine.core.by_name[name].id in driver.engine.routers.forwarder.sources:
                driver.append(name, NewRecord(b"after " + name.encode(), "a"))
        driver.finish()
        wanted: dict[tuple[str, str], int] = {}  # copies by source and destination
        for router in driver.engine.routers.page().routers:
            if router.filter is None or router.filter[2] in ("a", "a*"):
                pair = (router.source, router.dest)
                wanted[pair] = wanted.get(pair, 0) + 1
        for (source, dest), copies in wanted.items():
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


def _same(name: str, before: Topic, after: Topic) -> None:
    """What was shown is there again."""
    if after.head < before.head:
        raise Violation(f"{name}: the head fell from {before.head} to {after.head}")
    for seq, record in before.records.items():
        if after.records.get(seq) != record:
            raise Violation(f"{name}: seq {seq} was {record}, is {after.records.get(seq)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the states the command line names; 1 if any is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--damage", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--point", type=int)
    parser.add_argument("--mode", choices=(KILL, CUT, *MODES), default=KILL)
    given = parser.parse_args(arguments)
    wrong = False
    for workload in given.workload or sorted(WORKLOADS):
        started_ns = SystemClock().monotonic_ns()
        explorer = RouterExplorer(workload, given.seed)
        if given.point is not None:
            point = Point(given.point, given.mode, given.damage)
            explorer.look(point, point.image(explorer.disk))
        else:
            explorer.sweep(damage=given.damage, stride=given.stride)
        seconds = (SystemClock().monotonic_ns() - started_ns) / 1e9
        sys.stdout.write(f"{workload}: {explorer.report}\n  ({seconds:.1f} s)\n")
        wrong = wrong or bool(explorer.report.findings)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
