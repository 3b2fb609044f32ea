"""Sets of seqs as ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


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
