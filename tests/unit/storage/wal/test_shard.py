"""A shard of the log: when commits are settled, groups, rotation, failure, and what is on disk."""

from __future__ import annotations

import errno

import pytest

from headrace.core.clock import SeededRandom
from headrace.core.errors import HeadraceError, Internal, NotReady
from headrace.storage.wal.file import discover, file_path, first_position
from headrace.storage.wal.frame import (
    ENTRY_STATE,
    PAGE_BYTES,
    State,
    encode_control,
)
from headrace.storage.wal.next_file import FileSequence
from headrace.storage.wal.shard import WalShard
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.wal_logs import (
    Entry,
    LateNewsRuntime,
    Log,
    kinds,
    numbers,
    survivors,
    switched,
)

# When a commit is settled


def test_nothing_is_settled_before_the_turn_ends() -> None:
    log = Log()
    entry = log.stage()
    assert not entry.settled and log.shard.pending_bytes == len(entry.entries[0])
    log.shard.flush()
    assert entry.settled and entry.error is None and log.shard.pending_bytes == 0


def test_one_write_a_turn() -> None:
    log = Log()
    since = log.disk.position  # type: ignore[attr-defined]
    for _ in range(50):
        log.stage()
    log.shard.flush()
    assert kinds(log, since) == ["write"]
    assert log.settled == list(range(50))


def test_a_commit_that_needs_a_sync_waits_for_it() -> None:
    log = Log()
    plain, synced = log.stage(), log.stage(sync=True)
    log.shard.flush()
    assert plain.settled and not synced.settled
    assert survivors(log) == []
    log.run()
    assert synced.settled and survivors(log) == [0, 1]


def test_what_needs_no_sync_is_synced_within_the_interval() -> None:
    log = Log()
    log.stage()
    log.run(49)
    assert survivors(log) == []
    log.run(1)
    assert survivors(log) == [0]
    assert log.shard.durable == log.shard.written


def test_commits_during_a_sync_join_the_next_group() -> None:
    """L13."""
    log = Log()
    syncs = log.shard.syncs_total
    first = log.stage(sync=True)
    log.begin_sync()
    later = [log.stage(sync=True) for _ in range(20)]
    assert not first.settled
    log.run()
    assert first.settled and all(entry.settled for entry in later)
    assert log.shard.syncs_total - syncs == 2


def test_a_commit_that_only_follows_others_is_settled_by_their_sync() -> None:
    log = Log()
    syncs = log.shard.syncs_total
    log.stage(sync=True)
    log.begin_sync()
    for _ in range(3):
        later = log.stage(sync=True, follows=True)
        log.shard.flush()
        assert not later.settled
    log.run()
    assert log.settled == [0, 1, 2, 3] == numbers(log.disk)
    assert log.shard.syncs_total - syncs == 1 and log.shard.durable < log.shard.written


def test_a_commit_that_follows_one_of_its_turn_waits_for_the_same_sync() -> None:
    log = Log()
    first, later = log.stage(sync=True), log.stage(sync=True, follows=True)
    log.shard.flush()
    assert not first.settled and not later.settled
    log.run()
    assert log.settled == [0, 1] == survivors(log)


def test_a_commit_that_follows_what_is_settled_is_settled_when_written() -> None:
    log = Log()
    log.stage(sync=True)
    log.run()
    later = log.stage(sync=True, follows=True)
    assert not later.settled
    log.shard.flush()
    assert later.settled and survivors(log) == [0]


def test_commits_are_settled_in_log_order_among_those_that_sync() -> None:
    log = Log()
    for n in range(60):
        log.stage(sync=True, size=n * 10)
        if n % 7 == 0:
            log.runtime.step()
    log.run()
    assert log.settled == list(range(60)) == survivors(log)


def test_a_barrier_writes_no_entry_and_waits_for_all_before_it() -> None:
    log = Log()
    log.stage()
    barrier = log.stage(sync=True, size=-1)
    log.run()
    assert barrier.settled and log.shard.durable >= log.shard.written - 56
    assert survivors(log) == [0]


def test_a_delayed_sync_is_cut_short_by_a_commit_that_cannot_wait() -> None:
    log = Log()
    log.stage()
    log.run()
    urgent = log.stage(sync=True)
    log.run()
    assert urgent.settled and survivors(log) == [0, 1]


def test_batches_are_bounded() -> None:
    log = Log()
    before = log.shard.batches_total
    for _ in range(100):
        log.stage(size=1_000)
    log.run()
    assert log.shard.batches_total - before >= 100 * 1_000 // (20 << 10)
    assert numbers(log.disk) == list(range(100))


# What is on disk


@pytest.mark.parametrize("sizes", [(70_000, 70_000, 90_000), (70_000, 100), (100, 70_000)])
def test_large_entries_are_one_batch_like_any_others(sizes: tuple[int, ...]) -> None:
    """They are written from where they are, without a copy, and read as one."""
    log = Log(file_bytes=1 << 20, batch_bytes_max=1 << 20)
    since, batches = log.disk.position, log.shard.batches_total  # type: ignore[attr-defined]
    for size in sizes:
        log.stage(sync=True, size=size)
    log.shard.flush()
    assert kinds(log, since) == ["write"] and log.shard.batches_total == batches + 1
    log.run()
    assert log.settled == list(range(len(sizes))) == survivors(log)


