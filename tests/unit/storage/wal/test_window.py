"""The commit window: whom it makes wait, for how long, and what it never changes."""

from __future__ import annotations

import errno

from headrace.core.clock import NS_PER_MS
from headrace.core.errors import Internal
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.wal_logs import Entry, Log, switched


def test_a_window_gathers_commits_for_one_sync() -> None:
    log = Log()
    syncs = log.shard.syncs_total
    log.shard.widen(5)
    entries = []
    for _ in range(4):
        entries.append(log.stage(sync=True))
        log.run(1)
        assert not any(entry.settled for entry in entries)
    log.run(1)
    assert all(entry.settled and entry.error is None for entry in entries)
    assert log.settled == [0, 1, 2, 3], "in the order of the log"
    assert log.shard.syncs_total == syncs + 1 and log.shard.windows_total == 1


def test_a_window_delays_nothing_that_needs_no_sync() -> None:
    log = Log()
    log.shard.widen(10)
    log.stage(sync=True)
    entry = log.stage()
    log.run()
    assert entry.settled and log.settled == [1]


def test_a_lazy_sync_does_not_end_a_window_early_nor_keep_it_open() -> None:
    log = Log()
    log.stage()
    log.run()  # a sync is due in 50 ms
    log.shard.widen(10)
    entry = log.stage(sync=True)
    log.run(9)
    assert not entry.settled
    log.run(1)
    assert entry.settled and log.shard.windows_total == 1


def test_what_comes_while_a_window_sync_runs_waits_for_the_next() -> None:
    late: list[Entry] = []
    armed: list[Log] = []

    def meanwhile(_operation: str, _path: str) -> None:
        # As another thread would, between the end of the system call and its answer.
        for log in armed:
            armed.clear()
            late.append(log.stage(sync=True))
            log.shard.flush()

    plan = FaultPlan(Fault("sync_data", 1, "call", forever=True, after=True, hook=meanwhile))
    log = Log(FaultFilesystem(SimDisk(), plan))
    log.shard.widen(5)
    armed.append(log)
    early = log.stage(sync=True)
    log.run(5)
    assert early.settled
    assert late and not late[0].settled, "by a sync that had begun before it was written"
    log.run(5)
    assert late[0].settled and log.shard.windows_total == 2


def test_what_is_said_to_be_put_off_is_the_window_and_not_the_sync_before_it() -> None:
    armed: list[Log] = []
    late: list[Entry] = []

    def slow(_operation: str, _path: str) -> None:
        for log in armed:
            armed.clear()
            late.append(log.stage(sync=True))
            log.shard.flush()
            log.clock.advance(30)

    plan = FaultPlan(Fault("sync_data", 1, "call", forever=True, after=True, hook=slow))
    log = Log(FaultFilesystem(SimDisk(), plan))
    log.shard.widen(5)
    armed.append(log)
    log.stage(sync=True)
    log.run(5)
    assert log.shard.window_wait_ns == 5 * NS_PER_MS
    log.run(5)
    assert late[0].settled and log.shard.window_wait_ns == 5 * NS_PER_MS


def test_a_window_that_closes_lets_go_of_whom_it_kept() -> None:
    log = Log()
    log.shard.widen(10)
    entry = log.stage(sync=True)
    log.run()
    assert not entry.settled
    log.shard.widen(0)
    log.run()
    assert entry.settled
    log.stage(sync=True)
    log.run()
    assert log.settled == [0, 1]


def test_a_failed_sync_fails_all_of_a_window() -> None:
    log, switch, _ = switched("sync_data", errno.EIO)
    log.shard.widen(5)
    entries = [log.stage(sync=True)]
    log.run(1)
    entries.append(log.stage(sync=True))
    log.run()
    switch.on = True
    log.run(10)
    assert [type(entry.error) for entry in entries] == [Internal, Internal]
