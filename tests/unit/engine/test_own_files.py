"""Files that a server keeps for itself: whole or not at all, and for no other eyes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.engine.own_files import OwnFiles
from headrace.storage.fs import RealFilesystem
from headrace.storage.tools.check import check
from headrace.testing.simdisk import MODES, SimDisk


def test_what_is_written_is_read_and_only_by_the_owner(tmp_path: Path) -> None:
    with Engine.open(tmp_path) as engine:
        assert engine.own_files.read("subscription-keys").result() is None
        engine.own_files.write("subscription-keys", b"one").result()
        engine.own_files.write("subscription-keys", b"two").result()
        assert engine.own_files.read("subscription-keys").result() == b"two"
    report = check(RealFilesystem(str(tmp_path)))
    assert "unknown_file" not in {finding.code for finding in report.findings}
    mode = stat.S_IMODE(os.stat(tmp_path / "meta" / "subscription-keys").st_mode)
    assert mode & 0o077 == 0, oct(mode)


def test_a_crash_leaves_the_old_one_or_the_new_one() -> None:
    disk = SimDisk()
    disk.mkdir("meta")
    files = OwnFiles(disk, StepRuntime(ManualClock()))
    files.write("subscription-keys", b"old").result()
    begun = disk.position
    files.write("subscription-keys", b"new").result()
    ended = disk.position
    for position in range(begun, ended + 1):
        for mode in MODES:
            image = disk.image(position, mode, 1)
            again = OwnFiles(image, StepRuntime(ManualClock()))
            found = again.read("subscription-keys").result()
            assert found in ((b"new",) if position == ended else (b"old", b"new")), (position, mode)
