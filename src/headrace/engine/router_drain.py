"""Bringing destinations up to date before somebody reads them.

Only this file knows who waits for routers.  A read of a topic that routers feed first does what
they have left to do, sources of sources before; where that needs the disk, or is too much for one
turn, the reader waits for a ticket.  A destination that takes nothing now is as far as it can be.
"""

from __future__ import annotations

from headrace.core.runtime import Ticket
from headrace.engine.core_state import Core
from headrace.engine.forwarding import Forwarder
from headrace.engine.router_state import Router

# Passes that a reader of a destination may cause at once; what is left is done in turns.
PASSES_PER_DRAIN = 8


class Drains:
    """Those who wait."""

    def __init__(self, core: Core, forwarder: Forwarder) -> None:
        self._core = core
        self._forwarder = forwarder
        self._waiting: list[_Drain] = []
        self._waking = False

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
        self._waiting.append(drain)
        return drain.ticket

    def wake(self) -> None:
        """Some router has got on, or cannot."""
        if self._waiting and not self._waking:
            self._waking = True
            self._core.runtime.soon(self._poke)

    def _poke(self) -> None:
        self._waking = False
        waiting, self._waiting = self._waiting, []
        for drain in waiting:
            if not drain.poke():
                self._waiting.append(drain)
            elif drain.ticket is not None:
                drain.ticket.resolve(None)


class _Drain:
    """Somebody waits until some routers have consumed what there is now, one after the other."""

    def __init__(self, core: Core, forwarder: Forwarder, routers: list[Router]) -> None:
        self._core = core
        self._forwarder = forwarder
        self._left = routers[::-1]
        self._target: int | None = None
        self.ticket: Ticket[None] | None = None

    def poke(self) -> bool:
        """Do what can be done now; whether all is done."""
        forwarder = self._forwarder
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
                self._core.turns.enqueue(forwarder.sources[router.source.id])
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
        before, durable_to = router.cursor, router.durable_to
        if not router.busy:
            job = self._forwarder.sources[router.source.id]
            # Those who stand at the same place go along: they would have to do the same.
            same = [r for r in job.routers if r.cursor == before and (r is router or not r.blocked)]
            self._forwarder.run(same, forced=True)
        if router.busy and not self._core.shard_of(router.dest.id).troubled:
            for shard in self._core.shards:
                shard.flush()
        return router.cursor > before or router.durable_to > durable_to
