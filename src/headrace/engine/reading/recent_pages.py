"""Rows that were read lately, for the next reader that asks for the same.

Only this file decides when what one reader was given is what another one would find.  Records never
change: the rows of a full page are those between its ends until one of them is removed, and those
of a page that reaches the head until there are more.  Nothing is kept of a topic that has holes,
nor for a reader that leaves out nodes.  What a page says beside its rows (the head, a loss) is
never kept.
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
# Of one page: reading a larger one again costs little beside sending it.
RECENT_PAGE_BYTES_MAX: Final = 1 << 20
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


class RecentPages:
    """Pages by topic and by what was asked for; the one that was kept first goes first."""

    __slots__ = ("_bytes", "_pages")

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[int, int, int, int], RecentRows] = OrderedDict()
        self._bytes = 0

    def find(self, topic: Topic, cursor: int, request: ReadRequest) -> RecentRows | None:
        """What a read from behind `cursor` would collect, if that is known."""
        if request.nodes or not _is_whole(topic, cursor):
            return None
        found = self._pages.get((topic.id, cursor, request.limit, request.bytes_max))
        if found is None or (found.head and found.head != topic.head):
            return None
        return found

    def keep(
        self, topic: Topic, cursor: int, request: ReadRequest, collected: Collector
    ) -> RecentRows | None:
        """Keep what a read from behind `cursor` has collected; None: it is of no use to others."""
        size = request.bytes_max - collected.bytes_left + _PAGE_BYTES
        size += len(collected.rows) * _COLUMNS_BYTES + collected.scanned * _ROW_BYTES
        if (
            size > RECENT_PAGE_BYTES_MAX
            or not collected.rows
            or request.nodes
            or not _is_whole(topic, cursor)
            or collected.cold
            or collected.elsewhere
        ):
            return None
        pages, head = self._pages, 0 if collected.full else topic.head
        key = (topic.id, cursor, request.limit, request.bytes_max)
        before = pages.pop(key, None)
        if before is not None:
            self._bytes -= before.size
        kept = RecentRows(collected.rows, collected.cursor, collected.scanned, head, size)
        pages[key] = kept
        self._bytes += size
        while self._bytes > RECENT_BYTES_MAX:
            self._bytes -= pages.popitem(last=False)[1].size
        return kept


def _is_whole(topic: Topic, cursor: int) -> bool:
    """Whether every seq behind `cursor` is there, so that nothing has to be left out or told."""
    return cursor >= topic.base and topic.holes is None and not topic.gaps and not topic.trims