def test_each_sync_group_starts_on_a_page_of_its_own() -> None:
    """L1: a torn write of the next group cannot reach bytes that were promised."""
    log = Log()
    assert isinstance(log.disk, SimDisk)
    since = log.disk.position
    for _ in range(10):
        log.stage(sync=True)
        log.run()
    writes = [op for op in log.disk.trace[since:] if op.kind == "write" and op.path[:3] == "wal"]
    assert len(writes) == 10
    assert {op.offset % PAGE_BYTES for op in writes} == {0}


def test_an_idle_shard_closes_its_last_window() -> None:
    """An empty batch says that what is before it was durable, once, and is synced itself."""
    log = Log()
    log.stage(sync=True)
    log.run()
    before = log.shard.batches_total
    for _ in range(10):
        log.run(100)
    assert log.shard.batches_total == before + 1
    assert log.shard.durable == log.shard.written


def test_a_shard_that_is_written_to_has_one_timer_for_its_last_window() -> None:
    """The window is closed when nothing was written for an interval, counted from the last sync."""
    log = Log()
    timers: list[int] = []
    later = log.runtime.later
    log.runtime.later = lambda ms, thunk: timers.append(ms) or later(ms, thunk)  # type: ignore
    for _ in range(7):
        log.stage(sync=True)
        log.run(20)
    assert timers == [50, 30, 30, 30]  # one after another, each for what is left
    before = log.shard.batches_total
    log.run(20)
    assert log.shard.batches_total == before
    log.run(10)
    assert log.shard.batches_total == before + 1


def test_the_log_rotates_by_size() -> None:
    log = Log()
    for _ in range(40):
        log.stage(sync=True, size=8_000)
        log.run()
    files = discover(log.disk)["wal"]
    assert files == sorted(files) and len(files) >= 5
    assert survivors(log) == list(range(40))


def test_a_file_left_during_a_sync_is_synced_to_its_end() -> None:
    """A sync knows a file up to where it was when the sync began, and no further."""
    log = Log(runtime=LateNewsRuntime)
    log.stage(sync=True)
    log.begin_sync()
    log.runtime.step()  # the sync; nobody has heard of it
    log.stage(size=5_000)
    log.shard.flush()  # into the same file
    log.stage(size=56_000)
    log.shard.flush()  # into the next
    log.run()
    log.stage(sync=True)
    log.run()
    assert all(entry.settled for entry in log.entries)
    assert log.shard.rotations_total > 0
    assert survivors(log) == [0, 1, 2, 3]


def test_an_entry_larger_than_a_file_is_written_whole() -> None:
    log = Log()
    log.stage(sync=True, size=200_000)
    log.stage(sync=True, size=10)
    log.run()
    assert survivors(log) == [0, 1]


def test_the_next_file_is_ready_before_it_is_needed() -> None:
    log = Log()
    since = log.disk.position  # type: ignore[attr-defined]
    log.stage(size=40_000)
    log.shard.flush()
    log.stage(size=40_000)
    log.shard.flush()  # rotates: into a file that exists
    assert "create" not in kinds(log, since)


def test_rotation_on_request_begins_a_file() -> None:
    log = Log()
    log.stage()
    log.shard.flush()
    position = log.shard.rotate()
    assert position == log.shard.rotate(), "an empty file is not left for another"
    log.stage()
    log.shard.flush()
    paths = [file_path("wal", n) for n in discover(log.disk)["wal"]]
    assert position in [first_position(log.disk, path) for path in paths]


def test_a_clean_close_leaves_no_spare_file_and_everything_durable() -> None:
    log = Log()
    for _ in range(5):
        log.stage()
    log.shard.close()
    assert survivors(log) == [0, 1, 2, 3, 4]
    assert len(discover(log.disk)["wal"]) == 1
    log.shard.close()


def test_a_shard_goes_on_where_another_ended() -> None:
    log = Log()
    log.stage()
    log.shard.close()
    end = log.shard.written
    first = encode_control(ENTRY_STATE, 99, State(b"99,"))
    files = FileSequence(
        log.disk, log.runtime, SeededRandom(4), "wal", 0, lambda: 1_000, file_bytes=64 << 10
    )
    shard = WalShard(
        log.disk, log.runtime, files,
        batch_bytes_max=16 << 10, pending_bytes_max=1 << 20, sync_interval_ms=50,
    )  # fmt: skip
    shard.start(end, [first])
    assert survivors(log) == [0, 99], "durable before start returns"


# Counting


