"""A disk's image that knows which writes a barrier covers, and what a power loss leaves of others.

The rules it owns: what was written before the last barrier survives; of each later write a power
loss keeps everything, nothing, or some of its sectors.  A sector is written whole or not at all,
which is what filesystems ask of a disk.  The same writes, mode and dice leave the same bytes.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Final, Literal, NamedTuple, get_args

from headrace.testing.diskmodel import Dice

# As those of `SimDisk`.  There is no `garbage`: a sector that holds noise is a broken disk to a
# filesystem; what its files hold then is what `data=writeback` leaves in blocks never written.
DiskMode = Literal["none", "all", "prefix", "subset", "torn"]
DISK_MODES: Final[tuple[DiskMode, ...]] = get_args(DiskMode)
PARTS_PER_WRITE_MAX: Final = 64  # what a long write is cut into, at most


class Write(NamedTuple):
    """One write that no barrier covers yet, with what it wrote over."""

    offset: int
    data: bytes
    before: bytes


class LoggedDisk:
    """The image of a disk in a file.  Once `dead`, it takes nothing until it has come back."""

    def __init__(self, path: str, size: int, sector: int) -> None:
        self.size, self.sector = size, sector
        self.dead = False
        self.writes = 0
        self.barriers = 0
        self.pending: list[Write] = []
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        os.close(self._fd)

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)

    def write(self, offset: int, data: bytes) -> None:
        assert not self.dead and offset + len(data) <= self.size
        self.pending.append(Write(offset, data, os.pread(self._fd, len(data), offset)))
        self._put(offset, data)
        self.writes += 1

    def barrier(self) -> None:
        """From now on all that was written is there, whatever happens."""
        assert not self.dead
        self.pending.clear()
        self.barriers += 1

    def come_back(self, mode: DiskMode, dice: Dice) -> Counter[str]:
        """Become the disk that is found after the power has been lost; says what that cost."""
        pending, self.pending = self.pending, []
        for write in reversed(pending):
            self._put(write.offset, write.before)
        left: Counter[str] = Counter()
        for number, parts in enumerate(self._survivors(pending, mode, dice)):
            write = pending[number]
            for start, stop in parts:
                self._put(write.offset + start, write.data[start:stop])
            kept = sum(stop - start for start, stop in parts)
            whole = kept == len(write.data)
            left["writes kept" if whole else "writes torn" if kept else "writes dropped"] += 1
        self.dead = False
        return left

    def _put(self, offset: int, data: bytes) -> None:
        done = os.pwrite(self._fd, data, offset)
        assert done == len(data), (done, len(data))

    def _survivors(
        self, pending: list[Write], mode: DiskMode, dice: Dice
    ) -> list[list[tuple[int, int]]]:
        """The parts of each write that are on the disk, in the order of the writes."""
        whole = [[(0, len(write.data))] for write in pending]
        nothing: list[list[tuple[int, int]]] = [[] for _ in pending]
        if mode == "all" or not pending:
            return whole
        if mode == "none":
            return nothing
        if mode == "subset":
            likely = dice.below(4)  # from few that are there to few that are missing
            return [self._some(write, dice, likely) for write in pending]
        count = dice.below(len(pending) + 1)
        left = whole[:count] + nothing[count:]
        if mode == "torn" and count < len(pending):
            left[count] = self._begun(pending[count], dice)
        return left

    def _some(self, write: Write, dice: Dice, likely: int) -> list[tuple[int, int]]:
        """All, nothing, or some of the sectors."""
        if dice.below(4):
            return [(0, len(write.data))] if dice.below(5) <= likely else []
        step = self.sector * max(1, len(write.data) // self.sector // PARTS_PER_WRITE_MAX)
        starts = range(0, len(write.data), step)
        return [(at, min(at + step, len(write.data))) for at in starts if dice.coin()]

    def _begun(self, write: Write, dice: Dice) -> list[tuple[int, int]]:
        """What lies before a boundary of sectors."""
        cut = self.sector * dice.below(-(-len(write.data) // self.sector))
        return [(0, cut)] if cut else []
