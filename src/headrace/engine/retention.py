"""Caps and time to live: which prefix of a topic has to go now.

Only this file decides about involuntary loss.  It runs whenever a topic is touched, so that what a
caller sees is exact without a sweeper.  Records that were deleted do not count towards a cap.  A
floor that moved is logged; one that time moved is in the log before anything is answered from it,
because after a restart the clock may say otherwise.

It never makes a write wait for the cold tier, and never fails a call: where sizes or times of
sealed rows cannot be had now, they are fetched in the reader lane, and the rest goes after that.
"""

from __future__ import annotations

import logging
from itertools import islice

from headrace.core.errors import HeadraceError
from headrace.engine.core_state import Core
from headrace.engine.topic import Sealed, Topic
from headrace.storage.cache import WouldBlock
from headrace.storage.catalog import runs_in
from headrace.storage.frame import ENTRY_FLOOR, Floor
from headrace.storage.segment_reader import Run, Segment

log = logging.getLogger("headrace.retention")

LANE = "read"
# A 64 KiB block holds the offsets, or the times, of this many rows.
ROWS_PER_BLOCK = 8192
RUNS_PER_FETCH = 64


def enforce(core: Core, topic: Topic, *, fetched: bool = False, replayed: bool = False) -> None:
    """Apply cap and TTL to what a reader may see of `topic`, now.

    `replayed`: what a cap takes need not be logged, as replaying what came just now takes it too.

    While `topic.id in core.fetching`, more may follow: `core.fetching` lists who waits for that.
    """
    if not topic.bounded:
        return
    config = topic.config
    sealed = core.sealed(topic, wait=fetched or core.tiers.cold is None)
    expired = capped = False
    try:
        if config.ttl_ms and topic.head > topic.base:
            cutoff = core.clock.now_ms() - config.ttl_ms
            expired = _enforce_ttl(core, topic, cutoff, sealed)
        capped = enforce_caps(core, topic, sealed)
    except WouldBlock:
        _fetch(core, topic)
    except (HeadraceError, OSError) as error:
        log.warning("%r keeps more than it should: %s", topic.name, error)
    if not (expired or capped):
        return
    topic.drop_settled_gaps()
    if core.is_logged(topic) and (expired or not replayed):
        floor = Floor(topic.cap_floor, topic.ttl_floor)
        core.log(topic, ENTRY_FLOOR, floor, needs_sync=False)
        if expired:
            shard = core.shard_of(topic.id)
            shard.flush()
            if topic.needs_sync:
                shard.hasten()


def enforce_caps(core: Core, topic: Topic, sealed: Sealed) -> bool:
    """Apply the caps alone, and log nothing: replaying an append does it as the append did."""
    config = topic.config
    evict_to = 0
    if config.cap_records:
        surplus = topic.count - config.cap_records
        if surplus > 0:
            evict_to = topic.nth_live(surplus)
    if config.cap_bytes and topic.bytes > config.cap_bytes:
        surplus = topic.bytes - config.cap_bytes
        evict_to = max(evict_to, _seq_that_frees(topic, surplus, sealed))
    if evict_to <= topic.base:
        return False
    freed = topic.raise_base(evict_to, sealed)
    topic.cap_floor = evict_to
    core.free(topic, freed)
    return True


def _seq_that_frees(topic: Topic, surplus: int, sealed: Sealed) -> int:
    """The lowest seq such that the live records up to it hold at least `surplus` bytes."""
    low, high = topic.base + 1, topic.head
    while low < high:
        middle = (low + high) // 2
        if topic.size_between(topic.base + 1, middle, sealed) >= surplus:
            high = middle
        else:
            low = middle + 1
    # Land on a live record: floors are about records, not about holes.
    return topic.nth_live(max(1, topic.live_between(topic.base + 1, low)))


def _enforce_ttl(core: Core, topic: Topic, cutoff: int, sealed: Sealed) -> bool:
    """Expired: ts < cutoff, that is, older than the TTL by more than nothing."""
    last = _last_older(topic, cutoff, sealed)
    if last <= topic.base or not topic.live_between(topic.base + 1, last):
        return False
    last = topic.nth_live(topic.live_between(topic.base + 1, last))
    freed = topic.raise_base(last, sealed)
    topic.ttl_floor = last
    core.free(topic, freed)
    return True


def _last_older(topic: Topic, cutoff: int, sealed: Sealed) -> int:
    """The last seq whose ts is below `cutoff`, or 0."""
    oldest = topic.blocks.first
    runs: list[Run] = []
    if oldest is None or oldest.first_seq > topic.base + 1:
        runs = sealed.runs()
    found = 0
    for run in runs:
        if run.last_seq <= topic.base:
            continue
        if run.min_ts >= cutoff:
            return found
        if run.max_ts < cutoff:
            found = run.last_seq
            continue
        row = run.row_at_ts(cutoff, sealed.wait)
        return run.rows(row - 1, row, sealed.wait).seqs[0] if row else found
    for block in topic.blocks.from_seq(max(topic.base + 1, found + 1)):
        if block.ts < cutoff:
            found = block.last_seq
            continue
        stamps = block.timestamps(0, block.count)
        if not isinstance(stamps, int):
            older = sum(1 for ts in stamps if ts < cutoff)
            if older:
                found = block.first_seq + older - 1
        break
    return found


def _fetch(core: Core, topic: Topic) -> None:
    """Bring the sizes and times of the oldest rows into the read cache, then try again."""
    if topic.id in core.fetching:
        return
    core.fetching[topic.id] = []
    files, base = core.catalog.files_of(topic.id), topic.base

    def done(_value: object, error: BaseException | None) -> None:
        waiting = core.fetching.pop(topic.id)
        if error is not None:
            log.warning("%r keeps more than it should: %s", topic.name, error)
        elif topic.live and not core.closing:
            enforce(core, topic, fetched=True)
        for wake in waiting:
            wake()

    core.runtime.submit(LANE, lambda: fetch_front(files, topic.id, base), done)


def fetch_front(files: list[Segment], topic_id: int, base: int) -> None:
    """Off the loop: read what says where the records after `base` lie and how old they are."""
    newer = (run for run in runs_in(files, topic_id) if run.last_seq > base)
    for run in islice(newer, RUNS_PER_FETCH):
        for row in range(0, run.count, ROWS_PER_BLOCK):
            run.size_of(row, row + 1)
            run.ts_at(row)
        run.rows(run.count - 1, run.count)
