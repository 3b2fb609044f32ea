"""The disk reserve: room held back, and given up so that deletes can be logged on a full disk.

Only this file makes and removes `reserve`, a file whose bytes mean nothing.  While it is there, its
room is nobody's; a log that has no room for an entry that frees some removes it, and everything but
such entries stays refused until there is room to make it again.  A file that is too small, or not
there, is no damage: a start and every checkpoint make it as large as the disk allows.
"""

from __future__ import annotations

import contextlib
import logging

from headrace.core.runtime import Runtime
from headrace.storage.fs import Filesystem

log = logging.getLogger("headrace.reserve")

RESERVE_PATH = "reserve"
LANE = "prepare"
# A small disk is not spent on it: at most one part in so many.
DISK_SHARE = 16
# Of the room there is, this part is left where there is too little for the whole reserve.
LEFT_SHARE = 8


class DiskReserve:
    """The reserve of one data directory.  Belongs to the loop thread; a lane makes the file."""

    def __init__(self, fs: Filesystem, runtime: Runtime, bytes_wanted: int) -> None:
        self._fs = fs
        self._runtime = runtime
        self._bytes_wanted = bytes_wanted
        self.bytes = 0  # held now
        self.spent_total = 0
        self._filling = False
        self._unwanted = False  # spent while it was being made
        self._closed = False

    @property
    def missing(self) -> int:
        """How many bytes it lacks."""
        return max(0, self._target() - self.bytes)

    def _target(self) -> int:
        return min(self._bytes_wanted, self._fs.total_bytes() // DISK_SHARE)

    def open(self) -> None:
        """Take over what the last run left, and complete it; in any thread, before the log opens.

        So what a delete was to be paid with is not taken by appends after a restart.
        """
        if self._fs.exists(RESERVE_PATH):
            file = self._fs.open_read(RESERVE_PATH)
            try:
                self.bytes = file.size()
            finally:
                file.close()
        if self.bytes and not self._target():
            self._fs.unlink(RESERVE_PATH)
            self.bytes = 0
        elif self._affordable() > self.bytes:
            self.bytes = self._make(self._affordable())

    def fill(self) -> None:
        """Make it as large as it should be and there is room for, in the background."""
        if self._filling or self._closed or self._affordable() <= self.bytes:
            return
        self._filling, self._unwanted = True, False
        size = self._affordable()
        self._runtime.submit(LANE, lambda: self._make(size), self._made)

    def _affordable(self) -> int:
        target = self._target()
        if target <= self.bytes:
            return 0
        free = self._fs.free_bytes()
        return min(target, self.bytes + free - free // LEFT_SHARE)

    def _make(self, size: int) -> int:
        """Hold so many bytes; return how many are held.  Trouble is for the log to meet and name.

        It is synced once, so that nothing of it is pending for ever.
        """
        fs = self._fs
        try:
            file = fs.open(RESERVE_PATH) if fs.exists(RESERVE_PATH) else fs.create(RESERVE_PATH)
            try:
                file.allocate(size)
                file.sync()
            finally:
                file.close()
            fs.sync_dir("")
        except OSError as error:
            log.warning("no disk reserve: %s", error)
            with contextlib.suppress(OSError):
                fs.unlink(RESERVE_PATH)
            return 0
        return size

    def _made(self, size: object, _error: BaseException | None) -> None:
        self._filling = False
        self.bytes = size if isinstance(size, int) else 0
        if self._unwanted:
            self.spend()

    def spend(self) -> bool:
        """Give the room back to the disk, for an entry that frees more; False: it was spent."""
        self._unwanted = self._filling
        if not self.bytes:
            return False
        try:
            self._fs.unlink(RESERVE_PATH)
        except OSError as error:
            log.warning("the disk reserve cannot be given back: %s", error)
            return False
        log.warning("the disk is full: its reserve of %d bytes pays for deletes", self.bytes)
        self.bytes = 0
        self.spent_total += 1
        return True

    def close(self) -> None:
        """Make it no more."""
        self._closed = True
