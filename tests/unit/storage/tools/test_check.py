"""Checking a data directory, and repairing its log: all damage is noticed, every loss announced.

Each test damages the files of a directory that an engine filled and was killed on, checks it,
repairs it, opens it again and compares what readers are told with what they could read before.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import DataDirLocked, InvalidRequest
from headrace.storage.block import ENTRY_APPEND
from headrace.storage.epochs import EPOCHS_PER_GENERATION
from headrace.storage.tools.check import check
from headrace.storage.tools.examination import lock_directory
from headrace.storage.tools.lost_seqs import RECOVERED_NAME
from headrace.storage.tools.repair import repair
from headrace.storage.wal.audit import survey
from headrace.storage.wal.file import discover
from headrace.storage.wal.frame import (
    BATCH_HEADER_BYTES,
    ENTRY_TYPES,
    PAGE_BYTES,
    encode_file_header,
)
from headrace.testing.simdisk import MODES, SimDisk

KIB = 1024
Lab = Any  # the fixture of conftest.py


def test_a_whole_directory(lab: Lab) -> None:
    report = check(lab.world().disk)
    assert report.ok and report.findings == []
    assert (report.topics, report.records) == (3, 101)
    assert report.batches > 40 and report.files >= 8
    assert lab.opens(lab.world().disk)


def test_the_lock_is_the_engine_s(lab: Lab) -> None:
    disk = SimDisk()
    with pytest.raises(InvalidRequest, match="not a data directory"):
        lock_directory(disk, "check")
    engine = lab.start(disk)
    with pytest.raises(DataDirLocked):
        lock_directory(disk, "check")
    engine.abandon()
    lock_directory(disk, "check").release()


PREFIXES = ("wal/", "segments/", "meta/snapshot", "meta/keys", "meta/owner")


def damages(lab: Lab, seed: int, prefix: str) -> Iterator[tuple[SimDisk, str]]:
    """Copies of the world, each with a bit flipped, or some bytes zeroed, that are in use."""
    dice = random.Random(f"{prefix}{seed}")
    paths = lab.world().files(prefix)
    while True:
        disk = lab.world().disk.copy()
        path = dice.choice(paths)
        data = disk.contents()[path]
        at = dice.choice([at for at, byte in enumerate(data) if byte])
        if dice.randrange(4) == 0 and not path.startswith("wal/"):
            disk.zero(path, at, min(dice.choice((16, 512)), len(data) - at))
        else:
            disk.overwrite(path, at, bytes([data[at] ^ (1 << dice.randrange(8))]))
        yield disk, f"{path} at {at}, seed {seed}"


def expect_mended(lab: Lab, disk: SimDisk, what: str) -> bool:
    """Damage is noticed, the engine agrees, and a repair leaves nothing silent."""
    report = check(disk)
    assert any(f.severity != "note" for f in report.findings), what
    # Sealed rows are verified when they are read, so that an engine opens over damaged ones.
    sealed = any(finding.code == "segment_damaged" for finding in report.findings)
    assert sealed or lab.opens(disk) == report.ok, (what, report.findings)
    done = repair(disk, clock=ManualClock(), random=SeededRandom(1))
    if not done.ok:
        left = {finding.code for finding in done.left}
        assert left <= {"snapshot_unusable", "snapshot_damaged"}, (what, done.left)
        return False
    lab.expect_announced(disk, lab.world().seen, done)
    return True


@pytest.mark.parametrize(("prefix", "count"), [*zip(PREFIXES, (25, 12, 12, 4, 4), strict=True)])
def test_damage_is_noticed_and_repaired(lab: Lab, prefix: str, count: int) -> None:
    damaged = islice(damages(lab, 1, prefix), count)
    assert sum(expect_mended(lab, disk, what) for disk, what in damaged) >= count // 4


@pytest.mark.long
@pytest.mark.parametrize("prefix", PREFIXES)
def test_long_damage_is_noticed_and_repaired(lab: Lab, sweep: Any, prefix: str) -> None:
    until = time.monotonic() + sweep.seconds
    for disk, what in damages(lab, sweep.seed, prefix):
        expect_mended(lab, disk, what)
        if time.monotonic() > until:
            return


def test_power_loss_is_no_error(lab: Lab) -> None:
    """Whatever a crash may leave: the engine opens it, and `check` finds nothing lost."""
    disk = SimDisk()
    engine = lab.start(disk, wal_shards=2, wal_file_bytes=64 * KIB)
    for number in range(12):
        lab.fill(engine, "abc"[number % 3], 8, ("fsync", "disk")[number % 2])
        if number % 4 == 3:
            engine.checkpoint().result()
            engine.delete("a", before_seq=number).result()
    engine.delete_topic("b").result()
    dice = random.Random(7)
    for _ in range(40):
        crashed = disk.image(dice.randrange(disk.position), dice.choice(MODES), dice.randrange(99))
        report = check(crashed)
        assert report.ok, report.findings
        assert lab.opens(crashed)


@pytest.mark.parametrize("kind", sorted(ENTRY_TYPES - {ENTRY_APPEND}))
def test_an_append_that_damage_calls_something_else_is_announced(lab: Lab, kind: int) -> None:
    """The last one of its topic: nothing behind it tells that it was there."""
    disk = lab.world().disk.copy()
    path, offset = lab.used_log(disk), lab.batch_of(disk, b"b 25")
    disk.overwrite(path, offset + BATCH_HEADER_BYTES, bytes([kind]))
    assert expect_mended(lab, disk, f"kind {kind}")


def test_one_damaged_batch_costs_only_its_records(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    path, offset = lab.used_log(disk), lab.batch_of(disk, b"a 84")
    lab.damage(disk, path, offset + BATCH_HEADER_BYTES + 70)
    (finding,) = check(disk).findings
    assert (finding.severity, finding.code, finding.offset) == ("error", "wal_damaged", offset)
    assert [(lost.topic, lost.first, lost.last) for lost in finding.lost] == [("a", 84, 84)]
    report = repair(disk, clock=ManualClock())
    assert report.ok and "wal" in report.findings[0].action
    after = lab.expect_announced(disk, lab.world().seen, report)
    assert after["a"][1] == [(84, 84)]
    assert {topic: len(records) for topic, (records, _) in after.items()} == {
        "a": 109, "b": 25, "c": 13, "d": 3, "keyed": 1,
    }  # fmt: skip
    kept = [name for name in disk.contents() if name.endswith(".broken")]
    assert f"{path}.1.broken" in kept


def test_the_damaged_log_is_kept_byte_for_byte(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    path = lab.used_log(disk)
    lab.damage(disk, path, lab.batch_of(disk, b"a 83") + 60)
    damaged = disk.contents()[path]
    repair(disk, clock=ManualClock())
    assert disk.contents()[f"{path}.1.broken"] == damaged


def test_several_damaged_batches(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    offsets = [lab.batch_of(disk, data) for data in (b"a 82", b"a 83", b"c 5")]
    for offset in offsets:
        lab.damage(disk, lab.used_log(disk), offset + BATCH_HEADER_BYTES + 70)
    report = repair(disk, clock=ManualClock())
    assert report.ok
    after = lab.expect_announced(disk, lab.world().seen, report)
    assert (after["a"][1], after["c"][1]) == ([(82, 83)], [(5, 5)])


def test_a_damaged_batch_header_puts_every_topic_in_doubt(lab: Lab) -> None:
    """Nothing says whose records were in there: no seq that may have been is used again."""
    disk = lab.world().disk.copy()
    lab.damage(disk, lab.used_log(disk), lab.batch_of(disk, b"a 84") + 30)
    report = check(disk)
    lost = {one.topic: one for one in report.findings[0].lost}
    assert (lost["a"].first, lost["a"].last, lost["a"].certain) == (84, 84, True)
    assert not lost["keyed"].certain and lost["keyed"].first == 2
    assert "b" not in lost, "its next record shows that nothing is missing"
    lab.expect_announced(disk, lab.world().seen, repair(disk, clock=ManualClock()))


def test_a_lost_creation_keeps_the_records_under_another_name(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    data = disk.contents()[lab.used_log(disk)]
    at = data.index(b"\xa1c", PAGE_BYTES)  # the name in the entry that creates "c"
    lab.damage(disk, lab.used_log(disk), at + 1)
    report = repair(disk, clock=ManualClock())
    assert report.ok and RECOVERED_NAME in report.findings[0].message
    after = lab.expect_announced(disk, lab.world().seen, report)
    (name,) = (topic for topic in after if topic.startswith(RECOVERED_NAME))
    records, gaps = after[name]
    assert list(records) == list(range(2, 14)) and gaps == [(1, 1)]
    engine = lab.start(disk)
    assert engine.put_topic("fresh").result().epoch > engine.topic(name).epoch


def test_a_missing_log_file_in_the_middle(lab: Lab) -> None:
    engine = lab.start(SimDisk(), wal_file_bytes=64 * KIB)
    for number in range(30):
        engine.append("a", [b"%d" % number + b"x" * 8000]).result()
    lab.settle(engine)
    seen = {"a": lab.read_all(engine, "a")}
    disk = lab.killed(engine)
    disk.unlink(f"wal/wal-{discover(disk)['wal'][1]:016d}.log")
    report = repair(disk, clock=ManualClock())
    assert not check(lab.killed(engine)).findings and report.ok
    assert report.findings[0].code == "wal_damaged" and report.findings[0].lost
    after = lab.expect_announced(disk, seen, report)
    assert len(after["a"][0]) > 15


def test_a_torn_tail_is_no_damage(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    path = lab.used_log(disk)
    (file,) = (f for f in survey(disk, "wal", discover(disk)["wal"], None).files if f.path == path)
    assert file.base is not None
    disk.overwrite(path, file.end - file.base + 64, b"never became a batch")
    report = check(disk)
    assert report.ok and [f.code for f in report.findings] == ["wal_torn"]
    assert lab.opens(disk)


def test_a_newer_log_is_refused_by_name(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    path = lab.used_log(disk)
    walked = survey(disk, "wal", discover(disk)["wal"], None)
    header = next(file.header for file in walked.files if file.path == path)
    assert header is not None
    disk.overwrite(path, 0, encode_file_header(header._replace(version=99)))
    before = disk.contents()
    report = repair(disk, clock=ManualClock())
    assert not report.ok and report.left[0].code == "unsupported_format"
    assert "99" in report.left[0].message
    assert disk.contents() == before, "nothing is changed that is not understood"


def test_a_log_that_ends_too_early(lab: Lab) -> None:
    engine = lab.start(SimDisk())
    lab.fill(engine, "a", 5)
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    engine.close()
    for number in discover(disk)["wal"]:
        disk.unlink(f"wal/wal-{number:016d}.log")
    assert not lab.opens(disk)
    report = repair(disk, clock=ManualClock())
    assert report.ok and "nothing is lost" in report.findings[0].message
    engine = lab.start(disk)
    assert (engine.topic("a").head_seq, engine.topic("a").epoch) == (5, 1)


def test_a_log_whose_end_nobody_knows_gives_new_epochs(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    for number in discover(disk)["wal"]:
        disk.unlink(f"wal/wal-{number:016d}.log")
    report = repair(disk, clock=ManualClock())
    assert report.ok and report.findings[0].code == "wal_missing"
    engine = lab.start(disk)
    assert engine.topic("a").epoch == EPOCHS_PER_GENERATION + 1
    page = engine.read("a", 85, epoch=1).result()
    assert page.tombstone is not None and page.tombstone.reason == "recreated"
