"""Crash points: where a run may be cut, what its disk is like then, and what a sweep finds there.

Only this file makes the states of a sweep.  Who judges them is `explore.py` for topics,
`queue_sweep.py` for queues and `router_sweep.py` for routers.
"""

from __future__ import annotations

import argparse
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from headrace.core.clock import SystemClock
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import MODES, Mode, Op, SimDisk
from tests.harness.events import Loss, Violation

# Beside the modes of a power loss: the process alone died, between two calls or within a write.
KILL, CUT = "kill", "cut"
FINDINGS_SHOWN = 5
FINDINGS_MAX = 20  # then a sweep ends: what is so broken is seen well enough


class Point(NamedTuple):
    """A crash: where, with which damage (or `kill` or `cut`), by which dice."""

    position: int
    mode: str
    seed: int

    def image(self, disk: SimDisk) -> SimDisk:
        if self.mode in (KILL, CUT):
            image = disk.image(self.position, "all", self.seed, power_loss=False)
            if self.mode == CUT and self.can_cut(disk):
                self._write_a_part(image, disk.trace[self.position])
            return image
        mode = next(mode for mode in MODES if mode == self.mode)
        return disk.image(self.position, mode, self.seed)

    def can_cut(self, disk: SimDisk) -> bool:
        """Whether the call at this position is a write of which a part may be done."""
        op = disk.trace[self.position] if self.position < disk.position else None
        return op is not None and op.kind == "write" and op.length > 1

    def _write_a_part(self, image: SimDisk, op: Op) -> None:
        length = 1 + Dice(self.seed, self.position, op.length).below(op.length - 1)
        data = op.data[:length] if op.data is not None else bytes(length)
        image.open(op.path).pwritev([data], op.offset)

    @property
    def loss(self) -> Loss:
        return "kill" if self.mode in (KILL, CUT) else "power"


class State(NamedTuple):
    """A state by the numbers that make it."""

    workload: str
    seed: int
    crashes: tuple[Point, ...]
    module: str = "explore"  # which has the workload

    def replay(self) -> str:
        """The command that looks at this state again."""
        words = [f"python -m tests.harness.{self.module} --workload {self.workload}"]
        words.append(f"--seed {self.seed}")
        for point in self.crashes:
            words.append(f"--point {point.position} --mode {point.mode} --damage {point.seed}")
        return " ".join(words)


class Finding(NamedTuple):
    """A state that is wrong, and how."""

    state: State
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}\n    {self.state.replay()}"


@dataclass
class Report:
    """What a sweep looked at, and what it found."""

    states: int = 0
    alike: int = 0  # of these, states that equal one judged before
    second: int = 0  # of these, crashes of a recovery
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.states += other.states
        self.alike += other.alike
        self.second += other.second
        self.findings += other.findings

    @property
    def is_clear(self) -> bool:
        """Whether more findings would say no more: a sweep ends with these."""
        return len(self.findings) >= FINDINGS_MAX

    def __str__(self) -> str:
        lines = [
            f"{self.states} states, {self.alike} of them like one before, "
            f"{self.second} crashes of a recovery"
        ]
        lines += [str(finding) for finding in self.findings[:FINDINGS_SHOWN]]
        if len(self.findings) > FINDINGS_SHOWN:
            lines.append(f"and {len(self.findings) - FINDINGS_SHOWN} more")
        return "\n".join(lines)


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode()[:8], "little")


def images_at(
    disk: SimDisk, position: int, modes: Sequence[Mode], damage: int, share: int = 1
) -> Iterator[tuple[Point, SimDisk]]:
    """The disk killed at a position, and with each mode of a power loss that differs there.

    `share`: of these only one in so many, at least one, and at the next position others.
    """
    ways: list[str] = [KILL]
    if Point(position, CUT, damage).can_cut(disk):
        ways.append(CUT)
    ways += modes[:1] if disk.is_durable_at(position) else modes
    # By dice: calls come in a rhythm (write, sync), with which counting could keep step.
    first = Dice(damage, position, share).below(min(share, len(ways)))
    for way in ways[first::share]:
        point = Point(position, way, damage)
        yield point, point.image(disk)


