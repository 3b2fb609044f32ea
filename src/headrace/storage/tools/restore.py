"""Restoring a backup into an empty directory, as a directory of its own.

Everything is read from the backup, verified, and verified again where it was written.  Until the
last step the directory holds a snapshot that no engine accepts, so that a half-restored one is
refused by name.  What is different from the directory that was backed up: every topic has a new
epoch (`generation` is one higher), all sealed files are hot, the log of all shards is one file, and
seqs that were only reserved are not; with a new epoch nobody can mistake one for another.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from heapq import merge

import msgspec
from xxhash import xxh3_64_intdigest

from headrace.core.clock import Clock, Random
from headrace.core.errors import CorruptionError, InvalidRequest
from headrace.storage.block import ENTRY_APPEND
from headrace.storage.epochs import epoch_of
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.store import DirectoryStore, Store
from headrace.storage.files.tier import HOT, VERIFY_CACHE_BYTES
from headrace.storage.fs import LOCK_PATH, Filesystem, write_file_durably
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.segment.reader import open_segment
from headrace.storage.snapshot.chains import META_DIR, snapshot_path
from headrace.storage.snapshot.format import decode, encode, full_body
from headrace.storage.snapshot.key_files import KeyFileMeta, read_keys
from headrace.storage.snapshot.state import WAL_NUMBER, SnapshotState, apply_change
from headrace.storage.tools.backup_manifest import (
    BackupFile,
    LogPart,
    Manifest,
    hash_of,
    read_manifest,
    read_stored,
    segment_file,
)
from headrace.storage.tools.check import check
from headrace.storage.tools.findings import Progress, silent
from headrace.storage.tools.repair import change_of, new_generation
from headrace.storage.wal.audit import Damage, WholeBatch, walk_shard
from headrace.storage.wal.file import file_path
from headrace.storage.wal.frame import (
    ENTRY_RESERVE,
    ENTRY_TOPIC_CONFIG,
    ENTRY_TOPIC_CREATE,
    ENTRY_TOPIC_DELETE,
    FORMAT_VERSION,
    FileHeader,
    TopicConfig,
    TopicCreate,
    TopicDelete,
    decode_control,
    encode_control,
    entry_topic,
    split_entries,
)
from headrace.storage.wal.rewrite import LogWriter

LOG_DIRECTORY = "wal"
_UNFINISHED = b"This directory is being restored from a backup and is not whole yet.\n"
# What a file system puts into every directory that is its root.
_IGNORED_NAMES = frozenset({"lost+found"})


class RestoreReport(msgspec.Struct):
    """What a restore brought back."""

    directory: str
    source: str  # the directory that was backed up
    taken_ms: int
    generation: int
    topics: int
    records: int
    files: int
    bytes: int


def restore(
    source: Store,
    fs: Filesystem,
    random: Random,
    clock: Clock,
    progress: Progress = silent,
) -> RestoreReport:
    """Fill an empty directory from a backup; on return an engine may open it."""
    manifest = read_manifest(source)
    if manifest is None:
        raise InvalidRequest(
            f"{source.describe('')} holds no backup",
            fix="name the target of `headrace backup`",
            detail={"source": source.describe("")},
        )
    fs.mkdir("")
    names = [name for name in fs.listdir("") if name not in _IGNORED_NAMES]
    if names:
        raise InvalidRequest(
            f"{fs.describe('')} is not empty: it has {names[0]!r}",
            fix="restore into a new directory",
            detail={"directory": fs.describe("")},
        )
    lock = fs.lock(LOCK_PATH)
    try:
        return _Restore(source, fs, manifest, random, clock, progress).run()
    finally:
        lock.release()


class _Restore:
    """One restore under way."""

    def __init__(
        self,
        source: Store,
        fs: Filesystem,
        manifest: Manifest,
        random: Random,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._source = source
        self._fs = fs
        self._hot = DirectoryStore(fs)
        self._manifest = manifest
        self._random = random
        self._clock = clock
        self._progress = progress
        self._done = 0
        self._of = sum(file.size for file in manifest.files())

    def run(self) -> RestoreReport:
        fs, manifest = self._fs, self._manifest
        for directory in (META_DIR, "segments", LOG_DIRECTORY):
            fs.mkdir(directory)
        # The newest snapshot of the directory is one that cannot be used, until it is removed.
        guard = snapshot_path(manifest.number + 2)
        write_file_durably(fs, guard, [_UNFINISHED])
        state = self._state()
        self._sealed(state)
        for meta, file in zip(state.key_files, manifest.keys, strict=True):
            self._keys(meta, file)
        parts = [self._log_part(part) for part in manifest.log]
        state = self._rewrite(state, parts)
        data = encode(state.number, None, full_body(state, change_of(state, state.created_ms)))
        write_file_durably(fs, snapshot_path(state.number), [data])
        fs.unlink(guard)
        fs.sync_dir(META_DIR)
        self._prove()
        return RestoreReport(
            fs.describe(""), manifest.source, manifest.taken_ms, state.generation,
            len(state.topics), manifest.records, len(manifest.files()), self._of,
        )  # fmt: skip

    def _prove(self) -> None:
        """The same examination as `headrace check`."""
        report = check(self._fs)
        if not report.ok:
            raise CorruptionError(
                f"what was restored is not whole: {report.findings[0]}",
                fix="check the disk, and restore into another directory",
                detail={"findings": [str(finding) for finding in report.findings]},
            )

    def _state(self) -> SnapshotState:
        file = self._manifest.snapshot
        data = read_stored(self._source, file.path)
        name = self._source.describe(file.path)
        if data is None or len(data) != file.size or xxh3_64_intdigest(data) != file.hash:
            raise _unusable(name, "missing" if data is None else "damaged")
        found = decode(lambda length, offset: data[offset : offset + length], len(data), name)
        self._note(file)
        return apply_change(None, found.change, found.header.number)

    def _sealed(self, state: SnapshotState) -> None:
        for meta in state.files.values():
            file = segment_file(meta)
            self._copy(file, meta.path)
            segment = open_segment(self._fs, meta, BlockCache(VERIFY_CACHE_BYTES))
            try:
                segment.verify()
            except CorruptionError as error:
                raise _unusable(self._source.describe(file.path), error.message) from None
            finally:
                segment.close()
            self._note(file)

    def _keys(self, meta: KeyFileMeta, file: BackupFile) -> None:
        self._copy(file, meta.path)
        try:
            read_keys(self._fs, meta)
        except CorruptionError as error:
            raise _unusable(self._source.describe(file.path), error.message) from None
        self._note(file)

    def _log_part(self, part: LogPart) -> LogPart:
        """Bring a log file to its old place, where it is read from."""
        path = file_path(part.directory, part.number)
        self._copy(part.file, path)
        stored = self._fs.open_read(path)
        try:
            whole = hash_of(stored, part.file.size) == part.file.hash
        finally:
            stored.close()
        if not whole:
            raise _unusable(self._source.describe(part.file.path), "damaged")
        self._note(part.file)
        return part

    def _copy(self, file: BackupFile, path: str) -> None:
        try:
            source = self._source.open_read(file.path)
            try:
                if source.size() != file.size:
                    raise _unusable(self._source.describe(file.path), "not as long as it was")
                self._hot.put(path, source, file.size)
            finally:
                source.close()
        except FileNotFoundError:
            raise _unusable(self._source.describe(file.path), "missing") from None

    def _note(self, file: BackupFile) -> None:
        self._done += file.size
        self._progress(file.path, self._done, self._of)

    # The new log and the new snapshot

    def _rewrite(self, state: SnapshotState, parts: list[LogPart]) -> SnapshotState:
        """All shards' entries in one file, under the new epochs; then the state that fits it."""
        generation = state.generation + 1
        number = max((part.number for part in parts), default=0) + 1
        header = FileHeader(
            FORMAT_VERSION, self._random.u32(), number, self._clock.wall_ms(), 0, self._fs.boot_id()
        )
        writer = LogWriter(self._fs, LOG_DIRECTORY, header, 0)
        try:
            for batch in merge(
                *(self._batches(directory, state, parts) for directory in _directories(parts)),
                key=lambda batch: batch.path.rpartition("/")[2],
            ):
                for kind, entry in split_entries(batch.body, batch.header.entries, batch.path):
                    kept = renewed(kind, entry, generation)
                    if kept:
                        writer.add(kept)
            writer.finish()
        except BaseException:
            writer.abort()
            raise
        for part in parts:
            self._fs.unlink(file_path(part.directory, part.number))
        for directory in _directories(parts):
            self._fs.sync_dir(directory)
        change = change_of(state, self._clock.wall_ms())
        change.generation = generation
        change.clean = not writer.entries
        change.boot_id = self._fs.boot_id()
        change.positions = {LOG_DIRECTORY: 0}
        change.extra = {WAL_NUMBER: number.to_bytes(8, "little")}
        change.topics = {
            topic_id: msgspec.structs.replace(topic, reserved_to=topic.head)
            for topic_id, topic in new_generation(state.topics, generation).items()
        }
        change.files = {file_id: _hot(meta) for file_id, meta in state.files.items()}
        return apply_change(state, change, state.number + 1)

    def _batches(
        self, directory: str, state: SnapshotState, parts: list[LogPart]
    ) -> Iterator[WholeBatch]:
        numbers = sorted(part.number for part in parts if part.directory == directory)
        start = state.positions.get(directory)
        for item in walk_shard(self._fs, directory, numbers, start):
            if isinstance(item, WholeBatch):
                if item.header.position >= (start or 0):
                    yield item
            elif isinstance(item, Damage) or item.torn_bytes:
                raise _unusable(self._source.describe(item.path), "not a whole log")


