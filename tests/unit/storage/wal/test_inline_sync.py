"""Syncs that the loop does itself: for which commits, on which disks, and what failure means."""

from __future__ import annotations

import errno
from collections import deque

import pytest

from headrace.core.clock import NS_PER_MS
from headrace.core.errors import HeadraceError, Internal, NotReady
from headrace.storage.wal.frame import PAGE_BYTES
from headrace.storage.wal.syncing import (
    INLINE_BYTES_MAX,
    LANE_SYNCS_MAX,
    LANE_SYNCS_MIN,
    InlineChoice,
)
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.wal_logs import Entry, IdleRuntime, Log, numbers

BOUND_MS = 8
BOUND_US = BOUND_MS * 1_000


class IdleLog(Log):
    """A log whose loop has nothing else to do, on a disk that does as it is told."""

    def __init__(self, *, inline_sync_us_max: int = BOUND_US, file_bytes: int = 64 << 10) -> None:
        self.sync_ms = 0  # how long syncs take from now on
        self.raising: list[BaseException] = []  # by the next syncs
        self.sim = SimDisk()
        plan = FaultPlan(Fault("sync_data", 1, "call", forever=True, hook=self._syncing))
        super().__init__(
            FaultFilesystem(self.sim, plan),
            runtime=IdleRuntime,
            file_bytes=file_bytes,
            inline_sync_us_max=inline_sync_us_max,
        )

    def _syncing(self, _operation: str, path: str) -> None:
        if path.startswith("wal"):
            self.clock.advance(self.sync_ms)
            if self.raising:
                raise self.raising.pop()

    @property
    def answers(self) -> deque[bool]:
        """What the loop says next of whether it is idle."""
        assert isinstance(self.runtime, IdleRuntime)
        return self.runtime.answers

    def flushed(self, size: int = 100) -> Entry:
        """A lone durable commit after the end of its turn."""
        entry = self.stage(sync=True, size=size)
        self.shard.flush()
        return entry

    def survivors(self) -> list[int]:
        return numbers(self.sim.image(self.sim.position, "none", 0))


def quick_log(**given: int) -> IdleLog:
    """A log on a disk that is known to be quick."""
    log = IdleLog(**given)
    log.stage(sync=True)
    log.run()
    return log


# When


def test_a_lone_commit_is_synced_where_it_was_written() -> None:
    log = quick_log()
    since = log.sim.position
    entry = log.flushed()
    assert entry.settled and entry.error is None
    done = [(op.kind, op.path.partition("/")[0]) for op in log.sim.trace[since:]]
    assert done == [("write", "wal"), ("sync_data", "wal"), ("write", "meta")], "batch, sync, mark"
    assert log.survivors() == [0, 1] and log.shard.durable == log.shard.written
    assert (log.shard.syncs_total, log.shard.inline_syncs_total) == (2, 1)


def test_the_first_sync_is_the_lanes_as_nobody_knows_the_disk() -> None:
    log = IdleLog()
    assert not log.flushed().settled
    log.run()
    assert log.flushed().settled


def test_a_bound_of_zero_leaves_every_sync_to_the_lane() -> None:
    log = quick_log(inline_sync_us_max=0)
    for _ in range(20):
        assert not log.flushed().settled
        log.run()
    assert log.shard.inline_syncs_total == 0


def test_a_loop_with_something_else_to_do_does_not_sync() -> None:
    log = quick_log()
    log.answers.append(False)
    entry = log.flushed()
    assert not entry.settled
    log.run()
    assert entry.settled and log.shard.inline_syncs_total == 0
    assert log.flushed().settled, "nobody was held up, so the next may be tried at once"


def test_commits_that_come_together_are_a_group_of_the_lane() -> None:
    log = quick_log()
    pair = [log.stage(sync=True), log.stage(sync=True)]
    log.shard.flush()
    assert not any(entry.settled for entry in pair)
    log.begin_sync()
    late = log.stage(sync=True)
    log.run()
    assert log.settled == [0, 1, 2, 3] and late.settled
    assert log.shard.inline_syncs_total == 1, "the late one was alone again"


def test_who_needs_no_sync_does_not_wait_for_one() -> None:
    log = quick_log()
    plain, synced = log.stage(), log.stage(sync=True)
    log.shard.flush()
    assert plain.settled and not synced.settled
    log.run()
    assert synced.settled and log.shard.inline_syncs_total == 0


def test_a_lone_commit_on_a_slow_disk_waits_for_no_turn() -> None:
    log = quick_log(inline_sync_us_max=0)
    log.flushed()
    assert log.shard.syncs.running, "what comes now is for the next sync"
    log.run()
    log.stage()
    log.shard.flush()
    log.flushed()
    assert log.shard.syncs.running, "nor does one behind a sync that was put off"


def test_a_sync_that_was_put_off_is_hurried_in_the_lane() -> None:
    log = quick_log()
    log.stage()
    log.shard.flush()
    entry = log.flushed()
    assert not entry.settled
    log.run()
    assert entry.settled and log.shard.inline_syncs_total == 0


def test_a_window_holds_up_a_lone_commit_too() -> None:
    log = quick_log()
    log.shard.widen(5)
    entry = log.flushed()
    log.run(4)
    assert not entry.settled
    log.run(1)
    assert entry.settled and log.shard.inline_syncs_total == 0
    log.shard.widen(0)
    assert log.flushed().settled


@pytest.mark.parametrize("size", [INLINE_BYTES_MAX - 2 * PAGE_BYTES, INLINE_BYTES_MAX])
def test_many_bytes_are_synced_by_the_lane(size: int) -> None:
    log = quick_log(file_bytes=1 << 20)
    assert log.flushed(size).settled == (size < INLINE_BYTES_MAX)


