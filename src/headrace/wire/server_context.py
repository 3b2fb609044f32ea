"""What all dialects of one server share: the engine, the figures, the bounds, and the readers' hub.

Only this file makes these parts, once for each server, so that a bound holds for all dialects
together and a page that readers of several dialects want is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.live.hub import LiveHub
from headrace.metrics.requests import Metrics
from headrace.wire.long_poll import LongPolls
from headrace.wire.open_streams import OpenStreams
from headrace.wire.request_memory import Budget
from headrace.wire.response_memory import ResponseMemory


class ServerContext:
    """The parts that a dialect is made with."""

    def __init__(self, engine: Engine, settings: Settings, metrics: Metrics) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = metrics
        self.memory = ResponseMemory(settings.response_memory_bytes_max)
        self.request_memory = Budget(settings.request_memory_bytes_max)
        self.polls = LongPolls(engine)
        self.open_streams = OpenStreams(LiveHub(engine), settings, metrics, self.request_memory)
        metrics.sources.longpoll_connections.add(lambda: len(self.polls.waiting))
        # By name, the parts that may stop working while all else goes on; each says why it has
        # stopped, or nothing.
        self.parts: dict[str, Callable[[], str]] = {"storage": engine.scrub.problem}
        metrics.sources.degraded_parts.add(lambda: len(self.problems()))

    def problems(self) -> Mapping[str, str]:
        """The parts that do not work, and why."""
        found = {name: problem() for name, problem in self.parts.items()}
        return {name: why for name, why in found.items() if why}

    def drain(self) -> None:
        """End every stream and every wait: the server is stopping."""
        self.open_streams.stop()
        self.polls.drain()
