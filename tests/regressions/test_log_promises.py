"""What a shard of the log promises, call by call: each of these a seeded bug would break.

The log runs here without an engine: entries are numbers, and whoever waits for one is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import DataDirLocked, HeadraceError, WalCorrupt
from headrace.core.runtime import Done, StepRuntime
from headrace.engine.engine import Engine
from headrace.storage.fs import Filesystem
from headrace.storage.wal.file import discover, file_path
from headrace.storage.wal.frame import (
    BATCH_HEADER_BYTES,
    ENTRY_STATE,
    FORMAT_VERSION,
    PAGE_BYTES,
    FileHeader,
    State,
    decode_file_header,
    encode_batch_header,
    encode_control,
    encode_file_header,
    entry_topic,
)
from headrace.storage.wal.next_file import FileSequence
from headrace.storage.wal.scan import ShardScan
from headrace.storage.wal.scan_shards import scan_all
from headrace.storage.wal.shard import WalShard
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import MODES, SimDisk

KIB = 1 << 10
SYNC_INTERVAL_MS = 50


def entry(number: int, size: int = 40) -> bytes:
    return encode_control(ENTRY_STATE, number, State(b"x" * size))


class Numbered:
    """A commit whose entry is a number, and what it was told."""

    def __init__(self, number: int, *, sync: bool = True, size: int = 40) -> None:
        self.number = number
        self.entries = (entry(number, size),)
        self.needs_sync = sync
        self.told: list[HeadraceError | None] = []

    def settle(self, error: HeadraceError | None) -> None:
        self.told.append(error)

    @property
    def acked(self) -> bool:
        return self.told == [None]


class NothingReady(StepRuntime):
    """A runtime in which no file is ever made ready ahead of time."""

    def submit(self, lane: str, work: Callable[[], object], done: Done) -> None:
        if lane != "prepare":
            super().submit(lane, work, done)


def open_shard(
    fs: Filesystem, runtime: StepRuntime, *, file_bytes: int = 64 * KIB, first: int = 1
) -> WalShard:
    numbers = count(first)
    files = FileSequence(
        fs, runtime, SeededRandom(first), "wal", 0, lambda: next(numbers), file_bytes=file_bytes
    )
    shard = WalShard(
        fs,
        runtime,
        files,
        batch_bytes_max=16 * KIB,
        pending_bytes_max=KIB * KIB,
        sync_interval_ms=SYNC_INTERVAL_MS,
    )
    shard.start(0, [])
    return shard


def replay(fs: Filesystem, start: int | None = None) -> tuple[list[int], ShardScan]:
    """The numbers in the log, as a start would read them."""
    numbers: list[int] = []
    starts = {} if start is None else {"wal": start}
    scans = scan_all(fs, discover(fs), starts, lambda _, e: numbers.append(entry_topic(e)))
    return numbers, scans.get("wal", ShardScan("wal"))


def commit(shard: WalShard, runtime: StepRuntime, *commits: Numbered) -> None:
    """Stage these in one turn, and go on until everybody has been told."""
    for one in commits:
        shard.stage(one)
    while not all(one.told for one in commits) and runtime.step():
        pass
    assert all(one.told for one in commits), "a lost wake-up"


def lost_power(disk: SimDisk, mode: str = "none", seed: int = 0) -> SimDisk:
    return disk.image(disk.position, mode, seed)  # type: ignore[arg-type]


# What is durable when somebody is told


def test_what_a_start_writes_is_durable_when_it_returns() -> None:
    disk, runtime = SimDisk(), NothingReady(ManualClock())
    shard = open_shard(disk, runtime)
    assert shard.durable == shard.written
    assert replay(lost_power(disk))[1].end == shard.durable


@pytest.mark.parametrize("runtime_of", [StepRuntime, NothingReady])
def test_synced_commits_survive_in_every_file(runtime_of: type[StepRuntime]) -> None:
    """Files made ready ahead of time, and files made in a hurry because none was."""
    disk, runtime = SimDisk(), runtime_of(ManualClock())
    shard = open_shard(disk, runtime, file_bytes=16 * KIB)
    for number in range(1, 21):
        one = Numbered(number, size=3 * KIB)
        commit(shard, runtime, one)
        assert one.acked
        assert replay(lost_power(disk))[0] == list(range(1, number + 1))
    assert len(discover(disk)["wal"]) > 3


@pytest.mark.parametrize("mode", MODES)
def test_a_power_loss_leaves_a_prefix_with_all_that_was_synced(mode: str) -> None:
    """Never less than was acknowledged, never a hole, and never called corruption."""
    for seed in range(24):
        disk, runtime = SimDisk(), StepRuntime(ManualClock())
        shard = open_shard(disk, runtime, file_bytes=32 * KIB)
        runtime.run()
        commit(shard, runtime, Numbered(1), Numbered(2, size=900))
        commit(shard, runtime, Numbered(3, sync=False, size=100 * seed))
        commit(shard, runtime, Numbered(4, sync=False, size=30))
        # The sync of this one has begun, so that what follows starts on a page of its own.
        late = [Numbered(5), Numbered(6, sync=False), Numbered(7, sync=False, size=2 * KIB)]
        for one in late:
            shard.stage(one)
            shard.flush()
        for point in range(disk.position - len(late), disk.crash_points):
            found, _ = replay(disk.image(point, mode, seed))  # type: ignore[arg-type]
            assert found == list(range(1, len(found) + 1)), (mode, seed, point, found)
            assert len(found) >= 2, (mode, seed, point, found)


def test_what_was_written_is_durable_when_the_log_is_closed() -> None:
    disk, runtime = SimDisk(), StepRuntime(ManualClock())
    shard = open_shard(disk, runtime)
    runtime.run()
    shard.stage(Numbered(1, sync=False))
    shard.flush()
    shard.stage(Numbered(2, sync=False))
    shard.close()
    found, scan = replay(lost_power(disk))
    assert (found, scan.end) == ([1, 2], shard.written)


# Damage


def flips(disk: SimDisk, path: str, first: int, last: int) -> list[int]:
    """Offsets at which a flipped bit is not noticed, of those from `first` to `last`."""
    unnoticed = []
    for offset in range(first, last):
        damaged = disk.copy()
        damaged.flip(path, 8 * offset + offset % 8)
        try:
            replay(damaged)
        except WalCorrupt:
            continue
        unnoticed.append(offset)
    return unnoticed


def test_damage_below_a_later_sync_is_refused() -> None:
    disk, runtime = SimDisk(), StepRuntime(ManualClock())
    shard = open_shard(disk, runtime)
    runtime.run()
    for number in (1, 2, 3):
        commit(shard, runtime, Numbered(number))
    batch = BATCH_HEADER_BYTES + len(entry(1))
    second = 2 * PAGE_BYTES  # The empty batch of the start is on the page before.
    assert flips(disk, file_path("wal", 1), second, second + batch) == []


def test_damage_to_the_last_batch_of_an_idle_log_is_refused() -> None:
    clock = ManualClock()
    disk, runtime = SimDisk(), StepRuntime(clock)
    shard = open_shard(disk, runtime)
    runtime.run()
    commit(shard, runtime, Numbered(1))
    for _ in range(4):
        clock.advance(SYNC_INTERVAL_MS)
        runtime.run()
    batch = BATCH_HEADER_BYTES + len(entry(1))
    assert flips(disk, file_path("wal", 1), 2 * PAGE_BYTES, 2 * PAGE_BYTES + batch) == []


SALT = 11


def two_batches(
    *,
    salt: int = SALT,
    position: int | None = None,
    ordinal: int = 1,
    spoil: Callable[[bytearray], None] = lambda _batch: None,
) -> SimDisk:
    """A log of two batches, the second of which may be none of its own."""
    disk = SimDisk()
    disk.mkdir("wal")
    file = disk.create(file_path("wal", 1))
    header = FileHeader(FORMAT_VERSION, SALT, 1, 0, 0, bytes(16))
    first, body = entry(1), entry(2)
    one = encode_batch_header(SALT, PAGE_BYTES, PAGE_BYTES, 0, first, 1) + first
    at = PAGE_BYTES + len(one)
    position = at if position is None else position
    two = bytearray(encode_batch_header(salt, position, PAGE_BYTES, ordinal, body, 1) + body)
    spoil(two)
    file.pwritev([encode_file_header(header), one, two], 0)
    disk.settle()
    return disk


def spoiled_at(offset: int) -> Callable[[bytearray], None]:
    def spoil(batch: bytearray) -> None:
        batch[offset] ^= 1

    return spoil


def test_two_good_batches_are_both_read() -> None:
    assert replay(two_batches())[0] == [1, 2]


@pytest.mark.parametrize(
    "disk",
    [
        pytest.param(two_batches(salt=SALT + 1), id="of another file's life"),
        pytest.param(two_batches(position=3 * PAGE_BYTES), id="written for another place"),
        pytest.param(two_batches(ordinal=2), id="whose predecessor is missing"),
        pytest.param(two_batches(ordinal=0), id="that was there before"),
        pytest.param(two_batches(spoil=spoiled_at(16)), id="with a damaged header"),
        pytest.param(two_batches(spoil=spoiled_at(BATCH_HEADER_BYTES + 20)), id="damaged"),
    ],
)
def test_a_batch_that_does_not_belong_is_not_read(disk: SimDisk) -> None:
    assert replay(disk.copy())[0] == [1]


def test_a_log_that_ends_before_the_snapshot_is_refused() -> None:
    disk = two_batches()
    end = replay(disk)[1].end
    assert replay(disk, end)[0] == []
    with pytest.raises(WalCorrupt, match="does not reach"):
        replay(disk, end + 8)
    disk.unlink(file_path("wal", 1))
    with pytest.raises(WalCorrupt, match="does not reach"):
        replay(disk, end)


def test_a_hole_among_files_that_nobody_needs_is_no_damage() -> None:
    """They are removed in no particular order, and a power loss may bring some of them back."""
    disk, runtime = SimDisk(), StepRuntime(ManualClock())
    shard = open_shard(disk, runtime)
    starts = []
    for number in range(1, 6):
        commit(shard, runtime, Numbered(number))
        runtime.run()
        starts.append(shard.rotate())
    commit(shard, runtime, Numbered(6))
    assert replay(disk, starts[-1])[0] == [6]
    numbers = discover(disk)["wal"]
    for removed in numbers[:4]:
        holed = disk.copy()
        holed.unlink(file_path("wal", removed))
        assert replay(holed, starts[-1])[0] == [6]
        with pytest.raises(WalCorrupt):
            replay(holed, starts[0] if removed > numbers[0] else 0)


def test_no_two_files_have_the_same_salt() -> None:
    disk, runtime = SimDisk(), StepRuntime(ManualClock())
    shard = open_shard(disk, runtime, file_bytes=8 * KIB)
    for number in range(1, 9):
        commit(shard, runtime, Numbered(number, size=3 * KIB))
        runtime.run()
    headers = [decode_file_header(data[:PAGE_BYTES], path) for path, data in files(disk)]
    salts = [header.salt for header in headers if header is not None]
    assert len(salts) == len(set(salts)) > 4


def files(disk: SimDisk) -> list[tuple[str, bytes]]:
    return [(p, data) for p, data in disk.contents().items() if p.startswith("wal/")]


# Faults


class FaultyLog:
    """A log that has started well; the calls of its faults are counted from there."""

    def __init__(self, *faults: Fault, runtime_of: type[StepRuntime] = StepRuntime) -> None:
        runtime = runtime_of(ManualClock())
        faults = tuple(replace(fault, path="wal*") for fault in faults)
        started = FaultPlan(*(replace(fault, at=1 << 30) for fault in faults))
        open_shard(FaultFilesystem(SimDisk(), started), runtime)
        runtime.run()
        later = [replace(f, at=f.at + seen) for f, seen in zip(faults, started.seen, strict=True)]
        self.plan = FaultPlan(*later)
        self.disk = SimDisk()
        self.runtime = runtime_of(ManualClock())
        self.shard = open_shard(FaultFilesystem(self.disk, self.plan), self.runtime)
        self.runtime.run()
        assert not self.plan.fired

    def commit(self, *commits: Numbered) -> None:
        commit(self.shard, self.runtime, *commits)


def test_what_was_written_while_a_sync_ran_waits_for_the_next() -> None:
    early, unsynced, late = Numbered(1), Numbered(2, sync=False), Numbered(3)

    def meanwhile(_operation: str, _path: str) -> None:
        # As another thread would, between the end of the system call and its answer.
        log.shard.stage(unsynced)
        log.shard.stage(late)
        log.shard.flush()

    log = FaultyLog(Fault("sync_data", 1, "call", after=True, hook=meanwhile))
    log.commit(early)
    assert early.acked and unsynced.acked
    assert not late.told, "acknowledged by a sync that had begun before it was written"
    log.runtime.run()
    assert late.acked
    assert replay(lost_power(log.disk))[0] == [1, 2, 3]


def test_after_a_failed_sync_nothing_is_ever_written_again() -> None:
    log = FaultyLog(Fault("sync_data", 1, "eio"))
    failed, later = Numbered(1), Numbered(2)
    log.commit(failed)
    error = failed.told[0]
    assert isinstance(error, HeadraceError) and error.detail["outcome"] == "unknown"
    assert log.plan.fired == 1
    calls = log.plan.calls.copy()
    assert log.shard.state == "wal_read_only" and log.shard.refusal() is not None
    log.commit(later)
    assert isinstance(later.told[0], HeadraceError)
    log.runtime.run()
    log.shard.close()
    for operation in ("pwritev", "sync_data"):
        assert log.plan.calls[operation] == calls[operation]
    assert replay(lost_power(log.disk))[0] == []


@pytest.mark.parametrize("failures", [1, 2, 3])
@pytest.mark.parametrize("landed", [0, 1, 30, 100])
@pytest.mark.parametrize("sync", [False, True])
def test_a_failed_write_leaves_nothing_and_hides_nothing(
    landed: int, failures: int, sync: bool
) -> None:
    """Whatever part of a batch landed, the log goes on, and the batch stays dead."""
    # Each goes into a file made for it, whose header is a write that succeeds.
    faults = [Fault("pwritev", 2 * n, "enospc", count=landed) for n in range(1, failures + 1)]
    log = FaultyLog(*faults, runtime_of=NothingReady)
    before, after = Numbered(1), Numbered(99)
    log.commit(before)
    while log.plan.fired < failures:
        failed = Numbered(50, sync=sync)
        log.commit(failed)
        (error,) = failed.told
        assert isinstance(error, HeadraceError) and error.detail["reason"] == "disk_full"
        assert log.shard.refusal() is None, "there is room, so writing goes on by itself"
    log.commit(after)
    assert before.acked and after.acked
    assert replay(lost_power(log.disk))[0] == [1, 99]


def test_a_full_disk_is_a_state_that_ends() -> None:
    disk, runtime = SimDisk(), StepRuntime(ManualClock())
    shard = open_shard(disk, runtime, file_bytes=16 * KIB)
    runtime.run()
    disk.space_bytes -= disk.free_bytes()
    told: list[HeadraceError | None] = []
    for number in range(1, 20):
        one = Numbered(number, size=3 * KIB)
        commit(shard, runtime, one)
        told += one.told
        if shard.state != "ok":
            break
    assert shard.state == "disk_full" and shard.refusal() is not None
    disk.space_bytes += KIB * KIB
    assert shard.refusal() is None and shard.state == "ok"
    last = Numbered(99)
    commit(shard, runtime, last)
    assert last.acked
    assert replay(lost_power(disk))[0] == [*range(1, told.count(None) + 1), 99]


def test_a_data_directory_has_one_engine() -> None:
    disk = SimDisk()
    first = Engine(disk, StepRuntime(ManualClock()), random=SeededRandom(1))
    with pytest.raises(DataDirLocked):
        Engine(disk, StepRuntime(ManualClock()), random=SeededRandom(2))
    first.abandon()
    Engine(disk, StepRuntime(ManualClock()), random=SeededRandom(2)).abandon()
