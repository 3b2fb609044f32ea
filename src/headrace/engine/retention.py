"""Caps and time to live: which prefix of a topic has to go now.

Only this file decides about involuntary loss.  It runs whenever a topic is touched, so that what a
caller sees is exact without a sweeper.  Records that were deleted do not count towards a cap.  A
floor that moved is logged; one that time moved is in the log before anything is answered from it,
because after a restart the clock may say otherwise.
"""

from __future__ import annotations

from headrace.engine.core_state import Core
from headrace.engine.topic import Topic
from headrace.storage.frame import ENTRY_FLOOR, Floor
from headrace.storage.segment_reader import Run


def enforce(core: Core, topic: Topic) -> None:
    """Apply cap and TTL to what a reader may see of `topic`, now."""
    config = topic.config
    if not (config.ttl_ms or config.cap_records or config.cap_bytes):
        return
    expired = False
    if config.ttl_ms and topic.head > topic.base:
        expired = _enforce_ttl(core, topic, core.clock.now_ms() - config.ttl_ms)
    capped = enforce_caps(core, topic)
    if not (expired or capped):
        return
    topic.drop_settled_gaps()
    if core.is_logged(topic):
        floor = Floor(topic.cap_floor, topic.ttl_floor)
        core.log(topic, ENTRY_FLOOR, floor, needs_sync=topic.needs_sync and expired)
        if expired:
            core.shard_of(topic.id).flush()


def enforce_caps(core: Core, topic: Topic) -> bool:
    """Apply the caps alone, and log nothing: replaying an append does it as the append did."""
    config = topic.config
    evict_to = 0
    if config.cap_records:
        surplus = topic.count - config.cap_records
        if surplus > 0:
            evict_to = topic.nth_live(surplus)
    if config.cap_bytes and topic.bytes > config.cap_bytes:
        evict_to = max(evict_to, _seq_that_frees(core, topic, topic.bytes - config.cap_bytes))
    if evict_to <= topic.base:
        return False
    topic.cap_floor = evict_to
    core.free(topic, topic.raise_base(evict_to, lambda: core.runs(topic)))
    return True


def _seq_that_frees(core: Core, topic: Topic, surplus: int) -> int:
    """The lowest seq such that the live records up to it hold at least `surplus` bytes."""
    low, high = topic.base + 1, topic.head
    runs = core.runs(topic)
    while low < high:
        middle = (low + high) // 2
        if topic.size_between(topic.base + 1, middle, lambda: runs) >= surplus:
            high = middle
        else:
            low = middle + 1
    # Land on a live record: floors are about records, not about holes.
    return topic.nth_live(max(1, topic.live_between(topic.base + 1, low)))


def _enforce_ttl(core: Core, topic: Topic, cutoff: int) -> bool:
    """Expired: ts < cutoff, that is, older than the TTL by more than nothing."""
    last = _last_older(core, topic, cutoff)
    if last <= topic.base or not topic.live_between(topic.base + 1, last):
        return False
    last = topic.nth_live(topic.live_between(topic.base + 1, last))
    topic.ttl_floor = last
    core.free(topic, topic.raise_base(last, lambda: core.runs(topic)))
    return True


def _last_older(core: Core, topic: Topic, cutoff: int) -> int:
    """The last seq whose ts is below `cutoff`, or 0."""
    oldest = topic.blocks.first
    if oldest is not None and oldest.first_seq <= topic.base + 1:
        runs: list[Run] = []
    else:
        runs = core.runs(topic)
    found = 0
    for run in runs:
        if run.last_seq <= topic.base:
            continue
        if run.min_ts >= cutoff:
            return found
        if run.max_ts < cutoff:
            found = run.last_seq
            continue
        row = run.row_at_ts(cutoff)
        return run.rows(row - 1, row).seqs[0] if row else found
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