def test_two_files_are_synced_by_the_lane() -> None:
    log = quick_log()
    assert log.flushed(30_000).settled
    entry = log.flushed(30_000)
    assert log.shard.rotations_total == 1 and not entry.settled
    log.run()
    assert entry.settled and log.flushed().settled
    assert log.survivors() == [0, 1, 2, 3]


def test_what_settling_stages_and_flushes_is_left_to_the_lane() -> None:
    """Those that are settled in the same turn would hear of it only after the sync."""
    log = quick_log()
    nested: list[Entry] = []

    class Restless(Entry):
        def settle(self, error: HeadraceError | None) -> None:
            super().settle(error)
            nested.append(log.flushed())

    entry = Restless(log, len(log.entries), False, 10)
    log.entries.append(entry)
    log.shard.stage(entry)
    last = log.stage()
    log.shard.flush()
    assert entry.settled and last.settled and not nested[0].settled
    log.run()
    assert nested[0].settled and log.settled == [0, 1, 2, 3]


# Slow disks and busy loops


def test_a_slow_sync_sends_the_next_ones_to_the_lane_until_they_are_quick() -> None:
    log = quick_log()
    log.sync_ms = 20 * BOUND_MS
    assert log.flushed().settled, "nobody could know"
    for _ in range(20):
        assert not log.flushed().settled
        log.run()
    log.sync_ms = 0
    lane = 0
    while not log.flushed().settled:
        log.run()
        lane += 1
    assert lane == 5, "so long the average is above the bound"


def test_after_each_slow_sync_the_lane_does_twice_as_many() -> None:
    log = quick_log(file_bytes=1 << 20)

    def slow_once() -> int:
        """How many the lane does after it."""
        log.sync_ms = 20 * BOUND_MS
        assert log.flushed().settled
        log.sync_ms = 0
        lane = 0
        while not log.flushed().settled:
            log.run()
            lane += 1
        return lane

    assert [slow_once() for _ in range(3)] == [LANE_SYNCS_MIN, LANE_SYNCS_MIN, LANE_SYNCS_MIN]
    choice = InlineChoice(1_000)
    choice.took(0)
    found = []
    for ns in (1_001, 1_001, 1_001, *[1_001] * 9, 0, 0, 1_001):
        choice.did(ns, held_up=False)
        lane = 0
        while not choice.may():
            choice.took(0)
            lane += 1
        found.append(lane)
    assert found[:3] == [LANE_SYNCS_MIN, 2 * LANE_SYNCS_MIN, 4 * LANE_SYNCS_MIN]
    assert found[11:] == [LANE_SYNCS_MAX, 0, 0, LANE_SYNCS_MAX // 4]


def test_after_a_sync_that_held_somebody_up_the_lane_does_many() -> None:
    log = quick_log()
    log.answers.extend((True, False))  # nothing before it, something after it
    assert log.flushed().settled
    for _ in range(LANE_SYNCS_MAX):
        assert not log.flushed().settled
        log.run()
    assert log.flushed().settled


def test_the_choice_goes_by_the_average() -> None:
    choice = InlineChoice(1_000)
    assert not choice.may()
    choice.took(999)
    assert choice.may()
    choice.took(1_100)
    assert not choice.may()
    for _ in range(100):
        choice.took(1_001)
        assert not choice.may(), "slower than the bound every time"
    never = InlineChoice(0)
    never.took(0)
    assert not never.may()


# Failure


def failing(*, inline: bool, raising: BaseException) -> tuple[IdleLog, Entry]:
    """A commit whose sync raised this."""
    log = quick_log(inline_sync_us_max=BOUND_US if inline else 0)
    log.raising.append(raising)
    entry = log.stage(sync=True)
    log.run()
    return log, entry


@pytest.mark.parametrize("raising", [OSError(errno.EIO, "injected"), MemoryError()])
@pytest.mark.parametrize("inline", [False, True])
def test_a_failed_sync_poisons_the_log_wherever_it_ran(
    raising: BaseException, inline: bool
) -> None:
    log, entry = failing(inline=inline, raising=raising)
    assert isinstance(entry.error, Internal) and entry.error.detail == {"outcome": "unknown"}
    assert log.shard.state == "wal_read_only" and log.shard.troubled
    assert log.shard.inline_syncs_total == inline
    since = log.sim.position
    late = [log.stage(sync=True), log.stage()]
    log.run(1_000)
    log.shard.hasten()
    log.run(1_000)
    assert all(isinstance(each.error, NotReady) for each in late)
    assert log.sim.position == since, "nothing is ever written again, and nothing synced"
    log.shard.close()


def test_both_ways_of_failing_say_the_same() -> None:
    said = []
    for inline in (False, True):
        log, entry = failing(inline=inline, raising=OSError(errno.EIO, "injected"))
        assert entry.error is not None
        refusal = log.shard.refusal()
        said.append((str(entry.error), entry.error.fix, str(refusal)))
    assert said[0] == said[1]


def test_a_signal_during_a_sync_leaves_nobody_without_an_answer() -> None:
    """Ctrl-C in a program that waits: what it waited for is synced all the same."""
    log = quick_log()
    log.raising.append(KeyboardInterrupt())
    entry = log.stage(sync=True)
    with pytest.raises(KeyboardInterrupt):
        log.run()
    assert not entry.settled
    log.run()
    assert entry.settled and entry.error is None
    assert log.flushed().settled


def test_the_times_of_a_sync_by_the_loop_are_counted() -> None:
    log = quick_log()
    log.sync_ms = 2
    assert log.flushed().settled
    assert log.shard.sync_ns == 2 * NS_PER_MS and log.shard.window_wait_ns == 0
    assert log.shard.syncs.micros.sum == 2_000
