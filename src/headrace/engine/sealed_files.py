"""The sealed files of an engine, as the engine sees them: shown, merged, listed, at last removed.

Only this file writes snapshots and unlinks what they made superfluous.  A file is removed when no
retained or pinned snapshot lists it; log files when every retained snapshot replays
from after them.  `checkpoint.py` says when; the parts that touch the disk run off the loop thread.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from headrace.engine.core_state import Core
from headrace.engine.topic import Topic
from headrace.storage.catalog import LiveStats, TopicLiveness
from headrace.storage.keys import KeyFileMeta
from headrace.storage.merge import MergePolicy, plan
from headrace.storage.merge_run import run_merge
from headrace.storage.segment import SegmentMeta
from headrace.storage.segment_reader import Segment
from headrace.storage.snapshot import WAL_NUMBER, SnapshotChange
from headrace.storage.snapshot_files import SnapshotStore
from headrace.storage.tier import relocation_plan
from headrace.storage.wal_file import removable

# Copies that a repair keeps have longer names, and are not ours to remove.
_KEY_FILE = re.compile(r"keys-(\d{16})\.bin(\.tmp)?")


class Merged(NamedTuple):
    """Files that replace others."""

    inputs: list[int]
    outputs: list[SegmentMeta]


class SealedFiles:
    """What is on disk beside the log."""

    def __init__(self, core: Core, store: SnapshotStore, policy: MergePolicy) -> None:
        self._core = core
        self.snapshots = store
        self.policy = policy
        self._stats = LiveStats()
        self._liveness: dict[int, TopicLiveness] = {}
        self._wal_number = 0  # of the snapshot before the newest: what it needs stays
        self._changed: dict[int, SegmentMeta] = {}
        self._removed: set[int] = set()
        self._unlisted: list[SegmentMeta] = []  # replaced; unlinked once nothing needs them
        self.key_files: list[KeyFileMeta] = []
        self.merges_total = 0
        self.bytes_total = 0

    def note_live(self, topic: Topic) -> None:
        holes = topic.holes
        self._liveness[topic.id] = TopicLiveness(
            topic.base + 1, holes.copy() if holes is not None else None
        )

    def note_removed(self, topic_id: int) -> None:
        self._liveness.pop(topic_id, None)

    def add_file(self, meta: SegmentMeta) -> None:
        """Let readers see a new file."""
        core = self._core
        core.catalog.add(Segment(meta, core.tiers.open(meta), core.cache))
        self._changed[meta.file_id] = meta
        self.bytes_total += meta.size

    def drop_file(self, file_id: int) -> None:
        """Take a file from readers; it is unlinked when no snapshot lists it."""
        segment = self._core.catalog.remove(file_id)
        self._changed.pop(file_id, None)
        self._removed.add(file_id)
        self._unlisted.append(segment.meta)

    def next_file_id(self) -> int:
        file_id = self._core.next_file_id
        self._core.next_file_id += 1
        return file_id

    def merge(self, segments: list[Segment], created_ms: int) -> list[Merged]:
        """Off the loop: do what the plan says."""
        merged: list[Merged] = []
        by_id = {segment.meta.file_id: segment for segment in segments}
        files = self._stats.count(segments, self._liveness)
        for job in plan(files, self.policy):
            outputs = run_merge(
                self._core.fs,
                job,
                [by_id[file_id] for file_id in job.inputs],
                self._liveness,
                self.next_file_id,
                created_ms,
                self.policy,
            )
            merged.append(Merged(list(job.inputs), outputs))
        if any(one.outputs for one in merged):
            self._core.fs.sync_dir("segments")
        self.merges_total += len(merged)
        return merged

    def write_snapshot(self, change: SnapshotChange) -> None:
        """Off the loop: the snapshot, then everything that only it made superfluous."""
        change.files = dict(self._changed)
        change.files_removed = set(self._removed)
        self.snapshots.write(change)
        for file_id in change.files:
            self._changed.pop(file_id, None)
        self._removed -= change.files_removed
        self.snapshots.prune(keep=1 if change.clean else 2)
        self._remove_unneeded(change)

    def _remove_unneeded(self, change: SnapshotChange) -> None:
        core = self._core
        newest = int.from_bytes(change.extra[WAL_NUMBER], "little")
        oldest, self._wal_number = newest if change.clean else self._wal_number, newest
        for path in removable(core.fs, self.snapshots.replay_positions(), oldest):
            core.fs.unlink(path)
        retained = self.snapshots.retained_files()
        waiting = self._unlisted
        self._unlisted = [meta for meta in waiting if meta.file_id in retained]
        for meta in waiting:
            if meta.file_id not in retained:
                core.tiers.delete(meta)
        keys = self.snapshots.retained_key_files()
        for name in core.fs.listdir("meta"):
            match = _KEY_FILE.fullmatch(name)
            if match is not None and int(match[1]) not in keys:
                core.fs.unlink(f"meta/{name}")

    def relocatable(self) -> list[SegmentMeta]:
        settings = self._core.settings
        if self._core.tiers.cold is None:
            return []
        return relocation_plan(
            self._core.catalog.metas(),
            settings.hot_retain_segments,
            settings.hot_retain_bytes,
            self.policy,
        )

    def flip_to_cold(self, meta: SegmentMeta) -> None:
        """The cold copy is whole: point there from the next snapshot on."""
        core = self._core
        core.catalog.remove(meta.file_id)
        core.catalog.add(Segment(meta, core.tiers.open(meta), core.cache))
        self._changed[meta.file_id] = meta
