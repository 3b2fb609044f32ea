"""The accounts of the soak: what was acknowledged, what was read, and what does not add up.

Memory is bounded however long it goes on: records are known again by what they hold
(`content.py`), so an account has a position, counts, and digests of what went by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import xxhash

from tests.campaigns.soaking.content import origin, payload

FINDINGS_MAX = 50  # kept; more are counted
AHEAD_MAX = 200_000  # numbers that an account holds beyond the first one that is missing
_MASK = (1 << 64) - 1


class Ledger:
    """Counts, and what is wrong."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []

    def wrong(self, reason: str) -> None:
        self.counts["findings"] += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(reason)

    def expect(self, held: bool, reason: str) -> None:
        if not held:
            self.wrong(reason)


class Sequence:
    """A reader of a topic whose record at seq s is number s of its only writer.

    Every seq comes once, in order, with its bytes; or it is announced as gone, which only seqs up
    to `may_go` can be; or `may_miss` says that somebody deleted it.
    """

    def __init__(
        self,
        ledger: Ledger,
        who: str,
        of: str,
        may_miss: Callable[[int], bool] = lambda seq: False,
        may_go: Callable[[], int] = lambda: 0,
    ) -> None:
        self._ledger, self._who, self._of = ledger, who, of
        self._may_miss, self._may_go = may_miss, may_go
        self.seq = 0  # the last one that is accounted for
        self.read = 0
        self.announced = 0
        self.missed = 0

    def take(self, seq: int, data: bytes) -> None:
        """A record was read."""
        if self.other(seq) and data != payload(self._of, seq):
            self._ledger.wrong(f"{self._who}: seq {seq} holds {data[:80]!r}")

    def other(self, seq: int) -> bool:
        """A record was read whose bytes somebody else judges; False: it should not have come."""
        if seq <= self.seq:
            self._ledger.wrong(f"{self._who}: seq {seq} came after {self.seq}")
            return False
        self.pass_by(seq - 1)
        self.seq = seq
        self.read += 1
        return True

    def pass_by(self, to: int) -> None:
        """The reader is told that nothing more comes up to `to`."""
        missing = [seq for seq in range(self.seq + 1, to + 1) if not self._may_miss(seq)]
        if missing:
            self._ledger.wrong(
                f"{self._who}: {len(missing)} seqs from {missing[0]} to {missing[-1]} "
                "did not come, and nobody deleted them"
            )
        self.missed += max(0, to - self.seq)
        self.seq = max(self.seq, to)

    def gone(self, first: int, last: int) -> None:
        """A tombstone."""
        if last > self._may_go():
            self._ledger.wrong(
                f"{self._who}: seqs {first} to {last} are announced as gone, and only those up to "
                f"{self._may_go()} can be"
            )
        if first > self.seq + 1:
            self.pass_by(first - 1)
        self.announced += max(0, last - self.seq)
        self.seq = max(self.seq, last)


class Writers:
    """What several writers of one topic were told: number n of a writer is at this seq."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.digest = 0

    def acked(self, of: str, n: int, seq: int) -> None:
        self.counts[of] += 1
        self.digest = self.digest + placed(of, n, seq) & _MASK


def placed(of: str, n: int, seq: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{of}/{n}/{seq}".encode())


class Merged:
    """A reader of a topic of several writers: each seq once, each writer's records in order."""

    def __init__(self, ledger: Ledger, who: str) -> None:
        self._ledger, self._who = ledger, who
        self.seq = 0
        self.counts: Counter[str] = Counter()
        self.digest = 0

    def take(self, seq: int, data: bytes) -> None:
        if seq != self.seq + 1:
            self._ledger.wrong(f"{self._who}: seq {seq} came after {self.seq}")
        self.seq = max(self.seq, seq)
        of, n = origin(data)
        if data != payload(of, n):
            self._ledger.wrong(f"{self._who}: seq {seq} holds {data[:80]!r}")
            return
        if n != self.counts[of] + 1:
            self._ledger.wrong(
                f"{self._who}: seq {seq}: number {n} of {of} came after {self.counts[of]}"
            )
        self.counts[of] = max(n, self.counts[of])
        self.digest = self.digest + placed(of, n, seq) & _MASK

    def gone(self, first: int, last: int) -> None:
        self._ledger.wrong(f"{self._who}: seqs {first} to {last} are announced as gone")
        self.seq = max(self.seq, last)

    def pass_by(self, to: int) -> None:
        if to > self.seq:
            self._ledger.wrong(f"{self._who}: seqs {self.seq + 1} to {to} did not come")
            self.seq = to

    def compare(self, writers: Writers) -> None:
        """All that was acknowledged was read, where it was acknowledged."""
        if self.counts != writers.counts or self.digest != writers.digest:
            self._ledger.wrong(
                f"{self._who}: read {dict(self.counts)}, acknowledged {dict(writers.counts)}, "
                f"at the same seqs: {self.digest == writers.digest}"
            )


class Chain:
    """A reader that knows only the order: each seq once, and a digest of all bytes.

    What a router copies has the chain of what was to be copied.
    """

    def __init__(self, ledger: Ledger, who: str) -> None:
        self._ledger, self._who = ledger, who
        self.seq = 0
        self.count = 0
        self._digest = xxhash.xxh3_64()

    def add(self, data: bytes) -> None:
        self.count += 1
        self._digest.update(data)

    def take(self, seq: int, data: bytes) -> None:
        if seq != self.seq + 1:
            self._ledger.wrong(f"{self._who}: seq {seq} came after {self.seq}")
        self.seq = max(self.seq, seq)
        self.add(data)

    def gone(self, first: int, last: int) -> None:
        self._ledger.wrong(f"{self._who}: seqs {first} to {last} are announced as gone")
        self.seq = max(self.seq, last)

    def pass_by(self, to: int) -> None:
        if to > self.seq:
            self._ledger.wrong(f"{self._who}: seqs {self.seq + 1} to {to} did not come")
            self.seq = to

    def compare(self, other: Chain) -> None:
        if (self.count, self._digest.digest()) != (other.count, other._digest.digest()):
            self._ledger.wrong(
                f"{self._who}: {self.count} records, which are not the {other.count} of "
                f"{other._who}, in their order"
            )


class Once:
    """Numbers of which each has to come exactly once, in about their order.

    `numbers` are all of them, in order.
    """

    def __init__(self, ledger: Ledger, who: str, numbers: Iterable[int]) -> None:
        self._ledger, self._who = ledger, who
        self._numbers = iter(numbers)
        self.next = next(self._numbers)  # the first one that did not come
        self._ahead: set[int] = set()
        self.count = 0

    def __contains__(self, n: int) -> bool:
        return n < self.next or n in self._ahead

    def take(self, n: int) -> None:
        if n in self:
            self._ledger.wrong(f"{self._who}: {n} came twice, or was not to come")
            return
        self.count += 1
        self._ahead.add(n)
        while self.next in self._ahead:
            self._ahead.remove(self.next)
            self.next = next(self._numbers)
        if len(self._ahead) > AHEAD_MAX:
            self._ledger.wrong(f"{self._who}: {self.next} did not come for long")
            self._ahead.clear()

    def finish(self, last: int) -> None:
        """No number up to `last` is missing, and none beyond it came."""
        if self.next <= last:
            self._ledger.wrong(
                f"{self._who}: {self.next} did not come, of {last}; {len(self._ahead)} after it did"
            )
        elif self._ahead:
            self._ledger.wrong(f"{self._who}: {min(self._ahead)} came, which is none of them")
