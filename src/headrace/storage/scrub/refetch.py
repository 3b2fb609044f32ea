"""Fetching a damaged sealed file again from where it is whole: the other tier, or a backup.

Only this file replaces a sealed file.  The rules it owns:

- a copy that is whole is never replaced: the damaged one is read once more first;
- only bytes that match their hashes are written, and what was written is read back;
- the new copy gets its name when it is whole and durable (`Store.put`).  Before that the damaged
  one is as it was; the source is only ever read.

A file cannot be made again from the lake: that has the records, in files of its own, and not the
bytes that the snapshot's hashes are of.
"""

from __future__ import annotations

from collections.abc import Iterator

from xxhash import xxh3_64_intdigest

from headrace.core.errors import CorruptionError, HeadraceError, SegmentCorrupt
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.store import ReadOnlyFile, Store
from headrace.storage.files.tier import COLD, VERIFY_CACHE_BYTES, Tiers
from headrace.storage.fs import File, read_exact
from headrace.storage.scrub.checking import SegmentCheck, owned_cold
from headrace.storage.segment.format import BLOCK_BYTES, SegmentMeta
from headrace.storage.segment.reader import Segment
from headrace.storage.tools.backup_manifest import segment_file

STEP_BYTES = 1 << 20


def refetch(meta: SegmentMeta, tiers: Tiers, backup: Store | None, identity: str) -> str | None:
    """Make the copy of a file in its tier whole; return where it was fetched from.

    None: it is whole as it is.  `SegmentCorrupt` says why no place has it; `NotReady`, that the
    tier is not there.
    """
    target = owned_cold(tiers, identity) if meta.tier == COLD else tiers.hot
    if _is_whole(meta, target):
        return None
    tried = []
    for store, path in _sources(meta, tiers, backup):
        where = store.describe(path)
        try:
            _copy(meta, store, path, target)
            return where
        except FileNotFoundError:
            tried.append(f"{where} does not exist")
        except (HeadraceError, OSError, EOFError) as error:
            tried.append(f"{where}: {error}")
    looked = "; ".join(tried) or "no other place is known, see the setting scrub_repair_from"
    raise SegmentCorrupt(
        f"{meta.path} cannot be fetched again: {looked}",
        fix="put the file back from a backup, or run `headrace check --repair`",
        detail={"file": meta.path, "looked": tried},
    )


def _sources(meta: SegmentMeta, tiers: Tiers, backup: Store | None) -> Iterator[tuple[Store, str]]:
    """Where else the file may be, the nearest first."""
    other = tiers.hot if meta.tier == COLD else tiers.cold
    if other is not None:
        yield other, meta.path
    if backup is not None:
        # By what it holds: the backup of another directory cannot have a file of this name.
        yield backup, segment_file(meta).path


def _copy(meta: SegmentMeta, store: Store, path: str, target: Store) -> None:
    source = VerifiedSource(meta, store.open_read(path))
    try:
        target.put(meta.path, source, meta.size)
    finally:
        source.close()
    _verify(meta, target)


def _is_whole(meta: SegmentMeta, store: Store) -> bool:
    try:
        _verify(meta, store)
    except (CorruptionError, FileNotFoundError, OSError):
        return False
    return True


def _verify(meta: SegmentMeta, store: Store) -> None:
    check = SegmentCheck(meta, store.open_read(meta.path))
    try:
        while check.step(STEP_BYTES):
            pass
    finally:
        check.close()


class VerifiedSource(ReadOnlyFile):
    """A sealed file, of which only bytes can be read that match their hashes."""

    def __init__(self, meta: SegmentMeta, file: File) -> None:
        self.path = meta.path
        self._meta = meta
        self._segment = Segment(meta, file, BlockCache(VERIFY_CACHE_BYTES))

    def pread(self, length: int, offset: int) -> bytes:
        """Whole blocks, as a copy reads them; short only where the footer begins."""
        meta = self._meta
        if offset >= meta.footer_offset:
            at = offset - meta.footer_offset
            return self._footer()[at : at + length]
        first, at = divmod(offset, BLOCK_BYTES)
        stop = -(-min(offset + length, meta.footer_offset) // BLOCK_BYTES)
        return self._segment.fetch(first, stop, wait=True)[at : at + length]

    def _footer(self) -> bytes:
        meta = self._meta
        footer = read_exact(self._segment.file, meta.size - meta.footer_offset, meta.footer_offset)
        if xxh3_64_intdigest(footer) != meta.footer_hash:
            raise SegmentCorrupt(
                f"{self._segment.file.path} has a damaged footer",
                fix="use another copy",
                detail={"file": meta.path},
            )
        return footer

    def pread_nowait(self, length: int, offset: int) -> bytes | None:
        return self.pread(length, offset)

    def size(self) -> int:
        return self._meta.size

    def close(self) -> None:
        self._segment.close()
