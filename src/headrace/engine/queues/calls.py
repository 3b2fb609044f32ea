"""Claims and acks as they are asked for, one or many of a turn: each is the ticket of its caller.

Only this file tells those who asked: of calls that are done together, together, and of each once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from headrace.core.runtime import Ticket
from headrace.engine.queues.answers import Acked, Claimed


def _all_of_it(size: int) -> int:
    return size


class Claim(Ticket[Claimed], eq=False):
    """One request for jobs."""

    name: str
    node: str
    count: int = 1
    lease_ms: int | None = None  # None: as long as the topic says
    connection: int | None = None
    bytes_max: int | None = None  # of its jobs, beyond the first
    fit: Callable[[int], int] = _all_of_it  # how much of that there is room for, when it is served
    answered: Callable[[Sequence[Claim]], None] | None = None
    caller: Any = None  # what whoever asks wants to have beside the answer
    # Once it is admitted:
    want: int = 0
    held_ms: int = 0
    most: int = 0
    # While it is served:
    share: int = 0  # how many of the jobs that were taken are for it
    tries: int = 0  # that found nothing but damaged jobs
    after: Ticket[None] | None = None  # dead letters to be moved before it is answered
    given: Claimed | None = None  # the answer, once it has waited

    @property
    def bytes_left(self) -> int:
        """How many bytes of jobs it may have now, beyond the first."""
        return self.fit(self.most)


class Ack(Ticket[Acked], eq=False):
    """One request to delete jobs that are done."""

    name: str
    node: str
    seqs: Sequence[int]
    lease_ids: Sequence[str] | None = None
    answered: Callable[[Sequence[Ack]], None] | None = None
    caller: Any = None
    # Once its jobs were found:
    jobs: int = 0
    in_flight: int = 0  # of the queue, without them
    skipped: list[int] = msgspec.field(default_factory=list)


T = TypeVar("T", Claim, Ack)


def resolve_all(calls: Sequence[T], answers: Sequence[Any]) -> None:
    """Answer calls that are done together, and tell those who asked."""
    failure: Exception | None = None
    for call, answer in zip(calls, answers, strict=True):
        try:
            call.resolve(answer)
        except Exception as error:  # noqa: BLE001 - all must hear; raised again below
            failure = failure or error
    _tell(calls)
    if failure is not None:
        raise failure


def fail_all(calls: Sequence[T], error: BaseException) -> None:
    """Refuse calls for one reason, and tell those who asked."""
    failure: Exception | None = None
    for call in calls:
        try:
            call.fail(error)
        except Exception as raised:  # noqa: BLE001 - as above
            failure = failure or raised
    _tell(calls)
    if failure is not None:
        raise failure


def _tell(calls: Sequence[T]) -> None:
    by_listener: dict[Callable[[Sequence[T]], None], list[T]] = {}
    for call in calls:
        listener: Any = call.answered
        if listener is not None:
            by_listener.setdefault(listener, []).append(call)
    for listener, some in by_listener.items():
        listener(some)
