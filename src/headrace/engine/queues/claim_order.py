"""In which order jobs are given out, and how they are shared: lowest first, one by one in turn.

Pure functions of which records of a topic are alive; nothing here knows leases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from pyroaring import BitMap64

# Beyond this the search for live seqs does not look at more of them at a time.
WINDOW_MAX = 1 << 20


class Span(NamedTuple):
    """Which records of a topic are alive: base < seq <= head, and not in `holes`."""

    base: int
    head: int
    holes: BitMap64 | None

    def alive(self, seq: int) -> bool:
        return self.base < seq <= self.head and not (self.holes and seq in self.holes)

    def between(self, first: int, last: int) -> BitMap64:
        """Return the live seqs from first to last."""
        first, last = max(first, self.base + 1), min(last, self.head)
        found = BitMap64()
        if first <= last:
            found.add_range(first, last + 1)
            if self.holes:
                found -= self.holes
        return found


def live_after(cursor: int, count: int, span: Span) -> Sequence[int]:
    """Return the first `count` live seqs beyond `cursor`, however many holes are between.

    >>> list(live_after(1, 3, Span(0, 10, BitMap64([2, 3, 5]))))
    [4, 6, 7]
    """
    low, holes = cursor + 1, span.holes
    if not holes or holes.max() < low:
        return range(low, min(span.head, cursor + count) + 1)
    found: list[int] = []
    width = count
    while low <= span.head and len(found) < count:
        high = min(span.head, low + width - 1)
        if holes.range_cardinality(low, high + 1) <= high - low:
            found.extend(islice(span.between(low, high), count - len(found)))
        low = high + 1
        width = min(2 * width, WINDOW_MAX)
    return found


def first_free(free: BitMap64, delivered: Collection[int], count: int, room: int) -> list[int]:
    """Return the lowest jobs that came back; of those never delivered, at most `room`.

    >>> first_free(BitMap64([3, 4, 5, 6]), {4, 6}, 3, 1)
    [3, 4, 6]
    """
    seqs = list(islice(free, count))
    if room < count and sum([seq not in delivered for seq in seqs]) > room:
        known = free & BitMap64(delivered)
        passed = list(islice(free - known, max(room, 0)))
        seqs = sorted([*islice(known, count), *passed])[:count]
    return seqs


def shares(jobs: int, wants: Sequence[int]) -> list[int]:
    """Return how many jobs each gets when they are dealt out one by one in turn.

    >>> shares(20, [10, 10, 10, 10]), shares(10, [1, 10, 10]), shares(9, [2, 2])
    ([5, 5, 5, 5], [1, 5, 4], [2, 2])
    """
    given = [0] * len(wants)
    unserved = list(range(len(wants)))
    while jobs and unserved:
        each = max(1, min(jobs // len(unserved), min(wants[i] - given[i] for i in unserved)))
        for i in unserved[: jobs if jobs < len(unserved) else None]:
            given[i] += each
            jobs -= each
        unserved = [i for i in unserved if given[i] < wants[i]]
    return given


def up_to(seqs: BitMap64, last: int) -> Iterator[int]:
    """Return the seqs of a set that are not beyond `last`."""
    for seq in seqs:
        if seq > last:
            return
        yield seq
