"""Backups: a consistent copy of a data directory in another place, incremental, and back again.

Only this file knows the layout of a backup (docs/operate/backup.md).  The rules it owns:

- a backup is a snapshot, every sealed and key file it lists, and the log from its replay position
  to one instant; all of it was read back from the target and verified before it counts;
- files are named by what they hold, so that one that is there already is not copied again, and a
  backup under way never touches what the backup before it needs;
- the manifest is replaced last and at once; what only the old one listed is removed after that;
- a restore goes into an empty directory, which no engine opens before it is whole, and gives every
  topic a new epoch: what readers knew of the old directory does not hold for this one.

How an engine is held still is not known here (`engine/sealing/backup.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from headrace.core.clock import Clock
from headrace.core.errors import CorruptionError, InvalidRequest
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.store import (
    BytesFile,
    DirectoryStore,
    ReadOnlyFile,
    Store,
    size_of,
)
from headrace.storage.files.tier import OWNER_PATH, VERIFY_CACHE_BYTES, Tiers
from headrace.storage.fs import File, Filesystem, read_exact, read_file
from headrace.storage.identity import IDENTITY_PATH, decode_identity
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.segment.reader import Segment
from headrace.storage.snapshot.chains import read_latest
from headrace.storage.snapshot.format import encode, full_body
from headrace.storage.snapshot.key_files import KeyFileMeta, decode_keys
from headrace.storage.snapshot.state import SnapshotState, empty_state
from headrace.storage.tools.backup_manifest import (
    MANIFEST_PATH,
    NEXT_PATH,
    BackupFile,
    LogPart,
    Manifest,
    damaged_backup,
    encode_manifest,
    hash_of,
    read_manifest,
    read_stored,
    segment_file,
)
from headrace.storage.tools.examination import replayed_files
from headrace.storage.tools.findings import Progress, silent
from headrace.storage.tools.repair import change_of
from headrace.storage.wal.file import file_path
from headrace.storage.wal.frame import BATCH_HEADER_BYTES, PAGE_BYTES, decode_batch_header
from headrace.storage.wal.scan_shards import scan_all


class BackupReport(msgspec.Struct):
    """What one backup did."""

    target: str
    topics: int
    records: int  # in sealed files
    files: int
    bytes: int
    files_copied: int
    bytes_copied: int
    files_removed: int


class FrozenLog(NamedTuple):
    """A log file and how many of its bytes belong to the instant of the backup."""

    directory: str
    number: int
    file: File
    size: int


class Frozen(NamedTuple):
    """A data directory held still: nothing in here changes or goes away meanwhile."""

    identity: str
    source: str
    state: SnapshotState
    log: Sequence[FrozenLog]
    open_segment: Callable[[SegmentMeta], File]
    open_keys: Callable[[str], File]


class PartOfFile(ReadOnlyFile):
    """The first bytes of a file that may be longer."""

    def __init__(self, file: File, size: int) -> None:
        self.path = file.path
        self._file = file
        self._size = size

    def pread(self, length: int, offset: int) -> bytes:
        return self._file.pread(max(0, min(length, self._size - offset)), offset)

    def pread_nowait(self, length: int, offset: int) -> bytes | None:
        return self.pread(length, offset)

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        """The file is its opener's to close."""


# Manifests


# Taking a backup


def freeze_directory(fs: Filesystem, cold: Store | None = None) -> Frozen:
    """A directory whose lock the caller holds, and which no engine uses."""
    loaded = read_latest(fs)
    state = loaded.state if loaded is not None else empty_state()
    counted = replayed_files(fs, state if loaded is not None else None)
    scans = scan_all(fs, counted, dict(state.positions), lambda _kind, _entry: None)
    ends = {directory: scan.end for directory, scan in scans.items()}
    tiers = Tiers(DirectoryStore(fs), cold)
    log = frozen_log(fs, counted, state.positions, ends)
    return Frozen(identity_of(fs), fs.describe(""), state, log, tiers.open, fs.open_read)


def identity_of(fs: Filesystem) -> str:
    """The name the directory keeps for life, "" when it has none yet."""
    if not fs.exists(IDENTITY_PATH):
        return ""
    return decode_identity(read_file(fs, IDENTITY_PATH), fs.describe(IDENTITY_PATH))


