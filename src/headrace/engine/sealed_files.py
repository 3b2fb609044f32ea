"""The sealed files of an engine, as the engine sees them: shown, merged, listed, at last removed.

Only this file writes snapshots and unlinks what they made superfluous.  A file is removed when no
retained or pinned snapshot lists it and nobody outside reads it (`pins.py`); log files when every
retained snapshot replays from after them.  `checkpoint.py` says when; the parts that touch the disk
run off the loop thread.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

from headrace.core.errors import CorruptionError, HeadraceError
from headrace.engine.core_state import Core
from headrace.engine.pins import Pins
from headrace.engine.topic import Topic
from headrace.storage.catalog import LiveStats, TopicLiveness
from headrace.storage.keys import KeyFileMeta
from headrace.storage.merge import MergeJob, MergePolicy, plan
from headrace.storage.merge_run import run_merge
from headrace.storage.segment import SegmentMeta
from headrace.storage.segment_reader import Segment
from headrace.storage.snapshot import WAL_NUMBER, SnapshotChange
from headrace.storage.snapshot_files import SnapshotStore
from headrace.storage.tier import relocation_plan
from headrace.storage.wal_file import removable

log = logging.getLogger("headrace.files")

# Copies that a repair keeps have longer names, and are not ours to remove.
_KEY_FILE = re.compile(r"keys-(\d{16})\.bin(\.tmp)?")


class Merged(NamedTuple):
    """Files that replace others."""

    inputs: list[int]
    outputs: list[Segment]


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
        self._moved: list[SegmentMeta] = []  # cold, with a hot copy that may go
        self.pins = Pins()
        self.key_files: list[KeyFileMeta] = []
        self._damaged: set[int] = set()  # files that could not be merged
        self.merges_total = 0
        self.bytes_total = 0

    def note_live(self, topic: Topic) -> None:
        holes = topic.holes
        self._liveness[topic.id] = TopicLiveness(
            topic.base + 1, holes.copy() if holes is not None else None
        )

    def note_removed(self, topic_id: int) -> None:
        self._liveness.pop(topic_id, None)

    def open(self, meta: SegmentMeta) -> Segment:
        """Open a file that was just written, off the loop thread; what can fail, fails here."""
        return Segment(meta, self._core.tiers.open(meta), self._core.cache)

    def open_cold(self, meta: SegmentMeta) -> Segment:
        """Open the cold copy, although the hot one is still there."""
        cold = self._core.tiers.cold
        assert cold is not None, meta
        return Segment(meta, cold.open_read(meta.path), self._core.cache)

    def open_new(self, metas: list[SegmentMeta]) -> list[Segment]:
        """Open all of them, or remove them all."""
        try:
            return [self.open(meta) for meta in metas]
        except BaseException:
            for meta in metas:
                self._core.tiers.delete(meta)
            raise

    def add_file(self, segment: Segment) -> None:
        """Let readers see a new file."""
        self._core.catalog.add(segment)
        self._changed[segment.meta.file_id] = segment.meta
        self.bytes_total += segment.meta.size

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
        """Off the loop: do what the plan says, as far as it goes."""
        merged: list[Merged] = []
        by_id = {segment.meta.file_id: segment for segment in segments}
        files = self._stats.count(segments, self._liveness)
        for job in plan(files, self.policy, self._damaged):
            inputs = [by_id[file_id] for file_id in job.inputs]
            try:
                outputs = self._merge_one(job, inputs, created_ms)
            except CorruptionError as error:
                # Left alone from now on, so that the other files are still merged.
                log.error("a file cannot be merged: %s", error)
                self._damaged.update(job.inputs)
                continue
            except OSError as error:
                log.warning("merging stopped, its inputs are kept: %s", error)
                break
            merged.append(Merged(list(job.inputs), outputs))
        if any(one.outputs for one in merged):
            self._core.fs.sync_dir("segments")
        self.merges_total += len(merged)
        return merged

    def _merge_one(self, job: MergeJob, inputs: list[Segment], created_ms: int) -> list[Segment]:
        metas = run_merge(
            self._core.fs, job, inputs, self._liveness, self.next_file_id, created_ms, self.policy
        )
        return self.open_new(metas)

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
        self._remove_unlisted()
        keys = self.snapshots.retained_key_files()
        for name in core.fs.listdir("meta"):
            match = _KEY_FILE.fullmatch(name)
            if match is not None and int(match[1]) not in keys:
                core.fs.unlink(f"meta/{name}")

    def _remove_unlisted(self) -> None:
        retained = self.snapshots.retained_files()
        for meta in list(self._unlisted):
            needed = meta.file_id in retained or self.pins.holds(meta.file_id)
            if not needed and self._delete(meta):
                self._unlisted.remove(meta)

    def drop_hot_copies(self, moved: list[SegmentMeta]) -> None:
        """Off the loop: these are cold, so their hot copies go, unless somebody reads one."""
        self._moved += moved
        free = [meta for meta in self._moved if not self.pins.holds(meta.file_id)]
        self._core.tiers.drop_hot_copies(free)
        self._moved = [meta for meta in self._moved if meta not in free]

    @property
    def waits_for_pins(self) -> bool:
        """Whether something may be there only because of pins."""
        return bool(self._unlisted or self._moved)

    def remove_let_go(self) -> None:
        """Off the loop: what was kept for a reader outside goes."""
        self._remove_unlisted()
        self.drop_hot_copies([])

    def _delete(self, meta: SegmentMeta) -> bool:
        """Remove a file from its tier; one that cannot be reached is tried again next time."""
        try:
            self._core.tiers.delete(meta)
        except (HeadraceError, OSError) as error:
            log.warning("%s is not removed yet: %s", meta.path, error)
            return False
        return True

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

    def flip_to_cold(self, segment: Segment) -> None:
        """The cold copy is whole: point there from the next snapshot on."""
        meta = segment.meta
        segment.take_index(self._core.catalog.remove(meta.file_id))
        self._core.catalog.add(segment)
        self._changed[meta.file_id] = meta
        self._core.relocated_bytes_total += meta.size
