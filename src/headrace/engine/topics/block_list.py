"""The blocks of a topic that are in memory, oldest first, found by seq in logarithmic time.

A block that is dropped is let go at once; only its place in the list stays until there are many
such, so that dropping a few blocks at a time stays cheap however long the list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import cast

from headrace.storage.block import Block

_COMPACT_MIN = 64
_FIRST_SEQ, _LAST_SEQ, _TS = map(attrgetter, ("first_seq", "last_seq", "ts"))
# In the place of a block that was dropped; nothing looks at such places.
_DROPPED = cast(Block, None)


class BlockList:
    """Blocks in ascending, disjoint seq ranges."""

    __slots__ = ("_dropped_ts", "_low", "stored")

    def __init__(self) -> None:
        # New blocks are appended here, without a call of ours for each.
        self.stored: list[Block] = []
        self._low = 0
        self._dropped_ts = 0  # of the last record of all, while none is in memory

    def __len__(self) -> int:
        return len(self.stored) - self._low

    def __iter__(self) -> Iterator[Block]:
        return iter(self.stored[self._low :])

    @property
    def first(self) -> Block | None:
        return self.stored[self._low] if self._low < len(self.stored) else None

    @property
    def last_ts(self) -> int:
        """The timestamp of the last record of all, in memory or not; 0: there was none."""
        return self.stored[-1].ts if self.stored else self._dropped_ts

    def begin_behind(self, ts: int) -> None:
        """Hold none of the records that there are, whose last one has this timestamp."""
        assert not self.stored, len(self.stored)
        self._dropped_ts = ts

    def pop_first(self) -> Block:
        block = self.stored[self._low]
        self.drop_first(1)
        return block

    def drop_first(self, count: int) -> None:
        """Let go of the oldest `count` blocks."""
        blocks, low = self.stored, self._low
        assert count <= len(blocks) - low, (count, len(blocks), low)
        if count and low + count == len(blocks):
            self._dropped_ts = blocks[-1].ts
        blocks[low : low + count] = [_DROPPED] * count
        self._low = low = low + count
        if low == len(blocks) or (low >= _COMPACT_MIN and low * 2 >= len(blocks)):
            del blocks[:low]
            self._low = 0

    def up_to(self, seq: int, count: int) -> list[Block]:
        """The oldest blocks whose records are all at or below `seq`, at most `count` of them."""
        oldest = self.stored[self._low : self._low + count]
        if oldest and oldest[-1].last_seq > seq:
            del oldest[bisect_right(oldest, seq, key=_LAST_SEQ) :]
        return oldest

    def _index(self, seq: int) -> int:
        """Where the block is that holds `seq`, or the first one after it."""
        blocks, low = self.stored, self._low
        if low < len(blocks):
            # Where each block has one record, and none is missing, it is as far as its seq says.
            index = low + seq - blocks[low].first_seq
            if low <= index < len(blocks) and blocks[index].first_seq == seq:
                return index
        index = bisect_right(blocks, seq, low, key=_FIRST_SEQ) - 1
        if index < low:
            return low
        return index if blocks[index].last_seq >= seq else index + 1

    def from_seq(self, seq: int) -> Iterator[Block]:
        """The block that holds `seq`, or the first after it, and all that follow."""
        blocks = self.stored
        index = self._index(seq)
        while index < len(blocks):
            yield blocks[index]
            index += 1

    def from_ts(self, ts: int, seq: int) -> Block | None:
        """The first block from `seq` on that has a record with this timestamp or a later one."""
        blocks = self.stored
        index = bisect_left(blocks, ts, self._index(seq), key=_TS)
        return blocks[index] if index < len(blocks) else None

    def since(self, seq: int, count: int | None = None) -> list[Block]:
        """What `from_seq` gives, or the first `count` of it, as a list in one copy."""
        blocks = self.stored
        index = self._index(seq)
        return blocks[index:] if count is None else blocks[index : index + count]
