"""Which seqs of a topic are alive, and why the others are not.

Only this file moves floors and holes, and keeps `count` and `bytes` exact while it does, also those
of all topics.  A seq at or below `base` is gone; above it a seq is live unless it is in `holes`.
The *floors* say why a prefix went: `cap`, `ttl`, `crash` and `trim` are involuntary and are
announced to a reader whose cursor is below them; `delete` is silent.  No floor is above `base`.
`gaps` are ranges above the floors that a crash took, announced too; `trims` the same for what a
router's source had lost.

Nothing here waits, writes or knows time; sizes of sealed rows come from the runs it is handed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap64

from headrace.core.limits import source_trims_max
from headrace.engine.queues.claim_order import Span
from headrace.engine.topics.block_list import BlockList
from headrace.engine.topics.sealed_rows import Sealed, size_in
from headrace.engine.topics.totals import Totals
from headrace.storage.seq_ranges import ranges_in, ranges_of
from headrace.storage.snapshot.state import TopicState

if TYPE_CHECKING:
    from headrace.engine.queues.state import QueueState


class Lost(NamedTuple):
    """Seqs a reader will never see: first to last, inclusive, and why."""

    first: int
    last: int
    reason: str


class HeldBack(NamedTuple):
    """The live bytes after `floor` up to `to` that ought to go and are not archived yet.

    Noted by what wanted them gone, so that the next look has only to add what came since.
    """

    floor: int
    to: int
    bytes: int
    cutoff: int = 0  # of a TTL: all of them are older than this


class LiveSeqs:
    """The seqs of one topic.  Owned by the loop thread."""

    __slots__ = (
        "base",
        "blocks",
        "bytes",
        "cap_floor",
        "counted",
        "crash_floor",
        "delete_floor",
        "gaps",
        "head",
        "held_by_cap",
        "held_by_ttl",
        "holes",
        "name",
        "queue",
        "staged",
        "totals",
        "trim_floor",
        "trims",
        "ttl_floor",
    )

    def __init__(self, name: str, totals: Totals) -> None:
        self.name = name
        self.totals = totals  # of all topics of the engine
        self.head = 0  # last seq a reader may see
        self.staged = 0  # last seq given to a writer
        self.base = 0
        self.cap_floor = self.ttl_floor = self.crash_floor = self.trim_floor = 0
        self.delete_floor = 0
        self.holes: BitMap64 | None = None
        self.gaps: list[tuple[int, int]] = []
        self.trims: list[tuple[int, int]] = []
        self.bytes = 0
        self.counted = 0  # records with which `totals` counts it
        self.blocks = BlockList()  # those in memory
        self.queue: QueueState | None = None  # of its jobs, once anything is known of one
        self.held_by_cap: HeldBack | None = None
        self.held_by_ttl: HeldBack | None = None

    def _restore_seqs(self, saved: TopicState) -> None:
        """Take over what a snapshot says; nothing was there before."""
        assert not self.head and not self.bytes, self.name
        self.cap_floor = saved.evict_floor_cap
        self.ttl_floor = saved.evict_floor_ttl
        self.crash_floor = saved.evict_floor_crash
        self.trim_floor = saved.trim_floor
        self.delete_floor = saved.delete_floor
        self.base = max(self.evict_floor, self.delete_floor)
        self.head = max(saved.sealed_to, max((last for _, last in saved.gaps), default=0))
        if saved.holes:
            self.holes = BitMap64.deserialize(saved.holes)
        self.gaps = [(first, last) for first, last in saved.gaps]
        self.trims = [(first, last) for first, last in saved.trims if last <= saved.sealed_to]
        self.bytes = saved.bytes
        self.totals.bytes += saved.bytes

    # Counts and floors

    @property
    def evict_floor(self) -> int:
        """The last seq of the prefix that was lost without a request."""
        return max(self.cap_floor, self.ttl_floor, self.crash_floor, self.trim_floor)

    @property
    def count(self) -> int:
        """Live records."""
        holes = self.holes
        dead = holes.range_cardinality(self.base + 1, self.head + 1) if holes else 0
        return self.head - self.base - dead

    @property
    def earliest_seq(self) -> int:
        return self.base + 1

    @property
    def span(self) -> Span:
        """Which seqs are alive, now."""
        return Span(self.base, self.head, self.holes)

    def live_between(self, first: int, last: int) -> int:
        """Live records with first <= seq <= last."""
        first = max(first, self.base + 1)
        last = min(last, self.head)
        if last < first:
            return 0
        holes = self.holes
        dead = holes.range_cardinality(first, last + 1) if holes else 0
        return last - first + 1 - dead

    def nth_live(self, n: int) -> int:
        """The seq of the n-th live record, counting from 1 at the oldest."""
        assert 1 <= n <= self.count, (n, self.count)
        low, high = self.base + n, self.head
        if not self.holes:
            return low
        while low < high:
            middle = (low + high) // 2
            if self.live_between(self.base + 1, middle) >= n:
                high = middle
            else:
                low = middle + 1
        return low

    def lost_after(self, cursor: int) -> Lost | None:
        """What a reader at `cursor` must be told before the next record, if anything."""
        if cursor < self.base:  # no floor is above it
            floor = self.evict_floor
            if cursor < floor:
                return Lost(cursor + 1, floor, self._reason(cursor + 1))
        for first, last in self.gaps:
            if last > cursor and not self.live_between(cursor + 1, first - 1):
                lost = Lost(max(first, cursor + 1), last, "crash")
                return self._trim_before(cursor, lost) if self.trims else lost
        return self._trim_before(cursor, None) if self.trims else None

    def _trim_before(self, cursor: int, lost: Lost | None) -> Lost | None:
        """What routers could not bring, if that comes before what a crash took."""
        at = bisect_right(self.trims, cursor, key=_last_of)
        if at < len(self.trims):
            first, last = self.trims[at]
            before = lost is None or first < lost.first
            if before and not self.live_between(cursor + 1, first - 1):
                return Lost(max(first, cursor + 1), last, "source_trim")
        return lost

    def read_end(self, cursor: int) -> int:
        """The last seq that may be read from `cursor` before a gap has to be announced."""
        end = self.head
        if not self.gaps and not self.trims:
            return end
        for ranges in (self.gaps, self.trims):
            at = bisect_right(ranges, cursor, key=_last_of)
            if at < len(ranges):
                end = min(end, max(ranges[at][0] - 1, cursor))
        return end

    def _reason(self, gap_from: int) -> str:
        cap, ttl = self.cap_floor >= gap_from, self.ttl_floor >= gap_from
        if cap or ttl:
            return "mixed" if cap and ttl else ("cap" if cap else "ttl")
        return "crash" if self.crash_floor >= gap_from else "source_trim"

    # Removing

    def _raise_base(self, to: int, sealed: Sealed) -> None:
        """Remove everything up to `to`."""
        to = min(to, self.head)
        if to <= self.base:
            return
        freed = self.size_between(self.base + 1, to, sealed)
        self.base = to
        self._free(freed)
        if self.holes is not None:
            self.holes.remove_range(0, to + 1)
        self._skip_holes()
        if self.queue is not None:
            self.queue.dropped_to(self.base)

    def _free(self, freed: int) -> None:
        self.bytes -= freed
        self.totals.bytes -= freed
        assert self.bytes >= 0 and self.totals.bytes >= 0, (self.name, self.bytes)

    def evict_by_cap(self, to: int, sealed: Sealed) -> None:
        """Remove everything up to `to`, a live seq, because a cap says so."""
        self._raise_base(to, sealed)
        self.cap_floor = to
        assert self.cap_floor <= self.base, (self.name, to, self.base)

    def evict_by_ttl(self, to: int, sealed: Sealed) -> None:
        """Remove everything up to `to`, a live seq, because it is too old."""
        self._raise_base(to, sealed)
        self.ttl_floor = to
        assert self.ttl_floor <= self.base, (self.name, to, self.base)

    def evict_as_logged(self, cap: int, ttl: int, sealed: Sealed) -> None:
        """Remove what the log says that a cap and a TTL removed; twice is the same as once."""
        self.cap_floor = max(self.cap_floor, cap)
        self.ttl_floor = max(self.ttl_floor, ttl)
        self._raise_base(self.evict_floor, sealed)
        assert self.evict_floor <= self.base, (self.name, self.evict_floor, self.base)

    def delete_to(self, to: int, sealed: Sealed) -> int:
        """Remove everything up to `to` on request; return how many records that were."""
        if to <= self.base:
            return 0
        count = self.live_between(self.base + 1, to)
        self.delete_floor = max(self.delete_floor, min(to, self.head))
        self._raise_base(to, sealed)
        return count

    def delete_seqs(self, seqs: BitMap64, sealed: Sealed) -> int:
        """Remove these seqs on request; return how many of them were live."""
        fresh = seqs.copy()
        fresh.remove_range(0, self.base + 1)
        if self.holes:
            fresh -= self.holes
        if not fresh:
            return 0
        freed = sum(self._raw_size(first, last, sealed) for first, last in ranges_in(fresh))
        if self.holes is None:
            self.holes = fresh.copy()
        else:
            self.holes |= fresh
        self._free(freed)
        self.held_by_cap = self.held_by_ttl = None
        count = len(fresh)
        if self.queue is not None:
            self.queue.dropped(fresh)
        self._skip_holes()
        return count

    def hold_back(self, by_cap: HeldBack | None, by_ttl: HeldBack | None) -> None:
        """Remember what a cap and a TTL have to leave until it is archived."""
        self.held_by_cap, self.held_by_ttl = by_cap, by_ttl

    def add_gap(self, first: int, last: int) -> None:
        """A crash took these seqs: nothing was ever stored under them."""
        assert self.head < first <= last, (self.head, first, last)
        self.head = self.staged = last
        first = max(first, self.base + 1)
        if first > last:
            return  # all of it had been removed before
        holes = self.holes if self.holes is not None else BitMap64()
        holes.add_range(first, last + 1)
        self.holes = holes
        if self.gaps and self.gaps[-1][1] + 1 == first:
            first = self.gaps.pop()[0]
        self.gaps.append((first, last))
        self._skip_holes()

    def add_trim(self, first: int, last: int) -> None:
        """A router's source had lost the records for these seqs, which come next."""
        assert self.head + 1 == first <= last, (self.head, first, last)
        self.head = last
        if self.base + 1 == first:
            self.base = self.trim_floor = last
            return
        holes = self.holes if self.holes is not None else BitMap64()
        holes.add_range(first, last + 1)
        self.holes = holes
        if self.trims and self.trims[-1][1] + 1 == first:
            first = self.trims.pop()[0]
        self.trims.append((first, last))

    def takes_trim(self) -> bool:
        """Whether one more range can be announced.

        Two ranges with only deleted records between them become one.
        """
        if len(self.trims) < source_trims_max:
            return True
        self.drop_settled_gaps()
        merged: list[tuple[int, int]] = []
        for first, last in self.trims:
            if merged and not self.live_between(merged[-1][1] + 1, first - 1):
                first = merged.pop()[0]
            merged.append((first, last))
        self.trims = merged
        return len(merged) < source_trims_max

    def drop_settled_gaps(self) -> None:
        """Forget gaps that a floor announces anyway."""
        floor = self.evict_floor
        if self.trims and self.trims[0][1] <= floor:
            self.trims = [trim for trim in self.trims if trim[1] > floor]
        if self.gaps and self.gaps[0][1] <= floor:
            self.gaps = [gap for gap in self.gaps if gap[1] > floor]

    def _skip_holes(self) -> None:
        """Let `base` swallow the holes right above it, so that it is the last dead seq."""
        holes = self.holes
        if not holes:
            self.holes = None
            return
        low = self.base
        if low + 1 in holes:
            step = 1
            while holes.contains_range(low + 1, low + step + 1):
                low += step
                step *= 2
            while step > 1:
                step //= 2
                if holes.contains_range(low + 1, low + step + 1):
                    low += step
            holes.remove_range(0, low + 1)
            self.base = self.delete_floor = low
        if not holes:
            self.holes = None

    # Sizes

    def size_between(self, first: int, last: int, sealed: Sealed) -> int:
        """Data and meta bytes of the live records first..last."""
        first = max(first, self.base + 1)
        last = min(last, self.head)
        if last < first:
            return 0
        total = self._raw_size(first, last, sealed)
        if self.holes:
            inside = BitMap64(self.holes)
            inside.remove_range(0, first)
            inside.remove_range(last + 1, self.head + 2)
            for a, b in ranges_of(inside):
                total -= self._raw_size(a, b, sealed)
        return total

    def _raw_size(self, first: int, last: int, sealed: Sealed) -> int:
        """Bytes stored under first..last, dead or alive; seqs that were never stored are 0."""
        oldest = self.blocks.first
        in_memory = oldest.first_seq if oldest is not None else self.head + 1
        total = 0
        if first < in_memory:
            stop = min(last, in_memory - 1)
            for run in sealed.runs():
                if run.first_seq <= stop and run.last_seq >= first:
                    total += size_in(run, first, stop, sealed.wait)
        if last >= in_memory:
            for block in self.blocks.from_seq(first):
                if block.first_seq > last:
                    break
                start = max(0, first - block.first_seq)
                stop = min(block.count, last - block.first_seq + 1)
                total += block.size_of(start, stop)
        return total


def _last_of(seqs: tuple[int, int]) -> int:
    return seqs[1]
