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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace.core.clock import ManualClock, SystemClock
from headrace.core.limits import KIB
from headrace.engine.deleting import TagMatch
from headrace.engine.router_state import RouterOptions
from headrace.storage.block import Record
from headrace.storage.merge import MergePolicy
from headrace.testing.diskmodel import MODES, Dice, Mode
from headrace.testing.driver import SMALL, Driver, Setup, batch_of
from headrace.testing.events import Loss, Violation
from headrace.testing.explore import CUT, KILL, Point, Report, State, hash_of
from headrace.testing.explore import Finding as Finding
from headrace.testing.model import NewRecord, config_of
from headrace.testing.simdisk import SimDisk
from headrace.testing.stage import Stage

PAGES_MAX = 10_000
SECOND_ONE_IN = 4  # states whose recovery, or what followed it, is crashed in turn


class Topic(NamedTuple):
    """A topic as a reader sees it from the start."""

    head: int
    records: dict[int, Record]
    announced: list[tuple[int, int, str]]


class Shown(NamedTuple):
    """What readers were shown of destinations."""

    topics: dict[str, Topic]


class Routed(NamedTuple):
    """A router was created, or changed, or is gone (`options` None)."""

    name: str
    options: RouterOptions | None


@dataclass
class Play:
    """One run of a workload."""

    stage: Stage
    written: dict[str, dict[bytes, tuple[int, str | None]]] = field(default_factory=dict)
    serial: int = 0
    driver: Driver = field(init=False)

    def __post_init__(self) -> None:
        self.driver = self.stage.open()

    def put(self, name: str, **config: object) -> None:
        self.driver.engine.put_topic(name, config_of(**config)).result()

    def route(self, name: str, source: str, dest: str, **options: object) -> None:
        asked = RouterOptions(source=source, dest=dest, **options)  # type: ignore[arg-type]
        self.driver.engine.routers.put(name, asked).result()
        self.stage.disk.mark(Routed(name, asked))

    def unroute(self, name: str) -> None:
        self.stage.disk.mark(Routed(name, None))
        self.driver.engine.routers.delete(name).result()

    def write(self, name: str, count: int = 1) -> None:
        """Records like no others; nobody waits for the answer."""
        records = self.stage.records(count, tagged=True)
        for record in records:
            self.serial += 1
            self.written.setdefault(name, {})[record.data] = (self.serial, record.tag)
        self.append(name, records)

    def append(self, name: str, records: Sequence[NewRecord]) -> None:
        self.driver.engine.append(name, batch_of(records))
        self.stage.pace(self.driver)

    def show(self, *names: str) -> None:
        """Somebody reads these topics."""
        self.stage.disk.mark(Shown({name: look(self.driver, name) for name in names}))

    def checkpoint(self) -> None:
        self.driver.engine.checkpoint()
        self.driver.steps(self.stage.dice.below(9))


def look(driver: Driver, name: str) -> Topic:
    """Everything a reader from the start is given and told."""
    records: dict[int, Record] = {}
    announced: list[tuple[int, int, str]] = []
    cursor = 0
    for _ in range(PAGES_MAX):
        page = driver.read(name, cursor)
        if page.tombstone is not None:
            announced.append(page.tombstone[:3])
        records.update((record.seq, record) for record in page.records)
        if page.next_from_seq >= page.head_seq:
            return Topic(page.head_seq, records, announced)
        if page.next_from_seq <= cursor:
            raise Violation(f"{name}: a read from {cursor} does not get on")
        cursor = page.next_from_seq
    raise Violation(f"{name}: no end")


# Workloads


def fan_out(play: Play) -> None:
    """One capped source, destinations of all classes, a filter, and copies of copies."""
    play.put("a", durability="disk", cap_records=12)
    play.put("f", durability="fsync")
    play.put("g", durability="fsync")
    play.put("m", durability="memory")
    play.route("ab", "a", "b")
    play.route("af", "a", "f")
    play.route("bg", "b", "g", filter=TagMatch("a"))
    play.route("fm", "f", "m", preserve_node=False)
    for turn in range(9):
        play.write("a", 1 + play.stage.dice.below(3))
        if turn % 2:
            play.append("b", [NewRecord(b"direct %d" % turn)])
        if turn % 3 == 0:
            play.show(*"bfgm"[play.stage.dice.below(4) :])
        if turn in (2, 6):
            play.checkpoint()
        if turn == 4:
            play.driver.engine.delete("a", match="b")
    play.show("b", "f", "g", "m")