def frozen_log(
    fs: Filesystem,
    found: dict[str, list[int]],
    starts: dict[str, int],
    ends: dict[str, int],
) -> list[FrozenLog]:
    """Open the log files with something between `starts` and `ends`, oldest first."""
    log: list[FrozenLog] = []
    for directory, numbers in found.items():
        end = ends.get(directory, 0)
        for number in reversed(numbers):
            file = fs.open_read(file_path(directory, number))
            base = base_of(file)
            if base is None or base >= end:
                file.close()  # not used yet, or not before the end
                continue
            if end > max(base + PAGE_BYTES, starts.get(directory, 0)):
                log.append(FrozenLog(directory, number, file, end - base))
            else:
                file.close()
            end = base
    return sorted(log, key=lambda part: part.number)


def base_of(file: File) -> int | None:
    """The shard position of a log file's first byte, None while it has no batch."""
    batch = decode_batch_header(file.pread(BATCH_HEADER_BYTES, PAGE_BYTES), 0)
    return None if batch is None else batch.position - PAGE_BYTES


def write_backup(
    frozen: Frozen,
    target: Store,
    clock: Clock,
    progress: Progress = silent,
    *,
    replace: bool = False,
) -> BackupReport:
    """Bring a target up to what `frozen` is; the backup before it stays whole until then."""
    refuse_target(target)
    old = _old_manifest(frozen, target, replace)
    return _Writer(frozen, target, old, clock, progress).run()


def refuse_target(target: Store) -> None:
    """Raise if the target is a place of Headrace that is not for backups."""
    for path, what in ((OWNER_PATH, "a cold tier"), (".headrace.lock", "a data directory")):
        if read_stored(target, path) is not None:
            raise InvalidRequest(
                f"{target.describe('')} is {what}, not a place for backups",
                fix="name another directory or prefix",
                detail={"target": target.describe("")},
            )


def _old_manifest(frozen: Frozen, target: Store, replace: bool) -> Manifest | None:
    try:
        old = read_manifest(target)
    except CorruptionError:
        if not replace:
            raise
        return None
    if old is not None and old.identity != frozen.identity and not replace:
        raise InvalidRequest(
            f"{target.describe('')} holds a backup of another data directory, {old.source}",
            fix="name another target, or pass --replace to give that backup up",
            detail={"target": target.describe(""), "source": old.source},
        )
    return old


