"""Bringing destinations up to date before somebody reads them.

Only this file knows who waits for routers.  A read of a topic that routers feed first does what
they have left to do, sources of sources before; where that needs the disk, or is too much for one
turn, the reader waits for a ticket.  A destination that takes nothing now is as far as it can be.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice

from headrace.core.errors import typed
from headrace.core.runtime import Ticket
from headrace.engine.core_state import Core
from headrace.engine.routers.forwarding import ROUTERS_PER_PASS, Forwarder
from headrace.engine.routers.state import Router
from headrace.engine.scheduling.turns import Job

log = logging.getLogger("headrace.routers")

# Passes that a reader of a destination may cause at once; the rest in turns of its own.
PASSES_PER_DRAIN = 8


class Drains(Job):
    """Those who wait.  Theirs are turns of the loop too, and never put off with the routers'."""

    __slots__ = ("_core", "_forwarder", "_ready", "_waiting")

    def __init__(self, core: Core, forwarder: Forwarder) -> None:
        super().__init__()
        self._core = core
        self._forwarder = forwarder
        self._waiting: list[_Drain] = []  # until some router has got on
        self._ready: deque[_Drain] = deque()

    def into(self, name: str) -> Ticket[None] | None:
        """Bring a topic up to date with what routers owe it.  None: it is; else wait for it."""
        return self.run(self.upstream(name)) if name in self._core.routed else None

    def upstream(self, name: str) -> list[Router]:
        """The routers that feed a topic, and those that feed their sources, farthest first."""
        found: list[Router] = []
        seen: set[str] = set()
        ahead = [name]
        while ahead:
            name = ahead.pop()
            if name in seen:
                continue
            seen.add(name)
            for router in self._core.routed.get(name, ()):
                found.append(router)
                ahead.append(router.source.name)
        found.reverse()
        return found

    def run(self, routers: list[Router]) -> Ticket[None] | None:
        """Have these routers, one after the other, consume what there is."""
        drain = _Drain(self._core, self._forwarder, routers)
        if drain.poke():
            return None
        drain.ticket = Ticket(self._core.runtime)
        self._park(drain)
        return drain.ticket

    def _park(self, drain: _Drain) -> None:
        if drain.wants_turn:
            self._ready.append(drain)
            self._core.turns.enqueue(self)
        else:
            self._waiting.append(drain)

    def wake(self) -> None:
        """Some router has got on, or cannot."""
        if self._waiting:
            self._ready.extend(self._waiting)
            self._waiting.clear()
            self._core.turns.enqueue(self)

    def step(self) -> bool:
        ready = self._ready
        while ready:
            self._poke(ready.popleft())
            if self._core.turns.over:
                break
        return bool(ready)

    def _poke(self, drain: _Drain) -> None:
        assert drain.ticket is not None
        try:
            done = drain.poke()
        except Exception as error:
            # The others wait for theirs.
            log.exception("a destination could not be brought up to date")
            drain.ticket.fail(typed(error))
            return
        if done:
            drain.ticket.resolve(None)
        else:
            self._park(drain)


class _Drain:
    """Somebody waits until some routers have consumed what there is now, one after the other."""

    def __init__(self, core: Core, forwarder: Forwarder, routers: list[Router]) -> None:
        self._core = core
        self._forwarder = forwarder
        self._left = routers[::-1]
        self._target: int | None = None
        self.ticket: Ticket[None] | None = None
        self.wants_turn = False  # else it waits for a router

    def poke(self) -> bool:
        """Do what can be done now; whether all is done."""
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
                self._left.pop()  # as far as it can come
                self._target = None
        return True

    def _step(self, router: Router) -> bool:
        """One pass of a router; whether it has got on."""
        forwarder = self._forwarder
        before, durable_to = router.cursor, router.durable_to
        if not router.busy and not forwarder.held:
            forwarder.run(self._beside(router))
        if router.busy and not self._core.shard_of(router.dest.id).troubled:
            for shard in self._core.shards:
                shard.flush()
        return router.cursor > before or router.durable_to > durable_to

    def _beside(self, router: Router) -> list[Router]:
        """A router and others that stand at the same place, who would have to do the same."""
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
        # In the order of all passes: what two of them bring to one topic has an order, too.
        return sorted([router, *islice(others, ROUTERS_PER_PASS - 1)], key=lambda each: each.id)
