"""The scrub (native §10): what it reads and how fast, what it remembers, what it says of damage."""

from __future__ import annotations

import logging

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import SegmentCorrupt
from headrace.engine.scrubbing.schedule import due_ms, plan, restored
from headrace.storage.identity import SCRUB_PATH
from headrace.storage.scrub.checking import ScrubTarget
from headrace.storage.scrub.progress_file import (
    KEY_FILE,
    SEGMENT,
    SNAPSHOT,
    FileProgress,
    read_progress,
)
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start
from tests.support.scrubbing import (
    HOUR_MS,
    KIB,
    SCRUBBED,
    flip,
    pass_time,
    seal,
    segments_of,
)


def test_every_file_that_is_needed_is_verified(start: Start, clock: ManualClock) -> None:
    """§10c: segments, snapshots and key files."""
    engine = start(**SCRUBBED)
    seal(engine, "a")
    engine.append("a", [{}], idempotency_key="k").result()
    engine.checkpoint().result()
    engine.scrub.start()
    pass_time(engine, clock, 60_000)
    rows = [row for row, _ in engine.scrub.files()]
    listed = set(engine.state.fs.listdir("segments")) | {
        name for name in engine.state.fs.listdir("meta") if name.endswith(".bin")
    }
    listed -= {name for name in listed if name.startswith("mark-")}
    assert {row.path.rpartition("/")[2] for row in rows} == listed
    assert {row.kind for row in rows} == {SEGMENT, SNAPSHOT, KEY_FILE}
    assert all(row.verified_ms and not row.damaged and not row.offset for row in rows)
    assert engine.scrub.verified_files_total == len(rows)
    assert engine.scrub.problem() == ""
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    size = sum(len(content) for name, content in disk.contents().items()
               if name.rpartition("/")[2] in listed)  # fmt: skip
    assert size * 0.95 < engine.scrub.verified_bytes_total <= size


def test_the_rate_is_bounded(start: Start, clock: ManualClock) -> None:
    """§10c: over any time no more is read than the setting allows, and one step."""
    engine = start(**SCRUBBED)
    seal(engine, "a", blocks=8)
    engine.scrub.start()
    engine.runtime.drain()
    read = []
    for _ in range(40):
        pass_time(engine, clock, 250, step=250)
        read.append(engine.scrub.verified_bytes_total)
    assert read[-1] > 6 * 64 * KIB, "it goes on"
    for at, total in enumerate(read, 1):
        assert total <= 64 * KIB * at / 4 + 64 * KIB, (at, total)


def test_a_rate_of_nothing_switches_it_off(start: Start, clock: ManualClock) -> None:
    engine = start(**SCRUBBED | {"scrub_bytes_per_second": 0})
    seal(engine, "a")
    engine.scrub.start()
    pass_time(engine, clock, 5_000)
    assert not engine.scrub.on
    assert not engine.scrub.verified_bytes_total
    assert not engine.state.fs.exists(SCRUB_PATH)


def test_a_file_is_verified_again_after_the_interval(start: Start, clock: ManualClock) -> None:
    engine = start(**SCRUBBED | {"checkpoint_age_ms": 100 * HOUR_MS})
    seal(engine, "a")
    engine.scrub.start()
    pass_time(engine, clock, 60_000)
    before = engine.scrub.verified_files_total
    pass_time(engine, clock, HOUR_MS - 120_000, step=20_000)
    assert engine.scrub.verified_files_total == before
    assert engine.scrub.oldest_verification_ms > HOUR_MS - 120_000
    pass_time(engine, clock, 180_000)
    assert engine.scrub.verified_files_total == 2 * before
    assert engine.scrub.oldest_verification_ms < 180_000


