"""Opening a sealed file where a manifest says it is: a path of this machine, or an object.

What cannot be opened is an `OSError` or `NotReady`, at once and not at the first read.  Credentials
of an object store are those of this process's environment: no manifest has any.
"""

from __future__ import annotations

import os.path
from functools import lru_cache
from urllib.parse import urlsplit, urlunsplit

from headrace.api.segments import ManifestFile
from headrace.core.lru import LruMap
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.store import SEGMENTS_DIR, Store, open_store
from headrace.storage.fs import File, RealFilesystem
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.segment.reader import Segment

# Files that a task has open.
OPEN_FILES_MAX = 16
# Clients of object stores that a process keeps.
STORES_MAX = 16
# For the few blocks that are looked at to find a row; what is read in bulk goes past it.
CACHE_BYTES = 1 << 20


def open_file(file: ManifestFile) -> Segment:
    """A sealed file, to be verified while it is read."""
    opened = _open(file.location)
    try:
        size = opened.size()
        if size != file.size:
            raise OSError(f"it has {size} bytes, not {file.size}")
        return Segment(_meta_of(file), opened, BlockCache(CACHE_BYTES))
    except BaseException:
        opened.close()
        raise


class OpenFiles:
    """Sealed files that one task has open.

    Small topics share files, and to open one means to verify all of its index: a task that reads
    many topics does it once.
    """

    def __init__(self) -> None:
        self._segments: LruMap[tuple[str, str], Segment] = LruMap(OPEN_FILES_MAX, Segment.close)

    def get(self, file: ManifestFile) -> Segment:
        """Return the file, open; the one longest unused may be closed for it."""
        key = (file.location, file.hash)
        return self._segments.get(key) or self._segments.put(key, open_file(file))

    def close(self) -> None:
        """Close all of them."""
        self._segments.clear()


def _open(location: str) -> File:
    if "://" not in location:
        directory, name = os.path.split(location)
        return RealFilesystem(directory).open_read(name)
    root, path = split_url(location)
    return _store_of(root).open_read(path)


@lru_cache(STORES_MAX)
def _store_of(root: str) -> Store:
    return open_store(root)


def split_url(location: str) -> tuple[str, str]:
    """The store of an object, and the object's path in it.

    >>> split_url("s3://***@bucket/tier/segments/seg-1.arrow?region=eu-west-1")
    ('s3://bucket/tier?region=eu-west-1', 'segments/seg-1.arrow')
    """
    parts = urlsplit(location)
    host = parts.netloc.rpartition("@")[2]  # before it only stars: secrets are not sent
    root, _, name = parts.path.rpartition(f"/{SEGMENTS_DIR}/")
    return urlunsplit((parts.scheme, host, root, parts.query, "")), f"{SEGMENTS_DIR}/{name}"


def _meta_of(file: ManifestFile) -> SegmentMeta:
    """What is needed to verify the file; the rest is not known, and not used."""
    return SegmentMeta(
        file_id=file.file_id,
        owner=file.owner,
        level=0,
        rows=file.rows,
        topics=file.topics,
        size=file.size,
        footer_offset=file.footer_offset,
        footer_hash=int(file.hash, 16),
        payload_bytes=0,
        min_ts=file.min_ts,
        max_ts=file.max_ts,
        created_ms=0,
    )
