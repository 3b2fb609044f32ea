"""Rows that were read lately, for the next reader that asks for the same.

Only this file decides when what one reader was given is what another one would find.  Records never
change: the rows of a full page are those between its ends until one of them is removed, and those
of a page that reaches the head until there are more.  Nothing is kept of a topic that has holes,
nor for a reader that leaves out nodes.  What a page says beside its rows (the head, a loss) is
found out each time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from headrace.engine.reading.page_rows import Collector, ReadRequest
from headrace.engine.topics.topic import Topic
from headrace.storage.rows import Rows

# All rows that are kept, with the objects around them; what readers made of them may be as much.
RECENT_BYTES_MAX: Final = 8 << 20
# Of one page: that of a stream's catch-up has megabytes, and often many clients.
RECENT_PAGE_BYTES_MAX: Final = 4 << 20
# What a page takes beside its payloads: itself, the columns of each block, and each row.
_PAGE_BYTES: Final = 512
_COLUMNS_BYTES: Final = 384
_ROW_BYTES: Final = 128


class RecentRows(msgspec.Struct, eq=False):
    """The rows of one page, and what the last reader made of them."""

    rows: list[Rows]
    next_from_seq: int
    scanned: int
    head: int  # of the topic, which the page reaches; 0: it is full
    size: int  # in bytes
    encoded_as: object = None  # in which form
    encoded: bytes = b""
    # What it was told with them, and everything that this depends on.
    told_of: object = None
    told: object = None


# What was asked for: topic, cursor, limit, bytes_max.
PageKey = tuple[int, int, int, int]


class RecentPages:
    """Pages by what was asked for; the one that was kept first goes first."""

    __slots__ = ("_pages", "bytes")

    def __init__(self) -> None:
        self._pages: OrderedDict[PageKey, RecentRows] = OrderedDict()
        self.bytes = 0

    def key_of(self, topic: Topic, cursor: int, request: ReadRequest) -> PageKey | None:
        """What others would have to ask for to be given the same rows; None: nobody else is.

        Every seq behind the cursor is there, so that nothing has to be left out or told of.
        """
        if cursor < topic.base or topic.holes is not None or topic.gaps or topic.trims:
            return None
        if request.nodes:
            return None
        return topic.id, cursor, request.limit, request.bytes_max

    def find(self, key: PageKey, head: int) -> RecentRows | None:
        """What a read would collect now, if that is known; `head` is that of the topic."""
        found = self._pages.get(key)
        return None if found is None or found.head not in (0, head) else found

    def keep(self, key: PageKey, head: int, collected: Collector) -> RecentRows | None:
        """Keep what a read has collected right after it had its key; None: it is too large."""
        rows, size = collected.rows, key[3] - collected.bytes_left + _PAGE_BYTES
        size += len(rows) * _COLUMNS_BYTES + collected.scanned * _ROW_BYTES
        if not rows or size > RECENT_PAGE_BYTES_MAX:
            return None
        pages = self._pages
        before = pages.pop(key, None)
        if before is not None:
            self.bytes -= before.size
        pages[key] = kept = RecentRows(
            rows, collected.cursor, collected.scanned, 0 if collected.full else head, size
        )
        self.bytes += size
        while self.bytes > RECENT_BYTES_MAX:
            self.bytes -= pages.popitem(last=False)[1].size
        return kept