def test_it_goes_on_after_a_kill_where_it_was(start: Start, clock: ManualClock) -> None:
    """§10d: of the file under way too."""
    disk = SimDisk()
    slow = SCRUBBED | {"scrub_bytes_per_second": 16 * KIB}
    engine = start(disk, **slow)
    seal(engine, "a")
    seal(engine, "b", blocks=30)
    engine.scrub.start()
    pass_time(engine, clock, 70_000)
    first, second = segments_of(engine.scrub)
    assert first.verified_ms and not second.verified_ms
    assert second.offset > 5 * 64 * KIB
    engine.abandon()
    saved = {row.key: row for row in read_progress(disk)}
    assert saved[first.key] == first
    assert 0 < saved[second.key].offset <= second.offset

    again = start(disk, **slow)
    again.scrub.start()
    pass_time(again, clock, 8_000)
    rows = {row.key: row for row in segments_of(again.scrub)}
    assert rows[first.key] == first, "it is not read again"
    assert rows[second.key].offset > saved[second.key].offset


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone"])
def test_what_it_knew_may_be_lost(
    start: Start, clock: ManualClock, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """§10d: then it starts over."""
    disk = SimDisk()
    engine = start(disk, **SCRUBBED)
    seal(engine, "a")
    engine.scrub.start()
    pass_time(engine, clock, 60_000)
    known = len(segments_of(engine.scrub))
    engine.abandon()
    if harm == "flipped":
        flip(disk, SCRUB_PATH, 30)
    elif harm == "cut":
        disk.open(SCRUB_PATH).truncate(11)
    else:
        disk.unlink(SCRUB_PATH)
    again = start(disk, **SCRUBBED)
    again.scrub.start()
    pass_time(again, clock, 60_000)
    assert again.scrub.verified_files_total >= known
    assert all(row.verified_ms for row in segments_of(again.scrub))
    assert ("starts over" in caplog.text) == (harm != "gone")


def test_damage_is_said_until_the_file_is_whole(
    start: Start, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """§10e: once in the log; a reader gets the bytes that are there then."""
    disk = SimDisk()
    engine = start(disk, **SCRUBBED | {"read_cache_bytes": 0})
    seal(engine, "a")
    (path,) = [name for name in disk.contents() if name.startswith("segments/")]
    engine.state.sealed_blocks.make_room()
    flip(disk, path, 70_000)
    engine.scrub.start()
    pass_time(engine, clock, 90_000)
    assert engine.scrub.damaged_files == engine.scrub.damaged_files_total == 1
    assert f"{path} is damaged in block 1 at 65536" in engine.scrub.problem()
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1 and path in errors[0].getMessage()

    again = start(disk.copy(), **SCRUBBED)
    again.scrub.start()
    again.runtime.drain()
    assert "was found damaged at offset 65536" in again.scrub.problem(), "before it is read again"

    flip(disk, path, 70_000)
    pass_time(engine, clock, 90_000)
    assert engine.scrub.problem() == ""
    assert (engine.scrub.damaged_files, engine.scrub.damaged_files_total) == (0, 1)
    assert f"{path} is whole again" in caplog.text


def test_a_reader_gets_the_file_that_was_put_back(start: Start, clock: ManualClock) -> None:
    """§10e: under the same name, while the damaged one was open."""
    disk = SimDisk()
    engine = start(disk, **SCRUBBED)
    seal(engine, "a")
    engine.abandon()
    (path,) = [name for name in disk.contents() if name.startswith("segments/")]
    whole = disk.contents()[path]
    flip(disk, path, 70_000)
    again = start(disk, **SCRUBBED)
    again.scrub.start()
    pass_time(again, clock, 20_000)
    assert path in again.scrub.problem()
    with pytest.raises(SegmentCorrupt):
        again.read("a", limit=100).result()
    disk.unlink(path)
    disk.create(path).pwritev([whole], 0)
    pass_time(again, clock, 90_000)
    assert again.scrub.problem() == ""
    assert len(again.read("a", limit=100).result().records) == 12


def test_a_file_that_is_gone_is_no_damage(start: Start, clock: ManualClock) -> None:
    """§10c, §10e: merged away, or dropped, while it is read and after it was found damaged."""
    disk = SimDisk()
    engine = start(disk, **SCRUBBED)
    seal(engine, "a")
    engine.scrub.start()
    engine.runtime.drain()
    pass_time(engine, clock, 1_000)
    engine.delete_topic("a").result()
    for name in ("x", "y", "z"):
        engine.append(name, [1]).result()
        engine.checkpoint().result()
    pass_time(engine, clock, 60_000)
    assert engine.scrub.damaged_files_total == 0

    seal(engine, "b")
    path = max(name for name in disk.contents() if name.startswith("segments/"))
    flip(disk, path)
    pass_time(engine, clock, 60_000)
    assert path in engine.scrub.problem()
    engine.delete_topic("b").result()
    for name in ("x", "y", "z"):
        engine.append(name, [1]).result()
        engine.checkpoint().result()
    pass_time(engine, clock, 60_000)
    assert engine.scrub.problem() == ""


@pytest.mark.parametrize("prefix", ["meta/snapshot-", "meta/keys-"])
def test_damaged_snapshots_and_key_files_are_found(
    start: Start, clock: ManualClock, prefix: str
) -> None:
    disk = SimDisk()
    engine = start(disk, **SCRUBBED)
    engine.append("a", [{}], idempotency_key="k").result()
    engine.checkpoint().result()
    path = max(name for name in disk.contents() if name.startswith(prefix))
    flip(disk, path, 80)
    engine.scrub.start()
    pass_time(engine, clock, 30_000)
    assert path in engine.scrub.problem()


def test_a_missing_file_is_damage(start: Start, clock: ManualClock) -> None:
    disk = SimDisk()
    engine = start(disk, **SCRUBBED)
    seal(engine, "a")
    (path,) = [name for name in disk.contents() if name.startswith("segments/")]
    disk.unlink(path)
    engine.scrub.start()
    pass_time(engine, clock, 10_000)
    assert f"{path} is missing" in engine.scrub.problem()


def test_the_most_overdue_is_next() -> None:
    rows = [
        FileProgress(SEGMENT, 1, False, 0, 900, 0),
        FileProgress(SEGMENT, 2, False, 950, 0, 0),
        FileProgress(SEGMENT, 3, False, 0, 1_500, 0),
        FileProgress(SEGMENT, 4, True, 100, 1_990, 0),
    ]
    known = {row.key: row for row in rows}
    targets = {key: ScrubTarget(key) for key in known}
    found = plan(targets, known, {}, 2_000, 1_000)
    assert [number for _, number in found.due] == [4, 2, 1]
    assert found.next_ms == due_ms(rows[2], 1_000) == 2_500
    off = plan(targets, known, {rows[3].key: 2_100}, 2_000, 1_000)
    assert [number for _, number in off.due] == [2, 1]
    assert off.next_ms == 2_100


def test_a_clock_that_was_set_back_makes_no_file_wait_for_ever() -> None:
    row = FileProgress(SEGMENT, 1, False, 5_000, 9_000, 0)
    assert restored([row], 1_000)[row.key][3:5] == (1_000, 1_000)
