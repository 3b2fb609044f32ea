"""The blocks of a topic that are in memory, oldest first, found by seq in logarithmic time.

Front removal is lazy, so that dropping one block at a time stays cheap however long the list.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from headrace.storage.block import Block

_COMPACT_MIN = 64
_FIRST_SEQ = attrgetter("first_seq")


class BlockList:
    """Blocks in ascending, disjoint seq ranges."""

    __slots__ = ("_blocks", "_low")

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._low = 0

    def __len__(self) -> int:
        return len(self._blocks) - self._low

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks[self._low :])

    def append(self, block: Block) -> None:
        self._blocks.append(block)

    @property
    def first(self) -> Block | None:
        return self._blocks[self._low] if self._low < len(self._blocks) else None

    def pop_first(self) -> Block:
        block = self._blocks[self._low]
        self._low += 1
        if self._low >= _COMPACT_MIN and self._low * 2 >= len(self._blocks):
            del self._blocks[: self._low]
            self._low = 0
        elif self._low == len(self._blocks):
            self._blocks.clear()
            self._low = 0
        return block

    def _index(self, seq: int) -> int:
        """Where the block is that holds `seq`, or the first one after it."""
        blocks = self._blocks
        index = bisect_right(blocks, seq, self._low, key=_FIRST_SEQ) - 1
        if index < self._low:
            return self._low
        return index if blocks[index].last_seq >= seq else index + 1

    def from_seq(self, seq: int) -> Iterator[Block]:
        """The block that holds `seq`, or the first after it, and all that follow."""
        blocks = self._blocks
        index = self._index(seq)
        while index < len(blocks):
            yield blocks[index]
            index += 1

    def since(self, seq: int, count: int | None = None) -> list[Block]:
        """What `from_seq` gives, or the first `count` of it, as a list in one copy."""
        blocks = self._blocks
        index = self._index(seq)
        return blocks[index:] if count is None else blocks[index : index + count]
