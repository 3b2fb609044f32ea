"""Examining a data directory that no engine uses: every checksum, and everything listed is there.

Only this file says what is wrong with a directory as a whole, as a list of findings.  It asks the
parts that own each format, and one thing besides: every live sealed record has to be in some file.
It changes nothing (`repair.py` does), and does not stop at the first thing it finds.  The caller
holds the directory's lock.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from functools import partial

from headrace.core.errors import (
    CorruptionError,
    HeadraceError,
    NotReady,
    SnapshotCorrupt,
    UnsupportedFormat,
)
from headrace.storage.files.store import DirectoryStore, Store
from headrace.storage.files.tier import SEGMENT_NAME, Tiers, read_owner
from headrace.storage.fs import Filesystem, read_exact, read_file
from headrace.storage.identity import IDENTITY_PATH, OWN_FILES, SCRUB_PATH, decode_identity
from headrace.storage.scrub.progress_file import read_progress
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.snapshot.chains import read_latest, snapshot_path
from headrace.storage.snapshot.format import decode
from headrace.storage.snapshot.key_files import read_keys
from headrace.storage.snapshot.state import SnapshotState
from headrace.storage.tools.check_log import LogExaminer
from headrace.storage.tools.check_segments import SegmentState, examine_segment
from headrace.storage.tools.examination import REPAIR_FIX, Examination
from headrace.storage.tools.findings import Finding, Progress, Report, silent
from headrace.storage.tools.lost_seqs import Lost, Range, line_of, missing_seqs
from headrace.storage.wal.file import discover
from headrace.storage.wal.mark import marked_directory

_SNAPSHOT = re.compile(r"snapshot-([0-9]{16})\.bin")
_KEYS = re.compile(r"keys-([0-9]{16})\.bin")
_WAL = re.compile(r"wal-([0-9]{16})\.log")


def check(fs: Filesystem, cold: Store | None = None, progress: Progress = silent) -> Report:
    """Examine a directory, and change nothing."""
    return examine(fs, cold, progress).report()


def examine(fs: Filesystem, cold: Store | None = None, progress: Progress = silent) -> Examination:
    """All that `check` and `repair` know of a directory."""
    found = Examination(fs, Tiers(DirectoryStore(fs), cold))
    _Examiner(found, progress).run()
    return found


class _Examiner:
    """Fills an `Examination`, part by part."""

    def __init__(self, found: Examination, progress: Progress) -> None:
        self._found = found
        self._fs = found.fs
        self._progress = progress
        self._of = 0

    def run(self) -> None:
        self._of = sum(self._size(path) for path in self._paths())
        self._snapshots()
        LogExaminer(self._found, self._read).run()
        if not self._found.snapshot_refused:
            self._segments()
            self._keys()
            self._identity()
            self._scrub()
            self._leftovers()
        self._found.findings.sort(key=lambda f: ("error", "warning", "note").index(f.severity))

    def _paths(self) -> Iterable[str]:
        shards = [n for n in self._fs.listdir("wal") if n.startswith("shard-")]
        for directory in ("meta", "segments", "wal", *(f"wal/{shard}" for shard in shards)):
            for name in self._fs.listdir(directory):
                if name not in shards and not name.endswith(".broken"):
                    yield f"{directory}/{name}"

    def _size(self, path: str) -> int:
        file = self._fs.open_read(path)
        try:
            return file.size()
        finally:
            file.close()

    def _read(self, path: str, count: int, files: int = 0) -> None:
        self._found.files += files
        self._found.bytes += count
        self._progress(path, self._found.bytes, self._of)

    # Snapshots

    def _snapshots(self) -> None:
        found = self._found
        try:
            found.loaded = read_latest(self._fs)
        except (SnapshotCorrupt, UnsupportedFormat) as error:
            found.snapshot_refused = True
            code = "snapshot_unusable" if isinstance(error, SnapshotCorrupt) else error.code
            found.add("error", code, "meta", error.message, fix=error.fix)
        numbers = [m[1] for name in self._fs.listdir("meta") if (m := _SNAPSHOT.fullmatch(name))]
        for number in map(int, numbers):
            self._snapshot(number)

    def _snapshot(self, number: int) -> None:
        found, path = self._found, snapshot_path(number)
        file = self._fs.open_read(path)
        try:
            size = file.size()
            name = self._fs.describe(path)
            found.snapshots[number] = decode(
                partial(read_exact, file), size, name, keep_topics=False
            )
        except (SnapshotCorrupt, EOFError) as error:
            found.bad_snapshots.append(number)
            text = str(error.detail["reason"]) if isinstance(error, SnapshotCorrupt) else str(error)
            if found.snapshot_refused:
                found.add("error", "snapshot_damaged", path, text, fix="restore a backup")
            else:
                text += "; the snapshot before it is used, and the log since then is there"
                found.add("warning", "snapshot_damaged", path, text, fix=REPAIR_FIX)
        except UnsupportedFormat:
            pass  # Said already, as what makes the snapshots unusable, or it is not needed.
        finally:
            file.close()
        self._read(path, size, 1)

    # Sealed files and key files

    def _segments(self) -> None:
        found, state = self._found, self._found.state
        if state is None:
            return
        covered: dict[int, list[Range]] = {topic_id: [] for topic_id in state.topics}
        for meta in state.files.values():
            segment = examine_segment(found.tiers, meta)
            found.segments[meta.file_id] = segment
            self._read(meta.path, meta.size, 1)
            for topic_id, ranges in segment.covered.items():
                if topic_id in covered:
                    covered[topic_id] += ranges
        if not any(segment.unreachable for segment in found.segments.values()):
            for topic_id, topic in state.topics.items():
                held = [
                    (first, min(last, to))
                    for owner_id, to in line_of(state.topics, topic_id)
                    for first, last in covered[owner_id]
                    if first <= to
                ]
                missing = missing_seqs(topic, held)
                if missing:
                    found.lost[topic_id] = missing
        self._say_segments(state)
        self._older_segments(state)

    def _say_segments(self, state: SnapshotState) -> None:
        found = self._found
        left = {topic_id: list(ranges) for topic_id, ranges in found.lost.items()}
        for segment in found.segments.values():
            if segment.unreachable:
                found.add("error", "cold_unreachable", segment.meta.path, segment.problem,
                          fix="make the cold tier reachable, then check again")  # fmt: skip
            elif segment.spare:
                text = f"{segment.problem}; the copy in the cold tier is whole"
                found.add(
                    "warning", "segment_copy_damaged", segment.meta.path, text, fix=REPAIR_FIX
                )
            elif segment.problem:
                lost = [
                    Lost(state.topics[topic_id].name, topic_id, first, last)
                    for topic_id in [t for t in left if self._may_hold(segment, t)]
                    for first, last in left.pop(topic_id)
                ]
                kept = f"; {segment.rows_kept} of {segment.meta.rows} records can be kept"
                found.add(
                    "error", "segment_damaged" if segment.exists else "segment_missing",
                    segment.meta.path, segment.problem + (kept if segment.rows_kept else ""),
                    fix=REPAIR_FIX, offset=segment.offset, lost=lost,
                )  # fmt: skip
        if left:
            lost = [
                Lost(state.topics[topic_id].name, topic_id, first, last)
                for topic_id, ranges in left.items()
                for first, last in ranges
            ]
            text = "live records are in none of the files the snapshot lists"
            found.add("error", "records_missing", snapshot_path(state.number), text,
                      fix=REPAIR_FIX, lost=lost)  # fmt: skip

    def _may_hold(self, segment: SegmentState, topic_id: int) -> bool:
        """Whether lost records of a topic, inherited ones too, may have been in a file."""
        state = self._found.state
        assert state is not None
        return any(segment.may_hold(owner_id) for owner_id, _ in line_of(state.topics, topic_id))

    def _older_segments(self, state: SnapshotState) -> None:
        """Files that only the snapshot before the newest lists: its fallback needs them."""
        metas: dict[int, SegmentMeta] = {}
        for decoded in self._found.snapshots.values():
            metas.update(decoded.change.files)
        for file_id in metas.keys() - state.files.keys():
            meta = metas[file_id]
            if not self._fs.exists(meta.path):
                continue
            segment = examine_segment(Tiers(self._found.tiers.hot), meta)
            self._read(meta.path, meta.size, 1)
            if segment.problem:
                text = f"{segment.problem}; only an older snapshot lists it, so nothing is lost"
                self._found.add("warning", "segment_damaged", meta.path, text, fix=REPAIR_FIX)

    def _keys(self) -> None:
        found, state = self._found, self._found.state
        for meta in state.key_files if state is not None else ():
            try:
                read_keys(self._fs, meta)
            except UnsupportedFormat as error:
                found.add("error", error.code, meta.path, error.message, fix=error.fix)
            except CorruptionError as error:
                found.bad_keys.append(meta)
                text = f"{error.detail['reason']}; with its {meta.rows} idempotency keys gone, a"
                text += f" retry before {meta.expires_ms} ms since 1970 may be stored twice"
                found.add("error", "keys_damaged", meta.path, text, fix=REPAIR_FIX)
            self._read(meta.path, meta.size, 1)

    def _identity(self) -> None:
        """The directory's name for life; a cold tier of another name would be refused."""
        found, fs = self._found, self._fs
        name = ""
        if fs.exists(IDENTITY_PATH):
            try:
                name = decode_identity(read_file(fs, IDENTITY_PATH), fs.describe(IDENTITY_PATH))
            except UnsupportedFormat as error:
                found.add("error", error.code, IDENTITY_PATH, error.message, fix=error.fix)
                return
            except CorruptionError:
                found.identity_bad = True
                text = "it does not match its checksum"
                found.add("error", "identity_damaged", IDENTITY_PATH, text, fix=REPAIR_FIX)
        if found.tiers.cold is not None:
            with contextlib.suppress(HeadraceError, OSError):
                found.cold_owner = read_owner(found.tiers.cold) or ""
        if name != found.cold_owner != "" and not found.identity_bad:
            found.identity_bad = not name
            text = f"the cold tier is {found.cold_owner}'s, this directory is {name or 'nobody'}"
            fix = REPAIR_FIX if not name else "set --cold-url to the directory's own cold tier"
            found.add("error", "identity_mismatch", IDENTITY_PATH, text, fix=fix)

    def _scrub(self) -> None:
        """When files were last verified: nothing depends on it."""
        try:
            read_progress(self._fs)
        except (CorruptionError, UnsupportedFormat) as error:
            text = f"{error.message}; the scrub starts over"
            self._found.add("warning", "scrub_damaged", SCRUB_PATH, text)

    # What nothing needs

    def _leftovers(self) -> None:
        found = self._found
        files: set[int] = set()
        keys: set[int] = set()
        for decoded in found.snapshots.values():
            files.update(decoded.change.files)
            keys.update(meta.file_id for meta in decoded.change.key_files)
        if found.state is not None:
            files.update(found.state.files)
        for path in [*self._paths(), *self._kept_copies()]:
            self._leftover(path, files, keys)
        if found.tiers.cold is not None:
            self._cold_leftovers(files)

    def _kept_copies(self) -> Iterable[str]:
        for directory in ("meta", "segments", *discover(self._fs).keys() | {"wal"}):
            for name in self._fs.listdir(directory):
                if name.endswith(".broken"):
                    yield f"{directory}/{name}"

    def _leftover(self, path: str, files: set[int], keys: set[int]) -> None:
        found, name = self._found, path.rpartition("/")[2]
        segment, key = SEGMENT_NAME.fullmatch(name), _KEYS.fullmatch(name)
        unlisted = (segment is not None and int(segment[1]) not in files) or (
            key is not None and int(key[1]) not in keys
        )
        if name.endswith(".tmp") or (unlisted and found.state is not None):
            found.orphans.append(path)
            text = "nothing lists it; the next start removes it"
            found.add("note", "orphan", path, text)
        elif name.endswith(".broken"):
            found.add("note", "kept_copy", path, "kept aside; remove it when it is of no use")
        elif not (
            segment
            or key
            or path in (IDENTITY_PATH, SCRUB_PATH, *OWN_FILES)
            or marked_directory(path)
            or _SNAPSHOT.fullmatch(name)
            or _WAL.fullmatch(name)
        ):
            found.add("note", "unknown_file", path, "not a file of Headrace; left alone")

    def _cold_leftovers(self, files: set[int]) -> None:
        found = self._found
        assert found.tiers.cold is not None
        try:
            listed = found.tiers.cold.list()
        except (NotReady, OSError) as error:
            text = error.message if isinstance(error, HeadraceError) else str(error)
            found.add("warning", "cold_unreachable", "", f"the cold tier was not listed: {text}")
            return
        for stored in listed:
            match = SEGMENT_NAME.fullmatch(stored.path.rpartition("/")[2])
            if match is not None and int(match[1]) not in files:
                where = found.tiers.cold.describe(stored.path)
                text = "nothing lists it; the next start removes it"
                found.findings.append(Finding("note", "orphan", where, text))
