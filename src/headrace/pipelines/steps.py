"""Work of several engine calls written as one function: each `yield` of a ticket is its answer.

The engine answers with tickets, and a server's handlers must not block; a generator reads better
than callbacks within callbacks.  Changes of one `Line` happen one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from headrace.core.errors import Throttled
from headrace.core.runtime import Runtime, Ticket

T = TypeVar("T")
Steps = Generator[Ticket[Any], Any, T]

# Changes that wait for the one in progress.
WAITING_MAX = 256


def follow(runtime: Runtime, steps: Steps[T]) -> Ticket[T]:
    """Run the steps; the ticket is what they return, or what they raise.

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
    whole: Ticket[T] = Ticket(runtime)

    def go_on(answer: Ticket[Any] | None) -> None:
        try:
            if answer is None:
                ticket = next(steps)
            elif answer.error is not None:
                ticket = steps.throw(answer.error)
            else:
                ticket = steps.send(answer.result())
        except StopIteration as end:
            whole.resolve(end.value)
        except Exception as error:  # noqa: BLE001 - whoever waits for the ticket hears of it
            whole.fail(error)
        else:
            # Not within the engine's own call: it may be in the middle of settling others.
            ticket.when_done(lambda done: runtime.soon(lambda: go_on(done)))

    go_on(None)
    return whole


class Line:
    """Changes one after the other, in the order in which they were asked for."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False

    def run(self, steps: Steps[T]) -> Ticket[T]:
        """The same as `follow`, once it is their turn."""
        whole: Ticket[T] = Ticket(self._runtime)
        if len(self._waiting) >= WAITING_MAX:
            steps.close()
            whole.fail(
                Throttled(f"{WAITING_MAX} changes of pipelines wait already", fix="try again")
            )
            return whole

        def ended(done: Ticket[T]) -> None:
            self._busy = False
            if self._waiting:
                self._waiting.popleft()()
            if done.error is not None:
                whole.fail(done.error)
            else:
                whole.resolve(done.result())

        def start() -> None:
            self._busy = True
            follow(self._runtime, steps).when_done(ended)

        if self._busy:
            self._waiting.append(start)
        else:
            start()
        return whole