def classes(play: Play) -> None:
    """Sources that are never stored, and destinations that are not."""
    play.put("e", durability="ephemeral")
    play.put("f", durability="fsync")
    play.put("x", durability="ephemeral")
    play.route("ef", "e", "f")
    play.route("fd", "f", "d")
    play.route("dx", "d", "x")
    play.route("xz", "x", "z")
    for turn in range(6):
        play.write("e", 2)
        play.show("f", "d", "z")
        if turn in (1, 3):
            play.checkpoint()
        if turn == 4:
            play.put("x", durability="disk")
    play.show("f", "d", "z")


def mirror(play: Play) -> None:
    """Two topics that copy each other."""
    play.put("a", durability="fsync")
    play.route("ab", "a", "b")
    play.route("ba", "b", "a", allow_cycle=True)
    for turn in range(5):
        play.write("ab"[turn % 2], 1)
        play.show("a", "b")
        if turn in (1, 3):
            play.checkpoint()


def coming_and_going(play: Play) -> None:
    """Routers and topics are made, changed, deleted and made again."""
    play.put("a", durability="fsync")
    for turn in range(3):
        play.route("r", "a", "b", guarantee="exactly_once", backfill=True)
        play.route("s", "b", "c", filter=TagMatch("chat", True))
        play.write("a", 3)
        play.show("b", "c")
        play.route("s", "b", "c")
        play.write("a", 2)
        play.show("c")
        if turn == 1:
            play.checkpoint()
        play.unroute("r")
        play.write("a", 1)
        if turn == 1:
            play.stage.disk.mark(Shown({}))
            play.driver.engine.delete_topic("c").result()
        else:
            play.checkpoint()


class Expected(NamedTuple):
    """What a destination may be held to."""

    dest: str
    source: str
    durability: str
    filter: TagMatch | None = None
    complete: bool = True  # nothing but this router ever fed it, and nobody took anything away


@dataclass(frozen=True)
class Workload:
    run: Callable[[Play], None]
    expected: tuple[Expected, ...]
    setup: Setup = field(default_factory=Setup)


_MERGES = Setup(policy=MergePolicy(fan_in=2, own_rows_min=1_000, own_bytes_min=1 << 20))
_EAGER = Setup(replace(SMALL, checkpoint_wal_bytes=8 * KIB), _MERGES.policy, shuffled=True)
_FAN_OUT = (
    Expected("b", "a", "disk"),
    Expected("f", "a", "fsync"),
    Expected("g", "b", "fsync", TagMatch("a")),
    Expected("m", "f", "memory"),
)
WORKLOADS: dict[str, Workload] = {
    "fan_out": Workload(fan_out, _FAN_OUT, _MERGES),
    "fan_out_eager": Workload(fan_out, _FAN_OUT, _EAGER),
    "fan_out_shards": Workload(
        fan_out, _FAN_OUT, replace(_MERGES, settings=replace(SMALL, wal_shards=3))
    ),
    "classes": Workload(
        classes,
        (
            Expected("f", "e", "fsync", complete=False),
            Expected("d", "f", "disk"),
            Expected("z", "x", "disk", complete=False),
        ),
    ),
    "mirror": Workload(
        mirror,
        (
            Expected("a", "b", "fsync", complete=False),
            Expected("b", "a", "disk", complete=False),
        ),
    ),
    "coming_and_going": Workload(
        coming_and_going,
        (
            Expected("b", "a", "disk", complete=False),
            Expected("c", "b", "disk", complete=False),
        ),
        _MERGES,
    ),
}


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

    def sweep(self, *, damage: int = 0, modes: Sequence[Mode] = MODES, stride: int = 1) -> Report:
        for position in range(damage % stride, self.disk.crash_points, stride):
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
        state = State(self.workload, self.seed, (point,))
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
        for router in driver.engine.routers.page().routers:
            if router.filter is not None and router.filter[2] not in ("a", "a*"):
                continue
            wanted = b"after " + router.source.encode()
            copies = look(driver, router.dest).records.values()
            found = sum(record.data == wanted for record in copies)
            if found != 1 and self.workload != "mirror":
                raise Violation(f"{router.dest} has {found} copies of {wanted!r}")

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
