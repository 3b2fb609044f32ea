"""Sets of seqs as ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyroaring import BitMap64


def ranges_of(seqs: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Maximal runs of consecutive seqs, as (first, last).

    >>> list(ranges_of([1, 2, 3, 7, 9, 10]))
    [(1, 3), (7, 7), (9, 10)]
    """
    first = previous = -2
    for seq in seqs:
        if seq != previous + 1:
            if first >= 0:
                yield first, previous
            first = seq
        previous = seq
    if first >= 0:
        yield first, previous


def ranges_in(seqs: BitMap64) -> Iterable[tuple[int, int]]:
    """The same of a set, without a look at each seq where all are one run.

    >>> list(ranges_in(BitMap64([3, 4, 5]))), list(ranges_in(BitMap64([3, 5])))
    ([(3, 5)], [(3, 3), (5, 5)])
    """
    if seqs and seqs.max() - seqs.min() == len(seqs) - 1:
        return ((seqs.min(), seqs.max()),)
    return ranges_of(seqs)
