"""What statements of one session have in common, so that the next one has less to find out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame

# Topics, and stand-ins for such, that a session remembers.
TOPICS_KNOWN_MAX: Final = 100


class Seen:
    """The topics that were named lately, and tables without rows that stood for topics."""

    def __init__(self) -> None:
        self.topics: OrderedDict[str, None] = OrderedDict()
        self._stand_ins: OrderedDict[tuple[int, tuple[tuple[str, str], ...]], DataFrame]
        self._stand_ins = OrderedDict()

    def named(self, topics: Iterable[str]) -> None:
        """Statements name these."""
        for topic in topics:
            self.topics.pop(topic, None)
            self.topics[topic] = None
        while len(self.topics) > TOPICS_KNOWN_MAX:
            self.topics.popitem(last=False)

    def stand_in(self, number: int, types: dict[str, str]) -> DataFrame | None:
        return self._stand_ins.get((number, tuple(types.items())))

    def keep(self, number: int, types: dict[str, str], frame: DataFrame) -> None:
        self._stand_ins[number, tuple(types.items())] = frame
        while len(self._stand_ins) > TOPICS_KNOWN_MAX:
            self._stand_ins.popitem(last=False)
