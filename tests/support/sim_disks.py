"""Disks in memory: what a power loss can make of a file, and one whose syncs may fail."""

from __future__ import annotations

import errno

from headrace.storage.fs import parent, write_all
from headrace.testing.diskmodel import MODES, Mode
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk

SEEDS = range(200)


def disk_with(path: str, data: bytes, *, powersafe: bool = False) -> SimDisk:
    """A disk on which this file is durable."""
    disk = SimDisk(powersafe=powersafe)
    disk.mkdir(parent(path))
    file = disk.create(path)
    write_all(file, [data], 0)
    file.sync()
    disk.sync_dir(parent(path))
    return disk


def outcomes(disk: SimDisk, path: str, modes: tuple[Mode, ...] = MODES) -> set[bytes | None]:
    """What a power loss now can make of one file; None is a file that is gone."""
    found = set()
    for mode in modes:
        for seed in SEEDS:
            found.add(disk.image(disk.position, mode, seed).contents().get(path))
    return found


class SyncFailures:
    """A disk whose syncs of data fail while `on` is true."""

    def __init__(self) -> None:
        self.on = False
        plan = FaultPlan(Fault("sync_data", 1, "call", forever=True, hook=self._hook))
        self.fs = FaultFilesystem(SimDisk(), plan)

    def _hook(self, _operation: str, path: str) -> None:
        if self.on:
            raise OSError(errno.EIO, "injected", path)
