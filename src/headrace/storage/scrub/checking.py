"""Verifying one file step by step, so that its reader can be slow and can be interrupted.

A `FileCheck` reads some bytes a step and proves them by the hashes that are known of the file: the
blocks and the footer of a sealed file, the one hash of a snapshot or a key file.  Nothing comes
from a cache of ours.  Only this file decides which copy of a file is verified: the one of the tier
that the snapshot names.  Damage is a `CorruptionError`; that a tier cannot be reached, `NotReady`.

It decides nothing about damage, and knows no time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from xxhash import xxh3_64

from headrace.core.errors import CorruptionError, NotReady, SegmentCorrupt
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.store import Store
from headrace.storage.files.tier import COLD, VERIFY_CACHE_BYTES, Tiers, read_owner
from headrace.storage.fs import File, Filesystem, read_exact
from headrace.storage.scrub.progress_file import KEY_FILE, SEGMENT, SNAPSHOT, Key, path_of
from headrace.storage.segment.format import BLOCK_BYTES, SegmentMeta
from headrace.storage.segment.reader import Segment
from headrace.storage.snapshot.format import (
    HEADER_BYTES,
    MAGIC_END,
    TRAILER,
    TRAILER_BYTES,
    damaged,
    decode_header,
)
from headrace.storage.snapshot.key_files import KeyFileMeta

_HASH_BYTES = 8


class ScrubTarget(NamedTuple):
    """A file to be verified, and what is known of it."""

    key: Key
    segment: SegmentMeta | None = None
    key_file: KeyFileMeta | None = None

    @property
    def path(self) -> str:
        return path_of(self.key)


class FileCheck(Protocol):
    """A file that is being verified."""

    offset: int  # what is before it need not be read again by another check of the same bytes

    def step(self, bytes_max: int) -> int: ...  # how many bytes were read; 0: the file is whole
    def close(self) -> None: ...


def open_check(
    fs: Filesystem, tiers: Tiers, target: ScrubTarget, identity: str, offset: int = 0
) -> FileCheck:
    """Begin to verify a file; one that is missing is damaged.

    `offset` is up to where the same file was verified before; `identity`, whose the cold tier is.
    """
    kind, number = target.key
    if kind == SEGMENT:
        assert target.segment is not None
        return SegmentCheck(target.segment, _open_segment(tiers, target.segment, identity), offset)
    try:
        file = fs.open_read(target.path)
    except FileNotFoundError:
        raise _missing(fs.describe(target.path), target.path) from None
    try:
        if kind == SNAPSHOT:
            return _snapshot_check(file, number, fs.describe(target.path))
        assert kind == KEY_FILE and target.key_file is not None
        return _key_file_check(file, target.key_file, fs.describe(target.path))
    except BaseException:
        file.close()
        raise


def owned_cold(tiers: Tiers, identity: str) -> Store:
    """The cold tier, if it is there: a disk that is not mounted has lost nothing."""
    cold = tiers.cold
    if cold is None or read_owner(cold) != identity:
        where = "it" if cold is None else cold.describe("")
        raise NotReady(
            f"the cold tier cannot be reached: {where} is not that of this data directory",
            fix="mount the disk, or set HEADRACE_COLD_URL back to the place in use before",
            detail={"reason": "cold_unreachable"},
        )
    return cold


def _open_segment(tiers: Tiers, meta: SegmentMeta, identity: str) -> File:
    store = owned_cold(tiers, identity) if meta.tier == COLD else tiers.hot
    try:
        file = store.open_read(meta.path)
        file.size()  # an object store is asked only now
        return file
    except FileNotFoundError:
        if meta.tier != COLD and tiers.cold is not None:
            # The pointer is behind the disk: after a fall back to the snapshot before the newest.
            return tiers.open(meta)
        raise _missing(store.describe(meta.path), meta.path) from None


def _missing(name: str, path: str) -> SegmentCorrupt:
    return SegmentCorrupt(
        f"{path} is missing ({name})",
        fix="put the file back from a backup, or run `headrace check --repair`",
        detail={"file": path},
    )


class SegmentCheck:
    """A sealed file: its size, its footer, then block after block."""

    def __init__(self, meta: SegmentMeta, file: File, offset: int = 0) -> None:
        # Of its own: the one that readers use may be replaced, and its cache proves nothing.
        self._segment = Segment(meta, file, BlockCache(VERIFY_CACHE_BYTES))
        self._opened = False
        self.offset = min(offset, meta.footer_offset) // BLOCK_BYTES * BLOCK_BYTES

    def step(self, bytes_max: int) -> int:
        """Read the footer first, then at least one block a step."""
        meta = self._segment.meta
        if not self._opened:
            self._segment.index()
            self._opened = True
            return meta.size - meta.footer_offset
        if self.offset >= meta.footer_offset:
            return 0
        first = self.offset // BLOCK_BYTES
        blocks = -(-meta.footer_offset // BLOCK_BYTES)
        stop = min(first + max(1, bytes_max // BLOCK_BYTES), blocks)
        read = len(self._segment.fetch(first, stop, wait=True))
        self.offset = min(stop * BLOCK_BYTES, meta.footer_offset)
        return read

    def close(self) -> None:
        self._segment.close()


class HashCheck:
    """A file of which one hash is known: that of a stretch of it, and of some bytes behind."""

    def __init__(
        self, file: File, stretch: range, behind: bytes, expected: int, corrupt: _Corrupt
    ) -> None:
        self.offset = 0  # a hash that was begun cannot be taken up again
        self._file = file
        self._at, self._stop = stretch.start, stretch.stop
        self._behind = behind
        self._expected = expected
        self._corrupt = corrupt
        self._hasher = xxh3_64()

    def step(self, bytes_max: int) -> int:
        """Read on; at the end of the stretch compare the hash."""
        if self._at < self._stop:
            length = min(max(1, bytes_max), self._stop - self._at)
            try:
                self._hasher.update(read_exact(self._file, length, self._at))
            except EOFError:
                raise self._corrupt("it became shorter while it was read") from None
            self._at += length
            return length
        self._hasher.update(self._behind)
        if self._hasher.intdigest() != self._expected:
            raise self._corrupt("its bytes do not match its XXH3-64")
        return 0

    def close(self) -> None:
        self._file.close()


_Corrupt = Callable[[str], CorruptionError]


def _snapshot_check(file: File, number: int, name: str) -> HashCheck:
    header_bytes = file.pread(HEADER_BYTES, 0)
    header = decode_header(header_bytes, name)
    end = HEADER_BYTES + header.body_bytes
    if header.number != number or file.size() != end + TRAILER_BYTES:
        raise damaged(name, "it is not the file that its name says, or not as long as that")
    magic_end, expected = TRAILER.unpack(read_exact(file, TRAILER_BYTES, end))
    if magic_end != MAGIC_END:
        raise damaged(name, "it does not end as a snapshot does")
    return HashCheck(
        file, range(HEADER_BYTES, end), header_bytes, expected, lambda why: damaged(name, why)
    )


def _key_file_check(file: File, meta: KeyFileMeta, name: str) -> HashCheck:
    def corrupt(why: str) -> CorruptionError:
        return CorruptionError(
            f"{name} is damaged: {why}",
            fix="restore the data directory from a backup, or see `headrace check`",
            detail={"file": name, "reason": why},
        )

    stop = meta.size - _HASH_BYTES
    if file.size() != meta.size:
        raise corrupt(f"it has {file.size()} bytes, the snapshot lists {meta.size}")
    stored = int.from_bytes(read_exact(file, _HASH_BYTES, stop), "little")
    if stored != meta.hash:
        raise corrupt("it is another file than the snapshot lists")
    return HashCheck(file, range(stop), b"", meta.hash, corrupt)
