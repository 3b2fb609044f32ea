"""Drains: bringing destinations up to date before they are read.

Only this file knows which readers wait for routers.  A read of a topic that routers feed first does
what they have left to do, sources of sources before; where that needs the disk, or is too much for
one turn, the reader waits for a ticket.  A destination that takes nothing now is not waited for.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice

from headrace.core.errors import typed
from headrace.core.runtime import Ticket
from headrace.engine.routers.forwarding import ROUTERS_PER_PASS, Forwarder
from headrace.engine.routers.state import Router
from headrace.engine.scheduling.turns import Job
from headrace.engine.state import EngineState

log = logging.getLogger("headrace.routers")

# Passes that a reader of a destination may cause at once; the rest in turns of its own.
PASSES_PER_DRAIN = 8


class Drains(Job):
    """The drains that readers wait for: a job of the loop that is never put off, as routers are."""

    __slots__ = ("_forwarder", "_ready", "_state", "_waiting")

    def __init__(self, state: EngineState, forwarder: Forwarder) -> None:
        super().__init__()
        self._state = state
        self._forwarder = forwarder
        self._waiting: list[_Drain] = []  # until a router has moved on
        self._ready: deque[_Drain] = deque()

    def into(self, name: str) -> Ticket[None] | None:
        """Bring a topic up to date with its routers.  None: it is; else the ticket to wait for."""
        return self.run(self.upstream(name)) if name in self._state.routed else None

    def upstream(self, name: str) -> list[Router]:
        """Return the routers that feed a topic and, before them, those that feed their sources."""
        found: list[Router] = []
        seen: set[str] = set()
        ahead = [name]
        while ahead:
            name = ahead.pop()
            if name in seen:
                continue
            seen.add(name)
            for router in self._state.routed.get(name, ()):
                found.append(router)
                ahead.append(router.source.name)
        found.reverse()
        return found

    def run(self, routers: list[Router], *, give_up: bool = False) -> Ticket[None] | None:
        """Have these routers, one after the other, consume what their sources hold now.

        `give_up`: what a destination does not take is announced there as lost.
        """
        drain = _Drain(self._state, self._forwarder, routers, give_up)
        if drain.advance():
            return None
        drain.ticket = Ticket(self._state.runtime)
        self._queue_up(drain)
        return drain.ticket

    def _queue_up(self, drain: _Drain) -> None:
        if drain.wants_turn:
            self._ready.append(drain)
            self._state.turns.enqueue(self)
        else:
            self._waiting.append(drain)

    def wake(self) -> None:
        """Look at all waiting drains again: a router has moved on, or cannot."""
        if self._waiting:
            self._ready.extend(self._waiting)
            self._waiting.clear()
            self._state.turns.enqueue(self)

    def step(self) -> bool:
        ready = self._ready
        while ready:
            self._advance(ready.popleft())
            if self._state.turns.over:
                break
        return bool(ready)

    def _advance(self, drain: _Drain) -> None:
        assert drain.ticket is not None
        try:
            done = drain.advance()
        except Exception as error:
            # One drain that fails must not stop the others.
            log.exception("a destination could not be brought up to date")
            drain.ticket.fail(typed(error))
            return
        if done:
            drain.ticket.resolve(None)
        else:
            self._queue_up(drain)


class _Drain:
    """A wait until some routers, one after the other, have consumed what their sources hold."""

    def __init__(
        self, state: EngineState, forwarder: Forwarder, routers: list[Router], gives_up: bool
    ) -> None:
        self._state = state
        self._forwarder = forwarder
        self._gives_up = gives_up
        self._left = routers[::-1]
        self._target: int | None = None
        self.ticket: Ticket[None] | None = None
        self.wants_turn = False  # False: it waits for a router

    def advance(self) -> bool:
        """Do what can be done now; return whether everything is done."""
        forwarder = self._forwarder
        self.wants_turn = False
        passes = 0
        while self._left:
            router = self._left[-1]
            if self._target is None:
                self._target = router.source.head
            if not router.live or router.cursor >= self._target:
                self._left.pop()
                self._target = None
                continue
            if passes == PASSES_PER_DRAIN and not router.busy:
                self.wants_turn = True
                return False
            passes += 1
            if not self._step(router):
                if router.busy or forwarder.held:
                    return False
                if self._gives_up and forwarder.give_up(router):
                    continue
                self._left.pop()  # its destination takes no more for now
                self._target = None
        return True

    def _step(self, router: Router) -> bool:
        """Run one pass of a router; return whether it has moved on."""
        forwarder = self._forwarder
        before, durable_to = router.cursor, router.durable_to
        if not router.busy and not forwarder.held:
            forwarder.run(self._same_place(router))
        if router.busy and not self._state.shard_of(router.dest.id).troubled:
            for shard in self._state.shards:
                shard.flush()
        return router.cursor > before or router.durable_to > durable_to

    def _same_place(self, router: Router) -> list[Router]:
        """Return a router and others of its source with the same cursor, for one pass."""
        job, cursor = self._forwarder.sources[router.source.id], router.cursor
        others = (
            other
            for other in job.routers
            if other.cursor == cursor
            and other is not router
            and other.live
            and not other.busy
            and not other.blocked
        )
        # By id, as in every pass: copies of two routers in one topic have an order, too.
        return sorted([router, *islice(others, ROUTERS_PER_PASS - 1)], key=lambda each: each.id)
