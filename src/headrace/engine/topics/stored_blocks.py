"""Where the records of a topic are: in memory, in the log, in files.

Only this file drops blocks from memory and says what is sealed, and keeps the bytes in step, those
of all topics too.  A block in memory is of one of four kinds, and its bytes are counted as that:
sealed (at or below `sealed_to`), being sealed (`sealing_bytes`), waiting to be sealed
(`unsealed_bytes`), or never stored (`ephemeral_bytes`, above `logged_to`).  They are counted with
the objects around them (`BLOCK_OBJECTS_BYTES`), which are a third of what small records take.

When blocks may leave memory is decided elsewhere: see `EngineState`.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from headrace.engine.topics.forks import ForkedSeqs
from headrace.engine.topics.tag_index import TagIndex
from headrace.engine.topics.totals import Totals
from headrace.storage.block import BLOCK_OBJECTS_BYTES
from headrace.storage.snapshot.state import TopicState


class StoredBlocks(ForkedSeqs):
    """The records of one topic, by where they are."""

    __slots__ = (
        "ephemeral_bytes",
        "logged_to",
        "sealed_to",
        "sealing_bytes",
        "sealing_to",
        "tags",
        "unlogged_to",
        "unsealed_bytes",
    )

    def __init__(self, name: str, totals: Totals) -> None:
        super().__init__(name, totals)
        self.sealed_to = 0  # records up to here are in files
        self.logged_to = 0  # the last record that is in the log or in a file
        self.unlogged_to = 0  # the last record that is inherited, or of this run and not logged
        self.sealing_to = 0  # up to here they are on their way to a file; 0 when none is
        self.sealing_bytes = 0
        self.unsealed_bytes = 0  # of blocks in memory that are neither
        self.ephemeral_bytes = 0  # of blocks in memory that are never stored
        self.tags: TagIndex | None = None  # of rows in memory, made on first use

    def _restore_bounds(self, saved: TopicState) -> None:
        self.sealed_to = self.logged_to = saved.sealed_to

    # Memory

    def count_as_logged(self, logged_to: int) -> None:
        """Count what is below a stored record as unsealed: it is sealed too, whatever its class."""
        self.logged_to = max(self.logged_to, logged_to)
        size = self.ephemeral_bytes
        if size:
            totals = self.totals
            totals.ephemeral_bytes -= size
            totals.unsealed_bytes += size
            self.unsealed_bytes += size
            self.ephemeral_bytes = 0

    def drop_dead_blocks(self) -> None:
        """Drop from memory the blocks that are dead, here and in every fork."""
        first, base = self.blocks.first, self.kept_base
        while first is not None and first.last_seq <= base:
            self._drop_first()
            first = self.blocks.first

    def drop_sealed_blocks(self, excess: int, count: int) -> int:
        """Drop the oldest blocks that files hold until `excess` bytes are gone, at most `count`.

        Return how many blocks that were; fewer than `count`: nothing is left to be dropped here,
        or the excess is gone.
        """
        assert self.sealed_to <= self.logged_to, (self.name, self.sealed_to, self.logged_to)
        blocks = self.blocks.up_to(self.sealed_to, count)
        sizes = [len(block.raw) + BLOCK_OBJECTS_BYTES for block in blocks]
        sums = list(accumulate(sizes))
        if sums and sums[-1] > excess:
            del sums[bisect_left(sums, excess) + 1 :]
        if sums:
            self.totals.resident_bytes -= sums[-1]
            self.blocks.drop_first(len(sums))
        return len(sums)

    def drop_blocks(self) -> None:
        """Drop every block from memory, and the index of their tags."""
        self.keep_tags(None)
        while self.blocks.first is not None:
            self._drop_first()
        assert not self.unsealed_bytes and not self.ephemeral_bytes, self.name

    def _drop_first(self) -> None:
        block, totals = self.blocks.pop_first(), self.totals
        size = len(block.raw) + BLOCK_OBJECTS_BYTES
        totals.resident_bytes -= size
        if block.last_seq > self.logged_to:
            totals.ephemeral_bytes -= size
            self.ephemeral_bytes -= size
        elif block.last_seq > self.sealed_to:
            totals.unsealed_bytes -= size
            if block.last_seq <= self.sealing_to:
                self.sealing_bytes -= size
            else:
                self.unsealed_bytes -= size

    def keep_tags(self, index: TagIndex | None) -> None:
        """Keep an index of the tags in memory, instead of the one that is there."""
        if self.tags is not None:
            self.totals.tag_index_bytes -= self.tags.bytes
        if index is not None:
            self.totals.tag_index_bytes += index.bytes
        self.tags = index

    # Sealing

    def begin_sealing(self, sealed_to: int) -> None:
        """Note that everything up to `sealed_to` is being written to files."""
        assert self.sealed_to <= sealed_to <= self.head, (self.name, sealed_to, self.head)
        self.sealing_to = sealed_to
        self.sealing_bytes, self.unsealed_bytes = self.unsealed_bytes, 0

    def end_sealing(self) -> None:
        """Note that what was being written is in files that readers can see."""
        self.sealed_to = max(self.sealed_to, self.sealing_to)
        self.totals.unsealed_bytes -= self.sealing_bytes
        self.sealing_to = self.sealing_bytes = 0

    def give_up_sealing(self) -> None:
        """Note that what was being written is in no file: it is unsealed again."""
        self.unsealed_bytes += self.sealing_bytes
        self.sealing_to = self.sealing_bytes = 0
