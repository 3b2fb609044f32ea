"""What statements of one session have in common, so that the next one has less to find out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame

from headrace.core.lru import LruMap

# Topics, and stand-ins for such, that a session remembers.
TOPICS_KNOWN_MAX: Final = 100


class SessionCache:
    """The topics that were named lately, and tables without rows that stood for topics."""

    def __init__(self) -> None:
        self.topics: LruMap[str, str] = LruMap(TOPICS_KNOWN_MAX)
        self._stand_ins: LruMap[tuple[int, tuple[tuple[str, str], ...]], DataFrame]
        self._stand_ins = LruMap(TOPICS_KNOWN_MAX)

    def named(self, topics: Iterable[str]) -> None:
        """Remember that a statement names these."""
        for topic in topics:
            self.topics.put(topic, topic)

    def stand_in(self, number: int, types: dict[str, str]) -> DataFrame | None:
        """Return the table without rows that stood for such a topic before."""
        return self._stand_ins.get((number, tuple(types.items())))

    def keep(self, number: int, types: dict[str, str], frame: DataFrame) -> None:
        """Remember a table without rows."""
        self._stand_ins.put((number, tuple(types.items())), frame)
