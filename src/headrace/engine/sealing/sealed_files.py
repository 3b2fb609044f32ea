"""The sealed files of an engine, as the engine sees them: shown, merged, listed, at last removed.

Only this file writes snapshots and unlinks what they made superfluous.  A file is removed when no
retained or pinned snapshot lists it and no reader outside has it pinned (`engine/reading/pins.py`);
log files when every retained snapshot replays from after them.  `checkpoint.py` says when: the
parts that touch the disk run off the loop thread.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import NamedTuple

from headrace.core.errors import HeadraceError
from headrace.engine.reading.pins import Pins
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.files.catalog import Liveness, LiveStats, TopicLiveness
from headrace.storage.files.merge_policy import MergeJob, MergePolicy, plan
from headrace.storage.files.merge_run import MergeRun
from headrace.storage.files.tier import relocation_plan
from headrace.storage.segment.format import SegmentMeta, segment_path
from headrace.storage.segment.reader import Segment
from headrace.storage.snapshot.files import SnapshotStore
from headrace.storage.snapshot.key_files import KeyFileMeta
from headrace.storage.snapshot.state import WAL_NUMBER, SnapshotChange
from headrace.storage.wal.file import removable

log = logging.getLogger("headrace.files")

SEGMENTS = "segments"
# Copies that a repair keeps have longer names, and are not ours to remove.
_KEY_FILE = re.compile(r"keys-(\d{16})\.bin(\.tmp)?")


class PlannedMerge(NamedTuple):
    """A merge to be carried out: its job, the files, and what was alive when it was planned."""

    job: MergeJob
    inputs: list[Segment]
    liveness: Liveness
    created_ms: int


class Merged(NamedTuple):
    """Files that replace others."""

    inputs: tuple[int, ...]
    outputs: list[Segment]


class SealedFiles:
    """What is on disk beside the log."""

    def __init__(self, state: EngineState, store: SnapshotStore, policy: MergePolicy) -> None:
        self._state = state
        self.snapshots = store
        self.policy = policy
        self._stats = LiveStats()
        self._liveness: dict[int, TopicLiveness] = {}
        self._wal_number = 0  # of the snapshot before the newest: what it needs stays
        self._changed: dict[int, SegmentMeta] = {}
        self._removed: set[int] = set()
        self._unlisted: list[SegmentMeta] = []  # replaced; unlinked once nothing needs them
        self._left_over: set[int] = set()  # the same, replaced before the start
        self._moved: list[SegmentMeta] = []  # cold, with a hot copy that may go
        self.pins = Pins()
        self.key_files: list[KeyFileMeta] = []
        self._damaged: set[int] = set()  # files that could not be merged
        self.merges_left = False  # the plan had more than there was room for
        self.merges_total = 0
        self.bytes_total = 0

    def note_live(self, topic: Topic) -> None:
        """Count from now on what a topic, or a fork of it, does not need any more as dead."""
        self._liveness[topic.id] = TopicLiveness(topic.kept_base + 1, topic.kept_holes())

    def note_removed(self, topic_id: int) -> None:
        self._liveness.pop(topic_id, None)

    def open(self, meta: SegmentMeta) -> Segment:
        """Open a file that was just written, off the loop thread; what can fail, fails here."""
        return Segment(meta, self._state.tiers.open(meta), self._state.cache)

    def open_cold(self, meta: SegmentMeta) -> Segment:
        """Open the cold copy, although the hot one is still there."""
        cold = self._state.tiers.cold
        assert cold is not None, meta
        return Segment(meta, cold.open_read(meta.path), self._state.cache)

    def open_new(self, metas: list[SegmentMeta]) -> list[Segment]:
        """Open all of them, or remove them all."""
        try:
            return [self.open(meta) for meta in metas]
        except BaseException:
            for meta in metas:
                self._state.tiers.delete(meta)
            raise

    def add_file(self, segment: Segment) -> None:
        """Let readers see a new file."""
        self._state.catalog.add(segment)
        self._changed[segment.meta.file_id] = segment.meta
        self.bytes_total += segment.meta.size

    def drop_file(self, file_id: int) -> None:
        """Take a file from readers; it is unlinked when no snapshot lists it."""
        segment = self._state.catalog.remove(file_id)
        self._changed.pop(file_id, None)
        self._removed.add(file_id)
        self._unlisted.append(segment.meta)

    def reopened(self, segment: Segment) -> None:
        """Have readers use this opening of a file: there are other bytes under its name now.

        Not if the file has gone or moved meanwhile.
        """
        meta = segment.meta
        current = self._state.catalog.find(meta.file_id)
        if current is None or current.meta != meta:
            segment.close()
            return
        segment.take_index(self._state.catalog.remove(meta.file_id))
        self._state.catalog.add(segment)
        self._damaged.discard(meta.file_id)

    def listed_beside(self) -> tuple[list[int], list[KeyFileMeta]]:
        """In the lane of checkpoints: the snapshots and key files that are needed now."""
        return sorted(self.snapshots.retained_numbers()), list(self.key_files)

    def next_file_id(self) -> int:
        return self._state.take_file_id()

    def plan_merges(
        self, segments: list[Segment], created_ms: int, room: int | None = None
    ) -> list[PlannedMerge]:
        """Off the loop, while no merge is under way: what the plan says, as `room` bytes allow."""
        self.merges_left = False
        by_id = {segment.meta.file_id: segment for segment in segments}
        files = self._stats.count(segments, self._liveness)
        sizes = {} if room is None else {file.meta.file_id: file.live_size for file in files}
        jobs: list[MergeJob] = []
        for job in plan(files, self.policy, self._damaged):
            if room is not None:
                size = sum(sizes[file_id] for file_id in job.inputs)
                if size > room:
                    self.merges_left = True
                    continue
                room -= size
            jobs.append(job)
        # A copy, because checkpoints note what has died since while the merges are under way.  A
        # row that dies meanwhile stays in the output, and its topic knows that it is dead.
        liveness = self._liveness.copy() if jobs else {}
        return [
            PlannedMerge(job, [by_id[file_id] for file_id in job.inputs], liveness, created_ms)
            for job in jobs
        ]

    def start_merge(self, planned: PlannedMerge) -> MergeRun:
        """Off the loop: begin to carry out a merge."""
        return MergeRun(
            self._state.fs,
            planned.job,
            planned.inputs,
            planned.liveness,
            self.next_file_id,
            planned.created_ms,
            self.policy,
        )

    def open_merged(self, metas: list[SegmentMeta]) -> list[Segment]:
        """Off the loop: make the names of a merge's outputs durable, and open the outputs."""
        segments = self.open_new(metas)
        if metas:
            self._state.fs.sync_dir(SEGMENTS)
        self.merges_total += 1
        return segments

    def leave_alone(self, file_ids: Collection[int]) -> None:
        """Never merge these, which are damaged, so that the other files are still merged."""
        self._damaged.update(file_ids)

    def replace(self, merged: Merged) -> None:
        """Let readers see the outputs of a merge in place of its inputs.  On the loop thread.

        Only while no snapshot is being written: one that saw the half of it would miss rows.
        """
        for file_id in merged.inputs:
            self.drop_file(file_id)
        for segment in merged.outputs:
            self.add_file(segment)

    def write_snapshot(self, change: SnapshotChange, *, alone: bool) -> None:
        """Off the loop: the snapshot, then everything that only it made superfluous.

        `alone`: what the snapshot before it needs is not kept for a fall back to that.
        """
        change.files = dict(self._changed)
        change.files_removed = set(self._removed)
        self.snapshots.write(change)
        if not alone:
            self.snapshots.double(change)
        for file_id in change.files:
            self._changed.pop(file_id, None)
        self._removed -= change.files_removed
        self.snapshots.prune(alone=alone)
        self._remove_unneeded(change, alone)

    def _remove_unneeded(self, change: SnapshotChange, alone: bool) -> None:
        state = self._state
        newest = int.from_bytes(change.extra[WAL_NUMBER], "little")
        oldest, self._wal_number = newest if alone else self._wal_number, newest
        for path in removable(state.fs, self.snapshots.replay_positions(), oldest):
            state.fs.unlink(path)
        self._remove_unlisted()
        keys = self.snapshots.retained_key_files()
        for name in state.fs.listdir("meta"):
            match = _KEY_FILE.fullmatch(name)
            if match is not None and int(match[1]) not in keys:
                state.fs.unlink(f"meta/{name}")

    def note_left_over(self, newest: Collection[int]) -> None:
        """At a start: what only an older snapshot lists is unlinked once that goes."""
        self._left_over = self.snapshots.retained_files().difference(newest)

    def _remove_unlisted(self) -> None:
        retained = self.snapshots.retained_files()
        for file_id in self._left_over - retained:
            # A cold copy takes no room here: the next start sweeps it.
            self._state.tiers.hot.delete(segment_path(file_id))
        self._left_over &= retained
        for meta in list(self._unlisted):
            needed = meta.file_id in retained or self.pins.holds(meta.file_id)
            if not needed and self._delete(meta):
                self._unlisted.remove(meta)

    def drop_hot_copies(self, moved: list[SegmentMeta]) -> None:
        """Remove the hot copies of files that are cold now, except pinned ones.  Off the loop."""
        self._moved += moved
        free = [meta for meta in self._moved if not self.pins.holds(meta.file_id)]
        self._state.tiers.drop_hot_copies(free)
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
            self._state.tiers.delete(meta)
        except (HeadraceError, OSError) as error:
            log.warning("%s is not removed yet: %s", meta.path, error)
            return False
        return True

    def relocatable(self) -> list[SegmentMeta]:
        settings = self._state.settings
        if self._state.tiers.cold is None:
            return []
        return relocation_plan(
            self._state.catalog.metas(),
            settings.hot_retain_segments,
            settings.hot_retain_bytes,
            self.policy,
        )

    def flip_to_cold(self, segment: Segment) -> None:
        """The cold copy is whole: point there from the next snapshot on."""
        meta = segment.meta
        segment.take_index(self._state.catalog.remove(meta.file_id))
        self._state.catalog.add(segment)
        self._changed[meta.file_id] = meta
        self._state.count_relocated(meta.size)