def _hot(meta: SegmentMeta) -> SegmentMeta:
    return msgspec.structs.replace(meta, tier=HOT)


def _directories(parts: list[LogPart]) -> list[str]:
    return sorted({part.directory for part in parts})


def renewed(kind: int, entry: bytes, generation: int) -> bytes:
    """An entry as it is in a restored log: with a new epoch and no reservation; b"" if nothing."""
    topic_id = entry_topic(entry)
    epoch = epoch_of(generation, topic_id)
    if kind == ENTRY_APPEND:
        return entry[:40] + bytes(8) + entry[48:]
    if kind == ENTRY_RESERVE:
        return b""
    replace = partial(msgspec.structs.replace, reserved_to=0)
    if kind == ENTRY_TOPIC_CREATE:
        create = decode_control(entry, TopicCreate)[1]
        return encode_control(kind, topic_id, replace(create, epoch=epoch))
    if kind == ENTRY_TOPIC_CONFIG:
        return encode_control(kind, topic_id, replace(decode_control(entry, TopicConfig)[1]))
    if kind == ENTRY_TOPIC_DELETE:
        return encode_control(kind, topic_id, TopicDelete(epoch))
    return entry


def _unusable(name: str, why: str) -> CorruptionError:
    return CorruptionError(
        f"the backup cannot be restored: {name} is {why}",
        fix="use another backup; what was restored so far can be removed",
        detail={"file": name},
    )
