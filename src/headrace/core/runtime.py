"""The runtime seam: when a turn ends, where blocking work runs, how a result comes back.

All engine state belongs to one thread, the *loop thread*.  A runtime gives it: `soon` (run this
when the current turn ends), `last` (the same, after all else), `submit` (run this elsewhere, then
tell the loop thread), `submit_after` (the same after a wait, which what it returns cuts short),
`later`, and `idle` (whether anything else waits for the loop thread, so that something short may be
done at once).

`StepRuntime` runs everything in one thread in a fixed order, so that tests can stop at any step;
those that serve are in `thread_runtime.py`.  Nothing here knows what the work is.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Generator
from typing import Generic, Protocol, TypeVar

import msgspec

from headrace.core.clock import Clock, SystemClock
from headrace.core.error_frames import without_frames

T = TypeVar("T")
Thunk = Callable[[], None]
Done = Callable[[object, BaseException | None], None]


class Runtime(Protocol):
    clock: Clock

    def soon(self, thunk: Thunk) -> None: ...
    def last(self, thunk: Thunk) -> None: ...
    def later(self, delay_ms: int, thunk: Thunk) -> None: ...
    def submit(self, lane: str, work: Callable[[], object], done: Done) -> None: ...
    def submit_after(
        self, delay_ms: int, lane: str, work: Callable[[], object], done: Done
    ) -> Thunk: ...
    def idle(self) -> bool: ...  # nothing else waits for the loop thread, as far as can be told
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
        self.error = without_frames(error)
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
        error = self.error
        if error is not None:
            try:
                raise error
            finally:
                del self, error  # which the frames of the error would refer to
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


class Timers:
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


class Once:
    """Calls its thunk the first time it is called."""

    __slots__ = ("_thunk",)

    def __init__(self, thunk: Thunk) -> None:
        self._thunk: Thunk | None = thunk

    def __call__(self) -> None:
        thunk, self._thunk = self._thunk, None
        if thunk is not None:
            thunk()


def submit_later(
    runtime: Runtime, delay_ms: int, lane: str, work: Callable[[], object], done: Done
) -> Thunk:
    """Submit after a wait; what is returned submits at once, and either happens only once."""
    once = Once(lambda: runtime.submit(lane, work, done))
    runtime.later(delay_ms, once)
    return once


class StepRuntime:
    """Everything in the calling thread, one step at a time, in the order it was asked for."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._ready: deque[Thunk] = deque()
        self._timers = Timers(self.clock)

    def soon(self, thunk: Thunk) -> None:
        self._ready.append(thunk)

    def last(self, thunk: Thunk) -> None:
        """The same as `soon`: here a step is a turn."""
        self.soon(thunk)

    def later(self, delay_ms: int, thunk: Thunk) -> None:
        self._timers.add(delay_ms, thunk)

    def submit(self, lane: str, work: Callable[[], object], done: Done) -> None:
        def run() -> None:
            value, error = attempt(work)
            done(value, error)

        self._ready.append(run)

    def submit_after(
        self, delay_ms: int, lane: str, work: Callable[[], object], done: Done
    ) -> Thunk:
        return submit_later(self, delay_ms, lane, work, done)

    def idle(self) -> bool:
        """Never: work of a lane is a step of its own, so that a test can stop before it."""
        return False

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


def attempt(work: Callable[[], object]) -> tuple[object, BaseException | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - handed to the caller that asked for the work
        return None, without_frames(error)
