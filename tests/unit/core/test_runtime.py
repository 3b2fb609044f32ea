"""The runtime seam: turns, lanes, timers and tickets, in each of the three runtimes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest

from headrace.core.clock import ManualClock, SystemClock
from headrace.core.runtime import StepRuntime, Ticket
from headrace.core.thread_runtime import LoopRuntime, ThreadRuntime

# Tickets


def test_a_ticket_gives_its_answer_or_its_error() -> None:
    runtime = StepRuntime()
    good, bad = Ticket[int](runtime), Ticket[int](runtime)
    assert not good.done and good.error is None
    good.resolve(7)
    bad.fail(ValueError("no"))
    assert good.done and good.result() == 7
    assert bad.done and isinstance(bad.error, ValueError)
    with pytest.raises(ValueError, match="no"):
        bad.result()


def test_a_ticket_is_answered_once() -> None:
    ticket = Ticket[int](StepRuntime())
    ticket.resolve(1)
    with pytest.raises(AssertionError):
        ticket.resolve(2)
    with pytest.raises(AssertionError):
        ticket.fail(ValueError())
    assert ticket.result() == 1


def test_callbacks_run_in_order_and_at_once_when_it_is_late() -> None:
    ticket = Ticket[int](StepRuntime())
    seen: list[str] = []
    ticket.when_done(lambda _: seen.append("a"))
    ticket.when_done(lambda _: seen.append("b"))
    assert seen == []
    ticket.resolve(1)
    ticket.when_done(lambda done: seen.append(f"late {done.result()}"))
    assert seen == ["a", "b", "late 1"]


# StepRuntime


def test_steps_run_in_the_order_they_were_asked_for() -> None:
    runtime = StepRuntime(ManualClock())
    seen: list[object] = []
    runtime.soon(lambda: seen.append("soon"))
    runtime.submit("lane", lambda: 1, lambda value, error: seen.append((value, error)))
    runtime.soon(lambda: seen.append("last"))
    assert runtime.step() and seen == ["soon"]
    runtime.run()
    assert seen == ["soon", (1, None), "last"]
    assert not runtime.step()


def test_a_step_may_ask_for_more() -> None:
    runtime = StepRuntime(ManualClock())
    seen: list[int] = []

    def again(n: int) -> None:
        seen.append(n)
        if n:
            runtime.soon(lambda: again(n - 1))

    again(3)
    runtime.run()
    assert seen == [3, 2, 1, 0]


def test_timers_fire_when_they_are_due_in_order() -> None:
    clock = ManualClock()
    runtime = StepRuntime(clock)
    seen: list[str] = []
    runtime.later(20, lambda: seen.append("20"))
    runtime.later(10, lambda: seen.append("10 a"))
    runtime.later(10, lambda: seen.append("10 b"))
    runtime.later(0, lambda: seen.append("0"))
    runtime.run()
    assert seen == ["0"]
    clock.advance(9)
    runtime.run()
    assert seen == ["0"]
    clock.advance(11)
    runtime.run()
    assert seen == ["0", "10 a", "10 b", "20"]


def test_timers_ignore_the_wall_clock() -> None:
    clock = ManualClock()
    runtime = StepRuntime(clock)
    seen: list[int] = []
    runtime.later(10, lambda: seen.append(1))
    clock.jump(3_600_000)
    runtime.run()
    assert seen == []
    clock.jump(-7_200_000)
    clock.advance(10)
    runtime.run()
    assert seen == [1]


def test_work_that_raises_tells_its_caller() -> None:
    runtime = StepRuntime()
    seen: list[BaseException | None] = []

    def fail() -> object:
        raise OSError("disk")

    runtime.submit("lane", fail, lambda _, error: seen.append(error))
    runtime.run()
    assert isinstance(seen[0], OSError)


def test_a_delayed_submit_can_be_hurried_and_runs_once() -> None:
    clock = ManualClock()
    runtime = StepRuntime(clock)
    seen: list[object] = []
    hurry = runtime.submit_after(50, "lane", lambda: "done", lambda value, _: seen.append(value))
    runtime.run()
    assert seen == []
    hurry()
    hurry()
    runtime.run()
    clock.advance(100)
    runtime.run()
    assert seen == ["done"]


def test_waiting_for_nothing_is_noticed() -> None:
    runtime = StepRuntime(ManualClock())
    with pytest.raises(AssertionError, match="lost wake-up"):
        Ticket[int](runtime).result()


def test_waiting_runs_no_further_than_needed() -> None:
    runtime = StepRuntime(ManualClock())
    ticket = Ticket[int](runtime)
    seen: list[int] = []
    runtime.soon(lambda: ticket.resolve(5))
    runtime.soon(lambda: seen.append(1))
    assert ticket.result() == 5 and seen == []
    runtime.drain()
    assert seen == [1]


def test_a_closed_runtime_forgets_what_was_ready() -> None:
    runtime = StepRuntime(ManualClock())
    seen: list[int] = []
    runtime.soon(lambda: seen.append(1))
    runtime.close()
    runtime.run()
    assert seen == []


# ThreadRuntime


@pytest.fixture
def threads() -> ThreadRuntime:
    return ThreadRuntime(threads={"pool": 4})


def answered(runtime: ThreadRuntime, work: Callable[[], object], lane: str = "a") -> Ticket[object]:
    ticket: Ticket[object] = Ticket(runtime)

    def done(value: object, error: BaseException | None) -> None:
        if error is not None:
            ticket.fail(error)
        else:
            ticket.resolve(value)

    runtime.submit(lane, work, done)
    return ticket


def test_work_runs_elsewhere_and_is_answered_here(threads: ThreadRuntime) -> None:
    where: list[int] = []
    ticket = answered(threads, threading.get_ident)
    ticket.when_done(lambda _: where.append(threading.get_ident()))
    assert ticket.result() != threading.get_ident()
    assert where == [threading.get_ident()]
    threads.close()


def test_nothing_is_answered_until_the_caller_calls_in(threads: ThreadRuntime) -> None:
    started = threading.Event()
    ticket = answered(threads, started.set)
    assert started.wait(10)
    assert not ticket.done
    ticket.result()
    threads.close()


def test_jobs_of_a_lane_run_in_order_and_lanes_side_by_side(threads: ThreadRuntime) -> None:
    gate = threading.Event()
    order: list[str] = []
    first = answered(threads, lambda: (gate.wait(10), order.append("first")))
    second = answered(threads, lambda: order.append("second"))
    other = answered(threads, lambda: order.append("other"), "b")
    other.result()
    assert order == ["other"] and not first.done
    gate.set()
    second.result()
    assert first.done and order == ["other", "first", "second"]
    threads.close()


def test_a_lane_may_have_several_threads(threads: ThreadRuntime) -> None:
    barrier = threading.Barrier(4)
    tickets = [answered(threads, lambda: barrier.wait(10), "pool") for _ in range(4)]
    assert sorted(t.result() for t in tickets) == [0, 1, 2, 3]  # type: ignore[type-var]
    threads.close()


def test_an_error_crosses_the_threads(threads: ThreadRuntime) -> None:
    def fail() -> object:
        raise KeyError("x")

    with pytest.raises(KeyError):
        answered(threads, fail).result()
    threads.close()


def test_drain_waits_for_every_lane_and_what_follows(threads: ThreadRuntime) -> None:
    seen: list[str] = []
    gate = threading.Event()

    def done(_value: object, _error: BaseException | None) -> None:
        seen.append("first")
        threads.submit("b", lambda: None, lambda *_: seen.append("second"))

    threads.submit("a", lambda: gate.wait(10), done)
    threading.Timer(0.01, gate.set).start()
    threads.drain()
    assert seen == ["first", "second"]
    threads.close()


def test_timers_of_the_thread_runtime_run_while_somebody_waits() -> None:
    runtime = ThreadRuntime(SystemClock())
    ticket = Ticket[str](runtime)
    runtime.later(5, lambda: ticket.resolve("due"))
    assert ticket.result() == "due"
    runtime.close()


def test_a_delayed_submit_of_the_thread_runtime_can_be_hurried() -> None:
    runtime = ThreadRuntime(SystemClock())
    ticket = Ticket[object](runtime)
    hurry = runtime.submit_after(
        600_000, "a", lambda: "now", lambda value, _: ticket.resolve(value)
    )
    hurry()
    assert ticket.result() == "now"
    runtime.close()


def test_the_thread_runtime_is_idle_without_steps(threads: ThreadRuntime) -> None:
    assert threads.idle()
    threads.soon(lambda: None)
    assert not threads.idle()
    threads.run()
    assert threads.idle()
    threads.close()


# LoopRuntime


def test_tickets_are_awaited_in_a_loop() -> None:
    async def main() -> list[object]:
        runtime = LoopRuntime()
        value = await answered(runtime, lambda: 5)
        soon: Ticket[str] = Ticket(runtime)
        runtime.soon(lambda: soon.resolve("soon"))
        later: Ticket[str] = Ticket(runtime)
        runtime.later(1, lambda: later.resolve("later"))
        found = [value, await soon, await later, await soon]
        with pytest.raises(KeyError):
            await answered(runtime, lambda: {}["missing"])
        runtime.close()
        return found

    assert asyncio.run(main()) == [5, "soon", "later", "soon"]


def test_many_tasks_may_await_one_ticket() -> None:
    async def main() -> list[int]:
        runtime = LoopRuntime()
        ticket: Ticket[int] = Ticket(runtime)

        async def wait() -> int:
            return await ticket

        tasks = [asyncio.create_task(wait()) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        runtime.soon(lambda: ticket.resolve(3))
        found = await asyncio.gather(*tasks[1:])
        runtime.close()
        return found

    assert asyncio.run(main()) == [3, 3, 3, 3]


def test_blocking_inside_a_loop_is_refused() -> None:
    async def main() -> None:
        runtime = LoopRuntime()
        with pytest.raises(RuntimeError, match="await"):
            Ticket[int](runtime).result()
        runtime.close()

    asyncio.run(main())


def test_the_loop_gets_its_turn_between_turns() -> None:
    """What a turn makes ready runs in the next one, so that the loop can do other work."""

    async def main() -> tuple[int, bool]:
        runtime = LoopRuntime()
        count = 0
        done = asyncio.Event()

        def again() -> None:
            nonlocal count
            count += 1
            if not done.is_set():
                runtime.soon(again)

        runtime.soon(again)
        for _ in range(5):
            await asyncio.sleep(0)
        done.set()
        seen = count
        runtime.close()
        return seen, done.is_set()

    count, _ = asyncio.run(main())
    assert 1 <= count <= 10


def test_answers_of_lanes_add_no_turns() -> None:
    """Work in slices gets one of them between two looks at the sockets, whatever lanes answer."""

    async def main() -> list[int]:
        runtime = LoopRuntime()
        slices = 0
        done = False

        def again() -> None:
            nonlocal slices
            slices += 1
            if not done:
                runtime.soon(again)

        runtime.soon(again)
        for _ in range(20):
            await answered(runtime, lambda: None)
        between = []
        for _ in range(5):
            before = slices
            await asyncio.sleep(0)
            between.append(slices - before)
        done = True
        runtime.close()
        return between

    assert max(asyncio.run(main())) <= 1


def make_uvloop() -> asyncio.AbstractEventLoop:
    return pytest.importorskip("uvloop").new_event_loop()  # type: ignore[no-any-return]


@pytest.mark.parametrize("make_loop", [make_uvloop, asyncio.new_event_loop])
def test_a_loop_knows_whether_anything_waits_for_it(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Steps of its own, and what the kernel has for it and it has not taken yet."""

    async def main() -> list[bool]:
        runtime = LoopRuntime()
        near, far = socket.socketpair()
        near.setblocking(False)
        heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(near, lambda: heard.set_result(near.recv(10)))
        await asyncio.sleep(0.01)  # the loop begins to watch the socket
        found = [runtime.idle()]
        far.send(b"news")
        found.append(runtime.idle())
        assert await heard == b"news", "asking took nothing away"
        found.append(runtime.idle())
        runtime.soon(lambda: None)
        found.append(runtime.idle())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found.append(runtime.idle())
        asyncio.get_running_loop().remove_reader(near)
        near.close()
        far.close()
        runtime.close()
        return found

    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(main()) == [True, False, True, False, True]


