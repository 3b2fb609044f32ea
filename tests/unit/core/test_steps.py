"""Steps: a `yield` is an answer, errors arrive where they are waited for, nothing is kept alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import HeadraceError, Throttled
from headrace.core.runtime import StepRuntime, Ticket
from headrace.core.steps import (
    Follow,
    Line,
    Steps,
    follow,
    follow_at_once,
    in_lane,
    pass_on,
    pause,
    turn_end,
)
from headrace.core.thread_runtime import ThreadRuntime

BOTH = pytest.mark.parametrize("run", [follow, follow_at_once])


class Refused(HeadraceError):
    pass


def refused(text: str = "no") -> Refused:
    return Refused(text, fix="ask for something else")


@pytest.fixture
def runtime() -> StepRuntime:
    return StepRuntime(ManualClock())


@pytest.fixture
def without_collector() -> Iterator[None]:
    """So that what a circle keeps alive is alive."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Big:
    """Something that must not outlive the steps that use it."""


# Answers


@BOTH
def test_a_yield_is_the_answer_of_its_ticket(run: Follow, runtime: StepRuntime) -> None:
    one, two = Ticket[int](runtime), Ticket[int](runtime)

    def steps() -> Steps[int]:
        first = yield one
        second = yield two
        return int(10 * first + second)

    whole = run(runtime, steps())
    one.resolve(4)
    runtime.run()
    assert not whole.done
    two.resolve(2)
    runtime.run()
    assert whole.result() == 42


@BOTH
def test_steps_without_a_wait_are_done_at_once(run: Follow, runtime: StepRuntime) -> None:
    def steps() -> Steps[str]:
        return "done"
        yield

    assert run(runtime, steps()).done


@BOTH
def test_the_ticket_can_be_given(run: Follow, runtime: StepRuntime) -> None:
    mine = Ticket[int](runtime)

    def steps() -> Steps[int]:
        yield turn_end(runtime)
        return 1

    assert run(runtime, steps(), mine) is mine
    runtime.run()
    assert mine.result() == 1


@BOTH
def test_steps_within_steps(run: Follow, runtime: StepRuntime) -> None:
    def inner(value: int) -> Steps[int]:
        yield turn_end(runtime)
        if not value:
            raise refused()
        return value + 1

    def outer() -> Steps[int]:
        value = yield from inner(1)
        try:
            yield from inner(0)
        except Refused:
            value += 1
        return value

    assert run(runtime, outer()).result() == 3


def test_one_goes_on_when_the_turn_ends_the_other_within_the_call(runtime: StepRuntime) -> None:
    seen: list[str] = []

    def steps(name: str, ticket: Ticket[None]) -> Steps[None]:
        yield ticket
        seen.append(name)

    ticket = Ticket[None](runtime)
    follow(runtime, steps("later", ticket))
    follow_at_once(runtime, steps("at once", ticket))
    ticket.resolve(None)
    assert seen == ["at once"]
    runtime.step()
    assert seen == ["at once", "later"]


@BOTH
def test_any_number_of_answers_that_are_there_costs_no_stack(
    run: Follow, runtime: StepRuntime
) -> None:
    ready = Ticket[int](runtime)
    ready.resolve(1)

    def steps() -> Steps[int]:
        total = 0
        for _ in range(20_000):
            total += yield ready
        return total

    assert run(runtime, steps()).result() == 20_000


# Failures


@BOTH
def test_a_failure_is_raised_at_the_yield_and_can_be_handled(
    run: Follow, runtime: StepRuntime
) -> None:
    ticket = Ticket[int](runtime)

    def steps() -> Steps[str]:
        try:
            yield ticket
        except Refused as error:
            yield turn_end(runtime)
            return str(error)
        return "?"

    whole = run(runtime, steps())
    ticket.fail(refused("full"))
    assert "full" in whole.result()


