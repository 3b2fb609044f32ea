"""Every file of a data directory cut, removed, put back from an older copy or under another's name.

Whatever is done to one file, the directory is refused by name or opens with exactly what it held:
never with less and no word about it (L18).  What was refused, a repair opens again, and what is
gone is announced.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import HeadraceError
from headrace.storage.fs import LOCK_PATH
from headrace.storage.tools.check import check
from headrace.storage.tools.repair import repair
from headrace.storage.wal.audit import WholeBatch, walk_shard
from headrace.storage.wal.file import discover
from headrace.testing.simdisk import SimDisk

Lab = Any  # the fixture of conftest.py
KIB = 1024
CUTS = 4  # of each file, and as many where a batch begins or ends
CUTS_MANY = 25
WORLDS = ("killed", "idle", "closed", "shards", "young", "first")


class Held(NamedTuple):
    """A directory, copies of it from before, and what it held at last."""

    disk: SimDisk
    before: list[dict[str, bytes]]
    seen: dict[str, Any]

    def files(self, prefix: str = "") -> list[str]:
        names = self.disk.contents()
        return [n for n in names if n.startswith(prefix) and n != LOCK_PATH]


def held_by(lab: Lab, engine: Any) -> dict[str, Any]:
    found = {}
    for info in engine.topics():
        found[info.topic] = (*lab.read_all(engine, info.topic), info.head_seq, info.epoch)
    return found


@cache
def _held(lab_class: type, name: str) -> Held:
    """Checkpoints, then deletes and more than one log file behind the newest snapshot."""
    lab, disk = lab_class(), SimDisk()
    before: list[dict[str, bytes]] = []
    shards = 2 if name == "shards" else 1
    engine = lab.start(disk, wal_shards=shards, wal_file_bytes=64 * KIB)
    lab.fill(engine, "a", 20)
    lab.fill(engine, "b", 10)
    for step in range(0 if name in ("young", "first") else 4):
        engine.append("keyed", [b"once"], idempotency_key=f"k{step}").result()
        lab.fill(engine, "a", 3)
        before.append(disk.contents())
        engine.checkpoint().result()
        before.append(disk.contents())
    for _ in range(3):
        for topic in ("a", "b"):
            engine.append(topic, [b"x" * 15_000]).result()
            lab.fill(engine, topic, 1)
        engine.delete("a", before_seq=engine.topic("a").head_seq - 8).result()
        before.append(disk.contents())
    seen = held_by(lab, engine)
    if name in ("closed", "first"):
        engine.close()
        return Held(disk.copy(), before, seen)
    if name != "killed":
        lab.settle(engine)
    return Held(lab.killed(engine).copy(), before, seen)


@pytest.fixture(params=WORLDS)
def held(request: pytest.FixtureRequest, lab: Lab) -> Held:
    return _held(type(lab), request.param)


def opened(lab: Lab, disk: SimDisk) -> tuple[dict[str, Any], HeadraceError | None]:
    """What a copy of the directory holds, or why it, or a part of it, is refused."""
    try:
        engine = lab.start(disk.copy())
        now = held_by(lab, engine)
        engine.abandon()
    except HeadraceError as error:
        return {}, error
    return now, None


def expect_refused_or_whole(lab: Lab, held: Held, disk: SimDisk, what: str) -> bool:
    """True: it was refused, and a repair opens it with what is gone announced."""
    now, refusal = opened(lab, disk)
    if refusal is None:
        assert now == held.seen, f"{what}: opened with something else"
        return False
    report = check(disk)
    assert refusal.fix, f"{what}: {refusal}"
    assert not report.ok, f"{what}: refused, and `check` finds nothing"
    if any(finding.code == "snapshot_unusable" for finding in report.findings):
        assert what.count("snapshot-") == 2, f"{what}: both snapshots are unusable"
        return True
    if any("how much is not known" in f.message for f in report.findings) and not held.files(
        "meta/sn"
    ):
        return True  # no snapshot can say that every topic is another one from now on
    mended = repair(disk, clock=ManualClock())
    assert mended.ok, f"{what}: {mended.left}"
    engine = lab.start(disk)
    for topic, (records, _, head, _) in held.seen.items():
        kept, gaps = lab.read_all(engine, topic) if lab.head_of(engine, topic) else ({}, [])
        missing = [s for s in records if s not in kept and not any(a <= s <= b for a, b in gaps)]
        renamed = any(i.topic.startswith("headrace-recovered") for i in engine.topics())
        if lab.head_of(engine, topic) or not renamed:
            assert not missing or held_nothing(engine, topic), f"{what}: {topic} {missing} {gaps}"
            assert lab.head_of(engine, topic) >= head or held_nothing(engine, topic), what
    engine.abandon()
    return True


def held_nothing(engine: Any, topic: str) -> bool:
    """Whether every reader is told that the topic is another one, or that there is none."""
    epochs = [info.epoch for info in engine.topics() if info.topic == topic]
    return not epochs or epochs[0] >> 32 > 0


def cuts(held: Held, path: str, most: int) -> Iterator[int]:
    size = len(held.disk.contents()[path])
    dice = random.Random(path)
    ends = {0, size - 1, *(dice.randrange(size) for _ in range(most))}
    if path.startswith("wal/"):
        found = sorted(batch_edges(held, path))
        ends.update(dice.sample(found, min(most, len(found))))
    return (end for end in sorted(ends) if end < size)


def batch_edges(held: Held, path: str) -> set[int]:
    """Where a batch begins, ends, or is in the middle of its header."""
    edges = set()
    directory = path.rpartition("/")[0]
    for item in walk_shard(held.disk, directory, discover(held.disk)[directory], 0):
        if isinstance(item, WholeBatch) and item.path == path:
            edges |= {item.offset, item.offset + len(item.body) + 56, item.offset + 20}
    return edges


EXTENT = pytest.mark.parametrize("most", [CUTS, pytest.param(CUTS_MANY, marks=pytest.mark.slow)])


@EXTENT
def test_l18_a_file_that_is_cut_is_noticed(lab: Lab, held: Held, most: int) -> None:
    for path in held.files():
        for length in cuts(held, path, most):
            disk = held.disk.copy()
            disk.truncate_to(path, length)
            expect_refused_or_whole(lab, held, disk, f"{path} cut to {length}")


def test_l18_a_file_that_is_removed_is_noticed(lab: Lab, held: Held) -> None:
    for path in held.files():
        disk = held.disk.copy()
        disk.unlink(path)
        disk.settle()
        expect_refused_or_whole(lab, held, disk, f"without {path}")


def test_l18_an_older_copy_of_a_file_is_noticed(lab: Lab, held: Held) -> None:
    for copies in held.before:
        for path in held.files():
            older, newer = copies.get(path), held.disk.contents()[path]
            if older is None or older == newer:
                continue
            disk = held.disk.copy()
            disk.truncate_to(path, len(older))
            disk.overwrite(path, 0, older)
            expect_refused_or_whole(lab, held, disk, f"an older {path}")


def test_l18_files_with_each_others_names_are_noticed(lab: Lab, held: Held) -> None:
    # Pairs of two kinds are alike; every pair of one kind, and a few of the others.
    pairs = list(combinations(held.files(), 2))
    alike = [(a, b) for a, b in pairs if a[:12] == b[:12] or "mark" in a]
    for one, other in {*alike, *random.Random(1).sample(pairs, CUTS)}:
        disk = held.disk.copy()
        disk.swap(one, other)
        expect_refused_or_whole(lab, held, disk, f"{one} and {other} swapped")


@EXTENT
def test_l18_zeros_from_a_batch_to_the_end_are_noticed(lab: Lab, held: Held, most: int) -> None:
    refused = 0
    for path in held.files("wal/"):
        size = len(held.disk.contents()[path])
        for start in cuts(held, path, most):
            disk = held.disk.copy()
            disk.zero(path, start, size - start)
            refused += expect_refused_or_whole(lab, held, disk, f"{path} zero from {start}")
    assert refused


def test_l18_a_flipped_bit_in_a_snapshot_loses_nothing(lab: Lab, held: Held) -> None:
    for path in held.files("meta/snapshot-"):
        size = len(held.disk.contents()[path])
        dice = random.Random(path)
        for bit in (0, 8 * 20, *(dice.randrange(8 * size) for _ in range(CUTS))):
            disk = held.disk.copy()
            disk.flip(path, bit)
            what = f"{path} with bit {bit} flipped"
            assert not expect_refused_or_whole(lab, held, disk, what), what
