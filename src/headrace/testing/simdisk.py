"""A disk in memory that remembers what was synced, and can lose power at every single call.

`SimDisk` is a `Filesystem`.  It records each mutating call, so that the disk as a crash would
leave it can be built for every prefix of the calls and every kind of damage:

>>> disk = SimDisk()
>>> file = disk.create("a")
>>> file.pwritev([b"hello"], 0)
5
>>> file.sync(); disk.sync_dir(""); disk.mark("acked a")
>>> file.pwritev([b"J"], 0)
1
>>> [crash.disk.contents() for crash in disk.images(["none", "all"], start=4)][-2:]
[{'a': b'hello'}, {'a': b'Jello'}]
>>> disk.marks_until(5)
['acked a']

**The fault model.**  Calls are atomic and in one order; call k has returned at position k + 1, and
a crash at position k happens after the first k calls and after every mark made by then.

*Files.*  A write or truncate is pending until `sync` or `sync_data` of that file, through any
handle.  The two are alike here, since Linux's `fdatasync` also keeps a changed length.  The modes:

- `none`: nothing pending survives.  `all`: everything does.
- `prefix`: pending changes survive in order up to a point, one moment for the whole disk or one
  for each file and one for the names.
- `subset`: each pending change survives, or not, or a write survives in some 512-byte sectors.
- `torn`: in order up to a point, and the last write only up to a 512-byte or 4 KiB boundary.
- `garbage`: all or some survive, and sectors or pages they touch hold zeros, noise or old bytes.

In `subset`, `torn` and `garbage` the length of a file that was pending is chosen apart from its
bytes: an extension may survive without its bytes (they read as zeros), or the reverse.  Bytes that
were synced survive unless a pending change names them, except that in `torn` and `garbage` a
pending write can spoil all of each 4 KiB page that it touches, synced neighbours included.  With
`powersafe=True` it can spoil only the bytes it wrote.

*Names.*  `create`, `rename`, `unlink` and `mkdir` are pending until `sync_dir` of the parent, and a
synced file whose name did not survive is gone.  Names survive in order (`prefix`, `torn`) or in any
subset (`subset`, `garbage`), whatever becomes of the bytes.  One rename survives whole or not at
all; across directories, syncing the target's parent may leave both names, syncing the source's
makes all of it durable.  `mkdir` syncs each parent as it goes, as `RealFilesystem` does, and a
crash may fall between.

*A sync that failed* (`SimFile.sync_failed`, called by the fault injector): what was pending stays
readable, no later sync keeps it, and after a power loss it is there only in the mode `all`.

*Process death* (`power_loss=False`): every completed call survives, under the same boot id.  What
was pending stays pending in the image, for the page cache outlives the process: power lost during
or after that recovery can still take it.

**Not modelled**: a crash inside a call other than as damage to pending writes; renaming a directory
(refused); times, modes and links; a write that lands elsewhere or rot of data at rest (there are
helpers: `flip`, `zero`, `overwrite`, `swap`, `truncate_to`); sparse allocation (a file takes up its
length, and frees it when unlinked, open or not); memory pressure writing pages back early, since
`subset` covers what that can leave.
"""

from __future__ import annotations

import errno
import hashlib
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from headrace.core.errors import DataDirLocked
from headrace.storage.fs import parent
from headrace.testing.diskmodel import (
    DIRECTORY,
    MODES,
    PAGE_BYTES,
    SECTOR_BYTES,
    Dice,
    Mode,
    Op,
    State,
)
from headrace.testing.powerloss import crash
from headrace.testing.simfile import SimFile, SimLock, disk_error

__all__ = [
    "MODES",
    "PAGE_BYTES",
    "SECTOR_BYTES",
    "Crash",
    "Mode",
    "Op",
    "SimDisk",
    "SimFile",
    "SimLock",
]

SPACE_BYTES_DEFAULT: Final = 1 << 40
BOOT_ID_FIRST: Final = bytes(15) + b"\x01"


class Crash(NamedTuple):
    """One disk after a crash: at which position, with which damage."""

    position: int
    mode: Mode
    disk: SimDisk


