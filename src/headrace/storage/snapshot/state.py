"""The state that snapshots keep: all of it, or what changed since the last one.

Only this file knows the meaning of a change.  The structs are stored as arrays, so the order of
their fields is part of the format (docs/formats/snapshot.md).  `format.py` makes bytes of them.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TypeVar

import msgspec

from headrace.storage.segment.format import SegmentMeta
from headrace.storage.snapshot.key_files import KeyFileMeta

WAL_NUMBER = "wal_number"  # in `extra`: log files of other directories count from this number

K = TypeVar("K")
V = TypeVar("V")
Blob = bytes  # TopicState has a field named `bytes`, which hides the type inside that class


class ProducerState(
    msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False
):
    """The newest append of a producer, and the answer that it was given."""

    epoch: int
    sequence: int
    first_seq: int
    count: int
    head: int


# Not tracked by the collector: there are many, they live long and cannot be part of a cycle.
class TopicState(
    msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False
):
    """All that is kept of a topic beside its records.

    On-disk field order: never change it, add only at the end and with a default.  The containers
    inside belong to the snapshot once handed over: nobody changes them.
    """

    id: int
    name: str
    epoch: int
    config: Blob  # JSON
    head: int
    sealed_to: int
    last_ts: int
    created_ms: int
    evict_floor_cap: int
    evict_floor_ttl: int
    evict_floor_crash: int
    trim_floor: int
    delete_floor: int
    reserved_to: int
    bytes: int  # of live records
    holes: Blob  # BitMap64.serialize() of deleted seqs, b"" for none
    gaps: list[tuple[int, int]]  # announced crash ranges, both ends inclusive
    producers: dict[str, ProducerState]
    state: Blob  # of the dialect that owns the topic
    parent_id: int = 0
    parent_to: int = 0
    last_write_ms: int = 0
    queue: Blob = b""  # see queue_record.py
    trims: list[tuple[int, int]] = []  # announced ranges that a router's source had lost
    archived_seq: int = 0  # records up to here are kept elsewhere, too
    overtaken_seq: int = 0  # the last that retention took although it was to wait for that
    erased: Blob = b""  # see deleted_record.py
    older_appends: dict[str, Blob] = {}  # of producers: where those before the newest are


class Scalars(msgspec.Struct):
    """What every snapshot holds in full.  On-disk field order: add only at the end."""

    created_ms: int
    clean: bool
    generation: int  # bumped by a restore
    next_topic_id: int
    next_file_id: int
    boot_id: bytes
    positions: dict[str, int]  # WAL directory -> LSN where replay starts
    key_files: list[KeyFileMeta]  # there are only ever a few


class SnapshotState(Scalars, kw_only=True):
    """The state a chain of snapshots adds up to."""

    number: int
    topics: dict[int, TopicState]
    files: dict[int, SegmentMeta]
    extra: dict[str, bytes]


class SnapshotChange(Scalars, kw_only=True):
    """What is new since the last snapshot written: all scalars, and of the rest what changed.

    A removed id that was never stored is allowed: it came and went between two snapshots.
    """

    topics: dict[int, TopicState] = {}
    topics_removed: set[int] = set()
    files: dict[int, SegmentMeta] = {}
    files_removed: set[int] = set()
    extra: dict[str, bytes] = {}
    extra_removed: set[str] = set()


def empty_state() -> SnapshotState:
    """The state of a directory that never had a snapshot."""
    return SnapshotState(
        0, False, 0, 1, 1, bytes(16), {}, [], number=0, topics={}, files={}, extra={}
    )


def check_change(change: SnapshotChange) -> None:
    """The invariants of a change, before it may go to disk."""
    assert all(key == topic.id for key, topic in change.topics.items())
    assert all(key == meta.file_id for key, meta in change.files.items())
    assert change.topics_removed.isdisjoint(change.topics), "both changed and removed"
    assert change.files_removed.isdisjoint(change.files), "both changed and removed"
    assert change.extra_removed.isdisjoint(change.extra), "both changed and removed"
    assert max(change.topics, default=-1) < change.next_topic_id, "an id would be used twice"
    assert max(change.files, default=-1) < change.next_file_id, "an id would be used twice"
    assert all(position >= 0 for position in change.positions.values()), change.positions


def both_changes(first: SnapshotChange, then: SnapshotChange) -> SnapshotChange:
    """One change that does what `first` and, after it, `then` do; neither is changed."""
    return msgspec.structs.replace(
        then,
        topics=_later(first.topics, then.topics, then.topics_removed),
        topics_removed=(first.topics_removed - then.topics.keys()) | then.topics_removed,
        files=_later(first.files, then.files, then.files_removed),
        files_removed=(first.files_removed - then.files.keys()) | then.files_removed,
        extra=_later(first.extra, then.extra, then.extra_removed),
        extra_removed=(first.extra_removed - then.extra.keys()) | then.extra_removed,
    )


def nothing_new(change: SnapshotChange) -> SnapshotChange:
    """The same moment once more: its scalars, and no change to the rest."""
    return msgspec.structs.replace(
        change, topics={}, topics_removed=set(), files={}, files_removed=set(), extra={},
        extra_removed=set(),
    )  # fmt: skip


def _later(first: dict[K, V], then: dict[K, V], removed: Set[K]) -> dict[K, V]:
    later = {key: value for key, value in first.items() if key not in removed}
    put_all(later, then)
    return later


def put_all(into: dict[K, V], items: dict[K, V]) -> None:
    """Do what `update` does, in steps between which other threads get the interpreter."""
    for key, value in items.items():
        into[key] = value


def apply_change(state: SnapshotState | None, change: SnapshotChange, number: int) -> SnapshotState:
    """The state after `change`: `state` itself, brought forward, or a new one when None."""
    if state is None:
        state = empty_state()
    assert number > state.number, (number, state.number)
    state.number = number
    state.created_ms = change.created_ms
    state.clean = change.clean
    state.generation = change.generation
    state.next_topic_id = change.next_topic_id
    state.next_file_id = change.next_file_id
    state.boot_id = change.boot_id
    state.positions = dict(change.positions)
    state.key_files = list(change.key_files)
    for topic_id in change.topics_removed:
        state.topics.pop(topic_id, None)
    for file_id in change.files_removed:
        state.files.pop(file_id, None)
    for name in change.extra_removed:
        state.extra.pop(name, None)
    put_all(state.topics, change.topics)
    state.files.update(change.files)
    state.extra.update(change.extra)
    return state
