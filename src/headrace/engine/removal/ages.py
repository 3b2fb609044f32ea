"""How old records are, and up to where a topic's are older than a time.

Only this file looks for the age of records.  It goes by timestamps, which are those of the server
and never go back; but the records of a stream, whose writers may give timestamps of their own, go
by when they arrived.  Ages are looked up in memory and in the columns of files, never scanned for.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.engine.state import EngineState
from headrace.engine.topics.sealed_rows import Sealed
from headrace.engine.topics.topic import Topic
from headrace.storage.segment.run import Run


class Older(NamedTuple):
    """Records up to `last` are older than a time, and of a stream the next one is of `newer_ms`."""

    last: int
    all_older: bool  # nothing that was looked at is newer
    newer_ms: int = 0


def last_older(state: EngineState, topic: Topic, cutoff: int, sealed: Sealed, after: int) -> Older:
    """The last seq that is older than `cutoff`; `after` where none beyond it is."""
    by_arrival = topic.stream is not None
    for owner, _, last in topic.shares:
        if last > after:
            inherited = state.sealed(owner, wait=sealed.wait)
            older = _last_older_of(owner, cutoff, inherited, after, last, by_arrival)
            after = older.last
            if not older.all_older:
                return older
    return _last_older_of(topic, cutoff, sealed, after, topic.head, by_arrival)


def _last_older_of(
    owner: Topic, cutoff: int, sealed: Sealed, after: int, last: int, by_arrival: bool
) -> Older:
    """The same among what one topic holds up to `last`."""
    oldest = owner.blocks.first
    runs: list[Run] = []
    if oldest is None or oldest.first_seq > after + 1:
        runs = sealed.runs()
    found = after
    for run in runs:
        if run.last_seq <= after:
            continue
        if run.first_seq > last:
            return Older(found, True)
        row = _rows_older(run, cutoff, sealed.wait, by_arrival)
        if row == run.count:
            found = min(run.last_seq, last)
            continue
        newer_ms = run.arrived_at(row, sealed.wait) if by_arrival else 0
        if not row:
            return Older(found, False, newer_ms)
        older_to = run.rows(row - 1, row, sealed.wait).seqs[0]
        return Older(max(found, min(older_to, last)), older_to >= last, newer_ms)
    for block in owner.blocks.from_seq(found + 1):
        if block.first_seq > last:
            break
        newest = block.arrived_ms if by_arrival else block.ts
        older = block.count if newest < cutoff else 0
        stamps = block.ts if by_arrival else block.timestamps(0, block.count)
        if not older and not isinstance(stamps, int):
            older = sum(1 for ts in stamps if ts < cutoff)
        if older:
            found = max(found, min(block.first_seq + older - 1, last))
        if older < block.count:
            return Older(found, found >= last, block.arrived_ms if by_arrival else 0)
    return Older(found, True)


def _rows_older(run: Run, cutoff: int, wait: bool, by_arrival: bool) -> int:
    return run.row_at_arrival(cutoff, wait) if by_arrival else run.row_at_ts(cutoff, wait)
