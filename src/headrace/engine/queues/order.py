"""In which order jobs are given out, and how they are shared: lowest first, one by one in turn.

Pure functions of which records of a topic are alive; nothing here knows leases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        """The live seqs from first to last."""
        first, last = max(first, self.base + 1), min(last, self.head)
        found = BitMap64()
        if first <= last:
            found.add_range(first, last + 1)
            if self.holes:
                found -= self.holes
        return found


def live_after(cursor: int, count: int, span: Span) -> Sequence[int]:
    """The first `count` live seqs beyond `cursor`, however many holes there are between.

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


def shares(jobs: int, wants: Sequence[int]) -> list[int]:
    """How many jobs each gets when they are dealt out one by one in turn.

    >>> shares(20, [10, 10, 10, 10]), shares(10, [1, 10, 10]), shares(9, [2, 2])
    ([5, 5, 5, 5], [1, 5, 4], [2, 2])
    """
    given = [0] * len(wants)
    hungry = list(range(len(wants)))
    while jobs and hungry:
        each = max(1, min(jobs // len(hungry), min(wants[i] - given[i] for i in hungry)))
        for i in hungry[: jobs if jobs < len(hungry) else None]:
            given[i] += each
            jobs -= each
        hungry = [i for i in hungry if given[i] < wants[i]]
    return given


def up_to(seqs: BitMap64, last: int) -> Iterator[int]:
    """The seqs of a set that are not beyond `last`."""
    for seq in seqs:
        if seq > last:
            return
        yield seq
