"""One topic: what exists of it, from which seq on, and why what is missing is missing.

Only this file moves floors and holes, and keeps `count` and `bytes` exact while it does.  A seq at
or below `base` is gone; above it a seq is live unless it is in `holes`.  The *floors* say why a
prefix went: `cap`, `ttl`, `crash` and `trim` are involuntary and are announced to a reader whose
cursor is below them; `delete` is silent.  `gaps` are ranges above the floors that a crash took,
announced too.

Nothing here waits, writes or knows time; sizes of sealed rows come from the runs it is handed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from pyroaring import BitMap64

from headrace.core.limits import source_trims_max
from headrace.core.runtime import Thunk
from headrace.engine.blocklist import BlockList
from headrace.engine.erased import Erased, restored_erased
from headrace.engine.idempotency import Producer
from headrace.engine.queues.order import Span
from headrace.engine.queues.state import QueueState
from headrace.engine.tagindex import TagIndex
from headrace.engine.topic_config import EPHEMERAL, FSYNC, TopicConfig
from headrace.storage.segment_reader import Run
from headrace.storage.seqs import ranges_of


class Sealed(NamedTuple):
    """How to get at the sealed rows of a topic; asked only when memory does not hold the answer.

    Without `wait`, what is not at hand raises `WouldBlock`, and nothing has been changed.
    """

    runs: Callable[[], list[Run]]  # oldest first
    wait: bool = True


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


class Topic:
    """State of one topic.  Owned by the loop thread."""

    __slots__ = (
        "archived_seq",
        "archiving_to",
        "base",
        "blocks",
        "bounded",
        "bytes",
        "cap_floor",
        "changing",
        "config",
        "counted",
        "crash_floor",
        "created_ms",
        "delete_floor",
        "ephemeral",
        "ephemeral_bytes",
        "epoch",
        "erased",
        "gaps",
        "head",
        "held_by_cap",
        "held_by_ttl",
        "holes",
        "id",
        "last_read_ms",
        "last_ts",
        "last_write_ms",
        "live",
        "logged_to",
        "name",
        "needs_sync",
        "overtaken_seq",
        "parent_id",
        "parent_to",
        "producers",
        "queue",
        "reserve_asked",
        "reserve_from",
        "reserve_mark",
        "reserve_staged",
        "reserve_time_ns",
        "reserved",
        "sealed_to",
        "sealing_bytes",
        "sealing_to",
        "staged",
        "staged_bytes",
        "staged_count",
        "state",
        "tags",
        "trim_floor",
        "trims",
        "ttl_floor",
        "unlogged_to",
        "unsealed_bytes",
        "unsettled_syncs",
        "waiters",
    )

    def __init__(self, id: int, name: str, epoch: int, config: TopicConfig) -> None:
        self.id = id
        self.name = name
        self.epoch = epoch
        self.created_ms = 0
        self.live = False  # its creation is durable
        self.changing = 0  # configs on their way to the log
        self.queue: QueueState | None = None  # of its jobs, once anything is known of one
        # What was deleted, of a topic whose past is served from elsewhere.
        self.erased: Erased | None = Erased(1) if config.cold_reads else None
        self.set_config(config)
        self.head = 0  # last seq a reader may see
        self.staged = 0  # last seq given to a writer
        self.staged_count = 0  # records and bytes staged but not yet visible
        self.staged_bytes = 0
        self.base = 0
        self.cap_floor = self.ttl_floor = self.crash_floor = self.trim_floor = 0
        self.delete_floor = 0
        self.archived_seq = 0  # records up to here are kept elsewhere, too
        self.archiving_to = 0  # the highest such seq since the start that went to the log
        self.overtaken_seq = 0  # the last record that retention took before it was archived
        self.holes: BitMap64 | None = None
        self.gaps: list[tuple[int, int]] = []
        self.trims: list[tuple[int, int]] = []  # the same for what a router's source had lost
        self.bytes = 0
        self.counted = 0  # records with which `Totals` counts it
        self.sealed_to = 0  # records up to here are in files
        self.logged_to = 0  # the last record that is in the log or in a file
        self.unlogged_to = 0  # the last record since the start that is not in the log itself
        self.sealing_to = 0  # up to here they are on their way there; 0 when none is
        self.sealing_bytes = 0
        self.unsealed_bytes = 0  # log bytes of blocks in memory that are neither
        self.ephemeral_bytes = 0  # of blocks in memory that are never stored
        self.last_ts = 0
        self.last_write_ms = 0
        self.last_read_ms = 0  # when it was last consumed; 0: never since the start
        self.blocks = BlockList()
        self.tags: TagIndex | None = None  # of rows in memory, made on first use
        self.producers: dict[str, Producer] | None = None
        self.state = b""
        self.parent_id = 0
        self.parent_to = 0
        self.unsettled_syncs = 0  # commits in flight that wait for a sync
        self.reserved = 0  # highest seq that may be acknowledged before a sync
        self.reserve_asked = 0  # will be `reserved` once the shard is durable at reserve_mark
        self.reserve_mark = 0
        self.reserve_staged = 0  # what the last entry that asked for more asked for
        self.reserve_from = 0  # the seq and the time of that entry, for the rate
        self.reserve_time_ns = 0
        self.waiters: list[Thunk] | None = None

    def set_config(self, config: TopicConfig) -> None:
        self.config = config
        # What every append asks of its config.
        self.needs_sync = config.durability == FSYNC
        self.ephemeral = config.durability == EPHEMERAL
        self.bounded = bool(config.ttl_ms or config.cap_records or config.cap_bytes)
        self.held_by_cap: HeldBack | None = None
        self.held_by_ttl: HeldBack | None = None
        if self.queue is not None and not config.leases_durable:
            self.queue.durable = False
        if not config.cold_reads:
            self.erased = None
        elif self.erased is None:
            self.erased = self._deletes_held()

    def restore_erased(self, data: bytes) -> None:
        """What a snapshot says of deletes, once everything else of it is there."""
        if self.erased is not None:
            self.erased = restored_erased(data) if data else self._deletes_held()

    def _deletes_held(self) -> Erased:
        """The deletes that are known of what the topic holds, and so no further back."""
        deleted = BitMap64() if self.holes is None else self.holes.copy()
        for first, last in (*self.gaps, *self.trims):
            deleted.remove_range(first, last + 1)
        return Erased(self.base + 1, deleted)

    # Counts and floors

    @property
    def evict_floor(self) -> int:
        """The last seq of the prefix that was lost without anybody asking."""
        return max(self.cap_floor, self.ttl_floor, self.crash_floor, self.trim_floor)

    @property
    def is_overtaken(self) -> bool:
        """Whether records are gone that were to be archived first, and never were."""
        return self.config.retain_until_archived and self.overtaken_seq > self.archived_seq

    @property
    def all_held(self) -> bool:
        """Whether caps and TTL may take nothing at all, whatever they want."""
        config = self.config
        if not config.retain_until_archived or self.archived_seq > self.base:
            return False
        return not config.retain_bytes_max or self.bytes <= config.retain_bytes_max

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
        floor = self.evict_floor
        if cursor < floor:
            return Lost(cursor + 1, floor, self._reason(cursor + 1))
        for first, last in self.gaps:
            if last > cursor and not self.live_between(cursor + 1, first - 1):
                lost = Lost(max(first, cursor + 1), last, "crash")
                return self._trim_before(cursor, lost) if self.trims else lost
        return self._trim_before(cursor, None) if self.trims else None

    def kept_after(self, cursor: int) -> int:
        """Up to where what is gone after `cursor` is read where it is kept, too; 0: it is not."""
        if self.erased is None or cursor + 1 < self.erased.since:
            return 0
        last = min(self.archived_seq, self.evict_floor)
        return last if cursor < last else 0

    def unless_kept(self, lost: Lost) -> Lost | None:
        """Of what is lost, the first stretch that is not kept elsewhere; None: it begins kept."""
        if self.erased is None or lost.first > self.evict_floor:
            return lost
        if self.kept_after(lost.first - 1):
            return None
        since = self.erased.since
        if lost.first < since and self.kept_after(since - 1):
            return lost._replace(last=since - 1)
        return lost

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

    def raise_base(self, to: int, sealed: Sealed) -> int:
        """Everything up to `to` is gone; returns the bytes that were live in it."""
        to = min(to, self.head)
        if to <= self.base:
            return 0
        freed = self.size_between(self.base + 1, to, sealed)
        self.base = to
        self.bytes -= freed
        if self.holes is not None:
            self.holes.remove_range(0, to + 1)
        self._skip_holes()
        if self.queue is not None:
            self.queue.dropped_to(self.base)
        assert self.bytes >= 0, (self.name, self.bytes)
        return freed

    def add_holes(self, seqs: BitMap64, sealed: Sealed) -> tuple[int, int]:
        """These seqs are gone; returns (records, bytes) that were live."""
        fresh = seqs.copy()
        fresh.remove_range(0, self.base + 1)
        if self.holes:
            fresh -= self.holes
        if not fresh:
            return 0, 0
        freed = sum(self._raw_size(first, last, sealed) for first, last in ranges_of(fresh))
        if self.holes is None:
            self.holes = fresh.copy()
        else:
            self.holes |= fresh
        self.bytes -= freed
        self.held_by_cap = self.held_by_ttl = None
        count = len(fresh)
        if self.queue is not None:
            self.queue.dropped(fresh)
        self._skip_holes()
        assert self.bytes >= 0, (self.name, self.bytes)
        return count, freed

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

        Where only what somebody deleted is between two ranges, they become one.
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
                    total += _size_in(run, first, stop, sealed.wait)
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


def _size_in(run: Run, first: int, last: int, wait: bool) -> int:
    if first <= run.first_seq and last >= run.last_seq:
        return run.bytes
    return run.size_of(run.row_of(first, wait), run.row_of(last + 1, wait), wait)
