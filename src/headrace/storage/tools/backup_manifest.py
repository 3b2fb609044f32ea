"""The manifest of a backup: which files it holds, of which directory, how far its log goes.

Only this file knows its form (docs/operate/backup.md).
"""

from __future__ import annotations

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from headrace.core.errors import ConfigError, CorruptionError, UnsupportedFormat
from headrace.storage.files.store import (
    COPY_CHUNK_BYTES,
    Store,
)
from headrace.storage.fs import File, Filesystem, read_exact
from headrace.storage.segment.format import SegmentMeta

# On disk: never change these.
MANIFEST_PATH = "headrace-backup"
NEXT_PATH = "headrace-backup-next"
MANIFEST_MAGIC = "headrace-backup"
MANIFEST_VERSION = 1


class BackupFile(msgspec.Struct, frozen=True):
    """One file of a backup: its path in the target, its size, the hash it is known by."""

    path: str
    size: int
    hash: int


class LogPart(msgspec.Struct, frozen=True):
    """The part of one log file that a backup holds."""

    directory: str
    number: int
    file: BackupFile


class Manifest(msgspec.Struct, frozen=True):
    """What a target holds.  Fields are only ever added, with a default."""

    identity: str  # of the data directory
    source: str  # where it was, for people
    taken_ms: int
    number: int  # of the snapshot
    generation: int
    topics: int
    records: int
    snapshot: BackupFile
    segments: list[BackupFile]
    keys: list[BackupFile]
    log: list[LogPart]
    removed: list[str] = []  # of the backups before; a power loss may bring them back

    def files(self) -> list[BackupFile]:
        return [self.snapshot, *self.segments, *self.keys, *(part.file for part in self.log)]


def refuse_backup(fs: Filesystem) -> None:
    """Raise if a directory that is to be opened is a backup: it would be served as an empty one."""
    if fs.exists(MANIFEST_PATH):
        where = fs.describe("")
        raise ConfigError(
            f"{where} is a backup, not a data directory",
            fix=f"restore it first: `headrace restore {where} --data-dir EMPTY`",
        )


def encode_manifest(manifest: Manifest) -> bytes:
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    first = f"{MANIFEST_MAGIC} {MANIFEST_VERSION} {xxh3_64_intdigest(body):016x}\n"
    return first.encode() + body


def decode_manifest(data: bytes, name: str) -> Manifest:
    """The manifest, after its hash was checked; `name` is for messages."""
    first, _, body = data.partition(b"\n")
    magic, _, rest = first.decode("utf-8", "replace").partition(" ")
    version, _, stored = rest.partition(" ")
    if magic != MANIFEST_MAGIC or not version.isdigit():
        raise damaged_backup(name, "it does not begin as the manifest of a backup does")
    if int(version) > MANIFEST_VERSION:
        raise UnsupportedFormat(
            f"{name} has backup version {version}; this Headrace reads up to {MANIFEST_VERSION}",
            fix="use the version of Headrace that made it, or a later one",
            detail={"file": name, "version": int(version), "supported": MANIFEST_VERSION},
        )
    if stored != f"{xxh3_64_intdigest(body):016x}":
        raise damaged_backup(name, "its bytes do not match its XXH3-64")
    return msgspec.json.decode(body, type=Manifest)


def read_manifest(target: Store, path: str = MANIFEST_PATH) -> Manifest | None:
    """What a target holds, None when there is no backup in it."""
    data = read_stored(target, path)
    return None if data is None else decode_manifest(data, target.describe(path))


def read_stored(store: Store, path: str) -> bytes | None:
    """A whole file of a store, None when it is missing."""
    try:
        file = store.open_read(path)
        try:
            return read_exact(file, file.size(), 0)
        finally:
            file.close()
    except FileNotFoundError:
        return None


def damaged_backup(name: str, why: str) -> CorruptionError:
    return CorruptionError(
        f"{name}: {why}",
        fix="use another backup; to start this one anew, empty the target or pass --replace",
        detail={"file": name, "reason": why},
    )


def segment_file(meta: SegmentMeta) -> BackupFile:
    """How a sealed file is called in a backup: the footer's hash vouches for all of it."""
    path = f"segments/seg-{meta.file_id:016d}-{meta.footer_hash:016x}.arrow"
    return BackupFile(path, meta.size, meta.footer_hash)


def hash_of(file: File, size: int) -> int:
    """XXH3-64 of the first `size` bytes."""
    hasher, offset = xxh3_64(), 0
    while offset < size:
        chunk = read_exact(file, min(COPY_CHUNK_BYTES, size - offset), offset)
        hasher.update(chunk)
        offset += len(chunk)
    return hasher.intdigest()
