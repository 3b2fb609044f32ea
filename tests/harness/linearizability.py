"""Whether what many clients saw of one log could have happened one thing after the other.

For a log this is cheap to decide, in O(n log n): an acknowledged append says where it is, so the
order is known, and only a few things are left to check.  No two appends share a seq.  An append
that had returned before another began is before it.  Each read shows exactly the records up to some
tail, that tail lies between what had been acknowledged when the read began and what had been begun
when it returned, and tails never go back.  What a read showed is kept as one number, the chained
hash of every record up to its tail; a look at the tail alone, and a read of a few records from the
middle, are held to the same.  An append with a condition is where its condition held, whether it
was answered or not, and a refusal tells what held instead.

It knows no engine, no dialect and no time: *moments* are numbers that only grow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
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
    """An append: when it began and returned, what it wrote, where it went, on which conditions.

    `first_seq` is 0 while the outcome is not known, and then `returned` has no meaning.
    """

    began: int
    returned: int
    records: tuple[bytes, ...]
    first_seq: int = 0
    after: int | None = None  # the tail that it asked for
    token: bytes | None = None  # the fencing token that it asked for
    fences: bool = False  # its one record is the next fencing token

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.records) - 1


class Read(NamedTuple):
    """A read from the start: the last seq it showed, and the chained hash up to there.

    No hash: only the tail was looked at.
    """

    began: int
    returned: int
    tail: int
    hash: int | None


class Part(NamedTuple):
    """A read of some records, which may end anywhere."""

    began: int
    returned: int
    first_seq: int
    last_seq: int
    hash: int  # of these alone


class Fenced(NamedTuple):
    """An append that was refused because of its fencing token, and the token it was told."""

    began: int
    returned: int
    given: bytes
    told: bytes


@dataclass
class History:
    """What the clients of one log did.

    >>> history = History()
    >>> begun = history.now()
    >>> history.appended(begun, [b"a", b"b"], first_seq=1, after=0)
    >>> history.read(history.now(), 2, chain(0, [b"a", b"b"]))
    >>> history.refused(history.now(), after=0, tail=2)
    >>> history.check([b"a", b"b"])
    """

    appends: list[Append] = field(default_factory=list)
    unknown: list[Append] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    fenced: list[Fenced] = field(default_factory=list)
    _moment: int = 0

    def now(self) -> int:
        self._moment += 1
        return self._moment

    def appended(
        self,
        began: int,
        records: Sequence[bytes],
        first_seq: int,
        *,
        after: int | None = None,
        token: bytes | None = None,
        fences: bool = False,
    ) -> None:
        self.appends.append(
            Append(began, self.now(), tuple(records), first_seq, after, token, fences)
        )

    def lost_sight(
        self,
        began: int,
        records: Sequence[bytes],
        *,
        after: int | None = None,
        token: bytes | None = None,
        fences: bool = False,
    ) -> None:
        """Nobody knows whether this append was stored."""
        self.unknown.append(Append(began, 0, tuple(records), 0, after, token, fences))

    def read(self, began: int, tail: int, hash: int) -> None:
        self.reads.append(Read(began, self.now(), tail, hash))

    def saw_tail(self, began: int, tail: int) -> None:
        """A look at the tail, without what is before it."""
        self.reads.append(Read(began, self.now(), tail, None))

    def read_part(self, began: int, first_seq: int, records: Sequence[bytes]) -> None:
        """A read from the middle."""
        if records:
            last = first_seq + len(records) - 1
            self.parts.append(Part(began, self.now(), first_seq, last, chain(0, records)))

    def refused(self, began: int, *, after: int, tail: int) -> None:
        """An append asked for another tail than there was."""
        if after == tail:
            raise Violation(f"an append after {after} was refused, and told of that tail")
        self.saw_tail(began, tail)

    def fenced_off(self, began: int, *, given: bytes, told: bytes) -> None:
        """An append gave another fencing token than there was."""
        if given == told:
            raise Violation(f"an append with {given!r} was refused, and told of that token")
        self.fenced.append(Fenced(began, self.now(), given, told))

    @property
    def operations(self) -> int:
        of_all = (self.appends, self.unknown, self.reads, self.parts, self.fenced)
        return sum(len(some) for some in of_all)

    def check(self, log: Sequence[bytes]) -> None:
        """Raise a `Violation` unless all this fits into one order that ends with `log`."""
        order = self._place(log)
        _check_order(order)
        _check_conditions(order)
        self._check_fenced(order)
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
        for part in self.parts:
            if chain(0, log[part.first_seq - 1 : part.last_seq]) != part.hash:
                raise Violation(f"{part} does not show what the log has there")
        for read in self.reads:
            if read.tail > len(log) or read.hash not in (None, hashes[read.tail]):
                raise Violation(f"{read} does not show the first {read.tail} records of the log")
            least = _before(acked, read.began)
            if read.tail < least:
                raise Violation(f"{read} does not show {least}, acknowledged before it began")
        self._check_begun(order)
        shown = _running_max(
            sorted(
                [(read.returned, read.tail) for read in self.reads]
                + [(part.returned, part.last_seq) for part in self.parts]
            )
        )
        for read in self.reads:
            if read.tail < _before(shown, read.began):
                raise Violation(f"{read} goes back: an earlier read had shown more")

    def _check_begun(self, order: list[Append]) -> None:
        """Nothing was shown before its append began, and nothing before that either."""
        starts = [append.first_seq for append in order]
        begun = list(accumulate((append.began for append in order), max))
        for read in self.reads:
            if not read.tail:
                continue
            at = bisect_left(starts, read.tail + 1) - 1
            if order[at].last_seq != read.tail:
                raise Violation(f"{read} ends inside {order[at]}")
            if begun[at] > read.returned:
                raise Violation(f"{read} shows {order[at]}, which began after it returned")
        for part in self.parts:
            at = bisect_left(starts, part.last_seq + 1) - 1
            if begun[at] > part.returned:
                raise Violation(f"{part} shows {order[at]}, which began after it returned")

    def _check_fenced(self, order: list[Append]) -> None:
        """Each token that a refusal told of was the one that held at some moment of the call."""
        fences = [append for append in order if append.fences]
        held = {append.records[0]: at for at, append in enumerate(fences)}
        for one in self.fenced:
            at = held.get(one.told, -1)
            if at < 0 and one.told:
                raise Violation(f"{one}: nobody fenced with that token")
            if at >= 0 and fences[at].began > one.returned:
                raise Violation(f"{one} tells of {fences[at]}, which began after it returned")
            for later in fences[at + 1 : at + 2]:
                if later.returned and later.returned < one.began:
                    raise Violation(f"{one} does not tell of {later}, which was before it")


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
    earliest: Append | None = None  # to return, of those behind
    for append in reversed(order):
        if earliest is not None and earliest.returned < append.began:
            raise Violation(f"{append} began after {earliest} had returned, which is behind it")
        if append.returned and (earliest is None or append.returned < earliest.returned):
            earliest = append


def _check_conditions(order: list[Append]) -> None:
    """What asked for a tail or a token is where that was."""
    token = b""
    for append in order:
        if append.after is not None and append.first_seq != append.after + 1:
            raise Violation(f"{append} is not behind {append.after}, as it asked to be")
        if append.token is not None and append.token != token:
            raise Violation(f"{append} is where the token was {token!r}")
        if append.fences:
            token = append.records[0]


def _running_max(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [moment for moment, _ in pairs], list(accumulate((n for _, n in pairs), max))


def _before(maxima: tuple[list[int], list[int]], moment: int) -> int:
    """The largest number noted before `moment`."""
    at = bisect_left(maxima[0], moment)
    return maxima[1][at - 1] if at else 0
