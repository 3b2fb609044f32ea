"""Work of several waits written as one generator: each `yield` of a ticket is its answer.

An engine must not block, so what takes time answers with a `Ticket`.  A generator that yields
tickets reads from top to bottom: the `yield` returns the ticket's value, or raises its error.

    def copied(runtime: Runtime, path: str) -> Steps[int]:
        data = yield in_lane(runtime, "reader", lambda: read(path))
        yield in_lane(runtime, "writer", lambda: write(data))
        return len(data)

Two functions run such steps, and differ in when they go on after a wait.  `follow` goes on when
the turn ends in which the answer came.  `follow_at_once` goes on within the call that answered, so
that what the steps do next has a fixed place in the order of what is logged and written; an answer
that is there already costs no turn, and any number of them no stack.

The rules:

* Everything runs on the loop thread, except the work that is handed to a lane.
* What steps raise becomes the error of their ticket.  `follow_at_once` also raises whatever is no
  operating error (`HeadraceError`, `OSError`): it is a bug, and nobody may listen to the ticket.
* An error that passes through steps does not keep their frames alive, nor what these refer to.
* Steps that are dropped before their end (the runtime was closed, the engine stands for a killed
  process) are closed: they see `GeneratorExit` at the `yield`.  So what must not happen then
  belongs into `except Exception`, not into `finally`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Protocol, TypeVar

from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError, Throttled
from headrace.core.runtime import Runtime, Ticket

T = TypeVar("T")
Steps = Generator[Ticket[Any], Any, T]


class Follow(Protocol):
    """`follow` or `follow_at_once`."""

    def __call__(
        self, runtime: Runtime, steps: Steps[T], whole: Ticket[T] | None = None
    ) -> Ticket[T]: ...


def follow(runtime: Runtime, steps: Steps[T], whole: Ticket[T] | None = None) -> Ticket[T]:
    """Run steps; return the ticket of what they return or raise (`whole`, or a new one).

    After a wait they go on at the end of the turn, never within the call that answered: the
    engine may be in the middle of settling others.

    >>> from headrace.core.runtime import StepRuntime
    >>> def twice(runtime):
    ...     one = Ticket(runtime)
    ...     one.resolve(20)
    ...     value = yield one
    ...     return 2 * value
    >>> runtime = StepRuntime()
    >>> follow(runtime, twice(runtime)).result()
    40
    """
    if whole is None:
        whole = Ticket(runtime)
    _go_on_later(runtime, steps, whole, None)
    return whole


def _go_on_later(
    runtime: Runtime, steps: Steps[T], whole: Ticket[T], answer: Ticket[Any] | None
) -> None:
    ticket = _advance(steps, whole, answer)
    if ticket is not None:
        go_on = partial(_go_on_later, runtime, steps, whole)
        ticket.when_done(lambda done: runtime.soon(partial(go_on, done)))


def follow_at_once(runtime: Runtime, steps: Steps[T], whole: Ticket[T] | None = None) -> Ticket[T]:
    """Run steps; return the ticket of what they return or raise (`whole`, or a new one).

    After a wait they go on within the call that answered.
    """
    if whole is None:
        whole = Ticket(runtime)
    _go_on(steps, whole, None)
    return whole


def _go_on(steps: Steps[T], whole: Ticket[T], answer: Ticket[Any] | None) -> None:
    while True:
        ticket = _advance(steps, whole, answer)
        if ticket is None:
            break
        if not ticket.done:
            ticket.when_done(partial(_go_on, steps, whole))
            return
        answer = ticket
    error = whole.error
    if error is not None and not isinstance(error, HeadraceError | OSError):
        try:
            raise error
        finally:
            del whole, error  # which the frames of the error would refer to


def _advance(steps: Steps[T], whole: Ticket[T], answer: Ticket[Any] | None) -> Ticket[Any] | None:
    """Take the steps up to their next wait, and return its ticket; None: they have ended."""
    thrown = answer.error if answer is not None else None
    failure: Exception | None = None
    value: Any = None
    try:
        if thrown is not None:
            return steps.throw(thrown)
        return steps.send(answer.result() if answer is not None else None)
    except StopIteration as end:
        value = end.value
    except Exception as error:  # noqa: BLE001 - the ticket has it
        failure = error
    finally:
        # Others may get the same error, of one sync say: frames of these steps are not for them.
        if thrown is not None:
            without_frames(thrown)
    if failure is not None:
        whole.fail(failure)
    else:
        whole.resolve(value)
    return None


# What a step can wait for, beside the answers of the engine


def in_lane(runtime: Runtime, lane: str, work: Callable[[], T]) -> Ticket[T]:
    """Run `work` in a lane, off the loop thread; return the ticket of what it returns or raises."""
    ticket: Ticket[T] = Ticket(runtime)

    def done(value: object, error: BaseException | None) -> None:
        if error is not None:
            ticket.fail(error)
        else:
            ticket.resolve(value)  # type: ignore[arg-type]

    runtime.submit(lane, work, done)
    return ticket


def turn_end(runtime: Runtime) -> Ticket[None]:
    """Return a ticket that is answered when the current turn ends."""
    ticket: Ticket[None] = Ticket(runtime)
    runtime.soon(lambda: ticket.resolve(None))
    return ticket


def at_turn_end(runtime: Runtime, ticket: Ticket[T]) -> Ticket[T]:
    """Return a ticket that is answered as another one is, when the turn of that answer ends."""
    later: Ticket[T] = Ticket(runtime)
    ticket.when_done(lambda done: runtime.soon(lambda: pass_on(done, later)))
    return later


def pause(runtime: Runtime, delay_ms: int) -> Ticket[None]:
    """Return a ticket that is answered after a delay."""
    ticket: Ticket[None] = Ticket(runtime)
    runtime.later(delay_ms, lambda: ticket.resolve(None))
    return ticket


class Line:
    """Runs steps one after the other, in the order in which they were asked for.

    `run` says how they go on after a wait: `follow` or `follow_at_once`.  The next ones start
    before the ticket of the last ones is answered.  With `waiting_max`, more waiting ones than
    that are refused; `what` names them in the refusal.
    """

    __slots__ = (
        "_answers",
        "_busy",
        "_run",
        "_runtime",
        "_starting",
        "_waiting",
        "_waiting_max",
        "_what",
    )

    def __init__(
        self, runtime: Runtime, run: Follow = follow, *, waiting_max: int = 0, what: str = ""
    ) -> None:
        assert not waiting_max or what
        self._runtime = runtime
        self._run = run
        self._waiting: deque[tuple[Steps[Any], Ticket[Any]]] = deque()
        self._waiting_max = waiting_max
        self._what = what
        self._busy = False
        self._starting = False
        self._answers: list[tuple[Ticket[Any], Ticket[Any]]] = []  # to be passed on

    @property
    def busy(self) -> bool:
        """Whether steps are under way, or wait."""
        return self._busy or bool(self._waiting)

    def run(self, steps: Steps[T]) -> Ticket[T]:
        """Run steps once those before have ended; return the ticket of what comes of them."""
        whole: Ticket[T] = Ticket(self._runtime)
        if self._waiting_max and len(self._waiting) >= self._waiting_max:
            steps.close()
            whole.fail(Throttled(f"{self._waiting_max} {self._what} wait already", fix="try again"))
            return whole
        self._waiting.append((steps, whole))
        if not self._starting:
            self._start_next()
        return whole

    def _start_next(self) -> None:
        """Start the steps that wait, until some do not end at once; then answer for the ended."""
        self._starting = True
        try:
            while self._waiting and not self._busy:
                steps, whole = self._waiting.popleft()
                self._busy = True
                inner: Ticket[Any] = Ticket(self._runtime)
                inner.when_done(partial(self._ended, whole))
                self._run(self._runtime, steps, inner)
        finally:
            self._starting = False
            answers, self._answers = self._answers, []
            for whole, done in answers:
                pass_on(done, whole)

    def _ended(self, whole: Ticket[Any], done: Ticket[Any]) -> None:
        self._busy = False
        self._answers.append((whole, done))
        if not self._starting:
            self._start_next()


def pass_on(done: Ticket[T], to: Ticket[T]) -> None:
    """Answer a ticket as another one was answered."""
    if done.error is not None:
        to.fail(done.error)
    else:
        to.resolve(done.result())
