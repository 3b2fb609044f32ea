"""Whether what many clients saw of one log could have happened one thing after the other.

For a log this is cheap to decide, in O(n log n): an acknowledged append says where it is, so the
order is known, and only three things are left to check.  No two appends share a seq.  An append
that had returned before another began is before it.  Each read shows exactly the records up to some
tail, that tail lies between what had been acknowledged when the read began and what had been begun
when it returned, and tails never go back.  What a read showed is kept as one number, the chained
hash of every record up to its tail.

It knows no engine and no time: *moments* are numbers that only grow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from tests.harness.events import Violation


def chain(start: int, records: Iterable[bytes]) -> int:
    """The hash of all records so far and these: equal only for equal logs.

    >>> chain(chain(0, [b"a"]), [b"b"]) == chain(0, [b"a", b"b"]) != chain(0, [b"ab"])
    True
    """
    for record in records:
        start = xxh3_64_intdigest(record, start)
    return start


class Append(NamedTuple):
    """An append: when it began and returned, what it wrote, where it went.

    `first_seq` is 0 while the outcome is not known, and then `returned` has no meaning.
    """

    began: int
    returned: int
    records: tuple[bytes, ...]
    first_seq: int = 0

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.records) - 1


class Read(NamedTuple):
    """A read from the start: the last seq it showed, and the chained hash up to there."""

    began: int
    returned: int
    tail: int
    hash: int


@dataclass
class History:
    """What the clients of one log did.

    >>> history = History()
    >>> begun = history.now()
    >>> history.appended(begun, [b"a", b"b"], first_seq=1)
    >>> history.read(history.now(), 2, chain(0, [b"a", b"b"]))
    >>> history.check([b"a", b"b"])
    """

    appends: list[Append] = field(default_factory=list)
    unknown: list[Append] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    _moment: int = 0

    def now(self) -> int:
        self._moment += 1
        return self._moment

    def appended(self, began: int, records: Sequence[bytes], first_seq: int) -> None:
        self.appends.append(Append(began, self.now(), tuple(records), first_seq))

    def lost_sight(self, began: int, records: Sequence[bytes]) -> None:
        """Nobody knows whether this append was stored."""
        self.unknown.append(Append(began, 0, tuple(records)))

    def read(self, began: int, tail: int, hash: int) -> None:
        self.reads.append(Read(began, self.now(), tail, hash))

    def check(self, log: Sequence[bytes]) -> None:
        """Raise a `Violation` unless all this fits into one order that ends with `log`."""
        order = self._place(log)
        _check_order(order)
        self._check_reads(log, order)

    def _place(self, log: Sequence[bytes]) -> list[Append]:
        """Every append that is in the log, in the order of the log; there is nothing else in it."""
        order = sorted(self.appends, key=lambda append: append.first_seq)
        unknown = {append.records[0]: append for append in self.unknown}
        placed: list[Append] = []
        seq = 1
        for append in order:
            seq = _fill(placed, unknown, log, seq, append.first_seq)
            if append.first_seq != seq:
                raise Violation(f"{append} and another append share seq {append.first_seq}")
            stored = tuple(log[seq - 1 : append.last_seq])
            if stored != append.records:
                raise Violation(f"{append} was acknowledged, {stored} is at its place")
            placed.append(append)
            seq = append.last_seq + 1
        seq = _fill(placed, unknown, log, seq, len(log) + 1)
        if seq != len(log) + 1:
            raise Violation(f"the log ends at {len(log)}, {seq - 1} was acknowledged")
        return placed

    def _check_reads(self, log: Sequence[bytes], order: list[Append]) -> None:
        hashes = list(accumulate(log, lambda h, record: xxh3_64_intdigest(record, h), initial=0))
        known = sorted((a.returned, a.last_seq) for a in order if a.returned)
        acked = _running_max(known)
        for read in self.reads:
            if read.tail > len(log) or hashes[read.tail] != read.hash:
                raise Violation(f"{read} does not show the first {read.tail} records of the log")
            least = _before(acked, read.began)
            if read.tail < least:
                raise Violation(f"{read} does not show {least}, acknowledged before it began")
        self._check_begun(order)
        shown = _running_max(sorted((read.returned, read.tail) for read in self.reads))
        for read in self.reads:
            if read.tail < _before(shown, read.began):
                raise Violation(f"{read} goes back: an earlier read had shown more")

    def _check_begun(self, order: list[Append]) -> None:
        starts = [append.first_seq for append in order]
        for read in self.reads:
            if not read.tail:
                continue
            append = order[bisect_left(starts, read.tail + 1) - 1]
            if append.last_seq != read.tail:
                raise Violation(f"{read} ends inside {append}")
            if append.began > read.returned:
                raise Violation(f"{read} shows {append}, which began after it returned")


def _fill(
    placed: list[Append],
    unknown: dict[bytes, Append],
    log: Sequence[bytes],
    seq: int,
    stop: int,
) -> int:
    """Place appends of unknown outcome at `seq` and after, as the log shows them, up to `stop`."""
    while seq < stop:
        append = unknown.pop(log[seq - 1], None) if seq <= len(log) else None
        if append is None:
            raise Violation(f"nobody wrote what is at seq {seq}, or it is there twice")
        append = append._replace(first_seq=seq)
        if tuple(log[seq - 1 : append.last_seq]) != append.records:
            raise Violation(f"only a part of {append} is there")
        placed.append(append)
        seq = append.last_seq + 1
    return seq


def _check_order(order: list[Append]) -> None:
    """What had returned before another began is before it."""
    earliest = [a.returned for a in order if a.returned]
    acked = [a for a in order if a.returned]
    for index in range(len(earliest) - 2, -1, -1):
        earliest[index] = min(earliest[index], earliest[index + 1])
    for (one, _), (_, later) in pairwise(zip(acked, earliest, strict=True)):
        if later < one.began:
            raise Violation(f"{one} began after an append had returned that is behind it")


def _running_max(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [moment for moment, _ in pairs], list(accumulate((n for _, n in pairs), max))


def _before(maxima: tuple[list[int], list[int]], moment: int) -> int:
    """The largest number noted before `moment`."""
    at = bisect_left(maxima[0], moment)
    return maxima[1][at - 1] if at else 0
