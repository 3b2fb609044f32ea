"""Caps and time to live: which prefix of a topic has to go now.

Only this file decides about involuntary loss.  It runs whenever a topic is touched, so that what a
caller sees is exact without a sweeper.  Records that were deleted do not count towards a cap.  A
floor that moved is logged; one that time moved is in the log before anything is answered from it,
because after a restart the clock may say otherwise.

Where a topic is to keep what is not archived yet, nothing beyond its watermark goes, unless more
bytes than it allows are held back.  How far a cap may go follows from what is above it alone, so
that replaying the log, where floors may come later, decides as the engine did.

It never makes a write wait for the cold tier, and never fails a call: where sizes or times of
sealed rows cannot be had now, they are fetched in the reader lane, and the rest goes after that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

from headrace.core.errors import HeadraceError
from headrace.engine.removal.ages import last_older
from headrace.engine.state import EngineState
from headrace.engine.topics.live_seqs import HeldBack
from headrace.engine.topics.sealed_rows import Sealed
from headrace.engine.topics.topic import Topic
from headrace.storage.files.block_cache import WouldBlock
from headrace.storage.files.catalog import runs_in
from headrace.storage.segment.reader import Segment
from headrace.storage.wal.frame import ENTRY_FLOOR, Floor

log = logging.getLogger("headrace.retention")

LANE = "read"
# A 64 KiB block holds the offsets, or the times, of this many rows.
ROWS_PER_BLOCK = 8192
RUNS_PER_FETCH = 64
FETCHES_MAX = 64  # for one look; then the loop waits rather than never come to an end
NOTHING = HeldBack(0, 0, 0)


def enforce(
    state: EngineState,
    topic: Topic,
    *,
    fetches: int = 0,
    replayed: bool = False,
    caps_only: bool = False,
) -> None:
    """Apply cap and TTL to what a reader may see of `topic`, now.

    `fetches`: how often sizes and times were fetched for this look.
    `replayed`: what a cap takes need not be logged, as replaying what came just now takes it too.
    `caps_only`: nothing is answered from it yet, so that age can wait for who asks next.

    While `topic.id in state.fetching`, more may follow: `state.fetching.wait` hears of its end.
    """
    if not topic.bounded:
        return
    config = topic.config
    if config.retain_until_archived and topic.all_held:
        return
    if topic.stream is not None and topic.is_young(state.clock.now_ms()):
        return
    sealed = state.sealed(topic, wait=state.tiers.cold is None or fetches == FETCHES_MAX)
    expired = capped = False
    try:
        if config.ttl_ms and topic.head > topic.base and not caps_only:
            cutoff = state.clock.now_ms() - config.ttl_ms
            expired = _enforce_ttl(state, topic, cutoff, sealed)
        capped = enforce_caps(state, topic, sealed)
    except WouldBlock as missed:
        _fetch(state, topic, missed, fetches)
    except (HeadraceError, OSError) as error:
        log.warning("%r keeps more than it should: %s", topic.name, error)
    if not (expired or capped):
        return
    topic.drop_settled_gaps()
    if topic.is_logged and (expired or not replayed):
        floor = Floor(topic.cap_floor, topic.ttl_floor, topic.overtaken_seq)
        state.log(topic, ENTRY_FLOOR, floor, needs_sync=False)
        if expired:
            shard = state.shard_of(topic.id)
            shard.flush()
            if topic.needs_sync:
                shard.hasten()


def enforce_caps(state: EngineState, topic: Topic, sealed: Sealed) -> bool:
    """Apply the caps alone, and log nothing: replaying an append does it as the append did."""
    config = topic.config
    records = topic.count - config.cap_records if config.cap_records else 0
    size = topic.bytes - config.cap_bytes if config.cap_bytes else 0
    if records <= 0 and size <= 0:
        return False
    waits = config.retain_until_archived
    if waits and topic.all_held:
        return False
    known = _known(topic, topic.held_by_cap) if waits else NOTHING
    evict_to = topic.nth_live(records) if records > 0 else 0
    if size > 0:
        start = topic.base
        if known.bytes and known.floor == start:
            start, size = known.to, size - known.bytes
        # With the same base it only grows, so what was enough then and is now is the least.
        freed_by = _seq_that_frees(topic, size, sealed, start) if size > 0 else start
        evict_to = max(evict_to, freed_by)
    held = None
    if waits:
        evict_to, held = _hold(topic, evict_to, known, sealed)
    evicted = _evict(state, topic, evict_to, topic.evict_by_cap, sealed)
    if evicted and held is not None:
        held = _moved(topic, held)
    topic.hold_back(held, topic.held_by_ttl)
    return evicted


def _enforce_ttl(state: EngineState, topic: Topic, cutoff: int, sealed: Sealed) -> bool:
    """Expired: of a time before cutoff, that is, older than the TTL by more than nothing."""
    waits = topic.config.retain_until_archived
    known = _known(topic, topic.held_by_ttl) if waits else NOTHING
    if known.cutoff > cutoff:
        known = HeldBack(known.floor, known.floor, 0)
    # Without a watermark nothing is known to be held, and the look begins at the base.
    begin = known.to if known.bytes else topic.base
    older = last_older(state, topic, cutoff, sealed, begin)
    last = older.last
    if last <= topic.base or not topic.live_between(topic.base + 1, last):
        topic.note_oldest(0 if waits else older.newer_ms)
        return False
    held = None
    if waits:
        last, held = _hold(topic, last, known, sealed)
        held = held and held._replace(cutoff=cutoff)
    last = _landed(topic, last)
    evicted = _evict(state, topic, last, topic.evict_by_ttl, sealed)
    topic.note_oldest(0 if waits else older.newer_ms)
    if evicted and held is not None:
        held = _moved(topic, held)
    topic.hold_back(topic.held_by_cap, held)
    return evicted


def _known(topic: Topic, held: HeldBack | None) -> HeldBack:
    """What was found held back at the last look, if that still stands."""
    floor = max(topic.base, topic.archived_seq)
    return held if held is not None and held.floor == floor else HeldBack(floor, floor, 0)


def _moved(topic: Topic, held: HeldBack) -> HeldBack:
    """The same once the base has moved up to it, over holes perhaps."""
    return held._replace(floor=max(topic.base, topic.archived_seq))


def _hold(topic: Topic, want: int, known: HeldBack, sealed: Sealed) -> tuple[int, HeldBack | None]:
    """How far what wants to take everything up to `want` may go, and what that leaves."""
    config = topic.config
    if want <= topic.archived_seq:
        return want, None
    floor = known.floor
    if not config.retain_bytes_max:
        return _landed(topic, floor), None
    if known.to > want:
        known = HeldBack(floor, floor, 0)
    held = known.bytes + topic.size_between(known.to + 1, want, sealed)
    surplus = held - config.retain_bytes_max
    if surplus > 0:
        floor = _seq_that_frees(topic, surplus, sealed, floor)
        held -= topic.size_between(known.floor + 1, floor, sealed)
    return _landed(topic, floor), HeldBack(floor, want, held)


def _landed(topic: Topic, seq: int) -> int:
    """The last live record up to `seq`, or the base: floors are about records, not about holes."""
    live = topic.live_between(topic.base + 1, seq)
    return topic.nth_live(live) if live else topic.base


def _evict(
    state: EngineState,
    topic: Topic,
    to: int,
    evict: Callable[[int, Sealed], None],
    sealed: Sealed,
) -> bool:
    """Have `evict` remove everything up to `to`; False: nothing is there."""
    if to <= topic.base:
        return False
    overtaken = topic.config.retain_until_archived and to > topic.archived_seq
    lost = topic.live_between(topic.archived_seq + 1, to) if overtaken else 0
    evict(to, sealed)
    if overtaken:
        if state.ready:
            state.count_overtaken(lost)
            if not topic.is_overtaken:
                log.warning(
                    "%r loses records that are not archived: it held back more than "
                    "retain_bytes_max (%d); bring its archive up to date, or raise that",
                    topic.name,
                    topic.config.retain_bytes_max,
                )
        topic.overtake(to)
        state.update_overtaken(topic)
    state.records_removed(topic)
    return True


def _seq_that_frees(topic: Topic, surplus: int, sealed: Sealed, after: int) -> int:
    """The lowest seq such that the live records beyond `after` up to it hold `surplus` bytes."""
    low, high = after + 1, topic.head
    # Mostly it is close: what is far is not looked at.
    reach = 1
    while low + reach < high and topic.size_between(low, low + reach, sealed) < surplus:
        reach *= 2
    high = min(high, low + reach)
    while low < high:
        middle = (low + high) // 2
        if topic.size_between(after + 1, middle, sealed) >= surplus:
            high = middle
        else:
            low = middle + 1
    return topic.nth_live(max(1, topic.live_between(topic.base + 1, low)))


def _fetch(state: EngineState, topic: Topic, missed: WouldBlock, fetches: int) -> None:
    """Bring sizes and times into the read cache, then try again.

    First those of the oldest rows, as mostly they go; what is held back ends among newer ones.
    """
    if topic.id in state.fetching:
        return
    state.fetching.begin(topic.id)
    files, base = state.catalog.files_of(topic.id), topic.base

    def fetch() -> None:
        if not fetches:
            fetch_front(files, topic.id, base)
        missed.fetch()

    def done(_value: object, error: BaseException | None) -> None:
        waiting = state.fetching.end(topic.id)
        if error is not None:
            log.warning("%r keeps more than it should: %s", topic.name, error)
        elif topic.live and not state.closing:
            enforce(state, topic, fetches=fetches + 1)
        if topic.id in state.fetching:
            state.fetching.wait(topic.id, *waiting)
            return
        for wake in waiting:
            wake()

    state.runtime.submit(LANE, fetch, done)


def fetch_front(files: list[Segment], topic_id: int, base: int) -> None:
    """Off the loop: read what says where the records after `base` lie and how old they are."""
    newer = (run for run in runs_in(files, topic_id) if run.last_seq > base)
    for run in islice(newer, RUNS_PER_FETCH):
        for row in range(0, run.count, ROWS_PER_BLOCK):
            run.size_of(row, row + 1)
            run.ts_at(row)
            run.arrived_at(row)
        run.rows(run.count - 1, run.count)
