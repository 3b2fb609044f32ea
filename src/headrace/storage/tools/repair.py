"""Making a damaged data directory open again, with what is gone announced and the evidence kept.

Only this file changes a directory on the word of `check.py`.  The rules it owns: what is changed or
removed is first copied, or at last renamed, to `*.broken`; whole parts of a damaged file are kept;
what is lost becomes gaps in a new snapshot or in the log, so that readers get a tombstone; where
not even the extent of a loss is known, every topic gets a new epoch, so that every reader is told.
The order is such that an interrupted repair can be run again.  The caller holds the lock.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.core.clock import Clock, Random, SystemClock, SystemRandom
from headrace.core.errors import HeadraceError
from headrace.storage.epochs import epoch_of
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.catalog import Catalog
from headrace.storage.files.store import COPY_CHUNK_BYTES, Store
from headrace.storage.files.tier import HOT
from headrace.storage.fs import Filesystem, parent, read_exact, write_all, write_file_durably
from headrace.storage.identity import IDENTITY_PATH, encode_identity
from headrace.storage.segment.format import SegmentMeta, segment_path
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.run import Run
from headrace.storage.segment.writer import SegmentWriter
from headrace.storage.snapshot.chains import snapshot_path
from headrace.storage.snapshot.files import SnapshotStore
from headrace.storage.snapshot.state import SnapshotChange, SnapshotState, TopicState, nothing_new
from headrace.storage.tools.check import examine
from headrace.storage.tools.check_segments import CACHE_BYTES, SegmentState, read_group
from headrace.storage.tools.examination import Examination
from headrace.storage.tools.findings import Finding, Progress, Report, silent
from headrace.storage.tools.lost_seqs import live_ranges, lose
from headrace.storage.wal.mark import mark_path, write_mark
from headrace.storage.wal.rewrite import Epochs, LogRepair, broken_path, repair_shard


def repair(
    fs: Filesystem,
    cold: Store | None = None,
    progress: Progress = silent,
    *,
    random: Random | None = None,
    clock: Clock | None = None,
) -> Report:
    """Mend what can be mended; `Report.left` is what could not be."""
    found = examine(fs, cold, progress)
    report = found.report()
    if not found.snapshot_refused and not _has(found, "unsupported_format"):
        _Repair(found, random or SystemRandom(), clock or SystemClock()).run()
    report.repaired = True
    report.left = [
        finding for finding in examine(fs, cold, progress).findings if finding.severity != "note"
    ]
    return report


def _has(found: Examination, code: str) -> bool:
    return any(finding.code == code for finding in found.findings)


def new_generation(topics: Mapping[int, TopicState], generation: int) -> dict[int, TopicState]:
    """The topics under another generation: every epoch is one that was never used.

    What was archived of another epoch is not archived of this one.
    """
    return {
        topic_id: msgspec.structs.replace(
            topic, epoch=epoch_of(generation, topic_id), archived_seq=0
        )
        for topic_id, topic in topics.items()
    }


def change_of(state: SnapshotState, created_ms: int) -> SnapshotChange:
    """A change that changes nothing yet."""
    return SnapshotChange(
        created_ms=created_ms,
        clean=state.clean,
        generation=state.generation,
        next_topic_id=state.next_topic_id,
        next_file_id=state.next_file_id,
        boot_id=state.boot_id,
        positions=dict(state.positions),
        key_files=list(state.key_files),
    )


class _Repair:
    """One repair."""

    def __init__(self, found: Examination, random: Random, clock: Clock) -> None:
        self._found = found
        self._fs = found.fs
        self._random = random
        self._clock = clock

    def run(self) -> None:
        found = self._found
        logs = [self._log(directory) for directory in sorted(found.log_bad)]
        damaged = [s for s in found.segments.values() if s.problem and not s.unreachable]
        state = found.state
        if state is not None and (
            logs or damaged or found.lost or found.bad_keys or found.bad_snapshots
        ):
            self._snapshot(state, damaged, any(log.unreached for log in logs))
        elif found.orphans:
            for path in found.orphans:
                self._fs.unlink(path)
            self._did("orphan", "removed")
        if found.identity_bad:
            self._identity()
        for directory in found.bad_marks:
            self._marks(directory)

    def _marks(self, directory: str) -> None:
        """Say again how far the log is; a file that is damaged stays aside."""
        path, survey = mark_path(directory), self._found.surveys.get(directory)
        if self._fs.exists(path):
            self._keep_copy(path, self._found.tiers.hot)
        number = durable = 0
        if survey is not None and directory not in self._found.log_bad:
            number = max((file.number for file in survey.files if file.batches), default=0)
            durable = survey.durable
        write_mark(self._fs, directory, number, durable)
        self._did("mark_damaged", "it is written again")

    def _identity(self) -> None:
        """The name the cold tier knows the directory by; without one, a new name does."""
        if self._fs.exists(IDENTITY_PATH):
            self._keep_copy(IDENTITY_PATH, self._found.tiers.hot)
        name = self._found.cold_owner or self._random.bytes(16).hex()
        write_file_durably(self._fs, IDENTITY_PATH, [encode_identity(name)])
        self._did("identity_damaged", f"it is {name} now; a copy is kept")
        self._did("identity_mismatch", f"it is {name} now")

    # The log

    def _log(self, directory: str) -> LogRepair:
        found = self._found
        done = repair_shard(
            self._fs,
            found.surveys[directory],
            found.starts.get(directory),
            found.log_lost.get(directory, []),
            Epochs(found.state.generation if found.state is not None else 0, found.topic_id_max),
            self._random,
            self._clock,
        )
        aside = ", ".join(self._fs.describe(path) for path in done.set_aside)
        action = f"the log goes on in {self._fs.describe(done.path)}"
        action += f" with {done.batches_kept} batches"
        action += f"; the old files are {aside}" if aside else ""
        for finding in found.findings:
            about_log = finding.code.startswith("wal_") and finding.severity == "error"
            if about_log and self._fs.describe(directory) in finding.file:
                finding.action = action
        return done

    # Sealed files, key files, snapshots

    def _snapshot(self, state: SnapshotState, damaged: list[SegmentState], unreached: bool) -> None:
        """A new snapshot without what is gone; then the old ones, and what they listed, go."""
        found = self._found
        for number in found.bad_snapshots:
            self._keep_copy(snapshot_path(number), found.tiers.hot)
        for segment in damaged:
            if segment.exists and segment.store is not None:
                self._keep_copy(segment.meta.path, segment.store)
        for meta in found.bad_keys:
            if self._fs.exists(meta.path):
                self._keep_copy(meta.path, found.tiers.hot)
        store = SnapshotStore(self._fs)
        loaded = store.load()
        assert loaded is not None and loaded.state.number == state.number
        change = change_of(state, self._clock.wall_ms())
        change.key_files = [m for m in change.key_files if m not in found.bad_keys]
        self._replace_segments(state, damaged, change)
        self._lose_records(state, change)
        if unreached and not state.clean:
            change.generation += 1
            topics = {**state.topics, **change.topics}
            change.topics = new_generation(topics, change.generation)
        store.write(change, full=True)
        store.write(nothing_new(change), full=True)  # what was before lists what is gone
        store.prune()
        self._sweep(store)
        self._did("snapshot_damaged", f"snapshot {store.latest.number} replaces it; a copy is kept")
        self._did("keys_damaged", "it is no longer listed; a copy is kept")
        self._did("orphan", "removed")

    def _replace_segments(
        self, state: SnapshotState, damaged: list[SegmentState], change: SnapshotChange
    ) -> None:
        for segment in damaged:
            if segment.spare:
                self._found.tiers.hot.delete(segment.meta.path)
                self._say(segment, "the damaged hot copy is set aside, the cold one is used")
                continue
            change.files_removed.add(segment.meta.file_id)
            if not segment.groups_whole:
                self._say(segment, "it is no longer listed, and its records are announced as lost")
                continue
            meta = self._salvage(segment, change.next_file_id)
            change.next_file_id += 1
            change.files[meta.file_id] = meta
            path = self._fs.describe(meta.path)
            self._say(segment, f"its {meta.rows} whole records are in {path} now")
        if change.files:
            self._fs.sync_dir("segments")

    def _salvage(self, segment: SegmentState, file_id: int) -> SegmentMeta:
        """The whole row groups of a damaged file, as a file of their own in the same place."""
        old = segment.meta
        assert segment.store is not None
        source = Segment(old, segment.store.open_read(old.path), BlockCache(CACHE_BYTES))
        # An earlier repair that was interrupted may have left a file of this id.
        self._fs.unlink(segment_path(file_id))
        writer = SegmentWriter(
            self._fs, file_id, old.owner, old.level, old.created_ms,
            columns=source.columns(), payload_bytes_hint=old.payload_bytes,
            rows_hint=old.rows, topics_hint=old.topics,
        )  # fmt: skip
        try:
            for group in segment.groups_whole:
                writer.add(read_group(source, group))
            meta = writer.finish()
        except BaseException:
            writer.abort()
            raise
        finally:
            source.close()
        return msgspec.structs.replace(meta, tier=HOT, order=old.order or old.file_id)

    def _lose_records(self, state: SnapshotState, change: SnapshotChange) -> None:
        """Give each topic that lost records its gaps, and its right size."""
        if not self._found.lost:
            return
        catalog = Catalog()
        cache = BlockCache(CACHE_BYTES)
        files = {**state.files, **change.files}
        for file_id, meta in files.items():
            if file_id not in change.files_removed:
                catalog.add(Segment(meta, self._found.tiers.open(meta), cache))
        for topic_id, ranges in self._found.lost.items():
            topic = lose(state.topics[topic_id], ranges, 0)
            size = _live_bytes(topic, catalog.runs(topic_id))
            change.topics[topic_id] = msgspec.structs.replace(topic, bytes=size)
        for segment in catalog.segments():
            segment.close()

    def _sweep(self, store: SnapshotStore) -> None:
        """Remove what the new snapshot does not list; copies of what was damaged stay."""
        found = self._found
        try:
            found.tiers.sweep(store.retained_files())
        except HeadraceError as error:
            found.findings.append(
                Finding("warning", "cold_unreachable", "", f"not swept: {error.message}")
            )
        keys = {f"meta/keys-{file_id:016d}.bin" for file_id in store.retained_key_files()}
        for name in self._fs.listdir("meta"):
            path = f"meta/{name}"
            unlisted = name.startswith("keys-") and name.endswith(".bin") and path not in keys
            if unlisted or name.endswith(".tmp"):
                self._fs.unlink(path)
        for path in found.orphans:
            if path.endswith(".tmp"):
                self._fs.unlink(path)
        self._fs.sync_dir("meta")

    # Copies and words

    def _keep_copy(self, path: str, store: Store) -> str:
        target = broken_path(self._fs, path)
        source = store.open_read(path)
        try:
            self._fs.mkdir(parent(target))
            file = self._fs.create(target)
            try:
                size, offset = source.size(), 0
                while offset < size:
                    chunk = read_exact(source, min(COPY_CHUNK_BYTES, size - offset), offset)
                    offset += write_all(file, [chunk], offset)
                file.sync()
            finally:
                file.close()
        finally:
            source.close()
        self._fs.sync_dir(parent(target))
        return target

    def _say(self, segment: SegmentState, action: str) -> None:
        where = self._fs.describe(segment.meta.path)
        for finding in self._found.findings:
            if finding.file == where and finding.code.startswith("segment_"):
                finding.action = action

    def _did(self, code: str, action: str) -> None:
        for finding in self._found.findings:
            if finding.code == code and not finding.action:
                finding.action = action


def _live_bytes(topic: TopicState, runs: list[Run]) -> int:
    """Data and meta bytes of a topic's live sealed records."""
    return sum(
        run.size_of(run.row_of(first), run.row_of(last + 1))
        for run in runs
        for first, last in live_ranges(topic, run.first_seq, run.last_seq)
    )
