"""Spans: which records of a topic are to be read, and arithmetic on ranges of seqs.

Seqs are inclusive at both ends everywhere.  Nothing here knows files, servers or Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

Range = tuple[int, int]  # first and last


class Span(NamedTuple):
    """Records `first` to `last` of a topic in one of its lives; empty if `last` < `first`."""

    topic: str
    epoch: int
    first: int
    last: int

    @property
    def length(self) -> int:
        return max(0, self.last - self.first + 1)


def clipped(ranges: Iterable[Range], first: int, last: int) -> Iterator[Range]:
    """What of these ranges lies between two seqs.

    >>> list(clipped([(1, 5), (8, 9)], 4, 8))
    [(4, 5), (8, 8)]
    """
    for a, b in ranges:
        a, b = max(a, first), min(b, last)
        if a <= b:
            yield a, b


def outside(ranges: Iterable[Range], first: int, last: int) -> Iterator[Range]:
    """What is left between two seqs without these ranges, which are in order.

    >>> list(outside([(1, 5), (8, 9)], 4, 12))
    [(6, 7), (10, 12)]
    """
    for a, b in clipped(ranges, first, last):
        if first < a:
            yield first, a - 1
        first = b + 1
    if first <= last:
        yield first, last
