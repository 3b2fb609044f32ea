"""The filesystem seam: the only file that calls the operating system about files.

Everything else in `storage/` and `engine/` sees `Filesystem` and `File`, with paths relative to
the root of one data directory, so that the crash simulator and the fault injector can stand in.
`pwritev` may write less than it was given, as the system call may; `write_all` is what callers
use.  Nothing here decides when to sync: that is the caller's promise to keep.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from headrace.core.errors import DataDirLocked

Buffer = bytes | bytearray | memoryview

# Linux refuses more than 1,024 buffers in one vectored call.
BUFFERS_PER_CALL_MAX = 1024
LOCK_PATH = ".headrace.lock"  # of a data directory: held by the process that has it open


class File(Protocol):
    """An open file.  Offsets are explicit; there is no position."""

    path: str

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int: ...
    def pread(self, length: int, offset: int) -> bytes: ...
    def pread_nowait(self, length: int, offset: int) -> bytes | None: ...
    def size(self) -> int: ...
    def truncate(self, length: int) -> None: ...
    def allocate(self, length: int) -> None: ...  # grow to `length`, and hold the room for it
    def sync_data(self) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


# Moves up to `length` bytes from `offset` of a file to a socket, and returns how many it took.
Send = Callable[[int, int, int], int]


def send_of(file: File) -> Send | None:
    """How the system moves bytes of a file to a socket by itself; None: it cannot."""
    send: Send | None = getattr(file, "send", None)
    return send


class FileRange(NamedTuple):
    """`length` bytes of an open file, from `offset` on."""

    file: File
    offset: int
    length: int


class Lock(Protocol):
    def release(self) -> None: ...


class Filesystem(Protocol):
    """One directory tree.  A name is durable only after `sync_dir` of its parent."""

    # Fails if it exists; `private`: for the eyes of the process's user only.
    def create(self, path: str, *, private: bool = False) -> File: ...
    def open(self, path: str) -> File: ...  # read and write; fails if it does not exist
    def open_read(self, path: str) -> File: ...
    def exists(self, path: str) -> bool: ...
    def listdir(self, path: str) -> list[str]: ...  # [] when the directory does not exist
    def mkdir(self, path: str) -> None: ...  # with parents; durable on return
    def rename(self, source: str, target: str) -> None: ...
    def unlink(self, path: str) -> None: ...  # missing is not an error
    def sync_dir(self, path: str) -> None: ...
    def lock(self, path: str) -> Lock: ...
    def free_bytes(self) -> int: ...
    def total_bytes(self) -> int: ...  # of the disk that holds the tree
    def boot_id(self) -> bytes: ...  # 16 bytes, another after each boot of the machine
    def describe(self, path: str) -> str: ...  # for messages a person reads


def write_all(file: File, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all of `buffers` at `offset`, however short the system's writes; return the count."""
    total = sum(map(len, buffers))
    written = file.pwritev(buffers, offset) if total else 0
    while written < total:
        rest = memoryview(b"".join(buffers))[written:]
        count = file.pwritev([rest], offset + written)
        if count <= 0:
            raise OSError(errno.EIO, "a write made no progress", file.path)
        written += count
    assert written == total, (written, total)
    return written


def read_exact(file: File, length: int, offset: int) -> bytes:
    """Read exactly `length` bytes or raise `EOFError`."""
    data = file.pread(length, offset)
    if len(data) == length:
        return data
    parts = [data]
    got = len(data)
    while got < length:
        more = file.pread(length - got, offset + got)
        if not more:
            raise EOFError(f"{file.path} ends at {offset + got}, wanted {offset + length}")
        parts.append(more)
        got += len(more)
    return b"".join(parts)


def read_file(fs: Filesystem, path: str) -> bytes:
    """The whole of a small file."""
    file = fs.open_read(path)
    try:
        return read_exact(file, file.size(), 0)
    finally:
        file.close()


def write_file_durably(
    fs: Filesystem, path: str, buffers: Sequence[Buffer], *, private: bool = False
) -> None:
    """Create `path` with these bytes so that after return it survives a power loss.

    Written under a temporary name first, so that a crash leaves the old file or the new one.
    """
    temporary = f"{path}.tmp"
    fs.unlink(temporary)
    file = fs.create(temporary, private=True) if private else fs.create(temporary)
    try:
        write_all(file, buffers, 0)
        file.sync()
    finally:
        file.close()
    fs.rename(temporary, path)
    fs.sync_dir(parent(path))


