"""Blocks in memory that files hold as well, and when they leave it.

Only this file decides which blocks leave memory while a topic lives on: those whose records were
sealed longest ago, when blocks take more than they may.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from headrace.engine.topics.topic import Topic
from headrace.engine.topics.totals import Totals
from headrace.storage.files.block_cache import BlockCache

BLOCKS_PER_STEP = 512  # that leave memory before somebody looks how long it has taken


class SealedBlocks:
    """The topics that may have sealed blocks in memory."""

    def __init__(self, budget_bytes: int, totals: Totals, cache: BlockCache) -> None:
        self._budget_bytes = budget_bytes
        self._totals = totals
        self._cache = cache
        self._reserved_bytes = 0  # of the budget, for work that needs memory of its own
        # By the time at which they were sealed; the first one leaves in a constant time.
        self._topics: OrderedDict[int, Topic] = OrderedDict()

    def may_go(self, topic: Topic) -> None:
        """Let the sealed blocks of a topic leave memory, after those of topics sealed earlier."""
        self._topics.pop(topic.id, None)
        self._topics[topic.id] = topic

    def forget(self, topic: Topic) -> None:
        """Forget a topic, which has no such blocks any more."""
        self._topics.pop(topic.id, None)

    def reserve(self, size: int) -> None:
        """Leave `size` bytes of the budget to a merge; a quarter of it at most."""
        self._reserved_bytes = min(size, self._budget_bytes // 4)

    def make_room(self) -> None:
        """Drop sealed blocks, of what was sealed longest ago first, until half the budget is free.

        The other half is for what only the log and memory hold.
        """
        for _ in self.making_room():
            pass

    def making_room(self) -> Iterator[None]:
        """Do the same a little at a time: the loop may have a turn after each step."""
        while self._drop(self._budget_bytes // 2 - self._reserved_bytes):
            yield

    def keep_to_budget(self) -> None:
        """Drop sealed blocks, a few at a time, where memory holds more than its budget.

        A checkpoint makes room for what comes until the next one; this is for a load so fast that
        more has come before the next one is done.
        """
        beside = self._cache.bytes + self._totals.tag_index_bytes + self._reserved_bytes
        if self._totals.resident_bytes + beside > self._budget_bytes:
            self._drop(self._budget_bytes - beside)

    def _drop(self, goal: int) -> bool:
        """Drop a few sealed blocks while blocks take more than `goal`; False: that was all."""
        topics, totals = self._topics, self._totals
        left = BLOCKS_PER_STEP
        while topics and totals.resident_bytes > goal:
            if left <= 0:
                return True
            topic = next(iter(topics.values()))
            dropped = topic.drop_sealed_blocks(totals.resident_bytes - goal, left)
            if dropped < left and totals.resident_bytes > goal:
                del topics[topic.id]
            # A topic without blocks takes time too.
            left -= max(dropped, 1)
        return False
