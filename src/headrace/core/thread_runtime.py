"""Runtimes on real threads: lanes of worker threads, and a loop that results come back to.

`ThreadRuntime` serves plain synchronous programs, `LoopRuntime` an asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from headrace.core.clock import Clock, SystemClock
from headrace.core.runtime import Done, T, Thunk, Ticket, Timers, attempt, submit_later

# How long a blocked synchronous caller sleeps between looks at timers.
WAIT_SLICE_SECONDS = 0.05
# How long a lane waits for the interpreter while the loop thread is busy.  With the default of 5 ms
# a sync that took 0.2 ms is heard of 10 ms later.
SWITCH_INTERVAL_SECONDS = 0.0005
# How long a lane waits before it tries again to hand over an answer for which there was no memory.
NO_MEMORY_WAIT_SECONDS = 0.01


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
            queue = self._start(lane)
        queue.put(job)

    def _start(self, lane: str) -> SimpleQueue[Thunk | None]:
        """Start the threads of a lane, at least one; `MemoryError` if there is no room for it."""
        queue: SimpleQueue[Thunk | None] = SimpleQueue()
        for number in range(self._threads.get(lane, 1)):
            name = f"headrace-{lane}"
            thread = threading.Thread(target=_work, args=(queue,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no room for its stack, or for one more thread
                if not number:
                    raise MemoryError(f"no thread for the lane {lane}") from None
                break
            self._running.append(thread)
        self._queues[lane] = queue
        return queue

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


def _insist(call: Callable[[], None]) -> None:
    """Call until there is memory for it: an answer that is lost is waited for in vain."""
    while True:
        try:
            call()
            return
        except MemoryError:
            threading.Event().wait(NO_MEMORY_WAIT_SECONDS)


class ThreadRuntime:
    """For synchronous programs: the caller's thread is the loop thread while it calls in."""

    def __init__(self, clock: Clock | None = None, threads: dict[str, int] | None = None) -> None:
        self.clock = clock or SystemClock()
        if sys.getswitchinterval() > SWITCH_INTERVAL_SECONDS:
            sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        self._ready: deque[Thunk] = deque()
        self._timers = Timers(self.clock)
        self._woken = threading.Event()
        self._lanes = _Lanes(threads)
        self._busy = 0  # jobs whose answer has not been heard yet

    def soon(self, thunk: Thunk) -> None:
        self._ready.append(thunk)

    def last(self, thunk: Thunk) -> None:
        """The same as `soon`: what is ready runs until nothing is."""
        self.soon(thunk)

    def later(self, delay_ms: int, thunk: Thunk) -> None:
        self._timers.add(delay_ms, thunk)

    def submit(self, lane: str, work: Callable[[], object], done: Done) -> None:
        def answer(value: object, error: BaseException | None) -> None:
            self._busy -= 1
            done(value, error)

        def job() -> None:
            value, error = attempt(work)
            _insist(lambda: self._ready.append(lambda: answer(value, error)))
            _insist(self._wake)

        self._lanes.run(lane, job)
        self._busy += 1  # only now: it may have failed for want of a thread

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

    def idle(self) -> bool:
        return not self._ready

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
        self._events = _events_of(self._loop)
        self._last: list[Thunk] = []  # run at the end of the turn
        self._in_turn = False  # what is ready is being run
        self._turn_asked = False
        self._closed = False

    def soon(self, thunk: Thunk) -> None:
        self._ask_turn()
        self._ready.append(thunk)

    def last(self, thunk: Thunk) -> None:
        """Run this at the end of the turn that is under way, or else of the next one."""
        if not self._in_turn:
            self._ask_turn()
        self._last.append(thunk)

    def _ask_turn(self) -> None:
        if not self._turn_asked:
            self._loop.call_soon(self._turn)
            self._turn_asked = True  # after that: no turn comes if it failed for want of memory

    def later(self, delay_ms: int, thunk: Thunk) -> None:
        def fire() -> None:
            if not self._closed:
                thunk()

        self._loop.call_later(delay_ms / 1000, fire)

    def drain(self) -> None:
        super().drain()
        while self._last:
            self._ready.extend(self._last)
            self._last.clear()
            super().drain()

    def close(self) -> None:
        self._closed = True
        super().close()
        self._last.clear()

    def _wake(self) -> None:
        self._woken.set()
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            self._loop.call_soon_threadsafe(self._heard)

    def submit_after(
        self, delay_ms: int, lane: str, work: Callable[[], object], done: Done
    ) -> Thunk:
        return submit_later(self, delay_ms, lane, work, done)

    def _heard(self) -> None:
        """A lane has answered: have a turn, unless one is due anyway."""
        # Two would both go on, for a turn asks for the next one while there is more to do: with
        # each answer the loop would have one more turn of ours before it gets to its sockets.
        if not self._turn_asked:
            self._turn()

    def idle(self) -> bool:
        """Whether no step is left to do, and the kernel has no news for the loop either."""
        return (
            not self._ready
            and not self._last
            and self._events is not None
            and not self._events.poll(0)
        )

    def _turn(self) -> None:
        """Run what is ready now, then what is last; what that makes ready runs in the next turn.

        So whatever takes turns with requests comes after them, and after their answers.
        """
        self._turn_asked = False
        ready = self._ready
        self._in_turn = True
        try:
            for _ in range(len(ready)):
                self._run(ready.popleft())
        finally:
            self._in_turn = False
        last, self._last = self._last, []
        for thunk in last:
            self._run(thunk)

    def _run(self, thunk: Thunk) -> None:
        try:
            thunk()
        except Exception as error:  # noqa: BLE001 - the loop's handler hears, the turn goes on
            context = {"message": "a step of the engine failed", "exception": error}
            self._loop.call_exception_handler(context)

    def wait(self, ticket: Ticket[T]) -> None:
        if not ticket.done:
            raise RuntimeError("inside an event loop: `await` the ticket instead of `.result()`")


def _events_of(loop: asyncio.AbstractEventLoop) -> select.poll | None:
    """What tells whether the loop will find an event when it looks next; None: nothing does.

    The descriptor that a loop waits on (epoll) can be polled like any other, and so without taking
    its events away.
    """
    if hasattr(loop, "_get_backend_id"):  # uvloop
        descriptor = loop._get_backend_id()
    elif hasattr(loop, "_selector") and hasattr(loop._selector, "fileno"):  # asyncio
        descriptor = loop._selector.fileno()
    else:
        return None
    events = select.poll()
    events.register(descriptor, select.POLLIN)
    return events