class SimDisk:
    """A directory tree in memory.  The fault model is in this module's docstring.

    `space_bytes` (the disk's size), `powersafe` and `cached` (False: `pread_nowait` always misses)
    may be changed at any time.
    """

    def __init__(
        self,
        *,
        space_bytes: int = SPACE_BYTES_DEFAULT,
        powersafe: bool = False,
        boot_id: bytes = BOOT_ID_FIRST,
    ) -> None:
        assert len(boot_id) == 16, boot_id
        self.space_bytes = space_bytes
        self.powersafe = powersafe
        self.cached = True
        self._boot_id = boot_id
        self._mutex = threading.RLock()
        self._locks: set[str] = set()
        self._state = State()
        self._base: State | None = None  # The state before the trace, once there is a trace.
        self._trace: list[Op] = []
        self._marks: list[object] = []
        self._mark_positions: list[int] = []
        self._walk: tuple[int, State] | None = None  # Where the last image was built.

    # The trace and its crash images.

    @property
    def trace(self) -> Sequence[Op]:
        """Every mutating call so far."""
        return self._trace

    @property
    def position(self) -> int:
        """How many mutating calls there were."""
        return len(self._trace)

    @property
    def crash_points(self) -> int:
        """How many positions a crash can have: `range(crash_points)` is all of them."""
        return len(self._trace) + 1

    def mark(self, payload: object) -> None:
        """Note an event of the application, such as an acknowledgement, at this position."""
        with self._mutex:
            self._marks.append(payload)
            self._mark_positions.append(len(self._trace))

    def marks_until(self, k: int) -> list[object]:
        """What had been marked when a crash at position `k` happens, oldest first."""
        return self._marks[: bisect_right(self._mark_positions, k)]

    def image(self, k: int, mode: Mode, seed: int, *, power_loss: bool = True) -> SimDisk:
        """The disk after a crash at position `k`; equal arguments give equal disks."""
        boot_id = self._boot_id
        with self._mutex:
            state = self._state_at(k)
            if not power_loss:
                return self._with_state(state.fork(), boot_id)
            boot_id = hashlib.blake2b(boot_id, digest_size=16).digest()
            dice = Dice(seed, k, MODES.index(mode))
            left = crash(state, mode, dice, powersafe=self.powersafe)
            return self._with_state(left, boot_id)

    def images(
        self,
        modes: Sequence[Mode] = MODES,
        seed: int = 0,
        *,
        start: int = 0,
        stop: int | None = None,
        distinct: bool = False,
        power_loss: bool = True,
    ) -> Iterator[Crash]:
        """The disk after each crash at `start` <= k < `stop`, walking the trace only once.

        Each is what `image(k, mode, seed)` gives.  With `distinct` a position at which nothing is
        pending yields one image; without `power_loss` each position does, as mode `all`.
        """
        stop = self.crash_points if stop is None else stop
        assert 0 <= start <= stop <= self.crash_points, (start, stop)
        for k in range(start, stop):
            chosen = modes[:1] if distinct and self.is_durable_at(k) else modes
            for mode in chosen if power_loss else ("all",):
                yield Crash(k, mode, self.image(k, mode, seed, power_loss=power_loss))

    def is_durable_at(self, k: int) -> bool:
        """Whether a power loss at position `k` leaves the same disk in every mode."""
        with self._mutex:
            return self._state_at(k).is_durable()

    def _state_at(self, k: int) -> State:
        assert 0 <= k < self.crash_points, (k, self.crash_points)
        if k == len(self._trace):
            return self._state
        assert self._base is not None
        position, state = self._walk or (0, self._base.fork())
        if position > k:
            position, state = 0, self._base.fork()
        for op in self._trace[position:k]:
            state.apply(op)
        self._walk = (k, state)
        return state

    def _with_state(self, state: State, boot_id: bytes) -> SimDisk:
        disk = SimDisk(space_bytes=self.space_bytes, powersafe=self.powersafe, boot_id=boot_id)
        disk.cached = self.cached
        disk._state = state
        return disk

    def _record(self, op: Op) -> None:
        if self._base is None:
            self._base = self._state.fork()
        self._state.apply(op)
        self._trace.append(op)

    def settle(self) -> None:
        """Make all there is durable, and forget the trace and the marks."""
        with self._mutex:
            self._state.settle()
            self._base = self._walk = None
            self._trace, self._marks, self._mark_positions = [], [], []

    def copy(self) -> SimDisk:
        """The same files and boot id on another disk, settled and unlocked."""
        with self._mutex:
            other = self._with_state(self._state.fork(), self._boot_id)
        other.settle()
        return other

    def contents(self) -> dict[str, bytes]:
        """Every file's bytes by path, in order of path."""
        with self._mutex:
            names, nodes = self._state.names, self._state.nodes
            found = {path: nodes[i].live for path, i in sorted(names.items()) if i != DIRECTORY}
            return {path: live.read(0, live.size) for path, live in found.items()}

    def fingerprint(self) -> object:
        """A key that is equal for disks on which everything that follows is the same."""
        with self._mutex:
            return self._boot_id, self._state.fingerprint()

    # Damage to data at rest.  Each settles the disk first: it is an edit, not a call to recover.

    def overwrite(self, path: str, offset: int, data: bytes) -> None:
        """Put these bytes inside the file."""
        with self._mutex:
            self.settle()
            content = self._state.nodes[self._file(path)].live
            assert 0 <= offset <= content.size - len(data), (path, offset, len(data))
            content.write(offset, data)

    def flip(self, path: str, bit: int) -> None:
        """Invert one bit of the file, bit 0 being the lowest of its first byte."""
        with self._mutex:
            byte = self._state.nodes[self._file(path)].live.read(bit // 8, 1)
            assert byte, (path, bit)
            self.overwrite(path, bit // 8, bytes([byte[0] ^ 1 << bit % 8]))

    def zero(self, path: str, offset: int, length: int) -> None:
        """Put zeros inside the file."""
        self.overwrite(path, offset, bytes(length))

    def swap(self, first: str, second: str) -> None:
        """Exchange two files' names."""
        with self._mutex:
            self.settle()
            one, two = self._file(first), self._file(second)
            for names in (self._state.names, self._state.names_durable):
                names[first], names[second] = two, one

    def truncate_to(self, path: str, length: int) -> None:
        """Cut the file to this length, or lengthen it with zeros."""
        with self._mutex:
            self.settle()
            self._state.nodes[self._file(path)].live.truncate(length)

    # The filesystem seam.

    def _file(self, path: str) -> int:
        inode = self._lookup(path)
        if inode is None:
            raise disk_error(errno.ENOENT, path)
        if inode == DIRECTORY:
            raise disk_error(errno.EISDIR, path)
        return inode

    def _lookup(self, path: str) -> int | None:
        """The inode of a path; an error when a file stands where a directory should."""
        inode = self._state.names.get(path)
        if inode is None:
            parts = path.split("/")
            assert not path or not {"", ".", ".."} & set(parts), f"not a plain path: {path}"
            for count in range(1, len(parts)):
                if self._state.names.get("/".join(parts[:count])):
                    raise disk_error(errno.ENOTDIR, path)
        return inode

    def _directory(self, path: str) -> None:
        inode = self._lookup(path)
        if inode != DIRECTORY:
            raise disk_error(errno.ENOENT if inode is None else errno.ENOTDIR, path)

    def create(self, path: str, *, private: bool = False) -> SimFile:
        with self._mutex:
            if self._lookup(path) is not None:
                raise disk_error(errno.EEXIST, path)
            self._directory(parent(path))
            inode = self._state.inode_next
            self._record(Op("create", path, inode))
            return SimFile(self, inode, path, writable=True)

    def open(self, path: str) -> SimFile:
        with self._mutex:
            return SimFile(self, self._file(path), path, writable=True)

    def open_read(self, path: str) -> SimFile:
        with self._mutex:
            return SimFile(self, self._file(path), path, writable=False)

    def exists(self, path: str) -> bool:
        return path in self._state.names

    def listdir(self, path: str) -> list[str]:
        with self._mutex:
            if self._lookup(path) is None:
                return []
            self._directory(path)
            return sorted(
                n.rpartition("/")[2] for n in self._state.names if n and parent(n) == path
            )

    def mkdir(self, path: str) -> None:
        with self._mutex:
            parts = path.split("/") if path else []
            for count in range(1, len(parts) + 1):
                directory = "/".join(parts[:count])
                inode = self._lookup(directory)
                if inode is None:
                    self._record(Op("mkdir", directory))
                    self._record(Op("sync_dir", parent(directory)))
                elif inode != DIRECTORY:
                    raise disk_error(errno.EEXIST, directory)

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            inode = self._lookup(source)
            if inode == DIRECTORY:
                raise disk_error(errno.EINVAL, source, "SimDisk does not rename directories")
            inode = self._file(source)
            self._directory(parent(target))
            replaced = self._lookup(target)
            if replaced == DIRECTORY:
                raise disk_error(errno.EISDIR, target)
            if replaced != inode:
                self._record(Op("rename", source, inode, target=target))

    def unlink(self, path: str) -> None:
        with self._mutex:
            if self._lookup(path) is not None:
                self._record(Op("unlink", path, self._file(path)))

    def sync_dir(self, path: str) -> None:
        with self._mutex:
            self._directory(path)
            self._record(Op("sync_dir", path))

    def lock(self, path: str) -> SimLock:
        with self._mutex:
            if path in self._locks:
                raise DataDirLocked(
                    f"{self.describe(path)} is in use", fix="release the lock that holds it"
                )
            if self._lookup(path) is None:
                self.create(path)
            self._locks.add(path)
            return SimLock(self, path)

    def free_bytes(self) -> int:
        with self._mutex:
            nodes = self._state.nodes
            inodes = set(self._state.names.values()) - {DIRECTORY}
            return max(0, self.space_bytes - sum(nodes[i].live.size for i in inodes))

    def total_bytes(self) -> int:
        return self.space_bytes

    def boot_id(self) -> bytes:
        return self._boot_id

    def describe(self, path: str) -> str:
        return f"simdisk:/{path}"
