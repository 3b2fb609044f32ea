"""The runtime seam: when a turn ends, where blocking work runs, how a result comes back.

All engine state belongs to one thread, the *loop thread*.  A runtime gives it: `soon` (run this
when the current turn ends), `submit` (run this elsewhere, then tell the loop thread),
`submit_after` (the same after a wait, which what it returns cuts short) and `later`.

`ThreadRuntime` serves plain synchronous programs, `LoopRuntime` an asyncio loop, and `StepRuntime`
runs everything in one thread in a fixed order, so that tests can stop at any step.  Nothing here
knows what the work is.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

import msgspec

from headrace.core.clock import Clock, SystemClock

T = TypeVar("T")
Thunk = Callable[[], None]
Done = Callable[[object, BaseException | None], None]

# How long a blocked synchronous caller sleeps between looks at timers.
WAIT_SLICE_SECONDS = 0.05
# How long a lane waits for the interpreter while the loop thread is busy.  With the default of 5 ms
# a sync that took 0.2 ms is heard of 10 ms later.
SWITCH_INTERVAL_SECONDS = 0.0005


class Runtime(Protocol):
    clock: Clock

    def soon(self, thunk: Thunk) -> None: ...
    def later(self, delay_ms: int, thunk: Thunk) -> None: ...
    def submit(self, lane: str, work: Callable[[], object], done: Done) -> None: ...
    def submit_after(
        self, delay_ms: int, lane: str, work: Callable[[], object], done: Done
    ) -> Thunk: ...
    def wait(self, ticket: Ticket[T]) -> None: ...
    def drain(self) -> None: ...  # until nothing is ready and every lane is idle
    def close(self) -> None: ...


class _Owned(msgspec.Struct, eq=False):
    _runtime: Runtime


# Structs, because one is made for each append, and C fills in their fields.
class Ticket(_Owned, Generic[T], eq=False, kw_only=True):
    """The answer to a call, now or soon: `ticket.result()` or `await ticket`.

    `done` and `error` are to be read only; `error` is None until it has failed.

    >>> ticket = Ticket[int](StepRuntime())
    >>> ticket.resolve(7)
    >>> ticket.result()
    7
    """

    abandoned: bool = False  # nobody waits for the answer any more
    done: bool = False
    error: BaseException | None = None
    _value: T | None = None
    _callbacks: list[Callable[[Ticket[T]], None]] | None = None

    def resolve(self, value: T) -> None:
        assert not self.done
        self._value = value
        self.done = True
        if self._callbacks is not None:
            self._tell()

    def fail(self, error: BaseException) -> None:
        assert not self.done
        self.error = error
        self.done = True
        if self._callbacks is not None:
            self._tell()

    def _tell(self) -> None:
        callbacks, self._callbacks = self._callbacks, None
        failure: Exception | None = None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception as error:  # noqa: BLE001 - all must hear; raised again below
                failure = failure or error
        if failure is not None:
            raise failure

    def when_done(self, callback: Callable[[Ticket[T]], None]) -> None:
        """Call back on the loop thread, at once if the answer is there."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def _forget(self, callback: Callable[[Ticket[T]], None]) -> None:
        """One who waited has given up; when it was the last, nobody waits any more."""
        if self._callbacks is not None:
            self._callbacks.remove(callback)
        self.abandoned = not self.done and not self._callbacks

    def abandon(self) -> None:
        """Say that nobody waits any more; what was asked for may still be done."""
        self.abandoned = not self.done
        self._callbacks = None

    def result(self) -> T:
        """The answer; waits for it (not inside an asyncio loop: there, `await`)."""
        if not self.done or self.error is not None:
            # A refusal ends the turn too: a program that does nothing but try again has to let
            # the work go on that it waits for.
            self._runtime.wait(self)
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]

    def __await__(self) -> Generator[object, None, T]:
        if not self.done:
            future = asyncio.get_running_loop().create_future()

            def wake(_ticket: Ticket[T]) -> None:
                if not future.done():
                    future.set_result(None)

            self.when_done(wake)
            try:
                yield from future
            except BaseException:
                self._forget(wake)
                raise
        return self.result()


