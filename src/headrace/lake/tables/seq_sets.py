"""Which seqs of a range are rows, which are gaps and why: sets of seqs, and nothing else.

Pure.  The rule it owns: every seq of a range is a row exactly once, or a gap with a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headrace.core.errors import DataLost

DELETED: Final = "delete"  # the reason of what somebody deleted
# What a source says of a topic that is not the one any more: nothing of that may be recorded.
ENDED: Final = ("recreated", "deleted")


class Gap(NamedTuple):
    """Seqs `first` to `last` are no rows."""

    first: int
    last: int
    reason: str


def runs_of(seqs: Any) -> Iterator[tuple[int, int]]:
    """The ranges that an ascending column of seqs consists of; no row is touched in Python.

    >>> list(runs_of(pa.array([4, 5, 6, 9, 10, 12], pa.int64())))
    [(4, 6), (9, 10), (12, 12)]
    """
    count = len(seqs)
    if not count:
        return
    first, last = seqs[0].as_py(), seqs[-1].as_py()
    if last - first + 1 == count:
        yield first, last  # ascending, as `add_rows` checks
        return
    steps = pc.subtract(seqs.slice(1), seqs.slice(0, count - 1))
    breaks: Any = pc.indices_nonzero(pc.not_equal(steps, pa.scalar(1, pa.int64())))
    starts = [0, *(at + 1 for at in breaks.to_pylist())]
    ends = [*breaks.to_pylist(), count - 1]
    firsts = seqs.take(pa.array(starts, pa.int64())).to_pylist()
    lasts = seqs.take(pa.array(ends, pa.int64())).to_pylist()
    yield from zip(firsts, lasts, strict=True)


def add_rows(present: BitMap64, seqs: Any) -> None:
    """Note that these are rows; they have to ascend, and be new."""
    if not len(seqs):
        return
    steps = pc.subtract(seqs.slice(1), seqs.slice(0, len(seqs) - 1))
    least = pc.min(steps).as_py()
    newest = present.max() if present else 0
    if seqs[0].as_py() <= newest or (least is not None and least < 1):
        raise DataLost(
            f"rows are not in the order of their seqs around seq {seqs[0].as_py()}",
            fix="run `headrace check` on the server's data directory",
            detail={"reason": "order"},
        )
    for first, last in runs_of(seqs):
        present.add_range(first, last + 1)


def ranges_of(seqs: BitMap64) -> list[tuple[int, int]]:
    """A set of seqs as ranges.

    >>> ranges_of(BitMap64([1, 2, 3, 7]))
    [(1, 3), (7, 7)]
    """
    if not seqs:
        return []
    first, last = seqs.min(), seqs.max()
    if last - first + 1 == len(seqs):
        return [(first, last)]
    return list(runs_of(pa.array(seqs, pa.int64(), size=len(seqs))))


def whole(first: int, last: int) -> BitMap64:
    """All seqs of a range."""
    found = BitMap64()
    if first <= last:
        found.add_range(first, last + 1)
    return found


def joined(parts: Iterable[BitMap64]) -> BitMap64:
    """The rows of several parts together; a seq that two of them have is an error."""
    found = BitMap64()
    for part in parts:
        twice = found & part
        if twice:
            raise DataLost(
                f"seq {twice.min()} was read twice",
                fix="run the same command again; if it stays, run `headrace check`",
                detail={"reason": "twice", "seq": twice.min()},
            )
        found |= part
    return found


def gaps_between(first: int, last: int, present: BitMap64, told: Sequence[Gap]) -> list[Gap]:
    """Why each seq of a range is no row, by what the source told; the rest is deleted.

    >>> gaps_between(1, 9, BitMap64([2, 3, 9]), [Gap(1, 5, "cap")])
    [Gap(first=1, last=1, reason='cap'), Gap(first=4, last=5, reason='cap'), \
Gap(first=6, last=8, reason='delete')]
    """
    missing = whole(first, last) - present
    found = []
    for gap in told:
        inside = missing & whole(gap.first, gap.last)
        found += [Gap(a, b, gap.reason) for a, b in ranges_of(inside)]
        missing -= inside
    found += [Gap(a, b, DELETED) for a, b in ranges_of(missing)]
    return sorted(found)
