"""The job of one source: it hears of new records and runs the passes of the routers that read them.

Only this file waits for the records of a source.  A source's writers never wait for its routers:
passes are jobs of `scheduling/turns.py`, asked for when records have become visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.engine.routers.state import Router
from headrace.engine.scheduling.priority import priority_of
from headrace.engine.scheduling.turns import Job
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic


class Passes(Protocol):
    """What `forwarding.py` does for a source."""

    state: EngineState

    def passes(self, routers: Iterable[Router]) -> list[list[Router]]: ...
    def run(self, routers: list[Router]) -> bool: ...
    def has_work(self, routers: Iterable[Router]) -> bool: ...


class SourceJob(Job):
    """The routers of one source, and the waiter that hears when its topic changes."""

    __slots__ = ("_forwarder", "_turn", "routers", "topic")
    background = True

    def __init__(self, forwarder: Passes, topic: Topic) -> None:
        super().__init__()
        self._forwarder = forwarder
        self.topic = topic
        self.routers: list[Router] = []
        self._turn = 0
        self._wait()

    @property
    def priority(self) -> int:
        return priority_of(self.topic, self._forwarder.state.clock.now_ms())

    def _wait(self) -> None:
        self.topic.wait(self)

    def __call__(self) -> None:
        """Ask for a turn: the topic has changed."""
        if self.routers and self.topic.live:
            self._wait()
            self._forwarder.state.turns.wake(self)

    def step(self) -> bool:
        """Run passes until the turn is over; the next turn begins with those left out."""
        forwarder = self._forwarder
        passes = forwarder.passes(self.routers)
        done = False
        for number in range(len(passes)):
            if number and forwarder.state.turns.over:
                return True
            routers = passes[self._turn % len(passes)]
            done = forwarder.run(routers) or done
            forwarder.state.turns.staged(len(routers))
            self._turn += 1
        return done and forwarder.has_work(self.routers)

    def close(self) -> None:
        """Stop waiting: no routers are left."""
        self.topic.stop_waiting(self)
