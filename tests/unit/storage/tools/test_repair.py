"""Repairing sealed files, snapshots and key files, in both tiers, however often interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.storage.epochs import EPOCHS_PER_GENERATION
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore
from headrace.storage.identity import IDENTITY_PATH
from headrace.storage.tools.check import check
from headrace.storage.tools.repair import repair
from headrace.storage.wal.file import discover
from headrace.storage.wal.frame import BATCH_HEADER_BYTES
from headrace.testing.simdisk import SimDisk

KIB = 1024
Lab = Any  # the fixture of conftest.py


# Sealed files


@pytest.mark.parametrize("how", ["missing", "truncated", "footer", "swapped"])
def test_a_lost_segment_is_announced(lab: Lab, how: str) -> None:
    disk = lab.world().disk.copy()
    path = lab.own_file(disk, "a")
    size = len(disk.contents()[path])
    if how == "missing":
        disk.unlink(path)
    elif how == "truncated":
        disk.truncate_to(path, size // 2)
    elif how == "footer":
        lab.damage(disk, path, size - 40)
    else:
        disk.swap(path, next(p for p in lab.world().files("segments/") if p != path))
    report = repair(disk, clock=ManualClock())
    assert report.ok, report.left
    after = lab.expect_announced(disk, lab.world().seen, report)
    assert (1, 50) in after["a"][1] or (1, 80) in after["a"][1]
    if how != "missing":
        assert f"{path}.1.broken" in disk.contents()


def test_whole_row_groups_of_a_damaged_segment_are_kept(lab: Lab) -> None:
    engine = lab.start(SimDisk(), segment_max_events=10_000, wal_file_bytes=1024 * KIB)
    for number in range(300):
        engine.append("big", [b"%06d" % number + b"x" * 100_000]).result()
        engine.append("small", [b"s"]).result()
    engine.delete("big", before_seq=3).result()
    engine.checkpoint().result()
    disk = lab.killed(engine)
    before = lab.start(disk.copy())
    seen = {topic: lab.read_all(before, topic) for topic in ("big", "small")}
    path = max(lab.segments(disk), key=lambda name: len(disk.contents()[name]))
    lab.damage(disk, path, 12 << 20)
    report = check(disk)
    assert "can be kept" in report.findings[0].message
    report = repair(disk, clock=ManualClock())
    assert report.ok, report.left
    after = lab.start(disk)
    kept, gaps = lab.read_all(after, "big")
    assert len(gaps) == 1 and 10 < gaps[0][1] - gaps[0][0] < 50
    assert kept.items() <= seen["big"][0].items() and len(kept) > 200
    assert set(seen["big"][0]) - set(kept) <= set(range(gaps[0][0], gaps[0][1] + 1))
    assert lab.read_all(after, "small") == seen["small"]
    info = after.topic("big")
    assert info.count == len(kept) and info.bytes == sum(map(len, kept.values()))


def test_what_lost_records_and_got_a_new_epoch_is_not_archived_of_it(lab: Lab) -> None:
    engine = lab.start(SimDisk())
    lab.fill(engine, "a", 60)
    lab.fill(engine, "b", 60)
    for topic in ("a", "b"):
        engine.archives.told(topic, engine.topic(topic).epoch, 50).result()
    engine.checkpoint().result()
    disk = lab.killed(engine)
    disk.unlink(lab.own_file(disk, "a"))
    for number in discover(disk)["wal"]:
        disk.unlink(f"wal/wal-{number:016d}.log")
    assert repair(disk, clock=ManualClock()).ok
    after = lab.start(disk)
    for topic, count in (("a", 0), ("b", 60)):
        info = after.topic(topic)
        assert (info.epoch > EPOCHS_PER_GENERATION, info.archived_seq) == (True, 0)
        assert info.count == count


def test_records_that_were_deleted_are_not_announced_as_lost(lab: Lab) -> None:
    engine = lab.start(SimDisk())
    lab.fill(engine, "a", 60)
    engine.checkpoint().result()
    engine.delete("a", before_seq=31).result()
    engine.checkpoint().result()
    disk = lab.killed(engine)
    disk.unlink(lab.own_file(disk, "a"))
    report = repair(disk, clock=ManualClock())
    assert [(one.first, one.last) for one in report.findings[0].lost] == [(31, 60)]
    engine = lab.start(disk)
    assert lab.read_all(engine, "a") == ({}, [(31, 60)])
    assert engine.topic("a").bytes == 0


# Snapshots, keys, leftovers


def test_a_bad_newest_snapshot_falls_back_and_is_kept(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    newest = max(lab.world().files("meta/snapshot"))
    lab.damage(disk, newest, 100)
    report = check(disk)
    assert report.ok and report.findings[0].code == "snapshot_damaged"
    report = repair(disk, clock=ManualClock())
    assert report.ok and report.left == []
    assert f"{newest}.1.broken" in disk.contents()
    after = lab.expect_announced(disk, lab.world().seen, report)
    assert after == lab.world().seen


def test_no_usable_snapshot_is_left_alone(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    for path in lab.world().files("meta/snapshot"):
        lab.damage(disk, path, 100)
    before = disk.contents()
    report = repair(disk, clock=ManualClock())
    assert not report.ok and report.left[0].code == "snapshot_unusable"
    assert "backup" in report.left[0].fix
    assert disk.contents() == before


def test_a_damaged_key_file_is_no_longer_listed(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    (path,) = lab.world().files("meta/keys")
    lab.damage(disk, path, 60)
    assert not lab.opens(disk)
    report = repair(disk, clock=ManualClock())
    assert report.ok and "stored twice" in report.findings[0].message
    assert f"{path}.1.broken" in disk.contents() and path not in disk.contents()
    engine = lab.start(disk)
    assert engine.append("keyed", [b"once"], idempotency_key="k").result().first_seq == 2
    engine.checkpoint().result()
    assert f"{path}.1.broken" in disk.contents(), "no start sweeps the evidence"


def test_orphans_are_removed_and_strangers_are_not(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    orphans = ["segments/seg-0000000000000099.arrow", "meta/keys-0000000000000099.bin",
               "segments/seg-0000000000000098.arrow.tmp"]  # fmt: skip
    for path in [*orphans, "meta/notes.txt"]:
        disk.create(path).close()
    report = repair(disk, clock=ManualClock())
    codes = {finding.file: finding.code for finding in report.findings}
    assert [codes[disk.describe(path)] for path in orphans] == ["orphan"] * 3
    assert codes[disk.describe("meta/notes.txt")] == "unknown_file"
    assert report.ok and not set(orphans) & set(disk.contents())
    assert "meta/notes.txt" in disk.contents()


# The cold tier


def with_cold(lab: Lab) -> tuple[SimDisk, SimDisk]:
    """A hot and a cold disk; most files of topic "a" are cold."""
    disk, cold = SimDisk(), SimDisk()
    policy = MergePolicy(own_rows_min=40, fan_in=100)
    engine = lab.start(disk, DirectoryStore(cold), policy, hot_retain_segments=1)
    for _ in range(4):
        lab.fill(engine, "a", 50)
        engine.checkpoint().result()
    engine.runtime.run()
    return lab.killed(engine), cold


def test_cold_files_are_checked_and_never_dropped_while_out_of_reach(lab: Lab) -> None:
    disk, cold = with_cold(lab)
    assert lab.segments(cold)
    assert check(disk, DirectoryStore(cold)).ok
    report = check(disk)
    assert not report.ok and {f.code for f in report.findings} == {"cold_unreachable"}
    before = disk.contents()
    assert not repair(disk, clock=ManualClock()).ok
    assert disk.contents() == before


def test_a_damaged_cold_file_is_announced(lab: Lab) -> None:
    disk, cold = with_cold(lab)
    path = lab.segments(cold)[0]
    lab.damage(cold, path, 300)
    store = DirectoryStore(cold)
    report = repair(disk, store, clock=ManualClock())
    assert report.ok, report.left
    assert f"{path}.1.broken" in disk.contents(), "a copy of the cold file is kept"
    assert [(one.first, one.last) for one in report.findings[0].lost] == [(1, 50)]
    assert check(disk, store).ok


def test_a_damaged_hot_copy_of_a_cold_file_costs_nothing(lab: Lab) -> None:
    disk, cold = with_cold(lab)
    path = lab.segments(cold)[0]
    file = disk.create(path)
    file.pwritev([cold.contents()[path]], 0)
    lab.damage(disk, path, 300)
    store = DirectoryStore(cold)
    report = repair(disk, store, clock=ManualClock())
    assert report.findings[0].code == "segment_copy_damaged" and not report.findings[0].lost
    assert report.ok and path not in disk.contents()


def test_a_lost_identity_comes_back_from_the_cold_tier(lab: Lab) -> None:
    disk, cold = with_cold(lab)
    store = DirectoryStore(cold)
    before = disk.contents()[IDENTITY_PATH]
    disk.unlink(IDENTITY_PATH)
    report = repair(disk, store, clock=ManualClock())
    assert report.ok and report.findings[0].code == "identity_mismatch"
    assert disk.contents()[IDENTITY_PATH] == before
    lab.damage(disk, IDENTITY_PATH, 30)
    report = repair(disk, store, clock=ManualClock())
    assert report.ok and report.findings[0].code == "identity_damaged"
    assert disk.contents()[IDENTITY_PATH] == before
    assert f"{IDENTITY_PATH}.1.broken" in disk.contents()


# Interruptions


@pytest.mark.parametrize("what", ["log", "segment"])
def test_an_interrupted_repair_can_be_run_again(lab: Lab, what: str) -> None:
    """Power is lost after each call of the repair; the second repair ends where one would have."""
    disk = lab.world().disk.copy()
    disk.settle()
    if what == "log":
        lab.damage(disk, lab.used_log(disk), lab.batch_of(disk, b"a 84") + BATCH_HEADER_BYTES + 70)
    else:
        lab.damage(disk, lab.own_file(disk, "a"), 500)
    disk = disk.copy()
    first = disk.position
    repair(disk, clock=ManualClock(), random=SeededRandom(1))
    states = 0
    for crash in disk.images(["none", "all", "torn"], start=first):
        again = repair(crash.disk, clock=ManualClock(), random=SeededRandom(2))
        assert again.ok, (crash.position, crash.mode, again.left)
        engine = lab.start(crash.disk)
        records, gaps = lab.read_all(engine, "a")
        missing = set(lab.world().seen["a"][0]) - set(records)
        assert all(any(a <= seq <= b for a, b in gaps) for seq in missing), crash.position
        assert lab.read_all(engine, "c") == lab.world().seen["c"], (crash.position, crash.mode)
        engine.abandon()
        states += 1
    assert states > 40
