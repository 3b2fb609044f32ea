"""The crash explorer: every crash point of a workload, every kind of damage, recovered and judged.

A *state* is one disk as a crash left it, on which an engine was started and compared with the
oracle.  After the comparison the engine is used (retries, appends, a checkpoint) and compared
again, and some recoveries are themselves crashed, recovered and judged.  What fails is printed with
the one line that repeats exactly that state:

    python -m tests.harness.explore --workload append_disk --seed 3 --point 41 --mode torn

Only this file judges topics after a crash.  The same arguments look at the same states.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.clock import ManualClock, SystemClock
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import MODES, Mode, SimDisk
from tests.harness.crash_points import (
    CUT,
    KILL,
    Finding,
    Known,
    Point,
    Report,
    State,
    hash_of,
    images_at,
)
from tests.harness.engine_driver import Driver, Setup
from tests.harness.events import Invoked, Loss, Seen, TopicView, Violation
from tests.harness.model import AppendCall, NewRecord
from tests.harness.oracle import Chronicle, Oracle
from tests.harness.scene import Stage
from tests.harness.workloads import WORKLOADS, perform

# How much later the next engine starts by the wall clock, which may also have been set back.
LATER_MS = (5, 5, 400, 400, 5_000, -3_600_000)
RETRIES_PER_STATE = 3
AGAIN_ONE_IN = 8  # states that are stopped and started twice more, each cleanly and not


class Life(NamedTuple):
    """A recovered engine that was judged and used; its disk can be crashed again."""

    disk: SimDisk
    oracle: Oracle  # before this recovery
    loss: Loss  # of everything since that oracle's engine
    wall_ms: int
    setup: Setup


class Explorer:
    """Looks at states of one workload run with one seed."""

    def __init__(self, workload: str, seed: int) -> None:
        self.workload = workload
        self.seed = seed
        self.stage: Stage = perform(workload, seed)
        self.disk = self.stage.disk
        self.ordered = WORKLOADS[workload].ordered
        self.report = Report()
        self._judged = Known(self.disk)

    def sweep(
        self,
        *,
        damage: int = 0,
        modes: Sequence[Mode] = MODES,
        second: int = 0,
        stride: int = 1,
        share: int = 1,
        deadline_ns: int | None = None,
    ) -> Report:
        """Every position (or each `stride`-th), killed and with each mode of a power loss.

        Where nothing is pending all modes are the same state and one is looked at; `share` as of
        `images_at`.  `second`: in one of so many states the recovery is crashed in turn; 0 never.
        """
        clock = SystemClock()
        marks = _Marks(self.disk, self.ordered)
        start = damage % stride
        for position in range(start, self.disk.crash_points, stride):
            late = deadline_ns is not None and clock.monotonic_ns() > deadline_ns
            if late or self.report.is_clear:
                break
            chronicle, now_ms = marks.at(position)
            for point, image in images_at(self.disk, position, modes, damage, share):
                self._look(point, image, chronicle.oracle, now_ms, second)
        return self.report

    def _look(self, point: Point, image: SimDisk, oracle: Oracle, now_ms: int, second: int) -> None:
        self.report.states += 1
        if not self._judged.is_new(point, image):
            self.report.alike += 1
            return
        dice = Dice(self.seed, point.position, point.seed, hash_of(point.mode))
        crashes = (point,)
        life = self._judge(crashes, image, oracle, point.loss, now_ms)
        if life is None or not second or dice.below(second):
            return
        again = Point(
            dice.below(life.disk.crash_points),
            (KILL, CUT, *MODES)[dice.below(8)],
            dice.below(1 << 16),
        )
        self.crash_again(crashes, life, again)

    def replay(self, points: Sequence[Point]) -> Report:
        """Look at one state, made by these crashes one after the other."""
        first, *rest = points
        chronicle, now_ms = _Marks(self.disk, self.ordered).at(first.position)
        self.report.states += 1
        crashes: tuple[Point, ...] = (first,)
        image = first.image(self.disk)
        life = self._judge(crashes, image, chronicle.oracle, first.loss, now_ms)
        for point in rest:
            if life is not None:
                life = self.crash_again(crashes, life, point)
                crashes = (*crashes, point)
        return self.report

    def crash_everywhere(self, first: Point) -> Report:
        """Crash once as told, and what comes up then at every position in every way."""
        chronicle, now_ms = _Marks(self.disk, self.ordered).at(first.position)
        self.report.states += 1
        image = first.image(self.disk)
        life = self._judge((first,), image, chronicle.oracle, first.loss, now_ms)
        if life is not None:
            for position in range(life.disk.crash_points):
                for mode in (KILL, CUT):
                    point = Point(position, mode, first.seed)
                    if mode == KILL or point.can_cut(life.disk):
                        self.crash_again((first,), life, point)
            for crash in life.disk.images(seed=first.seed, distinct=True):
                self.crash_again((first,), life, Point(crash.position, crash.mode, first.seed))
        return self.report

    def crash_again(self, crashes: tuple[Point, ...], life: Life, point: Point) -> Life | None:
        """Crash a recovery, or what followed it, and judge what comes up then."""
        self.report.states += 1
        self.report.second += 1
        seen = life.disk.marks_until(point.position)
        chronicle = Chronicle(life.oracle)
        for event in seen:
            chronicle.feed(event)  # type: ignore[arg-type]
        loss: Loss = point.loss
        if not seen and life.loss == "power":
            loss = "power"
        image = point.image(life.disk)
        return self._judge((*crashes, point), image, chronicle.oracle, loss, life.wall_ms + 1_000)

    def _judge(
        self,
        crashes: tuple[Point, ...],
        image: SimDisk,
        oracle: Oracle,
        loss: Loss,
        now_ms: int,
    ) -> Life | None:
        state = State(self.workload, self.seed, crashes)
        try:
            return judge(state, image, self.stage.setup, oracle, loss, now_ms, self._calls(crashes))
        except Violation as violation:
            self.report.findings.append(Finding(state, str(violation)))
        return None

    def _calls(self, crashes: tuple[Point, ...]) -> list[AppendCall]:
        """Appends that a client may retry after the crash."""
        events = self.disk.marks_until(crashes[0].position)
        calls = [e.call for e in events if isinstance(e, Invoked)]
        return [c for c in calls if isinstance(c, AppendCall) and (c.key or c.producer)]


def judge(
    state: State,
    image: SimDisk,
    setup: Setup,
    oracle: Oracle,
    loss: Loss,
    now_ms: int,
    retries: Sequence[AppendCall] = (),
) -> Life:
    """Start an engine on the image, compare, use it, compare again."""
    point = state.crashes[-1]
    dice = Dice(state.seed, point.position, point.seed, hash_of(point.mode), len(state.crashes))
    later_ms = LATER_MS[dice.below(len(LATER_MS))]
    wall_ms = now_ms + later_ms
    clock = ManualClock(wall_ms)
    seed = dice.below(1 << 30)
    try:
        driver = Driver(image, setup, clock, seed)
        driver.recover()
        views = driver.observe()
        fits = oracle.check(views, loss, wall_ms)
        if later_ms < 0:
            return Life(image, oracle, loss, now_ms, setup)
        image.mark(Seen(views, loss, wall_ms))
        chronicle = Chronicle(oracle.after(views, fits, loss))
        driver.on_event = chronicle.feed
        usual = [call for call in retries if not chronicle.oracle.is_open(call)]
        _use(driver, views, dice, usual)
        driver.finish()
        chronicle.oracle.check(driver.observe(), "none", wall_ms)
        choice = dice.below(AGAIN_ONE_IN)
        if choice == 0:
            _again(driver, chronicle.oracle, setup, wall_ms, "clean")
        elif choice == 1:
            _again(driver, chronicle.oracle, setup, wall_ms, "kill")
        driver.abandon()
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}") from error
    return Life(image, oracle, loss, wall_ms, setup)


def _use(
    driver: Driver, views: dict[str, TopicView], dice: Dice, retries: Sequence[AppendCall]
) -> None:
    """What clients do after a crash: retry, go on."""
    some = list(retries[-RETRIES_PER_STATE:])
    if len(retries) > RETRIES_PER_STATE:
        some.append(retries[dice.below(len(retries))])
    for call in some:
        driver.append(
            call.name, *call.records, key=call.key, producer=call.producer, config=call.config
        )
        if dice.coin():
            driver.finish()
    for name in views:
        driver.append(name, NewRecord(b"after", "after"))
        if dice.below(4) == 0:
            driver.finish()
            driver.delete(name, match=("after", "a", "chat-42:*")[dice.below(3)])
    if dice.below(4) == 0:
        driver.checkpoint()


def _again(driver: Driver, oracle: Oracle, setup: Setup, wall_ms: int, loss: Loss) -> None:
    """Stop and start on the same disk; twice more, the second time nothing may have changed."""
    disk = driver.disk
    position = disk.position
    if loss == "clean":
        driver.engine.close()
    else:
        driver.abandon()
    position = disk.position
    image = disk.image(position, "all", 0, power_loss=False)
    first = Driver(image, setup, ManualClock(wall_ms + 1), 7)
    first.recover()
    views = first.observe()
    oracle.check(views, loss, wall_ms + 1)
    first.abandon()
    second = Driver(
        image.image(image.position, "all", 0, power_loss=False), setup, ManualClock(wall_ms + 1), 8
    )
    second.recover()
    later = second.observe()
    if later != views:
        raise Violation(f"recovering twice is not recovering once: {_difference(views, later)}")
    second.abandon()


def _difference(before: dict[str, TopicView], after: dict[str, TopicView]) -> str:
    """The first field that two sets of views do not share."""
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            return f"{name} is {'new' if one is None else 'gone'}"
        for field_name, old, new in zip(TopicView._fields, one, other, strict=True):
            if old != new:
                return f"{field_name} of {name} was {old}, then {new}"
    return "nothing"


class _Marks:
    """The oracle at each position, walking forward once."""

    def __init__(self, disk: SimDisk, ordered: bool) -> None:
        self._disk = disk
        self._chronicle = Chronicle(Oracle(ordered=ordered))
        self._fed = 0
        self._now_ms = ManualClock().wall_ms()

    def at(self, position: int) -> tuple[Chronicle, int]:
        events = self._disk.marks_until(position)
        for event in events[self._fed :]:
            if isinstance(event, (Invoked, Seen)):
                self._now_ms = event.now_ms
            self._chronicle.feed(event)  # type: ignore[arg-type]
        self._fed = len(events)
        return self._chronicle, self._now_ms


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the states the command line names; 1 if any is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.explore", description=__doc__)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), action="append")
    parser.add_argument("--seed", type=int, default=1, help="of the workload")
    parser.add_argument("--point", type=int, action="append", help="position of a crash")
    parser.add_argument("--mode", choices=(KILL, CUT, *MODES), action="append", help="its damage")
    parser.add_argument("--damage", type=int, action="append", help="the seed of the damage")
    parser.add_argument("--second", type=int, default=4, help="crash one recovery in so many")
    parser.add_argument("--stride", type=int, default=1, help="look at one position in so many")
    parser.add_argument("--share", type=int, default=1, help="and at one state in so many there")
    given = parser.parse_args(arguments)
    report = Report()
    started_ns = SystemClock().monotonic_ns()
    for workload in given.workload or sorted(WORKLOADS):
        explorer = Explorer(workload, given.seed)
        if given.point:
            explorer.replay(_points(given))
        else:
            damage = given.damage[0] if given.damage else given.seed
            explorer.sweep(
                damage=damage, second=given.second, stride=given.stride, share=given.share
            )
            seconds = (SystemClock().monotonic_ns() - started_ns) / 1e9
            sys.stdout.write(f"{workload}: {explorer.report}\n  ({seconds:.1f} s)\n")
        report.add(explorer.report)
    sys.stdout.write(f"{report}\n")
    return 1 if report.findings else 0


def _points(given: argparse.Namespace) -> list[Point]:
    modes = given.mode or []
    damages = given.damage or []
    modes += ["all"] * (len(given.point) - len(modes))
    damages += [given.seed] * (len(given.point) - len(damages))
    return [Point(*each) for each in zip(given.point, modes, damages, strict=False)]


if __name__ == "__main__":
    sys.exit(main())