class _Timers:
    """Timers by due time; the order of equal times is the order of asking."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Thunk]] = []
        self._count = 0

    def add(self, delay_ms: int, thunk: Thunk) -> None:
        self._count += 1
        due = self._clock.monotonic_ns() + delay_ms * 1_000_000
        heapq.heappush(self._heap, (due, self._count, thunk))

    def pop_due(self) -> Thunk | None:
        if self._heap and self._heap[0][0] <= self._clock.monotonic_ns():
            return heapq.heappop(self._heap)[2]
        return None


class _Once:
    """Calls its thunk the first time it is called."""

    __slots__ = ("_thunk",)

    def __init__(self, thunk: Thunk) -> None:
        self._thunk: Thunk | None = thunk

    def __call__(self) -> None:
        thunk, self._thunk = self._thunk, None
        if thunk is not None:
            thunk()


class StepRuntime:
    """Everything in the calling thread, one step at a time, in the order it was asked for."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._ready: deque[Thunk] = deque()
        self._timers = _Timers(self.clock)

    def soon(self, thunk: Thunk) -> None:
        self._ready.append(thunk)

    def later(self, delay_ms: int, thunk: Thunk) -> None:
        self._timers.add(delay_ms, thunk)

    def submit(self, lane: str, work: Callable[[], object], done: Done) -> None:
        def run() -> None:
            value, error = _attempt(work)
            done(value, error)

        self._ready.append(run)

    def submit_after(
        self, delay_ms: int, lane: str, work: Callable[[], object], done: Done
    ) -> Thunk:
        once = _Once(lambda: self.submit(lane, work, done))
        self.later(delay_ms, once)
        return once

    def step(self) -> bool:
        """Run one thing; False when nothing is ready."""
        thunk = self._ready.popleft() if self._ready else self._timers.pop_due()
        if thunk is None:
            return False
        thunk()
        return True

    def run(self) -> None:
        """Run until nothing is ready and no timer is due."""
        while self.step():
            pass

    def wait(self, ticket: Ticket[T]) -> None:
        while not ticket.done and self.step():
            pass
        assert ticket.done, "nothing left to do, and no answer: a lost wake-up"

    def drain(self) -> None:
        while self._ready:
            self.step()

    def close(self) -> None:
        self._ready.clear()


class _Lanes:
    """Threads by lane: jobs of a lane with one thread run in order, lanes run side by side.

    Plain threads and queues: a `ThreadPoolExecutor` makes a future and takes three locks for each
    job, which is half the time of a sync.
    """

    def __init__(self, threads: dict[str, int] | None) -> None:
        self._threads = threads or {}
        self._queues: dict[str, SimpleQueue[Thunk | None]] = {}
        self._running: list[threading.Thread] = []
        self._closed = False

    def run(self, lane: str, job: Thunk) -> None:
        if self._closed:
            return  # nobody is left to hear the answer
        queue = self._queues.get(lane)
        if queue is None:
            queue = self._queues[lane] = SimpleQueue()
            for _ in range(self._threads.get(lane, 1)):
                name = f"headrace-{lane}"
                thread = threading.Thread(target=_work, args=(queue,), name=name, daemon=True)
                self._running.append(thread)
                thread.start()
        queue.put(job)

    def close(self) -> None:
        """Let every job that was asked for finish."""
        self._closed = True
        for lane, queue in self._queues.items():
            for _ in range(self._threads.get(lane, 1)):
                queue.put(None)
        for thread in self._running:
            thread.join()


def _work(queue: SimpleQueue[Thunk | None]) -> None:
    while True:
        job = queue.get()
        if job is None:
            return
        job()
        del job  # so that nothing it refers to lives until the next one


