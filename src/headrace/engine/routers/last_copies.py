"""The last copies: what routers have left to copy when they, or the topic they read, are deleted.

A source takes its records with it, so its delete waits until its routers have copied what was
acknowledged; what a destination does not take is announced there as lost.  At the end the topic is
closed to writers for a moment, so that nothing comes behind the last copy.  A router that is
deleted copies what its destination takes; the rest stays in the source.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.errors import Throttled
from headrace.core.steps import Steps, pause
from headrace.engine.log_steps import all_durable, all_settled
from headrace.engine.routers.copied_records import RECORDS_PER_PASS
from headrace.engine.routers.drain import Drains
from headrace.engine.routers.forwarding import Forwarder
from headrace.engine.routers.state import Router
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic

# Drains before a source is closed to writers who are faster than its routers.
OPEN_ROUNDS_MAX = 8
# A router that waits for memory is looked at this often, and not waited for when it does not move.
LOOK_MS = 50
LOOKS_MAX = 100


class LastCopies:
    """Brings routers to the end of their sources."""

    def __init__(self, state: EngineState, forwarder: Forwarder, drains: Drains) -> None:
        self._state = state
        self._forwarder = forwarder
        self._drains = drains

    def of_open(self, topic: Topic) -> Steps[None]:
        """Copy what a source holds that is to be deleted, until little is left."""
        for _ in range(OPEN_ROUNDS_MAX):
            yield from self._copied(lambda: self._readers(topic), upstream=topic.name)
            if all(topic.staged - r.cursor <= RECORDS_PER_PASS for r in self._readers(topic)):
                return

    def of_closed(self, topic: Topic) -> Steps[None]:
        """Copy or announce all that a source holds; fails if neither can be done.

        The copies are on disk then: a delete that outlives them would take the records with it.
        """
        yield all_settled(self._state)
        yield from self._copied(lambda: self._readers(topic))
        left = self._drains.run(self._readers(topic), give_up=True)
        if left is not None:
            yield left
        yield all_durable(self._state)
        if any(router.cursor < topic.staged for router in self._readers(topic)):
            raise Throttled(
                f"{topic.name!r} has records that a router can neither copy nor announce as lost",
                fix="make room in the router's destination, or delete the router first",
                detail={"topic": topic.name},
            )

    def of_router(self, router: Router) -> Steps[None]:
        """Copy what the source of a router holds, as far as the destination takes it."""
        yield from self._copied(lambda: [router], upstream=router.source.name)

    def _readers(self, topic: Topic) -> list[Router]:
        job = self._forwarder.sources.get(topic.id)
        return [router for router in job.routers if router.live] if job is not None else []

    def _copied(self, routers: Callable[[], list[Router]], upstream: str = "") -> Steps[None]:
        """Drain these routers; one that only waits for memory is waited for while it moves."""
        looks, before = 0, 0
        while True:
            feeding = self._drains.upstream(upstream) if upstream else []
            waiting = self._drains.run([*feeding, *routers()])
            if waiting is not None:
                yield waiting
            pressed = [r for r in routers() if r.pressed and r.cursor < r.source.head]
            moved = sum(router.cursor for router in pressed)
            looks = looks + 1 if moved == before else 0
            if not pressed or looks > LOOKS_MAX:
                return
            before = moved
            yield pause(self._state.runtime, LOOK_MS)
