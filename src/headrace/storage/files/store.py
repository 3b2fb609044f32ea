"""Stores: places for sealed files behind one protocol, a directory or an object store.

Only this file opens the place that a setting names.  A stored file appears under its name only when
it is whole and durable.  Which store holds the copy to read is decided in `tier.py`; object stores
are in `object_store.py`, which is imported when one is used.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from headrace.storage.files.store_role import COLD_TIER, StoreRole
from headrace.storage.fs import (
    Buffer,
    File,
    Filesystem,
    RealFilesystem,
    parent,
    read_exact,
    write_all,
)

SEGMENTS_DIR = "segments"
TEMPORARY_SUFFIX = ".tmp"
COPY_CHUNK_BYTES = 4 << 20
OBJECT_SCHEMES = ("s3", "gs", "gcs")
URL_FORMS = "a directory, file:///directory, s3://bucket/prefix or gs://bucket/prefix"


class StoredFile(NamedTuple):
    """One file a store holds."""

    path: str
    size: int


class Store(Protocol):
    """A place for sealed files.  Paths are those of a data directory (`segments/seg-….arrow`).

    A missing file is `FileNotFoundError`, from `open_read` or from the first use of what it
    returned.  A place that cannot be reached is `NotReady` with the reason of its role.
    """

    def open_read(self, path: str) -> File: ...
    def put(self, path: str, source: File, size: int) -> None: ...  # all or nothing; durable
    def delete(self, path: str) -> None: ...  # missing is not an error
    def list(self) -> Sequence[StoredFile]: ...  # what lies in `segments/`, sorted by path
    def describe(self, path: str) -> str: ...  # for messages a person reads; holds no secret


class ReadOnlyFile:
    """The half of `File` that a file which cannot be written has in common."""

    path: str

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        raise io.UnsupportedOperation(f"{self.path} is read-only")

    def truncate(self, length: int) -> None:
        raise io.UnsupportedOperation(f"{self.path} is read-only")

    def allocate(self, length: int) -> None:
        raise io.UnsupportedOperation(f"{self.path} is read-only")

    def sync_data(self) -> None:
        """Nothing is ever written."""

    def sync(self) -> None:
        """Nothing is ever written."""


class BytesFile(ReadOnlyFile):
    """Bytes in memory as the source of a `put`.

    >>> BytesFile("a", b"headrace").pread(4, 4)
    b'race'
    """

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data

    def pread(self, length: int, offset: int) -> bytes:
        return self._data[offset : offset + length]

    def pread_nowait(self, length: int, offset: int) -> bytes | None:
        return self.pread(length, offset)

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        """Nothing is held open."""


class DirectoryStore:
    """A directory behind the filesystem seam: the hot tier, and a cold one on another disk."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs

    def open_read(self, path: str) -> File:
        return self._fs.open_read(path)

    def put(self, path: str, source: File, size: int) -> None:
        assert size >= 0 and not path.endswith(TEMPORARY_SUFFIX), (path, size)
        directory = parent(path)
        self._fs.mkdir(directory)
        temporary = path + TEMPORARY_SUFFIX
        self._fs.unlink(temporary)
        target = self._fs.create(temporary)
        try:
            offset = 0
            while offset < size:
                chunk = read_exact(source, min(COPY_CHUNK_BYTES, size - offset), offset)
                offset += write_all(target, [chunk], offset)
            assert offset == size, (offset, size)
            target.sync()
        except BaseException:
            target.close()
            self._fs.unlink(temporary)
            raise
        target.close()
        # The name appears only over synced bytes, and the caller hears of it only when the name
        # itself would survive a power loss.
        self._fs.rename(temporary, path)
        self._fs.sync_dir(directory)

    def delete(self, path: str) -> None:
        # Not synced: a file that comes back after a power loss is an orphan, and is swept.
        self._fs.unlink(path)

    def list(self) -> Sequence[StoredFile]:
        found = []
        for name in sorted(self._fs.listdir(SEGMENTS_DIR)):
            path = f"{SEGMENTS_DIR}/{name}"
            size = size_of(self, path)
            if size is not None:  # Else it was removed since its name was read.
                found.append(StoredFile(path, size))
        return found

    def describe(self, path: str) -> str:
        return self._fs.describe(path)


def open_store(url_or_dir: str, role: StoreRole = COLD_TIER) -> Store:
    """The store a setting names.  A directory is made if it is missing; no network is touched."""
    refused = partial(role.refused, url_or_dir, f"set {role.setting} to {URL_FORMS}")
    scheme, separator, _ = url_or_dir.partition("://")
    if separator and scheme in OBJECT_SCHEMES:
        # Imported here so that a server without an object store never loads its client library.
        from headrace.storage.files.object_store import ObjectStore

        return ObjectStore(url_or_dir, role)
    if separator and scheme == "file":
        parts = urlsplit(url_or_dir)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise refused("a file URL names no host and an absolute directory")
        return _open_directory(unquote(parts.path))
    if separator:
        raise refused(f"{scheme}:// is not a kind of store Headrace knows")
    if re.match(r"(s3|gs|gcs|file):", url_or_dir) or not url_or_dir.strip():
        raise refused("it is neither a directory nor a whole URL")
    return _open_directory(url_or_dir)


def _open_directory(root: str) -> DirectoryStore:
    fs = RealFilesystem(root)
    fs.mkdir("")
    return DirectoryStore(fs)


def size_of(store: Store, path: str) -> int | None:
    """How long a stored file is; None when there is none."""
    try:
        file = store.open_read(path)
        try:
            return file.size()
        finally:
            file.close()
    except FileNotFoundError:
        return None