class _Writer:
    """One backup under way."""

    def __init__(
        self,
        frozen: Frozen,
        target: Store,
        old: Manifest | None,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._frozen = frozen
        self._target = target
        self._old = old
        self._clock = clock
        self._progress = progress
        self._sizes = {file.path: file.size for file in (old.files() if old is not None else ())}
        self._done = self._of = 0
        self._copied = self._copied_bytes = 0

    def run(self) -> BackupReport:
        state = self._frozen.state
        change = change_of(state, state.created_ms)
        data = encode(max(state.number, 1), None, full_body(state, change))
        manifest = self._manifest(data)
        self._of = sum(file.size for file in manifest.files())
        manifest = msgspec.structs.replace(manifest, removed=self._replaced(manifest))
        # Written first, so that whatever this run leaves when it is cut short can be found.
        self._put(NEXT_PATH, encode_manifest(manifest))
        for meta, file in zip(state.files.values(), manifest.segments, strict=True):
            self._segment(meta, file)
        for key_file, file in zip(state.key_files, manifest.keys, strict=True):
            self._key_file(key_file, file)
        for part, frozen in zip(manifest.log, self._frozen.log, strict=True):
            self._copy(part.file, partial(PartOfFile, frozen.file, frozen.size), _verify_hash)
        self._copy(manifest.snapshot, partial(BytesFile, "snapshot", data), _verify_hash)
        self._put(MANIFEST_PATH, encode_manifest(manifest))
        kept = {file.path for file in manifest.files()}
        earlier = self._old.removed if self._old is not None else []
        for path in {*manifest.removed, *earlier} - kept:
            self._target.delete(path)
        self._target.delete(NEXT_PATH)
        return BackupReport(
            self._target.describe(""), manifest.topics, manifest.records, len(manifest.files()),
            self._of, self._copied, self._copied_bytes, len(manifest.removed),
        )  # fmt: skip

    def _manifest(self, snapshot: bytes) -> Manifest:
        frozen, state = self._frozen, self._frozen.state
        number = max(state.number, 1)
        return Manifest(
            identity=frozen.identity,
            source=frozen.source,
            taken_ms=self._clock.wall_ms(),
            number=number,
            generation=state.generation,
            topics=len(state.topics),
            records=sum(meta.rows for meta in state.files.values()),
            snapshot=_file_of("meta/snapshot", number, ".bin", snapshot),
            segments=[segment_file(meta) for meta in state.files.values()],
            keys=[
                BackupFile(f"meta/keys-{m.file_id:016d}-{m.hash:016x}.bin", m.size, m.hash)
                for m in state.key_files
            ],
            log=[LogPart(part.directory, part.number, _log_file(part)) for part in frozen.log],
        )

    def _replaced(self, manifest: Manifest) -> list[str]:
        """What no longer belongs to the target once the new manifest counts."""
        kept = {file.path for file in manifest.files()}
        known = set(self._sizes)
        try:
            interrupted = read_manifest(self._target, NEXT_PATH)
        except CorruptionError:
            interrupted = None
        if interrupted is not None:
            known |= {file.path for file in interrupted.files()}
        return sorted(known - kept)

    def _segment(self, meta: SegmentMeta, file: BackupFile) -> None:
        def verify(stored: File, _file: BackupFile, _name: str) -> None:
            Segment(meta, stored, BlockCache(VERIFY_CACHE_BYTES)).verify()

        self._copy(file, partial(self._frozen.open_segment, meta), verify)

    def _key_file(self, meta: KeyFileMeta, file: BackupFile) -> None:
        def verify(stored: File, _file: BackupFile, name: str) -> None:
            decode_keys(read_exact(stored, stored.size(), 0), meta, name)

        self._copy(file, partial(self._frozen.open_keys, meta.path), verify)

    def _copy(
        self,
        file: BackupFile,
        open_source: Callable[[], File],
        verify: Callable[[File, BackupFile, str], None],
    ) -> None:
        """Make the target hold `file`, proven by reading it back; nothing if it does already."""
        target = self._target
        if self._sizes.get(file.path) != file.size or size_of(target, file.path) != file.size:
            source = open_source()
            try:
                size = source.size()
                if size != file.size:
                    raise damaged_backup(source.path, f"it has {size} bytes, not {file.size}")
                target.put(file.path, source, file.size)
            finally:
                source.close()
            self._verify(file, verify)
            self._copied += 1
            self._copied_bytes += file.size
        self._done += file.size
        self._progress(file.path, self._done, self._of)

    def _verify(self, file: BackupFile, verify: Callable[[File, BackupFile, str], None]) -> None:
        stored = self._target.open_read(file.path)
        try:
            verify(stored, file, self._target.describe(file.path))
        except CorruptionError as error:
            self._target.delete(file.path)
            raise CorruptionError(
                f"the copy of {file.path} is not what was to be copied: {error.message}",
                fix="run `headrace check` on the data directory, and check the target's disk",
                detail=error.detail,
            ) from None
        finally:
            stored.close()

    def _put(self, path: str, data: bytes) -> None:
        self._target.put(path, BytesFile(path, data), len(data))
        if read_stored(self._target, path) != data:
            raise damaged_backup(self._target.describe(path), "the target gave back other bytes")


def _file_of(stem: str, number: int, ending: str, data: bytes) -> BackupFile:
    digest = xxh3_64_intdigest(data)
    return BackupFile(f"{stem}-{number:016d}-{digest:016x}{ending}", len(data), digest)


def _log_file(part: FrozenLog) -> BackupFile:
    digest = hash_of(part.file, part.size)
    return BackupFile(f"wal/wal-{part.number:016d}-{digest:016x}.log", part.size, digest)


def _verify_hash(stored: File, file: BackupFile, name: str) -> None:
    if stored.size() != file.size or hash_of(stored, file.size) != file.hash:
        raise damaged_backup(name, "its bytes do not match its XXH3-64")
