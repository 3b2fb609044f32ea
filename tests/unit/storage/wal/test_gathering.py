"""Turns that a sync is put off for: how many, for whom, and that they end."""

from __future__ import annotations

import errno

import pytest

from headrace.core.errors import Internal
from headrace.core.runtime import StepRuntime
from headrace.storage.wal.gathering import IDLE_TURNS, TURNS_MAX, Gathering
from tests.support.wal_logs import LateNewsRuntime, Log, numbers, survivors, switched


def begun_after(*joins: bool) -> int | None:
    """How many turns until it begins, if these bring more; None: it has not begun by then."""
    runtime = StepRuntime()
    begun: list[int] = []
    gathering = Gathering(runtime, lambda: begun.append(1))
    gathering.open()
    for turn, joined in enumerate(joins, 1):
        if joined:
            gathering.join()
        assert runtime.step()
        if begun:
            assert not gathering.is_open and not runtime.step()
            return turn
    assert gathering.is_open
    return None


@pytest.mark.parametrize(
    ("joins", "turns"),
    [
        ((False,) * 9, IDLE_TURNS),
        ((True, False, False), 1 + IDLE_TURNS),
        ((False, True, False, True, False, False), 6),
        ((False, True) * 9, TURNS_MAX),
        ((True,) * 20, TURNS_MAX),
        ((False, True, False), None),
    ],
)
def test_it_begins_when_turns_in_a_row_brought_nothing_or_after_a_number_of_them(
    joins: tuple[bool, ...], turns: int | None
) -> None:
    assert begun_after(*joins) == turns


def test_one_that_was_ended_begins_nothing_and_can_be_opened_again() -> None:
    runtime = StepRuntime()
    begun: list[int] = []
    gathering = Gathering(runtime, lambda: begun.append(1))
    gathering.open()
    gathering.end()
    gathering.open()
    for _ in range(IDLE_TURNS):
        assert not begun
        runtime.step()  # asked for by the one that was ended, or by the other
    assert gathering.is_open and not begun
    runtime.run()
    assert begun == [1]


# In a log


def test_commits_of_turns_in_a_row_share_a_sync() -> None:
    log = Log(runtime=LateNewsRuntime)
    syncs = log.shard.syncs_total
    entries = [log.turn(sync=True) for _ in range(TURNS_MAX - IDLE_TURNS)]
    assert not any(entry.settled for entry in entries)
    log.run()
    assert log.shard.syncs_total - syncs == 1
    assert log.settled == [entry.number for entry in entries] == survivors(log)


def test_commits_that_never_stop_coming_do_not_hold_up_the_first() -> None:
    log = Log()
    entries = [log.turn(sync=True) for _ in range(4 * TURNS_MAX)]
    assert entries[0].settled and entries[TURNS_MAX].settled


def test_commits_that_need_no_sync_do_not_hold_one_up() -> None:
    log = Log()
    first = log.stage(sync=True)
    log.shard.flush()
    log.runtime.step()  # a flush that finds nothing
    for _ in range(IDLE_TURNS):
        assert not log.shard.syncs.running
        log.turn(sync=False)
    assert log.shard.syncs.running
    log.run()
    assert first.settled


class PunctualRuntime(StepRuntime):
    """Timers do not wait until nothing else is to be done."""

    def step(self) -> bool:
        thunk = self._timers.pop_due()
        if thunk is None:
            return super().step()
        thunk()
        return True


def test_a_sync_that_was_put_off_and_comes_first_serves_those_who_gather() -> None:
    log = Log(runtime=PunctualRuntime)
    log.stage()
    log.run()
    syncs = log.shard.syncs_total
    entry = log.stage(sync=True)
    log.shard.flush()
    log.clock.advance(50)
    log.run()
    assert entry.settled and log.shard.syncs_total - syncs == 1
    later = log.stage(sync=True)
    log.run()
    assert later.settled and numbers(log.disk) == [0, 1, 2]


def test_a_failed_sync_fails_all_who_gathered() -> None:
    log, switch, _ = switched("sync_data", errno.EIO)
    switch.on = True
    entries = [log.turn(sync=True) for _ in range(3)]
    log.run()
    assert [type(entry.error) for entry in entries] == [Internal] * 3


def test_a_log_that_is_closed_while_commits_gather_syncs_them() -> None:
    log = Log()
    entry = log.stage(sync=True)
    log.shard.flush()
    assert not entry.settled
    log.shard.close()
    assert entry.settled and survivors(log) == [0]
    syncs = log.shard.syncs_total
    log.runtime.run()
    assert log.shard.syncs_total == syncs, "a closed log is left alone"
