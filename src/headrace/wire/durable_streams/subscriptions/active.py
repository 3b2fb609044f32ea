"""A subscription that is being served: its state, what is new in it, and what it is busy with."""

from __future__ import annotations

from typing import Final

from headrace.core.errors import Throttled
from headrace.core.runtime import Runtime, Ticket
from headrace.core.steps import Line, Steps
from headrace.wire.durable_streams.subscriptions.globs import Glob
from headrace.wire.durable_streams.subscriptions.records import StoredSize
from headrace.wire.durable_streams.subscriptions.rules import StreamEnds, is_pending
from headrace.wire.durable_streams.subscriptions.state import Subscription

# Calls about one subscription that wait for the one in progress.
CALLS_MAX: Final = 64


class ActiveSubscription:
    """One subscription.  What happens to it happens one after the other, in its line.

    `pending` are the streams that may hold something new: a stream that does is in it, one that is
    in it is looked at before anything depends on it.
    """

    __slots__ = (
        "_calls",
        "armed_ms",
        "counted_bytes",
        "full",
        "glob",
        "gone",
        "line",
        "pending",
        "queued",
        "sending",
        "size",
        "state",
        "stuck",
        "waking",
    )

    def __init__(self, runtime: Runtime, state: Subscription, size: StoredSize) -> None:
        self.state = state
        self.size = size
        pattern = state.config.pattern
        self.glob = Glob(pattern) if pattern else None
        self.line = Line(runtime)
        self.pending: dict[str, None] = {}
        self.gone = False
        self.waking = False  # a wake is about to be decided
        self.sending = False  # the wake is on its way
        self.queued = False  # it waits for others to be sent
        self.stuck = False  # what is to happen by itself cannot be kept
        self.full = False  # a stream could not be linked for want of room
        self.armed_ms: int | None = None  # the timer that is set, if one is
        self.counted_bytes = 0
        self._calls = 0

    def call(self, steps: Steps[object]) -> Ticket[object]:
        """Run what a client asks for, in its turn."""
        if self._calls >= CALLS_MAX:
            steps.close()
            raise Throttled(
                f"{CALLS_MAX} calls about {self.state.id!r} wait already", fix="try again"
            )
        self._calls += 1
        ticket = self.line.run(steps)
        ticket.when_done(self._called)
        return ticket

    def _called(self, _ticket: Ticket[object]) -> None:
        self._calls -= 1

    # What is new

    def matches(self, path: str) -> bool:
        """Return whether the pattern links a stream; what the server itself writes, it never does.

        Else each wake would be followed by another one.
        """
        if self.glob is None or path == self.state.config.wake_stream:
            return False
        return self.glob.matches(path)

    def look_at(self, ends: StreamEnds, path: str) -> None:
        """Note whether a stream holds something new."""
        link = self.state.links.get(path)
        if link is not None and is_pending(ends, path, link.acked):
            self.pending[path] = None
        else:
            self.pending.pop(path, None)

    def has_pending(self, ends: StreamEnds) -> bool:
        """Return whether anything is new, for certain."""
        for path in list(self.pending):
            self.look_at(ends, path)
            if path in self.pending:
                return True
        return False
