"""A machine whose power can be cut: a block device, a real filesystem on it, and a boot id.

The rule it owns: all of it is gone when the process is, however that ends.  The mounts are in a
mount namespace that only its children have, and the loop device detaches itself (autoclear) when
its filesystem is unmounted, so that there is nothing to clean up after `kill -9`.  The process that
serves the disk stays outside of that namespace: the last one inside unmounts it by its end, and
would wait for itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.harness.fuse_disk import DEVICE, NAME, mount, mount_options
from tests.harness.write_log import DiskMode
from tests.support.checkout import ROOT

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
ANSWER_SECONDS_MAX: Final = 60.0
COMMAND_SECONDS_MAX: Final = 120.0
LOOP_TRIES_MAX: Final = 20  # others look for a free loop device, too

_NEW_NAMESPACE: Final = 0x00020000  # CLONE_NEWNS
_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG
_BIND, _PRIVATE_RECURSIVELY = 4096, (1 << 18) | 16384
_LOOP_CONTROL: Final = "/dev/loop-control"
_LOOP_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_LOOP_CONFIG: Final = struct.Struct("<II5Q4I64s64s32s2Q8Q")
_AUTOCLEAR: Final = 4
# What ext4 and xfs do at once when told: nothing more is written, as on a machine without power.
_SHUTDOWN, _SHUTDOWN_WITHOUT_LOG = 0x8004587D, 2


class FilesystemKind(NamedTuple):
    """A filesystem, how it is made and mounted, and on what disk."""

    name: str
    make: list[str]
    options: str
    sector: int  # what the disk writes whole or not at all
    package: str
    stops_when_told: bool = True

    @property
    def type(self) -> str:
        return self.name.partition(" ")[0]


_EXT4: Final = ["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]
# xfs logs parts of blocks, so that a block of 4 KiB must not be torn: it gets a disk that does not.
FILESYSTEMS: Final = (
    FilesystemKind("ext4", _EXT4, "noatime", 512, "e2fsprogs"),
    FilesystemKind("xfs", ["mkfs.xfs", "-q", "-f", "-K"], "noatime", 4096, "xfsprogs"),
    FilesystemKind("ext4 data=writeback", _EXT4, "noatime,data=writeback", 512, "e2fsprogs"),
    FilesystemKind(
        "btrfs", ["mkfs.btrfs", "-q", "-f", "-K"], "noatime", 4096, "btrfs-progs", False
    ),
)


def missing() -> str | None:
    """Why there can be no such machine here, and what to do about that."""
    if os.geteuid() != 0:
        return "it mounts filesystems; run it as root"
    for device in (DEVICE, _LOOP_CONTROL):
        if not os.path.exists(device):
            return f"there is no {device}; run it where the kernel has FUSE and loop devices"
    for kind in FILESYSTEMS:
        if shutil.which(kind.make[0]) is None:
            return f"there is no {kind.make[0]}; apt-get install {kind.package}"
    return None


def _leave_others() -> None:
    """From now on this process and its children see mounts that nobody else sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NAMESPACE):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", "none", None, _PRIVATE_RECURSIVELY)


