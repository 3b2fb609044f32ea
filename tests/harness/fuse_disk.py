"""A disk that can lose its power: one file of a FUSE filesystem, every write of which is logged.

A program of its own, since the kernel must never wait for a process that waits for the disk:
`python -m tests.harness.fuse_disk FD IMAGE SIZE SECTOR`, where FD is `/dev/fuse`, which another
process has mounted or will (`mount_options`).  A loop device on the file `disk` there is a block
device for any filesystem.  It obeys lines of JSON on its standard input:

- `{"do": "cut", "after": n, "pending": p}`: loses power when it has done n more writes and syncs
  and p writes are covered by no sync; it says so then.
- `{"do": "back", "mode": m, "seed": s}`: comes back with what `write_log.py` says is left, and says
  how much that is.

Only this file knows the protocol of `/dev/fuse`.  Writes go through no cache (FOPEN_DIRECT_IO) and
are done one at a time, so that their order is the one in which the block device finished them.  A
sync of the file is a flush of the device; a loop device has no write that is durable by itself
(FUA).  Without power every write, sync and read fails with EIO.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import stat
import struct
import sys
import time
from collections.abc import Callable
from typing import Final

from headrace.testing.diskmodel import Dice
from tests.harness.write_log import LoggedDisk

NAME: Final = "disk"
DEVICE: Final = "/dev/fuse"
WRITE_BYTES_MAX: Final = 128 << 10
_REQUEST_BYTES_MAX: Final = WRITE_BYTES_MAX + 8192
_FOREVER_SECONDS: Final = 1 << 30
_ROOT, _FILE = 1, 2  # the two inodes

# include/uapi/linux/fuse.h
_HEADER: Final = struct.Struct("<IIQQIIIHH")  # len opcode unique node uid gid pid extensions pad
_ANSWER: Final = struct.Struct("<IiQ")  # len error unique
_INIT: Final = struct.Struct("<II")
_INIT_ANSWER: Final = struct.Struct("<IIIIHHIIHHII6I")
_ATTRIBUTES: Final = struct.Struct("<6Q10I")
_ENTRY: Final = struct.Struct("<4Q2I")
_ATTRIBUTES_VALID: Final = struct.Struct("<QII")
_OPENED: Final = struct.Struct("<QIi")
_MOVE: Final = struct.Struct("<QQIIQII")  # of a read or a write: handle offset size ...
_WRITTEN: Final = struct.Struct("<II")
_SPACE: Final = struct.Struct("<5Q4I6I")
_BIG_WRITES: Final = 1 << 5
_DIRECT_IO: Final = 1
_MINOR: Final = 31
(
    _LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _WRITE, _STATFS, _RELEASE, _FSYNC, _FLUSH, _INIT_OP,
    _INTERRUPT, _DESTROY, _BATCH_FORGET,
) = (1, 2, 3, 14, 15, 16, 17, 18, 20, 25, 26, 36, 38, 42)  # fmt: skip
_UNANSWERED: Final = frozenset({_FORGET, _BATCH_FORGET, _INTERRUPT})


class Refused(Exception):
    """The request fails with this error number."""


class FuseDisk:
    """Serves one mount until it is unmounted, or until nobody can tell it anything any more."""

    def __init__(self, disk: LoggedDisk, fd: int) -> None:
        self._disk = disk
        self._fd = fd
        self._cut_after: int | None = None
        self._cut_pending = 0
        self._commands = b""
        self._requests: dict[int, Callable[[int, bytes], bytes]] = {
            _INIT_OP: self._init,
            _LOOKUP: self._lookup,
            _GETATTR: self._getattr,
            _OPEN: lambda node, _: _OPENED.pack(0, _DIRECT_IO, 0),
            _READ: self._read,
            _WRITE: self._write,
            _FSYNC: self._sync,
            _STATFS: lambda *_: _SPACE.pack(0, 0, 0, 2, 0, 4096, 255, 4096, *[0] * 7),
            _FLUSH: lambda *_: b"",
            _RELEASE: lambda *_: b"",
            _DESTROY: lambda *_: b"",
        }

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(0, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if not (self._obey() if fd == 0 else self._serve_one()):
                    return

    # The kernel

    def _serve_one(self) -> bool:
        """Answer one request; False when the filesystem is gone."""
        try:
            request = os.read(self._fd, _REQUEST_BYTES_MAX)
        except OSError as error:
            return error.errno != errno.ENODEV
        _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
        if opcode in _UNANSWERED:
            return True
        body, code = b"", 0
        try:
            handler = self._requests.get(opcode)
            if handler is None:
                raise Refused(errno.ENOSYS)
            body = handler(node, request)
        except Refused as refused:
            code = refused.args[0]
        head = _ANSWER.pack(_ANSWER.size + len(body), -code, unique)
        try:
            os.writev(self._fd, [head, body])
        except OSError as error:
            if error.errno != errno.ENOENT:  # nobody waits for it any more
                raise
        return True

    def _init(self, _node: int, request: bytes) -> bytes:
        major, _ = _INIT.unpack_from(request, _HEADER.size)
        return _INIT_ANSWER.pack(
            major, _MINOR, WRITE_BYTES_MAX, _BIG_WRITES, 16, 12, WRITE_BYTES_MAX, 1, *[0] * 10
        )

    def _attributes(self, node: int) -> bytes:
        mode, links, size = (
            (stat.S_IFDIR | 0o700, 2, 0)
            if node == _ROOT
            else (stat.S_IFREG | 0o600, 1, self._disk.size)
        )
        return _ATTRIBUTES.pack(node, size, size // 512, *[0] * 6, mode, links, 0, 0, 0, 4096, 0)

    def _lookup(self, _node: int, request: bytes) -> bytes:
        if request[_HEADER.size :].rstrip(b"\0") != NAME.encode():
            raise Refused(errno.ENOENT)
        forever = _FOREVER_SECONDS
        return _ENTRY.pack(_FILE, 0, forever, forever, 0, 0) + self._attributes(_FILE)

    def _getattr(self, node: int, _request: bytes) -> bytes:
        return _ATTRIBUTES_VALID.pack(_FOREVER_SECONDS, 0, 0) + self._attributes(node)

    def _read(self, _node: int, request: bytes) -> bytes:
        _, offset, size, *_ = _MOVE.unpack_from(request, _HEADER.size)
        self._powered()
        return self._disk.read(offset, size)

    def _write(self, _node: int, request: bytes) -> bytes:
        _, offset, size, *_ = _MOVE.unpack_from(request, _HEADER.size)
        self._powered()
        start = _HEADER.size + _MOVE.size
        self._disk.write(offset, request[start : start + size])
        self._count()
        return _WRITTEN.pack(size, 0)

    def _sync(self, _node: int, _request: bytes) -> bytes:
        self._powered()
        self._disk.barrier()
        self._count()
        return b""

    def _powered(self) -> None:
        if self._disk.dead:
            raise Refused(errno.EIO)

    # Who started it

    def _count(self) -> None:
        """A write or a sync is done; perhaps it was the last."""
        if self._cut_after is not None:
            self._cut_after -= 1
            self._cut_if_due()

    def _cut_if_due(self) -> None:
        if self._cut_after is None or self._cut_after > 0:
            return
        if len(self._disk.pending) < self._cut_pending:
            return
        self._cut_after = None
        self._disk.dead = True
        _say({"at_ns": time.monotonic_ns(), "pending": len(self._disk.pending)})

    def _obey(self) -> bool:
        """Do what it is told; False when there is nobody left to tell it."""
        got = os.read(0, 4096)
        *lines, self._commands = (self._commands + got).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if told["do"] == "cut":
                if not self._disk.dead:  # else it was cut while this was on its way
                    self._cut_after, self._cut_pending = told["after"], told["pending"]
                    self._cut_if_due()
            else:
                assert told["do"] == "back" and self._disk.dead, told
                _say(self._disk.come_back(told["mode"], Dice(told["seed"])))
        return bool(got)


def _say(what: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def mount(source: str, target: str, kind: str, data: str | None = None, flags: int = 0) -> None:
    """mount(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    given = data.encode() if data is not None else None
    if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), given):
        number = ctypes.get_errno()
        raise OSError(number, f"mount of {kind} at {target}: {os.strerror(number)}")


def mount_options(fd: int) -> str:
    """Those of a mount of type `fuse` that this descriptor serves."""
    return f"fd={fd},rootmode=40000,user_id=0,group_id=0,max_read={WRITE_BYTES_MAX}"


def main() -> None:
    fd, image, size, sector = sys.argv[1:]
    disk = LoggedDisk(image, int(size), int(sector))
    FuseDisk(disk, int(fd)).serve()
    disk.close()


if __name__ == "__main__":
    main()