@BOTH
def test_what_is_not_handled_is_the_error_of_the_ticket(run: Follow, runtime: StepRuntime) -> None:
    error = refused()
    ticket = Ticket[int](runtime)

    def steps() -> Steps[None]:
        yield ticket

    whole = run(runtime, steps())
    ticket.fail(error)
    runtime.run()
    assert whole.error is error


def test_a_bug_is_heard_by_those_who_wait_and_by_the_loop(runtime: StepRuntime) -> None:
    ticket = Ticket[int](runtime)

    def steps() -> Steps[None]:
        yield ticket
        raise KeyError("a bug")

    whole = follow_at_once(runtime, steps())
    with pytest.raises(KeyError):
        ticket.resolve(1)
    assert isinstance(whole.error, KeyError)
    trace = whole.error.__traceback__
    assert trace is not None, "says where it happened"


def test_a_bug_of_steps_that_others_follow_is_their_tickets_error(runtime: StepRuntime) -> None:
    def steps() -> Steps[None]:
        yield turn_end(runtime)
        raise KeyError("a bug")

    whole = follow(runtime, steps())
    runtime.run()
    assert isinstance(whole.error, KeyError)


def test_what_stands_for_the_end_of_the_process_is_not_caught(runtime: StepRuntime) -> None:
    class Killed(BaseException):
        pass

    def steps() -> Steps[None]:
        yield turn_end(runtime)
        raise Killed

    whole = follow_at_once(runtime, steps())
    with pytest.raises(Killed):
        runtime.run()
    assert not whole.done


# Lanes and time