class ThreadRuntime:
    """For synchronous programs: the caller's thread is the loop thread while it calls in."""

    def __init__(self, clock: Clock | None = None, threads: dict[str, int] | None = None) -> None:
        self.clock = clock or SystemClock()
        if sys.getswitchinterval() > SWITCH_INTERVAL_SECONDS:
            sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        self._ready: deque[Thunk] = deque()
        self._timers = _Timers(self.clock)
        self._woken = threading.Event()
        self._lanes = _Lanes(threads)
        self._busy = 0  # jobs whose answer has not been heard yet

    def soon(self, thunk: Thunk) -> None:
        self._ready.append(thunk)

    def later(self, delay_ms: int, thunk: Thunk) -> None:
        self._timers.add(delay_ms, thunk)

    def submit(self, lane: str, work: Callable[[], object], done: Done) -> None:
        self._busy += 1

        def answer(value: object, error: BaseException | None) -> None:
            self._busy -= 1
            done(value, error)

        def job() -> None:
            value, error = _attempt(work)
            self._ready.append(lambda: answer(value, error))
            self._wake()

        self._lanes.run(lane, job)

    def _wake(self) -> None:
        """From any thread: something is ready."""
        self._woken.set()

    def submit_after(
        self, delay_ms: int, lane: str, work: Callable[[], object], done: Done
    ) -> Thunk:
        # Timers only run while somebody calls in, so the lane itself does the waiting.
        hurry = threading.Event()

        def wait_then_work() -> object:
            hurry.wait(delay_ms / 1000)
            return work()

        self.submit(lane, wait_then_work, done)
        return hurry.set

    def run(self) -> None:
        """End the turn: run what is ready and due."""
        while True:
            thunk = self._ready.popleft() if self._ready else self._timers.pop_due()
            if thunk is None:
                return
            thunk()

    def wait(self, ticket: Ticket[T]) -> None:
        self.run()
        while not ticket.done:
            self._woken.clear()
            self.run()
            if not ticket.done and not self._ready:
                self._woken.wait(WAIT_SLICE_SECONDS)

    def drain(self) -> None:
        while self._busy or self._ready:
            self._woken.clear()
            while self._ready:
                self._ready.popleft()()
            if self._busy and not self._ready:
                self._woken.wait(WAIT_SLICE_SECONDS)

    def close(self) -> None:
        self._lanes.close()
        self._ready.clear()


class LoopRuntime(ThreadRuntime):
    """For an asyncio loop: its thread is the loop thread, and the loop ends the turns."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        clock: Clock | None = None,
        threads: dict[str, int] | None = None,
    ) -> None:
        super().__init__(clock, threads)
        self._loop = loop or asyncio.get_running_loop()
        self._turn_asked = False
        self._closed = False

    def soon(self, thunk: Thunk) -> None:
        self._ready.append(thunk)
        if not self._turn_asked:
            self._turn_asked = True
            self._loop.call_soon(self._turn)

    def later(self, delay_ms: int, thunk: Thunk) -> None:
        def fire() -> None:
            if not self._closed:
                thunk()

        self._loop.call_later(delay_ms / 1000, fire)

    def close(self) -> None:
        self._closed = True
        super().close()

    def _wake(self) -> None:
        self._woken.set()
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            self._loop.call_soon_threadsafe(self._turn)

    def submit_after(
        self, delay_ms: int, lane: str, work: Callable[[], object], done: Done
    ) -> Thunk:
        once = _Once(lambda: self.submit(lane, work, done))
        self.later(delay_ms, once)
        return once

    def _turn(self) -> None:
        """Run what is ready now; what that makes ready runs in the next turn."""
        self._turn_asked = False
        ready = self._ready
        for _ in range(len(ready)):
            try:
                ready.popleft()()
            except Exception as error:  # noqa: BLE001 - the loop's handler hears, the turn goes on
                context = {"message": "a step of the engine failed", "exception": error}
                self._loop.call_exception_handler(context)

    def wait(self, ticket: Ticket[T]) -> None:
        if not ticket.done:
            raise RuntimeError("inside an event loop: `await` the ticket instead of `.result()`")


def _attempt(work: Callable[[], object]) -> tuple[object, BaseException | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - handed to whoever asked for the work
        return None, error
