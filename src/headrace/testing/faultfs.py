"""A filesystem that fails on purpose: at call N of an operation, once or from then on.

`FaultFilesystem` passes every call to another filesystem, a real one or a `SimDisk`, and consults
a `FaultPlan`.  It owns the counting, so that a test can go through every N until none is left:

>>> from headrace.storage.fs import write_file_durably
>>> from headrace.testing.simdisk import SimDisk
>>> for n in range(1, 100):
...     plan = FaultPlan(Fault("sync*", n, "eio"))
...     try:
...         write_file_durably(FaultFilesystem(SimDisk(), plan), "a", [b"x"])
...     except OSError as error:
...         print(n, error.errno)
...     if not plan.fired:
...         break
1 5
2 5
>>> n, plan.calls["sync"], plan.calls["sync_dir"]
(3, 1, 1)

**The actions.**  `eio`, `enospc`, `efbig`: the call raises and has no effect; with `count`, that
many bytes of a `pwritev` land first; with `after`, the call takes effect and then raises, so that
its outcome is unknown to the caller.  `short`: `pwritev` writes, or `pread` returns, only `count`
bytes (half when not given, and at least one).  `lie`: a sync returns without having done anything.
`miss`: `pread_nowait` finds nothing cached.  `call`: `hook(operation, path)` runs before the call,
or with `after` once it is done; that is how a disk is slow, or another thread gets in between.

A sync that fails on a `SimDisk` leaves what the kernel leaves: the pending bytes readable, and no
later sync keeping them.  On another filesystem a failed sync is merely not called, which is kinder.

It does not fail `lock`, `exists`, `listdir`, `size`, `free_bytes` and `close`, does not spoil what
`pread` returns (edit the disk for that), and counts `open` and `open_read` together.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal, TypeVar

from headrace.storage.fs import Buffer, File, Filesystem, Lock
from headrace.testing.simfile import SimFile

Result = TypeVar("Result")
Action = Literal["eio", "enospc", "efbig", "short", "lie", "miss", "call"]
Hook = Callable[[str, str], None]

OPERATIONS: Final = (
    "create",
    "open",
    "mkdir",
    "rename",
    "unlink",
    "sync_dir",
    "pwritev",
    "pread",
    "pread_nowait",
    "truncate",
    "allocate",
    "sync_data",
    "sync",
)
ERRORS: Final[dict[str, int]] = {
    "eio": errno.EIO,
    "enospc": errno.ENOSPC,
    "efbig": errno.EFBIG,
}
# Actions that only make sense for some operations.
LIMITED: Final[dict[str, frozenset[str]]] = {
    "short": frozenset({"pwritev", "pread"}),
    "lie": frozenset({"sync", "sync_data", "sync_dir"}),
    "miss": frozenset({"pread_nowait"}),
}


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and at which call.

    `operation` may be a pattern (`"sync*"`, `"*"`), and so may `path`; only calls that match both
    are counted, from 1.  A rename matches by its source or its target.
    """

    operation: str
    at: int
    action: Action
    forever: bool = False
    path: str = "*"
    count: int | None = None
    after: bool = False
    hook: Hook | None = None

    def __post_init__(self) -> None:
        matching = {o for o in OPERATIONS if fnmatchcase(o, self.operation)}
        allowed = LIMITED.get(self.action, frozenset(OPERATIONS))
        assert matching, f"no operation is called {self.operation}: use one of {OPERATIONS}"
        assert matching <= allowed, f"{self.action} is only for {sorted(allowed)}"
        assert self.at >= 1, "calls are counted from 1"
        assert (self.action == "call") == (self.hook is not None), "a hook goes with call"
        assert self.count is None or self.count >= 0, self.count
        assert self.count is None or not self.after, "count and after exclude each other"


class FaultPlan:
    """Faults to come, and what has happened so far.  Safe to share between threads.

    `fired` counts the faults that struck: 0 after a run means that N was past the end.  `calls`
    counts every call by operation, whether or not a fault looks at it.
    """

    def __init__(self, *faults: Fault) -> None:
        self.faults = faults
        self.fired = 0
        self.calls: Counter[str] = Counter()
        self.seen = [0] * len(faults)  # calls that each fault looked at
        self._mutex = threading.Lock()

    def strike(self, operation: str, *paths: str) -> Fault | None:
        """Count this call; the first fault that is due, if any is."""
        assert operation in OPERATIONS, operation
        due: Fault | None = None
        with self._mutex:
            self.calls[operation] += 1
            for index, fault in enumerate(self.faults):
                if not fnmatchcase(operation, fault.operation):
                    continue
                if not any(fnmatchcase(path, fault.path) for path in paths):
                    continue
                self.seen[index] += 1
                seen = self.seen[index]
                if due is None and (seen == fault.at or (fault.forever and seen > fault.at)):
                    due = fault
            self.fired += due is not None
        return due


