"""Small directories of every kind, damage done to their files, and whether that is noticed.

A directory is what a workload of the crash sweeps left: topics, queues, routers, streams with their
forks, subscriptions; its engine was killed when the log had come to rest.  Noticed means: the start
is refused, or reading is refused, or recovery says what it set aside; each names a file or its
directory.  Otherwise everything has to read as before.  Anything else fails: other data, less data,
an exception that is not an error of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from pathlib import PurePosixPath
from typing import NamedTuple

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import HeadraceError
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import SimDisk
from tests.harness.events import Violation
from tests.harness.traffic import dump_topic, small_policy, small_settings

REST_MS = 5_000  # after which an idle log has said that all of it is durable
CUT_EVERY = 512  # bytes
Shown = dict[str, object]


class Small(NamedTuple):
    """A directory, and all that reading it gives."""

    disk: SimDisk
    shown: Shown
    now_ms: int

    @property
    def names(self) -> set[str]:
        """Its files, and the directories of these; of a log that is cut off only that is known."""
        paths = [PurePosixPath(path) for path in self.disk.contents()]
        return {path.name for path in paths} | {f"/{path.parent} " for path in paths}


class Damage(NamedTuple):
    """One way to spoil a directory."""

    what: str  # flipped, cut, missing or swapped
    path: str
    detail: str
    do: Callable[[SimDisk], None]

    def __str__(self) -> str:
        return f"{self.path} {self.what} {self.detail}".rstrip()


class Opened(NamedTuple):
    """What a start and a full reading gave."""

    shown: Shown
    refusals: list[str]
    problems: list[str]


def engine_on(disk: SimDisk, clock: ManualClock) -> Engine:
    """An engine that is still to recover; its files are small, without a reserve of zeros."""
    settings = small_settings(disk_reserve_bytes=0)
    return Engine(disk, StepRuntime(clock), settings, random=SeededRandom(1), policy=small_policy())


def small_directory(left: SimDisk, now_ms: int) -> Small:
    """What a killed engine left, opened, at rest, half of it sealed, and killed again."""
    clock = ManualClock(now_ms)
    disk = left.image(left.position, "all", 0, power_loss=False)
    engine = engine_on(disk, clock)
    engine.recover()
    engine.checkpoint().result()
    engine.append("after the checkpoint", [b"one", b"two"]).result()
    clock.advance(REST_MS)
    engine.runtime.run()  # type: ignore[attr-defined]
    engine.abandon()
    image = disk.image(disk.position, "all", 0, power_loss=False)
    found = open_and_read(image, clock.wall_ms())
    if found.refusals or found.problems:
        raise Violation(f"a whole directory is complained of: {found.refusals + found.problems}")
    return Small(image, found.shown, clock.wall_ms())


def open_and_read(disk: SimDisk, now_ms: int) -> Opened:
    """Recover a copy of the disk and read all of it."""
    try:
        engine = engine_on(disk.copy(), ManualClock(now_ms))
        recovered = engine.recover()
    except HeadraceError as error:
        return Opened({}, [str(error)], [])
    shown: Shown = {}
    refusals: list[str] = []
    for info in engine.topics():
        try:
            counts = engine.queues.counts(info.topic) if info.config.type == "queue" else None
            shown[info.topic] = (dump_topic(engine, info.topic), info.config, info.stream, counts)
        except HeadraceError as error:
            refusals.append(str(error))
    shown["\0routers"] = engine.routers.page("", limit=1_000)
    engine.abandon()
    return Opened(shown, refusals, list(recovered.problems))


def judge(small: Small, damage: Damage) -> str:
    """How the damage was noticed, or `same` if all reads as before; else raises."""
    damaged = small.disk.copy()
    damage.do(damaged)
    found = open_and_read(damaged, small.now_ms)
    for name, shown in found.shown.items():
        if shown != small.shown.get(name):
            raise Violation(f"{damage}: {name!r} reads differently")
    said = found.refusals + found.problems
    for words in said:
        if not any(name in words for name in small.names):
            raise Violation(f"{damage}: neither a file nor its directory is named: {words}")
    if not found.shown:
        return "start refused"
    if found.refusals:
        return "reading refused"
    if found.shown != small.shown:
        raise Violation(f"{damage}: other topics, or not all, and nothing is said")
    return "set aside" if said else "same"


def damages(disk: SimDisk, seed: int) -> Iterator[Damage]:
    """Every byte with a bit flipped, every file cut, missing, or swapped with another."""
    contents = disk.contents()
    for path, content in contents.items():
        for at in range(len(content)):
            bit = at * 8 + Dice(seed, at).below(8)
            yield Damage("flipped", path, f"bit {bit}", partial(SimDisk.flip, path=path, bit=bit))
        for size in sorted({len(content) - 1, *range(0, len(content), CUT_EVERY)}):
            if size >= 0:
                cut = partial(SimDisk.truncate_to, path=path, length=size)
                yield Damage("cut", path, f"to {size}", cut)
        yield Damage("missing", path, "", partial(SimDisk.unlink, path=path))
    for first, second in combinations(contents, 2):
        swap = partial(SimDisk.swap, first=first, second=second)
        yield Damage("swapped", first, f"with {second}", swap)