def test_a_loop_that_cannot_tell_is_never_idle() -> None:
    class Opaque(asyncio.AbstractEventLoop):
        """A loop that shows nothing of what it waits on."""

    runtime = LoopRuntime(Opaque())
    assert not runtime.idle()
    runtime.close()


def test_a_delayed_submit_after_the_close_is_quiet() -> None:
    """A timer that fires when the runtime is gone does nothing, and says nothing."""

    async def main() -> list[object]:
        problems: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: problems.append(context))
        runtime = LoopRuntime()
        runtime.submit_after(1, "lane", lambda: 1, lambda *_: problems.append("ran"))
        runtime.later(1, lambda: problems.append("fired"))
        runtime.close()
        await asyncio.sleep(0.05)
        return problems

    assert asyncio.run(main()) == []


def test_a_lane_without_a_thread_is_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is put where nobody takes it: the next one who asks tries again to start it."""
    runtime = ThreadRuntime()

    def no_room(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_room)
        with pytest.raises(MemoryError):
            runtime.submit("lane", lambda: 1, lambda value, error: None)
    runtime.drain()  # waits for nothing
    done: list[object] = []
    runtime.submit("lane", lambda: 1, lambda value, error: done.append(value))
    runtime.drain()
    assert done == [1]
    runtime.close()
