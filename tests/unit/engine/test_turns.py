"""Turns and visits: who runs when, how long, and what a failure does to the others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.engine.turns import SLICE_NS, VISIT_STEP_MS, Turns, Visited, Visits


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