def _perform(fault: Fault | None, operation: str, path: str, call: Callable[[], Result]) -> Result:
    """Make the call, with what an error or a hook adds to it."""
    if fault is None:
        return call()
    if fault.hook is not None and not fault.after:
        fault.hook(operation, path)
    code = ERRORS.get(fault.action)
    if code is not None and not fault.after:
        raise OSError(code, f"injected {fault.action}", path)
    result = call()
    if fault.hook is not None and fault.after:
        fault.hook(operation, path)
    if code is not None:
        raise OSError(code, f"injected {fault.action}", path)
    return result


def _head(buffers: Sequence[Buffer], count: int | None) -> bytes:
    data = b"".join(buffers)
    return data[: max(1, len(data) // 2) if count is None else count]


class FaultFile:
    """An open file of a `FaultFilesystem`."""

    __slots__ = ("_inner", "_plan", "path")

    def __init__(self, inner: File, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan
        self.path = inner.path

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        fault = self._plan.strike("pwritev", self.path)
        if fault is not None and fault.action == "short":
            return self._inner.pwritev([_head(buffers, fault.count)], offset)
        if fault is not None and fault.action in ERRORS and fault.count:
            self._inner.pwritev([_head(buffers, fault.count)], offset)
        return _perform(fault, "pwritev", self.path, lambda: self._inner.pwritev(buffers, offset))

    def pread(self, length: int, offset: int) -> bytes:
        fault = self._plan.strike("pread", self.path)
        data = _perform(fault, "pread", self.path, lambda: self._inner.pread(length, offset))
        return _head([data], fault.count) if fault and fault.action == "short" else data

    def pread_nowait(self, length: int, offset: int) -> bytes | None:
        fault = self._plan.strike("pread_nowait", self.path)
        if fault is not None and fault.action == "miss":
            return None
        return _perform(
            fault, "pread_nowait", self.path, lambda: self._inner.pread_nowait(length, offset)
        )

    def size(self) -> int:
        return self._inner.size()

    def truncate(self, length: int) -> None:
        fault = self._plan.strike("truncate", self.path)
        _perform(fault, "truncate", self.path, lambda: self._inner.truncate(length))

    def allocate(self, length: int) -> None:
        fault = self._plan.strike("allocate", self.path)
        _perform(fault, "allocate", self.path, lambda: self._inner.allocate(length))

    def sync_data(self) -> None:
        self._sync("sync_data", self._inner.sync_data)

    def sync(self) -> None:
        self._sync("sync", self._inner.sync)

    def _sync(self, operation: str, call: Callable[[], None]) -> None:
        fault = self._plan.strike(operation, self.path)
        if fault is not None and fault.action == "lie":
            return
        failed = fault is not None and fault.action in ERRORS and not fault.after
        if failed and isinstance(self._inner, SimFile):
            self._inner.sync_failed()
        _perform(fault, operation, self.path, call)

    def close(self) -> None:
        self._inner.close()


class FaultFilesystem:
    """A filesystem whose calls fail as the plan says.

    `inner` and `plan` may be read, and `plan` replaced: open files keep the plan they have.
    """

    def __init__(self, inner: Filesystem, plan: FaultPlan | None = None) -> None:
        self.inner = inner
        self.plan = plan or FaultPlan()

    def _do(self, operation: str, call: Callable[[], Result], *paths: str) -> Result:
        return _perform(self.plan.strike(operation, *paths), operation, paths[0], call)

    def create(self, path: str, *, private: bool = False) -> FaultFile:
        made = self._do("create", lambda: self.inner.create(path, private=private), path)
        return FaultFile(made, self.plan)

    def open(self, path: str) -> FaultFile:
        return FaultFile(self._do("open", lambda: self.inner.open(path), path), self.plan)

    def open_read(self, path: str) -> FaultFile:
        return FaultFile(self._do("open", lambda: self.inner.open_read(path), path), self.plan)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def listdir(self, path: str) -> list[str]:
        return self.inner.listdir(path)

    def mkdir(self, path: str) -> None:
        self._do("mkdir", lambda: self.inner.mkdir(path), path)

    def rename(self, source: str, target: str) -> None:
        self._do("rename", lambda: self.inner.rename(source, target), source, target)

    def unlink(self, path: str) -> None:
        self._do("unlink", lambda: self.inner.unlink(path), path)

    def sync_dir(self, path: str) -> None:
        fault = self.plan.strike("sync_dir", path)
        if fault is None or fault.action != "lie":
            _perform(fault, "sync_dir", path, lambda: self.inner.sync_dir(path))

    def lock(self, path: str) -> Lock:
        return self.inner.lock(path)

    def free_bytes(self) -> int:
        return self.inner.free_bytes()

    def total_bytes(self) -> int:
        return self.inner.total_bytes()

    def boot_id(self) -> bytes:
        return self.inner.boot_id()

    def describe(self, path: str) -> str:
        return self.inner.describe(path)
