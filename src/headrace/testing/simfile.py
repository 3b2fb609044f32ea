"""Open files and locks of the simulated disk: each call is recorded before it counts."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.storage.fs import BUFFERS_PER_CALL_MAX, Buffer
from headrace.testing.diskmodel import (
    PAGE_BYTES,
    Content,
    Kind,
    Op,
)

if TYPE_CHECKING:
    from headrace.testing.simdisk import SimDisk


def disk_error(code: int, path: str, why: str = "") -> OSError:
    return OSError(code, why or errno.errorcode[code], path)


class SimFile:
    """An open file of a `SimDisk`.  It stays usable when renamed or unlinked, as on Linux."""

    __slots__ = ("_disk", "_inode", "_open", "_writable", "path")

    def __init__(self, disk: SimDisk, inode: int, path: str, *, writable: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._open = True
        self._writable = writable
        self.path = path

    def _live(self) -> Content:
        if not self._open:
            raise disk_error(errno.EBADF, self.path, "the file is closed")
        return self._disk._state.nodes[self._inode].live

    def _record(self, kind: Kind, offset: int = 0, data: bytes = b"") -> None:
        # Zeros of a page or more are kept as a length: files are zeroed ahead of use.
        zeros = len(data) >= PAGE_BYTES and not data[0] and data == bytes(len(data))
        kept = None if zeros else data
        self._disk._record(Op(kind, self.path, self._inode, offset, len(data), kept))

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers[:BUFFERS_PER_CALL_MAX])
        with self._disk._mutex:
            content = self._live()
            if not self._writable:
                raise disk_error(errno.EBADF, self.path, "the file is open for reading")
            if offset < 0:
                raise disk_error(errno.EINVAL, self.path)
            growth = offset + len(data) - content.size
            if data and growth > 0:
                excess = max(0, growth - self._disk.free_bytes())
                data = data[: max(0, len(data) - excess)]
                if not data:
                    raise disk_error(errno.ENOSPC, self.path)
            if data:
                self._record("write", offset, data)
        return len(data)

    def pread(self, length: int, offset: int) -> bytes:
        with self._disk._mutex:
            content = self._live()
            if offset < 0 or length < 0:
                raise disk_error(errno.EINVAL, self.path)
            return content.read(offset, length)

    def pread_nowait(self, length: int, offset: int) -> bytes | None:
        data = self.pread(length, offset)
        return data if self._disk.cached and len(data) == length else None

    def size(self) -> int:
        with self._disk._mutex:
            return self._live().size

    def truncate(self, length: int) -> None:
        with self._disk._mutex:
            content = self._live()
            if not self._writable or length < 0:
                raise disk_error(errno.EINVAL, self.path)
            if length - content.size > self._disk.free_bytes():
                raise disk_error(errno.ENOSPC, self.path)
            self._record("truncate", length)

    def allocate(self, length: int) -> None:
        if length > self.size():
            self.truncate(length)  # a file takes up its length here, written or not

    def sync_data(self) -> None:
        self._sync("sync_data")

    def sync(self) -> None:
        self._sync("sync")

    def sync_failed(self) -> None:
        """What a sync that returned EIO leaves behind; the caller raises the error."""
        self._sync("sync_failed")

    def _sync(self, kind: Kind) -> None:
        with self._disk._mutex:
            self._live()
            self._record(kind)

    def close(self) -> None:
        self._open = False


class SimLock:
    """A lock on a path of one `SimDisk`."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk: SimDisk | None = disk
        self._path = path

    def release(self) -> None:
        if self._disk is not None:
            disk, self._disk = self._disk, None
            disk._locks.discard(self._path)
