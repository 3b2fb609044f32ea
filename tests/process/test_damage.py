"""Stored bytes that rot: each flipped bit of acknowledged data is noticed, and never served.

The directory is a real one, left by a killed process with log, segments, snapshots and key files.
Each flip is made on a copy of it in memory and opened as a server would.  Noticed means: the start
is refused and names the file, or reading the affected range is refused and names it, or recovery
says that it set the file aside and everything reads as before.  Anything else that differs, and any
exception that is not an error of ours, fails.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.core.clock import ManualClock, SystemClock
from headrace.core.errors import HeadraceError
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.storage.fs import RealFilesystem
from headrace.storage.snapshot.chains import read_latest, snapshot_path
from headrace.storage.wal.frame import BATCH_HEADER_BYTES, PAGE_BYTES, decode_batch_header
from headrace.testing.simdisk import SimDisk
from tests.harness.traffic import (
    EPHEMERAL,
    TopicDump,
    dump_topic,
    small_policy,
    small_settings,
)

SEED = 11
OPS = 260
FLIPS = {"log": 400, "segments": 300, "snapshots": 200, "keys": 100}

Range = tuple[str, int, int]  # path, first byte, end


class Start(NamedTuple):
    """A directory as it was left, and all that reading it gives."""

    directory: Path
    disk: SimDisk
    whole: dict[str, TopicDump]


@pytest.fixture(scope="module")
def start(make_workers, make_story, tmp_path_factory: pytest.TempPathFactory) -> Start:
    directory = tmp_path_factory.mktemp("damage") / "data"
    story = make_story(SEED)
    worker = make_workers().start(
        directory=str(directory), seed=SEED, run=0, ops=OPS, finish="obey"
    )
    story.follow(0, worker.hear("loaded"))
    # An idle log says that its last records are durable; until then their end is a torn tail.
    assert worker.ask("rest")[0] == "done"
    worker.kill()
    disk = loaded(directory)
    outcome = open_and_read(disk)
    assert not outcome.refusals and not outcome.problems
    story.ledger.compare(outcome.topics)
    return Start(directory, disk, outcome.topics)


def loaded(directory: Path) -> SimDisk:
    """A directory as a disk in memory, in the same boot."""
    disk = SimDisk(boot_id=RealFilesystem(directory).boot_id())
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_dir():
            disk.mkdir(name)
        else:
            disk.create(name).pwritev([path.read_bytes()], 0)
    disk.settle()
    return disk


class Outcome(NamedTuple):
    """What a start and a full reading gave."""

    topics: dict[str, TopicDump]
    refusals: list[str]
    problems: list[str]


def open_and_read(disk: SimDisk) -> Outcome:
    """Recover a copy of the disk and read all of it."""
    copy = disk.copy()
    clock = ManualClock(SystemClock().wall_ms())
    try:
        engine = Engine(copy, StepRuntime(clock), small_settings(), policy=small_policy())
        recovered = engine.recover()
    except HeadraceError as error:
        return Outcome({}, [str(error)], [])
    topics: dict[str, TopicDump] = {}
    refusals: list[str] = []
    for info in engine.topics():
        try:
            topics[info.topic] = dump_topic(engine, info.topic)
        except HeadraceError as error:
            refusals.append(str(error))
    engine.abandon()
    return Outcome(topics, refusals, list(recovered.problems))


def log_ranges(disk: SimDisk, start: int) -> Iterator[Range]:
    """The bytes of the log from `start` on that a later header knows to be durable.

    File headers are included.  What is before the start is in segments.
    """
    batches = []
    for path, content in disk.contents().items():
        if not path.startswith("wal/"):
            continue
        at = PAGE_BYTES
        while at < len(content):
            batch = decode_batch_header(content, at)
            if batch is None:
                if at % PAGE_BYTES == 0:
                    break
                at += -at % PAGE_BYTES
                continue
            end = at + BATCH_HEADER_BYTES + batch.body_bytes
            batches.append((batch.position, path, at, end, batch.durable))
            at = end
    durable = max(batch[-1] for batch in batches)
    with_header = set()
    for position, path, at, end, _ in batches:
        if start <= position <= durable - (end - at):
            if path not in with_header:
                with_header.add(path)
                yield path, 0, PAGE_BYTES
            yield path, at, end


def targets(disk: SimDisk, kind: str) -> list[Range]:
    """Where the state of the directory depends on every byte."""
    found = read_latest(disk)
    assert found is not None
    state, contents = found.state, disk.contents()
    if kind == "log":
        return list(log_ranges(disk, state.positions["wal"]))
    if kind == "segments":
        paths = [meta.path for meta in state.files.values()]
    elif kind == "keys":
        paths = [meta.path for meta in state.key_files]
    else:
        paths = [snapshot_path(state.number)]
    return [(path, 0, len(contents[path])) for path in paths]


def check(start: Start, damaged: SimDisk, paths: list[str], what: str) -> str:
    """How the damage was noticed; fails when it was not, or when wrong data was served."""
    outcome = open_and_read(damaged)
    for name, found in outcome.topics.items():
        if name != EPHEMERAL:
            assert found == start.whole[name], f"{what}: {name} reads differently"
    said = outcome.refusals + outcome.problems
    assert said, f"{what}: not noticed"
    for words in said:
        assert any(Path(path).name in words for path in paths), f"{what}: does not name it: {words}"
    if not outcome.topics:
        return "start refused"
    if outcome.refusals:
        return "reading refused"
    assert outcome.topics.keys() == start.whole.keys(), what
    return "set aside"


def pick(ranges: list[Range], chance: random.Random) -> tuple[str, int]:
    """A byte, each of all of them as likely as any other."""
    at = chance.randrange(sum(end - first for _, first, end in ranges))
    for path, first, end in ranges:
        if at < end - first:
            return path, first + at
        at -= end - first
    raise AssertionError("unreachable")


def flip_and_check(start: Start, kind: str, chance: random.Random, count: int) -> Counter[str]:
    ranges = targets(start.disk, kind)
    assert sum(end - first for _, first, end in ranges) > 200, (kind, ranges)
    noticed: Counter[str] = Counter()
    for _ in range(count):
        path, at = pick(ranges, chance)
        bit = at * 8 + chance.randrange(8)
        damaged = start.disk.copy()
        damaged.flip(path, bit)
        noticed[check(start, damaged, [path], f"bit {bit} of {path}")] += 1
    return noticed


@pytest.mark.parametrize("kind", FLIPS)
def test_every_flipped_bit_is_noticed(kind: str, start: Start) -> None:
    noticed = flip_and_check(start, kind, random.Random(SEED), FLIPS[kind])
    assert noticed.total() == FLIPS[kind]
    expected = {
        "log": {"start refused"},
        "segments": {"reading refused", "start refused"},
        "snapshots": {"set aside"},
        "keys": {"start refused"},
    }
    assert set(noticed) <= expected[kind], noticed


def test_the_flips_are_a_thousand() -> None:
    assert sum(FLIPS.values()) >= 1_000


@pytest.mark.long
def test_every_flipped_bit_is_noticed_for_long(start: Start, sweep) -> None:
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + int(sweep.seconds * 1e9)
    chance = random.Random(sweep.seed)
    noticed: Counter[str] = Counter()
    while clock.monotonic_ns() < deadline_ns:
        noticed += flip_and_check(start, chance.choice(list(FLIPS)), chance, 20)
    print(f"seed {sweep.seed}: {noticed.total()} flips, all noticed: {dict(noticed)}")


@pytest.mark.parametrize("how", ["cut", "emptied", "zeroed", "missing", "grown"])
@pytest.mark.parametrize("kind", ["segments", "snapshots", "keys"])
def test_other_damage_is_noticed(kind: str, how: str, start: Start) -> None:
    for path, _, size in targets(start.disk, kind)[:6]:
        damaged = start.disk.copy()
        if how == "cut":
            damaged.truncate_to(path, size - 1)
        elif how == "emptied":
            damaged.truncate_to(path, 0)
        elif how == "zeroed":
            damaged.zero(path, size // 2, min(512, size - size // 2))
        elif how == "grown":
            damaged.truncate_to(path, size + 8)
        else:
            damaged.unlink(path)
        if kind == "snapshots" and how == "missing":
            # No trace is left of it; the one before it and the log give the same.
            outcome = open_and_read(damaged)
            assert not outcome.refusals
            assert without_ephemeral(outcome.topics) == without_ephemeral(start.whole)
            continue
        check(start, damaged, [path], f"{path} is {how}")


def test_zeroed_log_is_noticed(start: Start) -> None:
    """A batch that reads as zeros is not the end of the log while a later one knows of it."""
    ranges = targets(start.disk, "log")
    for path, first, end in random.Random(SEED).sample(ranges, min(40, len(ranges))):
        damaged = start.disk.copy()
        damaged.zero(path, first, end - first)
        how = check(start, damaged, [path], f"{path} zeroed from {first} to {end}")
        assert how == "start refused"


def without_ephemeral(topics: dict[str, TopicDump]) -> dict[str, TopicDump]:
    return {name: found for name, found in topics.items() if name != EPHEMERAL}


def test_log_that_nobody_needs_may_rot(start: Start) -> None:
    """Files from before the replay position wait to be removed: damage there changes nothing."""
    needed = {path for path, _, _ in targets(start.disk, "log")}
    chance = random.Random(SEED)
    for path, content in start.disk.contents().items():
        if path.startswith("wal/") and path not in needed:
            damaged = start.disk.copy()
            damaged.flip(path, chance.randrange(8 * len(content)))
            refused_or_same(start, damaged, f"{path} damaged")


def test_two_log_files_swapped_lose_nothing(start: Start) -> None:
    paths = [path for path in start.disk.contents() if path.startswith("wal/")]
    for first, second in combinations(paths, 2):
        damaged = start.disk.copy()
        damaged.swap(first, second)
        refused_or_same(start, damaged, f"{first} and {second} swapped")


def refused_or_same(start: Start, damaged: SimDisk, what: str) -> None:
    outcome = open_and_read(damaged)
    if not outcome.refusals:
        assert without_ephemeral(outcome.topics) == without_ephemeral(start.whole), what


@pytest.mark.parametrize("kind", ["segments", "keys"])
def test_two_files_swapped_are_noticed(kind: str, start: Start) -> None:
    paths = sorted({path for path, _, _ in targets(start.disk, kind)})
    if len(paths) < 2:
        pytest.skip(f"there is only one file of {kind}")
    for first, second in pairwise(paths):
        damaged = start.disk.copy()
        damaged.swap(first, second)
        check(start, damaged, [first, second], f"{first} and {second} swapped")


@pytest.mark.parametrize("kind", FLIPS)
def test_a_real_process_notices_and_does_not_crash(
    kind: str, start: Start, workers, tmp_path: Path
) -> None:
    chance = random.Random(SEED + 1)
    for turn in range(2):
        directory = tmp_path / str(turn)
        shutil.copytree(start.directory, directory)
        path, at = pick(targets(start.disk, kind), chance)
        content = bytearray((directory / path).read_bytes())
        content[at] ^= 1 << chance.randrange(8)
        (directory / path).write_bytes(content)
        worker = workers.start(directory=str(directory), ops=0, dump_first=True, finish="abandon")
        lines = list(worker.hear())
        code = worker.end()
        said = [str(line) for line in lines if line[0] in ("refused", "unreadable", "ready")]
        assert any(Path(path).name in words for words in said), (path, said, worker.complaints())
        if lines[0][0] == "refused":
            assert code == 3, worker.complaints()
        else:
            assert lines[-1] == ["end"] and code == 0, worker.complaints()
