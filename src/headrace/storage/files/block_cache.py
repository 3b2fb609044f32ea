"""The read cache: verified 64 KiB blocks of sealed files, the least recently used dropped first.

Only verified bytes enter, so that a block found here need not be verified again.  Blocks
are keyed by file id, and ids are never used twice.  It holds at most `bytes_max` bytes, and may
be used from any thread.  It reads nothing by itself: `storage/segment/reader.py` fills it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.storage.segment.reader import Segment


class WouldBlock(Exception):
    """A read that was told not to wait needs the disk; ask again from a reader thread.

    Or let such a thread `fetch` what was missed, and ask again without waiting.
    """

    def __init__(self, segment: Segment, offset: int, length: int) -> None:
        super().__init__(segment.meta.path)
        self._segment, self._offset, self._length = segment, offset, length

    def fetch(self) -> None:
        """Read into the cache what was missed, or the index of the file.  Off the loop."""
        footer_offset = self._segment.index().footer_offset
        self._segment.read(self._offset, min(self._length, footer_offset - self._offset))


class BlockCache:
    """A bounded map from (file id, block number) to the block's bytes.

    >>> cache = BlockCache(bytes_max=10)
    >>> cache.put(1, 0, [b"123456"]); cache.put(1, 1, [b"abcdef"])
    >>> cache.get(1, 0, 2), cache.bytes
    ([None, b'abcdef'], 6)
    """

    __slots__ = ("_blocks", "_lock", "bytes", "bytes_max", "hits", "misses")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max >= 0, bytes_max
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, file_id: int, first: int, stop: int) -> list[bytes | None]:
        """Blocks `first` to `stop` (exclusive); None stands for one that is not here."""
        blocks = self._blocks
        found: list[bytes | None] = []
        with self._lock:
            for number in range(first, stop):
                key = (file_id, number)
                block = blocks.get(key)
                if block is None:
                    self.misses += 1
                else:
                    self.hits += 1
                    blocks.move_to_end(key)
                found.append(block)
        return found

    def put(self, file_id: int, first: int, verified: Sequence[bytes]) -> None:
        """Keep these blocks, the first of which is number `first`."""
        blocks = self._blocks
        with self._lock:
            for number, block in enumerate(verified, first):
                old = blocks.pop((file_id, number), b"")
                blocks[file_id, number] = block
                self.bytes += len(block) - len(old)
            while self.bytes > self.bytes_max:
                self.bytes -= len(blocks.popitem(last=False)[1])
        assert self.bytes >= 0, self.bytes

    def drop(self, file_id: int, count: int) -> None:
        """Forget a file of `count` blocks."""
        blocks = self._blocks
        with self._lock:
            for number in range(count):
                self.bytes -= len(blocks.pop((file_id, number), b""))
        assert self.bytes >= 0, self.bytes
