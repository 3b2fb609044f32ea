"""Pages for live readers: what a reader asks for, a page that many of them share, and its cuts.

Only this file decides what is left of a page for a reader that sees only what is on disk.  It knows
nothing of protocols: followers keep in a shared page what they have encoded of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable

import msgspec

from headrace.engine.reading.page import Page


class PageOptions:
    """How a follower reads a topic.  Equal options are one object (`LiveHub.page_options`)."""

    __slots__ = ("__weakref__", "bytes_max", "limit", "nodes", "strong")

    def __init__(self, limit: int, bytes_max: int, nodes: tuple[str, ...], strong: bool) -> None:
        self.limit = limit
        self.bytes_max = bytes_max
        self.nodes = nodes  # records of these nodes are left out
        self.strong = strong  # only records that are on disk


class SharedPage:
    """A page that was read once for all followers at one place, and what they encoded of it."""

    __slots__ = ("encoded", "page")

    def __init__(self, page: Page) -> None:
        self.page = page
        self.encoded: dict[Hashable, object] = {}


def up_to(page: Page, last: int) -> Page:
    """Return a page as if `last` were the topic's head."""
    lost = page.tombstone
    if lost is not None and lost.reason != "recreated":
        last = max(last, lost.gap_to)  # a gap is announced however much is on disk
    if page.head_seq <= last:
        return page
    rows = []
    for part in page.rows:
        if part.seqs[-1] > last:
            kept = bisect_right(part.seqs, last)
            part = part.pick(range(kept))
        if len(part):
            rows.append(part)
    cursor = min(page.next_from_seq, last)
    return msgspec.structs.replace(page, rows=rows, next_from_seq=cursor, head_seq=last)