@BOTH
def test_work_in_a_lane(run: Follow, runtime: StepRuntime) -> None:
    def steps() -> Steps[list[object]]:
        found: list[object] = [(yield in_lane(runtime, "lane", lambda: 7))]
        try:
            yield in_lane(runtime, "lane", lambda: 1 // 0)
        except ZeroDivisionError as error:
            found.append(str(error))
        return found

    assert run(runtime, steps()).result() == [7, "integer division or modulo by zero"]


def test_work_in_a_lane_runs_in_another_thread() -> None:
    runtime = ThreadRuntime()

    def thread() -> str:
        import threading

        return threading.current_thread().name

    def steps() -> Steps[tuple[str, str]]:
        there = yield in_lane(runtime, "lane", thread)
        return there, thread()

    there, here = follow_at_once(runtime, steps()).result()
    assert there == "headrace-lane" and here != there
    runtime.close()


def test_a_pause(runtime: StepRuntime) -> None:
    clock = runtime.clock
    assert isinstance(clock, ManualClock)

    def steps() -> Steps[str]:
        yield pause(runtime, 50)
        return "after"

    whole = follow_at_once(runtime, steps())
    clock.advance(49)
    runtime.run()
    assert not whole.done
    clock.advance(1)
    runtime.run()
    assert whole.result() == "after"


# What stays alive


@BOTH
def test_an_error_does_not_keep_what_the_steps_used(
    run: Follow, runtime: StepRuntime, without_collector: None
) -> None:
    """Neither one that was thrown in, nor one that they raise themselves; without the collector."""

    def steps(ticket: Ticket[None], error: BaseException | None) -> Steps[None]:
        big = Big()
        alive.append(weakref.ref(big))
        yield ticket
        if error is not None:
            raise error
        del big

    for own in (None, refused("own"), OSError(5, "EIO")):
        alive: list[weakref.ref[Big]] = []
        ticket = Ticket[None](runtime)
        whole = run(runtime, steps(ticket, own))
        if own is None:
            ticket.fail(refused("of a sync"))
        else:
            ticket.resolve(None)
        runtime.run()
        assert whole.error is not None
        assert alive[0]() is None, own


def test_an_error_that_many_get_does_not_grow(runtime: StepRuntime) -> None:
    """As when a sync fails that a thousand wait for."""
    error = refused()

    def depth() -> int:
        trace, count = error.__traceback__, 0
        while trace is not None:
            trace, count = trace.tb_next, count + 1
        return count

    def steps(handled: bool) -> Steps[None]:
        ticket = Ticket[None](runtime)
        ticket.fail(error)
        try:
            yield ticket
        except Refused:
            if not handled:
                raise
        yield turn_end(runtime)

    for handled in (True, False) * 100:
        follow_at_once(runtime, steps(handled))
    runtime.run()
    assert depth() == 0


def test_steps_that_are_dropped_are_closed(runtime: StepRuntime, without_collector: None) -> None:
    seen: list[str] = []

    def steps() -> Steps[None]:
        try:
            yield turn_end(runtime)
        except Exception:  # noqa: BLE001 - what it would do then must not happen here
            seen.append("an error")
        except GeneratorExit:
            seen.append("dropped")
            raise

    whole = follow_at_once(runtime, steps())
    runtime.close()
    assert seen == ["dropped"] and not whole.done


# One after the other


@BOTH
def test_a_line_runs_them_in_order(run: Follow, runtime: StepRuntime) -> None:
    line = Line(runtime, run)
    seen: list[str] = []

    def steps(name: str) -> Steps[str]:
        seen.append(f"{name} begins")
        yield turn_end(runtime)
        seen.append(f"{name} ends")
        if name == "b":
            raise refused()
        return name

    tickets = [line.run(steps(name)) for name in "abc"]
    assert line.busy and seen == ["a begins"]
    runtime.run()
    assert seen == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
    assert not line.busy
    assert [ticket.error is None for ticket in tickets] == [True, False, True]


def test_the_next_ones_begin_before_the_last_ones_are_answered(runtime: StepRuntime) -> None:
    line = Line(runtime, follow_at_once)
    seen: list[str] = []

    def steps(name: str) -> Steps[None]:
        seen.append(name)
        yield turn_end(runtime)

    line.run(steps("a")).when_done(lambda _: seen.append("a answered"))
    line.run(steps("b")).when_done(lambda _: seen.append("b answered"))
    runtime.run()
    assert seen == ["a", "b", "a answered", "b answered"]


@BOTH
def test_a_long_line_costs_no_stack(run: Follow, runtime: StepRuntime) -> None:
    line = Line(runtime, run)
    first = Ticket[None](runtime)

    def wait() -> Steps[None]:
        yield first

    def steps(number: int) -> Steps[int]:
        return number
        yield

    line.run(wait())
    tickets = [line.run(steps(number)) for number in range(5_000)]
    first.resolve(None)
    runtime.run()
    assert [ticket.result() for ticket in tickets] == list(range(5_000))


def test_a_bug_does_not_stop_the_line(runtime: StepRuntime) -> None:
    line = Line(runtime, follow_at_once)

    def steps(bug: bool) -> Steps[str]:
        yield turn_end(runtime)
        if bug:
            raise KeyError("a bug")
        return "done"

    tickets = [line.run(steps(bug)) for bug in (True, False)]
    with pytest.raises(KeyError):
        runtime.run()
    runtime.run()
    assert isinstance(tickets[0].error, KeyError) and tickets[1].result() == "done"


def test_a_line_is_bounded(runtime: StepRuntime) -> None:
    line = Line(runtime, waiting_max=2, what="changes")
    begun: list[int] = []

    def steps(number: int) -> Steps[None]:
        begun.append(number)
        yield turn_end(runtime)

    tickets = [line.run(steps(number)) for number in range(4)]
    assert isinstance(tickets[3].error, Throttled) and "2 changes wait" in str(tickets[3].error)
    runtime.run()
    assert begun == [0, 1, 2]


def test_a_ticket_is_answered_as_another_was(runtime: StepRuntime) -> None:
    def both(answer: Callable[[Ticket[Any]], None]) -> Ticket[Any]:
        done, to = Ticket[Any](runtime), Ticket[Any](runtime)
        answer(done)
        pass_on(done, to)
        return to

    error = refused()
    assert both(lambda ticket: ticket.resolve(3)).result() == 3
    assert both(lambda ticket: ticket.fail(error)).error is error