def die_with_parent() -> None:
    """End by SIGKILL when the thread that started this process ends, however it does."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


class DyingPopen(subprocess.Popen[bytes]):
    """A process that does not outlive the thread that started it."""

    def __init__(self, command: list[str], **how: Any) -> None:
        super().__init__(command, preexec_fn=die_with_parent, **how)


class NotMounted(Exception):
    """The filesystem itself did not survive: nothing can be said about what was in it."""


class Machine:
    """A disk with a filesystem, mounted at `root`, which only children of this process see."""

    def __init__(self, directory: Path, kind: FilesystemKind, size: int) -> None:
        self._kind = kind
        self.root = directory / "root"
        self._device = directory / "device"
        self._boot = directory / "boot_id"
        for made in (self.root, self._device):
            made.mkdir()
        fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        self._disk = DyingPopen(
            [sys.executable, "-m", "tests.harness.fuse_disk", str(fd), str(directory / "image"),
             str(size), str(kind.sector)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, pass_fds=[fd],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )  # fmt: skip
        _leave_others()
        mount("headrace-power", str(self._device), "fuse", mount_options(fd))
        os.close(fd)
        self._boot_anew()
        mount(str(self._boot), BOOT_ID, "none", None, _BIND)
        self.mounted = False

    def close(self) -> None:
        """End it, as a power loss would."""
        if self.mounted:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                self.arm(0, 0)
                self._unmount()
        for pipe in (self._disk.stdin, self._disk.stdout):
            assert pipe is not None
            pipe.close()
        self._disk.wait(COMMAND_SECONDS_MAX)
        for mounted in (str(self._device), BOOT_ID):
            with contextlib.suppress(subprocess.SubprocessError):
                _run(["umount", mounted])

    def make_filesystem(self) -> None:
        """An empty filesystem, mounted."""
        with self._looped() as device:
            _run([*self._kind.make, device])
            self._mount(device)

    def arm(self, after: int, pending: int) -> None:
        """Have the power go after so many more writes and syncs, and so many that no sync covers.

        From then on nothing reaches the disk, and nothing comes from it.
        """
        self._tell({"do": "cut", "after": after, "pending": pending})

    def wait_for_cut(self, patience: float) -> dict[str, int]:
        """When the power went, at the latest after so many seconds, and what was not synced."""
        out = self._disk.stdout
        assert out is not None
        if not select.select([out], [], [], patience)[0]:
            self.arm(0, 0)
        return self._heard()

    def come_back(self, mode: DiskMode, seed: int) -> Counter[str]:
        """Boot with what the disk holds.  No process may use the filesystem any more."""
        self._unmount()
        self._tell({"do": "back", "mode": mode, "seed": seed})
        left = Counter(self._heard())
        self._boot_anew()
        with self._looped() as device:
            self._mount(device)
        return left

    def _boot_anew(self) -> None:
        self._boot.write_text(f"{uuid.uuid4()}\n")

    # The disk

    def _tell(self, what: dict[str, object]) -> None:
        assert self._disk.stdin is not None
        self._disk.stdin.write(json.dumps(what).encode() + b"\n")
        self._disk.stdin.flush()

    def _heard(self) -> dict[str, int]:
        out = self._disk.stdout
        assert out is not None
        line = out.readline() if select.select([out], [], [], ANSWER_SECONDS_MAX)[0] else b""
        if not line:
            raise RuntimeError("the disk does not answer")
        found: dict[str, int] = json.loads(line)
        return found

    # The filesystem

    def _looped(self) -> contextlib.AbstractContextManager[str]:
        return _looped(self._device / NAME, self._kind.sector)

    def _mount(self, device: str) -> None:
        kind = self._kind
        try:
            _run(["mount", "-t", kind.type, "-o", kind.options, device, str(self.root)])
        except subprocess.CalledProcessError as error:
            raise NotMounted(error.stderr.decode(errors="replace").strip()) from None
        self.mounted = True

    def _unmount(self) -> None:
        if self._kind.stops_when_told:
            with contextlib.suppress(OSError):  # it has noticed by itself
                fd = os.open(self.root, os.O_RDONLY)
                try:
                    fcntl.ioctl(fd, _SHUTDOWN, struct.pack("<I", _SHUTDOWN_WITHOUT_LOG))
                finally:
                    os.close(fd)
        _run(["umount", str(self.root)])
        self.mounted = False


@contextlib.contextmanager
def _looped(path: Path, sector: int):  # type: ignore[no-untyped-def]
    """A loop device on a file; it stays for as long as something that is mounted from it."""
    with open(path, "r+b", buffering=0) as backing:
        for _ in range(LOOP_TRIES_MAX):
            with open(_LOOP_CONTROL, "r+b", buffering=0) as control:
                number = fcntl.ioctl(control, _LOOP_GET_FREE)
            device = f"/dev/loop{number}"
            fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                fields = (backing.fileno(), sector, 0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR)
                names = (b"headrace-power", b"", b"")
                config = _LOOP_CONFIG.pack(*fields, *names, *[0] * 10)
                fcntl.ioctl(fd, _LOOP_CONFIGURE, config)
            except OSError:  # another process was faster
                os.close(fd)
                continue
            try:
                yield device
            finally:
                os.close(fd)
            return
    raise RuntimeError("no loop device is free")


def _run(command: list[str]) -> None:
    subprocess.run(
        command, check=True, timeout=COMMAND_SECONDS_MAX, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=die_with_parent,
    )  # fmt: skip
