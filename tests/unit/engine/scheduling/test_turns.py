"""Turns and visits: who runs when, how long, and what a failure does to the others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.engine.scheduling.bands import AGE_CAP_MS, TOP, WEIGHTS
from headrace.engine.scheduling.turns import (
    SLICE_NS,
    UNRANKED_MAX,
    VISIT_STEP_MS,
    WAIT_NS_MAX,
    Turns,
    Visited,
    Visits,
)


class Worker(Visited):
    """A job that does what it is told."""

    __slots__ = ("do", "failed", "steps", "visited_at")

    def __init__(self, do: Callable[[Worker], bool]) -> None:
        super().__init__()
        self.do = do
        self.steps = 0
        self.failed = False
        self.visited_at: list[int] = []

    def step(self) -> bool:
        self.steps += 1
        return self.do(self)

    def visit(self, now_ms: int) -> int | None:
        self.visited_at.append(now_ms)
        return now_ms + 1_000 if self.do(self) else None

    def broken(self) -> None:
        self.failed = True


def started() -> tuple[ManualClock, StepRuntime, Turns, list[str]]:
    clock = ManualClock()
    runtime = StepRuntime(clock)
    idle: list[str] = []
    return clock, runtime, Turns(runtime, lambda: idle.append("idle")), idle


def test_jobs_take_turns() -> None:
    _, runtime, turns, idle = started()
    order: list[str] = []
    for name in "ab":

        def do(worker: Worker, name: str = name) -> bool:
            order.append(name)
            return worker.steps < 3

        turns.enqueue(Worker(do))
    runtime.run()
    assert order == ["a", "b"] * 3
    assert idle == ["idle"]


def test_a_job_is_queued_once() -> None:
    _, runtime, turns, _ = started()
    worker = Worker(lambda _: False)
    turns.enqueue(worker)
    turns.enqueue(worker)
    runtime.run()
    assert worker.steps == 1
    turns.enqueue(worker)
    runtime.run()
    assert worker.steps == 2


def test_a_turn_ends_when_its_time_is_over() -> None:
    clock, runtime, turns, _ = started()

    def slow(worker: Worker) -> bool:
        clock._monotonic_ns += SLICE_NS // 4
        return worker.steps < 12

    worker = Worker(slow)
    turns.enqueue(worker)
    steps = []
    while runtime.step():
        steps.append(worker.steps)
    assert steps == [4, 8, 12]


def test_what_was_asked_for_meanwhile_comes_between_the_slices() -> None:
    clock, runtime, turns, _ = started()
    order: list[str] = []

    def slow(worker: Worker) -> bool:
        order.append("slice")
        clock._monotonic_ns += SLICE_NS
        runtime.soon(lambda: order.append("other"))
        return worker.steps < 3

    turns.enqueue(Worker(slow))
    runtime.run()
    assert order == ["slice", "other"] * 3


def test_writes_shorten_a_turn() -> None:
    _, runtime, turns, _ = started()

    def write(worker: Worker) -> bool:
        turns.wrote()
        return worker.steps < 1_000

    worker = Worker(write)
    turns.enqueue(worker)
    runtime.step()
    assert 50 < worker.steps < 300


def test_a_job_that_fails_is_told_and_the_others_go_on() -> None:
    _, runtime, turns, _ = started()

    def fail(_worker: Worker) -> bool:
        raise RuntimeError("broken on purpose")

    bad, good = Worker(fail), Worker(lambda worker: worker.steps < 5)
    turns.enqueue(bad)
    turns.enqueue(good)
    runtime.run()
    assert (bad.failed, bad.steps) == (True, 1)
    assert (good.failed, good.steps) == (False, 5)


def later(clock: ManualClock, runtime: StepRuntime, ms: int) -> None:
    for _ in range(ms // 10):
        clock.advance(10)
        runtime.run()


def test_visits_come_when_they_are_due() -> None:
    clock, runtime, turns, _ = started()
    visits = Visits(turns)
    worker = Worker(lambda _: True)
    visits.add(worker, 500)
    later(clock, runtime, 400)
    assert worker.visited_at == []
    later(clock, runtime, 3_000)
    assert len(worker.visited_at) == 3
    first, second, third = worker.visited_at
    assert 500 - VISIT_STEP_MS <= first <= 500
    assert 1_000 - VISIT_STEP_MS <= second - first <= 1_000
    assert third > second


def test_an_earlier_visit_is_not_held_up_by_a_later_one() -> None:
    clock, runtime, turns, _ = started()
    visits = Visits(turns)
    late, early = Worker(lambda _: False), Worker(lambda _: False)
    visits.add(late, 60_000)
    visits.add(early, 100)
    later(clock, runtime, 200)
    assert (len(early.visited_at), len(late.visited_at)) == (1, 0)
    later(clock, runtime, 60_000)
    assert (len(early.visited_at), len(late.visited_at)) == (1, 1)
    assert not visits._steps and not visits._timers


def test_a_visit_that_was_due_long_ago_comes_next() -> None:
    clock, runtime, turns, _ = started()
    clock.advance(10_000)
    visits = Visits(turns)
    worker = Worker(lambda _: False)
    visits.add(worker, 5)
    later(clock, runtime, 2 * VISIT_STEP_MS)
    assert len(worker.visited_at) == 1


def test_a_visit_that_fails_is_told_and_the_others_are_made() -> None:
    clock, runtime, turns, _ = started()
    visits = Visits(turns)

    def fail(_worker: Worker) -> bool:
        raise RuntimeError("broken on purpose")

    workers = [Worker(lambda _: False), Worker(fail), Worker(lambda _: False)]
    for worker in workers:
        visits.add(worker, 100)
    later(clock, runtime, 200)
    assert [worker.failed for worker in workers] == [False, True, False]
    assert [len(worker.visited_at) for worker in workers] == [1, 1, 1]


def test_many_visits_at_once_do_not_keep_the_loop() -> None:
    clock, runtime, turns, _ = started()
    visits = Visits(turns)

    def slow(_worker: Worker) -> bool:
        clock._monotonic_ns += SLICE_NS // 10
        return False

    workers = [Worker(slow) for _ in range(100)]
    for worker in workers:
        visits.add(worker, 100)
    clock.advance(100)
    seen = [0]
    while runtime.step():
        seen.append(sum(len(worker.visited_at) for worker in workers))
    assert seen[-1] == 100
    assert max(b - a for a, b in pairwise(seen)) <= 11


# By rank


class Ranked(Worker):
    """A job with a priority."""

    __slots__ = ("rank",)

    def __init__(self, rank: int, do: Callable[[Worker], bool]) -> None:
        super().__init__(do)
        self.rank = rank

    @property
    def priority(self) -> int:
        return self.rank


def noting(order: list[int], clock: ManualClock | None = None) -> Callable[[Worker], bool]:
    """Notes the rank of who is served; with a clock each service takes a millisecond."""

    def do(worker: Worker) -> bool:
        assert isinstance(worker, Ranked)
        order.append(worker.rank)
        if clock is not None:
            clock.advance(1)
        return False

    return do


def test_few_jobs_are_done_in_the_order_in_which_they_asked() -> None:
    _, runtime, turns, _ = started()
    order: list[int] = []
    for rank in (0, 900, -5, 500):
        turns.enqueue(Ranked(rank, noting(order)))
    runtime.run()
    assert order == [0, 900, -5, 500]
    assert turns.unranked_total == 4 and sum(turns.bands.served_total) == 0


def test_many_jobs_are_served_by_rank() -> None:
    _, runtime, turns, _ = started()
    order: list[int] = []
    for _ in range(UNRANKED_MAX):
        turns.enqueue(Ranked(0, noting(order)))
        turns.enqueue(Ranked(900, noting(order)))
    runtime.run()
    assert order[: WEIGHTS[TOP]] == [900] * WEIGHTS[TOP]
    assert order[WEIGHTS[TOP]] == 0, "and nobody starves"
    assert sorted(order) == [0] * UNRANKED_MAX + [900] * UNRANKED_MAX


def test_what_a_slice_leaves_over_is_ranked_with_what_comes() -> None:
    clock, runtime, turns, _ = started()
    order: list[int] = []
    for _ in range(4):
        turns.enqueue(Ranked(0, noting(order, clock)))
    runtime.step()
    assert order == [0], "its service took the whole slice"
    turns.enqueue(Ranked(900, noting(order, clock)))
    runtime.run()
    assert order == [0, 900, 0, 0, 0]


def test_a_job_that_is_held_waits_without_keeping_the_loop_busy() -> None:
    _, runtime, turns, idle = started()
    order: list[int] = []
    turns.defer(True)
    turns.enqueue(Ranked(-1, noting(order)))
    turns.enqueue(Ranked(0, noting(order)))
    runtime.run()
    assert order == [0] and idle == ["idle"]
    assert turns.depth == 0, "what is held is no load"
    turns.defer(False)
    runtime.run()
    assert order == [0, -1]


def test_to_hold_jobs_back_is_no_reason_to_hold_them_back() -> None:
    clock, runtime, turns, _ = started()
    turns.defer(True)
    turns.enqueue(Ranked(-1, noting([])))
    runtime.run()
    turns.mean_wait_ns()
    clock.advance(5_000)
    turns.defer(False)
    runtime.run()
    assert turns.mean_wait_ns() == 0
    turns.defer(True)
    turns.enqueue(Ranked(-1, noting([])))
    runtime.run()
    clock.advance(AGE_CAP_MS)
    turns.look_after_held()
    runtime.run()
    assert turns.mean_wait_ns() == 0


def test_g2_a_job_that_is_asked_for_all_the_time_still_ages() -> None:
    clock, runtime, turns, _ = started()
    order: list[int] = []
    turns.defer(True)
    low = Ranked(-1, noting(order))
    for _ in range(AGE_CAP_MS // 100):
        turns.enqueue(low)
        turns.wake(low)
        turns.look_after_held()
        runtime.run()
        assert order == []
        clock.advance(100)
    turns.look_after_held()
    runtime.run()
    assert order == [-1]


class Heard(Ranked):
    """A job that notes when it is told that it has to wait."""

    __slots__ = ("told",)

    def __init__(self, rank: int, do: Callable[[Worker], bool]) -> None:
        super().__init__(rank, do)
        self.told: list[int] = []

    def held(self, ms_max: int) -> None:
        self.told.append(ms_max)
        if self.do is broken:
            raise RuntimeError("broken on purpose")


def broken(_worker: Worker) -> bool:
    raise AssertionError("never served")


def test_who_is_held_is_told_once_for_each_wait() -> None:
    clock, runtime, turns, _ = started()
    turns.defer(True)
    job = Heard(-1, noting([]))
    turns.enqueue(job)
    runtime.run()
    turns.look_after_held()
    turns.look_after_held()
    assert job.told == [AGE_CAP_MS]
    clock.advance(AGE_CAP_MS)
    # It is served between two looks, and held again before the next one.
    turns.enqueue(Ranked(0, noting([])))
    runtime.run()
    assert job.steps == 1
    turns.enqueue(job)
    runtime.run()
    turns.look_after_held()
    assert job.told == [AGE_CAP_MS, AGE_CAP_MS]


def test_who_fails_when_he_is_told_keeps_nobody_from_hearing() -> None:
    _, runtime, turns, _ = started()
    turns.defer(True)
    bad, good = Heard(-1, broken), Heard(-1, noting([]))
    for job in (bad, good):
        turns.enqueue(job)
    runtime.run()
    turns.look_after_held()
    assert (bad.failed, good.failed) == (True, False)
    assert good.told == [AGE_CAP_MS]


def test_waits_are_measured_and_bounded() -> None:
    clock, runtime, turns, _ = started()
    turns.enqueue(Ranked(0, noting([])))
    clock.advance(3)
    runtime.run()
    assert turns.mean_wait_ns() == 3_000_000
    assert turns.mean_wait_ns() == 0, "since it was asked for the last time"
    turns.enqueue(Ranked(0, noting([])))
    clock.advance(10_000)
    runtime.run()
    assert turns.mean_wait_ns() == WAIT_NS_MAX


def test_a_wake_waits_for_others_only_under_pressure() -> None:
    clock, runtime, turns, _ = started()
    order: list[int] = []
    job = Ranked(0, noting(order))
    turns.wake(job)
    runtime.run()
    assert order == [0]
    turns.coalesce_ms = 5
    for _ in range(3):
        turns.wake(job)
        turns.enqueue(job)
        runtime.run()
    assert order == [0]
    clock.advance(5)
    runtime.run()
    assert order == [0, 0] and turns.coalesced_total == 1
    assert not job.queued