class Known:
    """The states of one run that were judged.  What is alike to the last byte is judged once.

    Alike are disks after the same kind of crash (`fingerprint` knows the boot) for which the same
    had been asked and answered.  That the dice of their positions differ makes no other state.
    """

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._keys: set[tuple[int, object]] = set()

    def is_new(self, point: Point, image: SimDisk) -> bool:
        """Whether no such state was looked at before this call."""
        key = (len(self._disk.marks_until(point.position)), image.fingerprint())
        if key in self._keys:
            return False
        self._keys.add(key)
        return True


def crash_by_dice(disk: SimDisk, dice: Dice) -> Point:
    """A crash of a recovery, or of what followed it."""
    return Point(
        dice.below(disk.crash_points), (KILL, CUT, *MODES)[dice.below(8)], dice.below(1 << 16)
    )


class Sweeper(ABC):
    """Looks at states of one workload run with one seed; `judge` raises where one is wrong."""

    module: ClassVar[str]  # that repeats a state from the command line

    def __init__(self, workload: str, seed: int) -> None:
        self.workload = workload
        self.seed = seed
        self.disk = self.perform()
        self.report = Report()
        self._judged = Known(self.disk)

    @abstractmethod
    def perform(self) -> SimDisk:
        """Run the workload to its end; the trace of this disk has the crash points."""

    @abstractmethod
    def judge(self, point: Point, image: SimDisk) -> None:
        """Start an engine on this disk, and raise if it is not as it must be."""

    def sweep(
        self,
        *,
        damage: int = 0,
        stride: int = 1,
        share: int = 1,
        deadline_ns: int | None = None,
    ) -> Report:
        """Every position, or each `stride`-th, until the time is up; `share` as of `images_at`."""
        clock = SystemClock()
        for position in range(damage % stride, self.disk.crash_points, stride):
            late = deadline_ns is not None and clock.monotonic_ns() > deadline_ns
            if late or self.report.is_clear:
                break
            for point, image in images_at(self.disk, position, MODES, damage, share):
                if self._judged.is_new(point, image):
                    self.look(point, image)
                else:
                    self.report.states += 1
                    self.report.alike += 1
        return self.report

    def look(self, point: Point, image: SimDisk) -> None:
        """Judge one state, and note what is wrong with it."""
        self.report.states += 1
        state = State(self.workload, self.seed, (point,), self.module)
        try:
            self.judge(point, image)
        except Violation as violation:
            self.report.findings.append(Finding(state, str(violation)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            reason = f"{type(error).__name__}: {error}"
            self.report.findings.append(Finding(state, reason))


def sweep_for_long(
    sweeper: type[Sweeper], names: Sequence[str], seed: int, seconds: float, stride: int
) -> Report:
    """Seed after seed until the time is up, a workload each.

    A short run begins where that of another seed does not, so that in time all get their turn.
    """
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + int(seconds * 1e9)
    report = Report()
    number = seed % 1_000_000 * 1_000
    while clock.monotonic_ns() < deadline_ns:
        number += 1
        swept = sweeper(names[(seed + number) % len(names)], number)
        report.add(swept.sweep(damage=number, stride=stride, deadline_ns=deadline_ns))
    return report


def run_sweeper(
    sweeper: type[Sweeper],
    workloads: Collection[str],
    arguments: Sequence[str] | None,
    about: str | None,
) -> int:
    """Look at the states the command line names; 1 if any is wrong."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--workload", choices=sorted(workloads), action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--damage", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--point", type=int)
    parser.add_argument("--mode", choices=(KILL, CUT, *MODES), default=KILL)
    given = parser.parse_args(arguments)
    wrong = False
    for workload in given.workload or sorted(workloads):
        swept = sweeper(workload, given.seed)
        if given.point is not None:
            point = Point(given.point, given.mode, given.damage)
            swept.look(point, point.image(swept.disk))
        else:
            swept.sweep(damage=given.damage, stride=given.stride)
        sys.stdout.write(f"{workload}: {swept.report}\n")
        wrong = wrong or bool(swept.report.findings)
    return 1 if wrong else 0
