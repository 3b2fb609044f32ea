"""What the metrics say of all topics together, kept while it changes instead of being walked for.

Only this file counts topics by class and live records over all topics.  Each topic remembers with
how many records it was counted, so that counting it again is exact however it changed.  It does
not decide when: `Core` and the parts that change topics call in.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.engine.topic import Topic
from headrace.engine.topic_config import DISK, EPHEMERAL, FSYNC, MEMORY, TopicConfig


class Totals:
    """Counts over every topic that exists.

    >>> totals, topic = Totals(), Topic(1, "orders", 1, TopicConfig())
    >>> totals.add(topic)
    >>> totals.topics, totals.by_class["disk"], totals.records
    (1, 1, 0)
    """

    def __init__(self) -> None:
        self.records = 0  # live ones
        self.topics = 0
        self.queues = 0
        self.by_class: dict[str, int] = dict.fromkeys((EPHEMERAL, MEMORY, DISK, FSYNC), 0)

    def build(self, topics: Iterable[Topic]) -> None:
        """Count these topics and nothing else."""
        self.records = self.topics = self.queues = 0
        self.by_class.update(dict.fromkeys(self.by_class, 0))
        for topic in topics:
            topic.counted = 0
            self.add(topic)

    def add(self, topic: Topic) -> None:
        """A topic exists from now on."""
        self._count_config(topic.config, 1)
        self.recount(topic)

    def remove(self, topic: Topic) -> None:
        """A topic that was added is gone, with what was in it."""
        self._count_config(topic.config, -1)
        self.records -= topic.counted
        topic.counted = 0

    def reconfigured(self, before: TopicConfig, after: TopicConfig) -> None:
        """A topic has another config."""
        self._count_config(before, -1)
        self._count_config(after, 1)

    def recount(self, topic: Topic) -> None:
        """The live records of a topic may have changed."""
        count = topic.count
        self.records += count - topic.counted
        topic.counted = count

    def _count_config(self, config: TopicConfig, by: int) -> None:
        assert config.durability is not None
        self.topics += by
        self.by_class[config.durability] += by
        if config.type == "queue":
            self.queues += by
