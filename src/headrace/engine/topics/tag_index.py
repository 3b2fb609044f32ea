"""Which records in memory carry a tag: found by lookup, built only where deletes by tag are used.

Appends pay nothing for it: a block is indexed once, by the first delete that comes after it.
Sealed rows are not here; their files carry an order by tag.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from headrace.engine.topics.block_list import BlockList

# What one entry costs, about: a list slot and an int.
ENTRY_BYTES = 40
KEY_BYTES = 160


class TagIndex:
    """Tag to ascending seqs, for the blocks of one topic."""

    __slots__ = ("_keys", "_seqs", "_sorted", "_to", "entries")

    def __init__(self) -> None:
        self._seqs: dict[str, list[int]] = {}
        self._keys: list[str] = []
        self._sorted = True
        self._to = 0
        self.entries = 0

    @property
    def bytes(self) -> int:
        return self.entries * ENTRY_BYTES + len(self._seqs) * KEY_BYTES

    def update(self, blocks: BlockList) -> None:
        """Index the blocks that came since the last time."""
        for block in blocks.from_seq(self._to + 1):
            if block.last_seq <= self._to:
                continue
            self._to = block.last_seq
            tags = block.tags(0, block.count) if block.has_tags else None
            if tags is None:
                continue
            for seq, tag in enumerate(tags, block.first_seq):
                if tag is None:
                    continue
                seqs = self._seqs.get(tag)
                if seqs is None:
                    self._seqs[tag] = [seq]
                    self._keys.append(tag)
                    self._sorted = False
                else:
                    seqs.append(seq)
                self.entries += 1

    def find(self, tag: str, prefix: bool) -> Iterator[int]:
        """Seqs of records with this tag, or with a tag that starts with it."""
        if not prefix:
            yield from self._seqs.get(tag, ())
            return
        if not self._sorted:
            self._keys.sort()
            self._sorted = True
        for index in range(bisect_left(self._keys, tag), len(self._keys)):
            key = self._keys[index]
            if not key.startswith(tag):
                return
            yield from self._seqs[key]
