"""What all topics of an engine add up to, and which of them have changed since the last checkpoint.

It is kept while topics change instead of being walked for.  Each topic has the engine's `Totals`
and keeps them in step with itself: only `Topic` and its bases change a sum of records or bytes,
only this file counts topics by class and hands the changed ones over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from headrace.engine.topics.config import DISK, EPHEMERAL, FSYNC, MEMORY, TopicConfig

if TYPE_CHECKING:
    from headrace.engine.streams.state import StreamState
    from headrace.engine.topics.topic import Topic


class Journal(Protocol):
    """Keeps which topics have published."""

    def note(self, topic_id: int, head: int) -> None: ...  # `head` was the topic's before


class Totals:
    """Sums over every topic that exists.

    >>> from headrace.engine.topics.topic import Topic
    >>> totals = Totals()
    >>> totals.add(Topic(1, "orders", 1, TopicConfig(), totals))
    >>> totals.topics, totals.by_class["disk"], totals.records
    (1, 1, 0)
    """

    __slots__ = (
        "bounded",
        "by_class",
        "bytes",
        "changed",
        "config_bytes",
        "ephemeral_bytes",
        "fences",
        "forks",
        "journal",
        "queues",
        "records",
        "removed",
        "resident_bytes",
        "soft_deleted",
        "staged_bytes",
        "streams",
        "tag_index_bytes",
        "topics",
        "unsealed_bytes",
    )

    def __init__(self) -> None:
        self.records = 0  # live ones
        self.bytes = 0  # of data and meta of these
        self.staged_bytes = 0  # of records that are on their way to the log
        self.resident_bytes = 0  # of all blocks in memory
        self.unsealed_bytes = 0  # of blocks that only the log and memory hold
        self.ephemeral_bytes = 0  # of blocks that only memory holds, ever
        self.tag_index_bytes = 0
        self.config_bytes = 0  # of the names in configs
        self.topics = 0
        self.queues = 0
        self.streams = 0  # those of `soft_deleted` too
        self.forks = 0  # of these
        self.fences = 0  # streams with a token that writers have to know
        self.soft_deleted = 0  # streams that are kept for their forks alone
        self.bounded = 0  # topics with a cap or a TTL
        self.by_class: dict[str, int] = dict.fromkeys((EPHEMERAL, MEMORY, DISK, FSYNC), 0)
        self.journal: Journal | None = None  # told of every publish
        self.changed: dict[int, Topic] = {}  # since the last checkpoint, by id
        self.removed: set[int] = set()  # ids of those deleted since then

    # Topics

    def build(self, topics: Iterable[Topic]) -> None:
        """Count these topics and no others."""
        self.topics = self.queues = self.bounded = self.config_bytes = 0
        self.streams = self.forks = self.soft_deleted = self.fences = 0
        self.by_class.update(dict.fromkeys(self.by_class, 0))
        for topic in topics:
            self.add(topic)
        assert self.records >= 0 and self.bytes >= 0, (self.records, self.bytes)

    def add(self, topic: Topic) -> None:
        """Count a topic that exists from now on."""
        assert topic.totals is self, topic.name
        self._count_config(topic.config, 1)
        self._count_stream(topic, 1)
        topic.recount()

    def remove(self, topic: Topic) -> None:
        """Take a topic that was added out of the counts by class and of streams."""
        self._count_config(topic.config, -1)
        self._count_stream(topic, -1)

    def reconfigured(self, before: TopicConfig, after: TopicConfig) -> None:
        """Count a topic under its new config."""
        self._count_config(before, -1)
        self._count_config(after, 1)

    def _count_stream(self, topic: Topic, by: int) -> None:
        stream = topic.stream
        if stream is None:
            return
        self.streams += by
        if topic.parent_id:
            self.forks += by
        if stream.deleted:
            self.soft_deleted += by
        if stream.fence:
            self.fences += by

    def restated(self, before: StreamState | None, after: StreamState | None) -> None:
        """Count a stream under its new state; what is not counted yet is by `add` and `build`."""
        if before is not None and after is not None:
            self.soft_deleted += after.deleted - before.deleted
            self.fences += bool(after.fence) - bool(before.fence)

    def _count_config(self, config: TopicConfig, by: int) -> None:
        assert config.durability is not None
        self.topics += by
        self.config_bytes += by * config.name_bytes
        self.by_class[config.durability] += by
        if config.type == "queue":
            self.queues += by
        if config.is_bounded:
            self.bounded += by

    def publish_to(self, journal: Journal | None) -> None:
        """Tell a journal of every publish from now on; None: nobody."""
        self.journal = journal

    # Records

    def published(self, records: int, data_bytes: int, block_bytes: int, logged: bool) -> None:
        """Count records that were staged and are part of their topics now."""
        self.staged_bytes -= data_bytes
        self.bytes += data_bytes
        self.records += records
        self.resident_bytes += block_bytes
        if logged:
            self.unsealed_bytes += block_bytes
        else:
            self.ephemeral_bytes += block_bytes

    # Changes

    def forget(self, topic_id: int) -> None:
        """Note that a topic was deleted: a checkpoint removes its files and nothing else."""
        self.changed.pop(topic_id, None)
        self.removed.add(topic_id)

    def take(self, topic_ids: Iterable[int]) -> list[Topic]:
        """Hand over those of these topics that have changed."""
        changed = self.changed
        return [changed.pop(topic_id) for topic_id in topic_ids if topic_id in changed]

    def take_changes(self) -> tuple[list[Topic], set[int]]:
        """Hand over the changed topics and the ids of the deleted ones, and begin again."""
        topics, removed = list(self.changed.values()), self.removed
        self.changed.clear()
        self.removed = set()
        return topics, removed

    def put_back_changes(self, topics: Iterable[Topic], removed: Collection[int]) -> None:
        """Take back what `take_changes` handed to a checkpoint that failed."""
        for topic in topics:
            self.changed.setdefault(topic.id, topic)
        self.removed.update(removed)