def test_a_shard_counts_what_it_does() -> None:
    log = Log(file_bytes=32 << 10)
    shard = log.shard
    # The first file begins with an empty batch, synced before anybody counts.
    assert (shard.batches_total, shard.frames_total, shard.syncs_total) == (1, 0, 0)
    for _ in range(3):
        for sync in (False, True):
            log.stage(sync=sync)
        assert shard.depth == 2
        log.run()
    assert (shard.depth, shard.depth_peak, shard.frames_total) == (0, 2, 6)
    assert shard.syncs_total == sum(shard.syncs.micros.counts) == 3
    assert shard.rotations_total == 0
    while not shard.rotations_total:
        log.stage(size=3_000)
        log.run(60)
    assert len(discover(log.disk)["wal"]) == 3, "two with batches, and the next"
    log.stage(size=-1, sync=True)
    frames = shard.frames_total
    log.run(1_000)
    assert shard.frames_total == frames, "barriers and empty batches are no entries"


def test_what_is_written_already_is_settled_once_it_is_durable() -> None:
    log = Log()
    quick = Entry(log, 7, True, -1)
    log.shard.when_durable(quick)
    assert quick.settled, "everything written is durable"
    log.stage()
    log.run()
    late = Entry(log, 8, True, -1)
    log.shard.when_durable(late)
    assert not late.settled and log.shard.durable < log.shard.written
    log.run()
    assert late.settled and log.shard.durable == log.shard.written
    assert numbers(log.disk) == [0], "it is not written itself"


def test_the_time_of_a_write_is_that_of_its_own_turn() -> None:
    slow_ms = 0
    times: list[int] = []

    class Timed(Entry):
        def settle(self, error: HeadraceError | None) -> None:
            times.append(log.shard.write_ns // 1_000_000)
            super().settle(error)

    def hook(_operation: str, _path: str) -> None:
        if slow_ms:
            log.clock.advance(slow_ms)

    plan = FaultPlan(Fault("pwritev", 1, "call", forever=True, hook=hook))
    log = Log(FaultFilesystem(SimDisk(), plan))
    slow_ms = 5
    log.shard.stage(Timed(log, 0, True, 100))
    log.shard.flush()
    slow_ms = 2
    log.shard.stage(Timed(log, 1, False, 100))
    log.shard.flush()
    log.run()
    assert times == [2, 5]


# Failure


def test_a_failed_sync_fails_its_waiters_and_all_that_follow() -> None:
    log, switch, disk = switched("sync_data", errno.EIO)
    log.stage(sync=True)
    log.run()
    switch.on = True
    waiting = [log.stage(sync=True) for _ in range(3)]
    log.run()
    for entry in waiting:
        assert isinstance(entry.error, Internal)
        assert entry.error.detail == {"outcome": "unknown"}
    switch.on = False
    assert log.shard.state == "wal_read_only"
    refusal = log.shard.refusal()
    assert isinstance(refusal, NotReady) and refusal.detail == {"reason": "wal_read_only"}
    late = log.stage(sync=True)
    since = disk.position
    log.run(1_000)
    assert isinstance(late.error, NotReady)
    assert disk.position == since, "nothing is ever written again"


def test_no_room_is_a_state_that_ends() -> None:
    """L12: `disk_full` until there is room."""
    log, switch, disk = switched("pwritev", errno.ENOSPC)
    first = log.stage(sync=True)
    log.run()
    switch.on = True
    failed = [log.stage(sync=sync) for sync in (True, False, True)]
    log.run()
    for entry in failed:
        assert isinstance(entry.error, NotReady)
        assert entry.error.detail["reason"] == "disk_full"
    assert log.shard.state == "disk_full"
    switch.on = False
    assert log.shard.refusal() is None, "the disk has room again"
    assert log.shard.state == "ok"
    later = [log.stage(sync=True) for _ in range(3)]
    log.run()
    assert first.error is None and all(e.settled and e.error is None for e in later)
    assert numbers(disk.image(disk.position, "none", 0)) == [0, 4, 5, 6]


@pytest.mark.parametrize("landed", [1, 56, 57, 100, 10_000])
def test_a_batch_that_failed_never_comes_alive(landed: int) -> None:
    """However much of it reached the file, later batches go elsewhere and the scan agrees."""
    disk = SimDisk()
    plan = FaultPlan(Fault("pwritev", 7, "enospc", path="wal/*", count=landed))
    log = Log(FaultFilesystem(disk, plan))
    for _ in range(8):
        log.stage(sync=True)
        log.run()
    assert plan.fired == 1
    good = [entry.number for entry in log.entries if entry.error is None]
    assert len(good) == 7
    assert numbers(disk.image(disk.position, "all", 0, power_loss=False)) == good
    assert numbers(disk.image(disk.position, "none", 0)) == good


def test_a_failed_write_of_another_kind_poisons() -> None:
    """L12."""
    log, switch, _ = switched("pwritev", errno.EIO)
    switch.on = True
    entry = log.stage()
    log.run()
    assert isinstance(entry.error, Internal) and log.shard.state == "wal_read_only"


def test_without_a_spare_file_a_bare_one_is_made() -> None:
    log, switch, disk = switched("sync_dir", errno.EIO)
    switch.on = True  # no file can be prepared
    for _ in range(3):
        log.stage(size=30_000)
        log.shard.flush()
    assert [entry.error for entry in log.entries] == [None] * 3
    switch.on = False
    log.run(100)
    assert numbers(disk.image(disk.position, "none", 0)) == [0, 1, 2]