def parent(path: str) -> str:
    """The directory part of a relative path, `""` for the root."""
    return path.rpartition("/")[0]


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        try:
            if len(buffers) == 1:
                return os.pwrite(self._fd, buffers[0], offset)
            return os.pwritev(self._fd, buffers[:BUFFERS_PER_CALL_MAX], offset)
        except OSError as error:
            error.filename = self.path  # the system does not say which file it was
            raise

    def pread(self, length: int, offset: int) -> bytes:
        return os.pread(self._fd, length, offset)

    def pread_nowait(self, length: int, offset: int) -> bytes | None:
        """Only what the page cache holds: None when the disk would have to be asked."""
        target = bytearray(length)
        try:
            count = os.preadv(self._fd, [target], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        return bytes(target) if count == length else None

    def send(self, descriptor: int, length: int, offset: int) -> int:
        """Have the system move bytes to a socket; 0: the file ends at the offset."""
        return os.sendfile(descriptor, self._fd, offset, length)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def allocate(self, length: int) -> None:
        try:
            os.posix_fallocate(self._fd, 0, length)
        except OSError as error:
            error.filename = self.path
            raise

    def sync_data(self) -> None:
        os.fdatasync(self._fd)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        # A sealed file that was merged away stays open for the reads that are under way in it.
        self.close()


class RealLock:
    """An advisory lock held for as long as the process lives."""

    def __init__(self, fd: int, released: Callable[[], None]) -> None:
        self._fd = fd
        self._released = released

    def release(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._released()
            os.close(fd)


class RealFilesystem:
    """A directory of the operating system."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self._owned = False  # we hold the lock
        self._directories: dict[str, int] = {}  # open ones, by full path, while we do
        self._boot_id: bytes | None = None

    def _path(self, path: str) -> str:
        assert not path.startswith("/") and ".." not in path.split("/"), path
        return os.path.join(self.root, path) if path else self.root

    def create(self, path: str, *, private: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return RealFile(os.open(self._path(path), flags, 0o600 if private else 0o644), path)

    def open(self, path: str) -> RealFile:
        return RealFile(os.open(self._path(path), os.O_RDWR | os.O_CLOEXEC), path)

    def open_read(self, path: str) -> RealFile:
        return RealFile(os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC), path)

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._path(path))

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._path(path)))
        except FileNotFoundError:
            return []

    def mkdir(self, path: str) -> None:
        full = self._path(path)
        missing = []
        while not os.path.isdir(full):
            missing.append(full)
            full = os.path.dirname(full)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory)
            self._sync_directory(os.path.dirname(directory))
        self._keep(self._path(path))

    def rename(self, source: str, target: str) -> None:
        os.rename(self._path(source), self._path(target))

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(path))

    def sync_dir(self, path: str) -> None:
        self._sync_directory(self._path(path))

    def _sync_directory(self, full: str) -> None:
        fd = self._directories.get(full)
        if fd is not None:
            os.fsync(fd)
            return
        fd = os.open(full, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _keep(self, full: str) -> None:
        """Hold a directory open while we own the tree: a sync must not fail for want of a
        descriptor."""
        if self._owned and full not in self._directories:
            fd = os.open(full, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._directories[full] = fd

    def _disown(self) -> None:
        self._owned = False
        directories, self._directories = self._directories, {}
        for fd in directories.values():
            os.close(fd)

    def lock(self, path: str) -> RealLock:
        full = self._path(path)
        fd = os.open(full, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(fd, 64, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise DataDirLocked(
                f"{self.root} is in use by process {owner}",
                fix="stop that process, or serve another directory with --data-dir",
                detail={"data_dir": self.root, "pid": owner},
            ) from None
        with contextlib.suppress(OSError):
            # Only to name the owner: a full disk has no room for it.
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._owned = True
        return RealLock(fd, self._disown)

    def free_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_blocks * stat.f_frsize

    def boot_id(self) -> bytes:
        if self._boot_id is None:
            try:
                with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                    self._boot_id = bytes.fromhex(file.read().strip().replace("-", ""))
            except OSError:
                # Unknown counts as another boot: the careful reading after a crash.
                self._boot_id = os.urandom(16)
        return self._boot_id

    def describe(self, path: str) -> str:
        return self._path(path)
