"""What basins hold, in bytes: measured when somebody asks, and once an hour for the past.

Only this file adds up streams.  It takes a portion of them at a time, so that nobody waits.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from headrace.core.runtime import Ticket
from headrace.core.steps import Steps, follow, pause
from headrace.engine.engine import Engine
from headrace.wire.s2.catalog.catalog import Catalog
from headrace.wire.s2.names import topic_name
from headrace.wire.s2.usage import HOUR_S

# Streams that are looked at in one turn of the loop, and the time between two such turns.
PORTION: Final = 2_000
REST_MS: Final = 5


class BasinStorage:
    """Measures the basins of one server."""

    def __init__(self, engine: Engine, catalog: Catalog) -> None:
        self._engine = engine
        self._catalog = catalog
        self._hour = 0  # the last one of which all basins were measured
        self._measuring = False

    def tick(self) -> None:
        """Measure all basins once in each hour."""
        hour = self._engine.clock.now_ms() // 1_000 // HOUR_S
        if hour != self._hour and not self._measuring and self._catalog.loaded:
            self._hour = hour
            self._measuring = True
            follow(self._engine.runtime, self._all()).when_done(self._all_ended)

    def of(self, basin: str) -> Ticket[int]:
        """Measure a basin now."""
        return follow(self._engine.runtime, self._measure(basin))

    def of_stream(self, basin: str, stream: str) -> int | None:
        """What a stream holds; None: there is no such stream."""
        topic = self._engine.find(topic_name(basin, stream))
        return None if topic is None else topic.bytes

    def has_stream(self, basin: str) -> bool:
        """Whether there is a stream in a basin."""
        return next(self._engine.topic_names(topic_name(basin, "")), None) is not None

    def _all(self) -> Steps[None]:
        names = [basin.name for basin in self._catalog.basins_after("", "")]
        for name in names:
            yield from self._measure(name)
            yield pause(self._engine.runtime, REST_MS)

    def _all_ended(self, _done: Ticket[None]) -> None:
        self._measuring = False

    def _measure(self, basin: str) -> Steps[int]:
        engine, prefix = self._engine, topic_name(basin, "")
        size, last = 0, ""
        while True:
            names = list(islice(engine.topic_names(prefix, last), PORTION))
            for name in names:
                topic = engine.find(name)
                size += 0 if topic is None else topic.bytes
            if len(names) < PORTION:
                break
            last = names[-1]
            yield pause(engine.runtime, REST_MS)
        if size and self._catalog.knows(basin):
            self._catalog.usage.held(basin, size)
        return size
