"""Tiers: where sealed files lie, how one moves from the hot place to the cold, and who reads it.

Only this file decides which copy of a sealed file is read, and only it removes one.  The order of
a relocation is copy, verify, flip the pointer, delete the hot copy; the first two are here
(`Tiers.relocate`), the flip is the engine's (a snapshot), the last is `Tiers.drop_hot_copies`.
Each step may be repeated, and between any two of them at least one copy is readable: a copy gets
its name only when it is whole and durable, the hot copy is preferred while both exist, and where
the pointer and the disk disagree the surviving copy is used.

It does not parse segments (`storage/segment/reader.py` does), choose when to run, or know object
stores beyond the `Store` protocol (`object_store.py` does).
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

import msgspec

from headrace.core.errors import ConfigError, NotReady, SegmentCorrupt, UnsupportedFormat
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.store import TEMPORARY_SUFFIX, URL_FORMS, BytesFile, Store, size_of
from headrace.storage.fs import File
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.segment.reader import Segment

# The values of `SegmentMeta.tier`.  They are stored in snapshots: never change them.
HOT = 0
COLD = 1

SEGMENT_NAME = re.compile(r"seg-([0-9]{16,})\.arrow")

# The file that says whose cold tier this is.  Name, magic and version are stored: never change.
OWNER_PATH = "headrace-cold-tier"
OWNER_MAGIC = "headrace-cold-tier"
OWNER_FORMAT = 1
OWNER_BYTES_MAX = 256

# A verification reads each block once, so a cache of its own need not hold much.
VERIFY_CACHE_BYTES = 1 << 20


class SharedBound(Protocol):
    """The part of the merge policy that tells which shared files are merged no further."""

    @property
    def shared_bytes_max(self) -> int: ...


def relocation_plan(
    metas: Iterable[SegmentMeta],
    hot_retain_segments: int,
    hot_retain_bytes: int,
    policy: SharedBound,
) -> list[SegmentMeta]:
    """The files that leave the hot tier now, oldest first.

    The bounds hold for each topic's own files, and for the shared files together; the stricter
    one wins, 0 switches a bound off, and with both off nothing moves.  Shared files that a merge
    will still take stay hot: they would come back at once.
    """
    assert hot_retain_segments >= 0 and hot_retain_bytes >= 0
    groups: defaultdict[int, list[SegmentMeta]] = defaultdict(list)
    for meta in metas:
        if meta.tier == HOT and (meta.owner != 0 or _is_top_level(meta, policy)):
            groups[meta.owner].append(meta)
    leaving: list[SegmentMeta] = []
    for group in groups.values():
        kept_bytes = 0
        for rank, meta in enumerate(sorted(group, key=_age_key, reverse=True)):
            kept_bytes += meta.size
            over_count = bool(hot_retain_segments) and rank >= hot_retain_segments
            over_bytes = bool(hot_retain_bytes) and kept_bytes > hot_retain_bytes
            if over_count or over_bytes:
                leaving.append(meta)
    return sorted(leaving, key=_age_key)


def _age_key(meta: SegmentMeta) -> tuple[int, int, int]:
    # By the age of the rows: a merge gives old rows a new file id.
    return (meta.max_ts, meta.min_ts, meta.file_id)


def _is_top_level(meta: SegmentMeta, policy: SharedBound) -> bool:
    # A merge leaves a file alone that is larger than half of what it may write.
    return 2 * meta.size > policy.shared_bytes_max


def copy_and_verify(meta: SegmentMeta, hot: Store, cold: Store) -> None:
    """Make the cold copy exist, whole and proven by its hashes as read back from the cold store.

    A copy that an earlier attempt completed is kept: the hot file may have decayed since.
    """
    with contextlib.suppress(FileNotFoundError, SegmentCorrupt):
        return _verify(meta, cold)
    source = hot.open_read(meta.path)
    try:
        if source.size() != meta.size:
            raise SegmentCorrupt(
                f"{hot.describe(meta.path)} has {source.size()} bytes, not {meta.size}",
                fix="run `headrace check` on the data directory",
                detail={"file": hot.describe(meta.path)},
            )
        cold.put(meta.path, source, meta.size)
    finally:
        source.close()
    try:
        _verify(meta, cold)
    except SegmentCorrupt:
        # A bad copy must not be there to be taken for the surviving one.
        cold.delete(meta.path)
        raise


def _verify(meta: SegmentMeta, store: Store) -> None:
    file = store.open_read(meta.path)
    # A cache of its own: blocks of the hot copy that are already cached would prove nothing.
    segment = Segment(meta, file, BlockCache(VERIFY_CACHE_BYTES))
    try:
        size = file.size()
        if size != meta.size:
            raise SegmentCorrupt(
                f"{store.describe(meta.path)} has {size} bytes, not {meta.size}",
                fix="check the store for other writers; the copy is made again",
                detail={"file": store.describe(meta.path)},
            )
        segment.verify()
    finally:
        segment.close()


def sweep_store(store: Store, listed: set[int]) -> list[str]:
    """Remove what no retained snapshot lists and unfinished copies; return the paths removed.

    A name that is not a segment's is left alone: it is not ours to judge.
    """
    removed = []
    for file in store.list():
        name = file.path.rpartition("/")[2]
        match = SEGMENT_NAME.fullmatch(name)
        orphan = match is not None and int(match[1]) not in listed
        if orphan or name.endswith(TEMPORARY_SUFFIX):
            store.delete(file.path)
            removed.append(file.path)
    return removed


class Tiers:
    """The hot store and, where one is set, the cold one."""

    def __init__(self, hot: Store, cold: Store | None = None) -> None:
        self.hot = hot
        self.cold = cold
        # Files copied since the start: while the pointer still says hot, both copies may exist.
        self._copied: set[int] = set()

    def claim(self, owner: str, cold_files: int) -> None:
        """Make sure the cold tier is this data directory's; call it before anything else.

        `owner` is any name that stays with the data directory; `cold_files` is how many files
        the snapshot says are cold.  Two servers on one prefix would sweep each other's files,
        and an unmounted disk would look like a tier whose every file is lost.
        """
        assert owner and "\n" not in owner and len(owner) < OWNER_BYTES_MAX // 2, owner
        if self.cold is None:
            if cold_files:
                raise self._not_configured(f"{cold_files} files are")
            return
        found = read_owner(self.cold)
        unclaimed = found is None
        if unclaimed and cold_files:
            raise NotReady(
                f"{self.cold.describe('')} is not the cold tier that holds {cold_files} files of"
                f" this data directory: it has no {OWNER_PATH}",
                fix="mount the disk, or set HEADRACE_COLD_URL back to the place in use before",
                detail={"reason": "cold_unreachable"},
            )
        if unclaimed:
            content = f"{OWNER_MAGIC} {OWNER_FORMAT}\n{owner}\n".encode()
            self.cold.put(OWNER_PATH, BytesFile(OWNER_PATH, content), len(content))
            found = read_owner(self.cold)
        if found != owner:
            raise ConfigError(
                f"{self.cold.describe('')} is the cold tier of another data directory",
                fix="give each data directory a prefix or directory of its own",
                detail={"setting": "HEADRACE_COLD_URL", "owner": found},
            )
        # Two names of one directory: the hot copy that is deleted would be the only one.
        if read_owner(self.hot) is not None:
            if unclaimed:
                self.cold.delete(OWNER_PATH)
            raise _same_place(self.cold)

    def open(self, meta: SegmentMeta) -> File:
        """The file to read `meta` from.  Hot if it is there, whatever the pointer says.

        What a cold object store returns is opened on first use, so this never waits for a network.
        """
        try:
            return self.hot.open_read(meta.path)
        except FileNotFoundError:
            if self.cold is None and meta.tier == COLD:
                raise self._not_configured(f"{meta.path} is") from None
        looked = [self.hot.describe(meta.path)]
        if self.cold is not None:
            try:
                return self.cold.open_read(meta.path)
            except FileNotFoundError:
                looked.append(self.cold.describe(meta.path))
        raise SegmentCorrupt(
            f"sealed file {meta.path} is missing; looked for {' and '.join(looked)}",
            fix="put the file back from a backup, or run `headrace check --repair`",
            detail={"file": meta.path, "looked": looked},
        )

    def relocate(self, meta: SegmentMeta) -> SegmentMeta:
        """Copy and verify; return the meta whose pointer the next snapshot makes durable."""
        assert self.cold is not None and meta.tier == HOT, meta
        self._copied.add(meta.file_id)
        copy_and_verify(meta, self.hot, self.cold)
        return msgspec.structs.replace(meta, tier=COLD)

    def drop_hot_copies(self, metas: Iterable[SegmentMeta]) -> list[str]:
        """Delete the hot copy of each file a durable snapshot says is cold; return their paths.

        Called after each flip, and at start for a flip that a crash left half done.  A hot copy
        stays where the cold one is missing or short.
        """
        flipped = [meta for meta in metas if meta.tier == COLD]
        if self.cold is None or not flipped:
            return []
        hot_paths = {file.path for file in self.hot.list()}
        dropped = []
        for meta in flipped:
            if meta.path in hot_paths and size_of(self.cold, meta.path) == meta.size:
                self.hot.delete(meta.path)
                dropped.append(meta.path)
            self._copied.discard(meta.file_id)
        return dropped

    def delete(self, meta: SegmentMeta) -> None:
        """Remove the file from each tier that may hold it; for files no snapshot lists."""
        self.hot.delete(meta.path)
        # An object store is asked only when there can be something: not for each merged file.
        if self.cold is not None and (meta.tier == COLD or meta.file_id in self._copied):
            self.cold.delete(meta.path)
            self._copied.discard(meta.file_id)

    def sweep(self, listed: set[int]) -> list[str]:
        """At start: remove orphans and unfinished copies, hot first; return what was removed.

        `NotReady` when the cold store cannot be reached, after the hot one has been swept.
        """
        removed = [self.hot.describe(path) for path in sweep_store(self.hot, listed)]
        if self.cold is not None:
            removed += [self.cold.describe(path) for path in sweep_store(self.cold, listed)]
        return removed

    def _not_configured(self, what: str) -> NotReady:
        return NotReady(
            f"{what} in the cold tier, and no cold tier is set",
            fix="set HEADRACE_COLD_URL to the place in use before",
            detail={"reason": "cold_not_configured"},
        )


def _same_place(cold: Store) -> ConfigError:
    return ConfigError(
        f"the cold tier {cold.describe('')} is the data directory itself",
        fix=f"set HEADRACE_COLD_URL to another place: {URL_FORMS}",
        detail={"setting": "HEADRACE_COLD_URL"},
    )


def read_owner(store: Store) -> str | None:
    try:
        file = store.open_read(OWNER_PATH)
        try:
            content = file.pread(OWNER_BYTES_MAX, 0)
        finally:
            file.close()
    except FileNotFoundError:
        return None
    first, _, rest = content.decode("utf-8", "replace").partition("\n")
    if first != f"{OWNER_MAGIC} {OWNER_FORMAT}":
        raise UnsupportedFormat(
            f"{store.describe(OWNER_PATH)} says {first!r}; this version reads"
            f" {OWNER_MAGIC} {OWNER_FORMAT}",
            fix="run the version of Headrace that wrote it, or use another cold tier",
            detail={"file": store.describe(OWNER_PATH)},
        )
    return rest.rstrip("\n")
