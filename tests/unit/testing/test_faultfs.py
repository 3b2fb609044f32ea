"""The fault injector: each action, the counting, and a sweep that knows when it is done."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.storage.fs import (
    File,
    Filesystem,
    RealFilesystem,
    read_file,
    write_all,
    write_file_durably,
)
from headrace.testing.faultfs import ERRORS, OPERATIONS, Action, Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk


def faulty(*faults: Fault) -> tuple[FaultFilesystem, SimDisk]:
    disk = SimDisk()
    write_file_durably(disk, "a", [b"0123456789"])
    disk.settle()
    return FaultFilesystem(disk, FaultPlan(*faults)), disk


def on_file(action: Callable[[File], object]) -> Callable[[Filesystem], object]:
    """An action on an open file as an action on a filesystem."""
    return lambda fs: action(fs.open("a"))


CALLS: dict[str, Callable[[Filesystem], object]] = {
    "create": lambda fs: fs.create("new"),
    "open": lambda fs: fs.open("a"),
    "mkdir": lambda fs: fs.mkdir("d"),
    "rename": lambda fs: fs.rename("a", "b"),
    "unlink": lambda fs: fs.unlink("a"),
    "sync_dir": lambda fs: fs.sync_dir(""),
    "pwritev": on_file(lambda file: file.pwritev([b"XY"], 0)),
    "pread": on_file(lambda file: file.pread(1, 0)),
    "pread_nowait": on_file(lambda file: file.pread_nowait(1, 0)),
    "truncate": on_file(lambda file: file.truncate(3)),
    "allocate": on_file(lambda file: file.allocate(30)),
    "sync_data": on_file(lambda file: file.sync_data()),
    "sync": on_file(lambda file: file.sync()),
}


@pytest.mark.parametrize("action", sorted(ERRORS))
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_can_fail_without_effect_and_then_works(
    operation: str, action: Action
) -> None:
    fs, disk = faulty(Fault(operation, 1, action))
    before = disk.contents()
    with pytest.raises(OSError, match="injected") as caught:
        CALLS[operation](fs)
    assert caught.value.errno == ERRORS[action]
    assert disk.contents() == before
    assert not disk.exists("d")
    assert fs.plan.fired == 1
    CALLS[operation](fs)
    assert fs.plan.fired == 1
    assert fs.plan.calls[operation] == 2


def test_open_read_counts_as_open() -> None:
    fs, _ = faulty(Fault("open", 2, "eio"))
    fs.open("a")
    with pytest.raises(OSError, match="injected"):
        fs.open_read("a")


def test_a_fault_strikes_at_its_call_once_or_forever() -> None:
    for forever in (False, True):
        fs, _ = faulty(Fault("pwritev", 3, "eio", forever=forever))
        file = fs.open("a")
        results = []
        for _ in range(5):
            try:
                results.append(file.pwritev([b"x"], 0))
            except OSError:
                results.append(-1)
        assert results == [1, 1, -1, *([-1, -1] if forever else [1, 1])]
        assert fs.plan.fired == (3 if forever else 1)


def test_only_calls_that_match_the_path_are_counted() -> None:
    fs, _ = faulty(Fault("create", 2, "enospc", path="wal/*"), Fault("rename", 1, "eio", path="z"))
    fs.mkdir("wal")
    fs.create("b")
    fs.create("wal/1")
    fs.create("c")
    with pytest.raises(OSError, match="enospc"):
        fs.create("wal/2")
    fs.rename("a", "y")
    with pytest.raises(OSError, match="eio"):
        fs.rename("y", "z")


def test_a_pattern_of_operations_is_counted_together() -> None:
    fs, _ = faulty(Fault("sync*", 3, "eio"))
    file = fs.open("a")
    file.sync()
    fs.sync_dir("")
    with pytest.raises(OSError, match="injected"):
        file.sync_data()


def test_several_faults_count_apart() -> None:
    fs, _ = faulty(Fault("pwritev", 1, "eio"), Fault("pwritev", 2, "enospc"))
    file = fs.open("a")
    for code in (errno.EIO, errno.ENOSPC):
        with pytest.raises(OSError, match="injected") as caught:
            file.pwritev([b"x"], 0)
        assert caught.value.errno == code
    assert file.pwritev([b"x"], 0) == 1
    assert fs.plan.fired == 2


def test_short_writes_and_reads() -> None:
    fs, disk = faulty(Fault("pwritev", 1, "short", count=3), Fault("pwritev", 2, "short"))
    file = fs.open("a")
    assert file.pwritev([b"AB", b"CDEFGH"], 0) == 3
    assert file.pwritev([b"DEFGH"], 3) == 2
    assert disk.contents() == {"a": b"ABCDE56789"}
    fs, _ = faulty(Fault("pread", 1, "short", count=4, forever=True))
    assert fs.open("a").pread(10, 0) == b"0123"
    assert read_file(fs, "a") == b"0123456789"


def test_write_all_gets_through_short_writes_and_notices_no_progress() -> None:
    fs, disk = faulty(Fault("pwritev", 1, "short", count=1, forever=True))
    assert write_all(fs.open("a"), [b"abc", b"", b"de"], 2) == 5
    assert disk.contents() == {"a": b"01abcde789"}
    fs, _ = faulty(Fault("pwritev", 1, "short", count=0, forever=True))
    with pytest.raises(OSError, match="no progress"):
        write_all(fs.open("a"), [b"abc"], 0)


def test_an_error_may_come_after_some_bytes_or_after_the_whole_effect() -> None:
    fs, disk = faulty(Fault("pwritev", 1, "enospc", count=2))
    with pytest.raises(OSError, match="enospc"):
        fs.open("a").pwritev([b"ABC"], 0)
    assert disk.contents() == {"a": b"AB23456789"}
    fs, disk = faulty(Fault("rename", 1, "eio", after=True))
    with pytest.raises(OSError, match="eio"):
        fs.rename("a", "b")
    assert disk.contents() == {"b": b"0123456789"}


@pytest.mark.parametrize("operation", ["sync", "sync_data"])
def test_a_lying_sync_promotes_nothing(operation: str) -> None:
    fs, disk = faulty(Fault(operation, 1, "lie"))
    file = fs.open("a")
    file.pwritev([b"NEW"], 0)
    CALLS[operation](fs)
    assert disk.image(disk.position, "none", 0).contents() == {"a": b"0123456789"}
    CALLS[operation](fs)
    assert disk.image(disk.position, "none", 0).contents() == {"a": b"NEW3456789"}


def test_a_lying_directory_sync_promotes_nothing() -> None:
    fs, disk = faulty(Fault("sync_dir", 1, "lie"))
    fs.unlink("a")
    fs.sync_dir("")
    assert disk.image(disk.position, "none", 0).exists("a")
    fs.sync_dir("")
    assert not disk.image(disk.position, "none", 0).exists("a")


def test_after_a_failed_sync_the_next_one_does_not_save_the_bytes() -> None:
    fs, disk = faulty(Fault("sync_data", 1, "eio"))
    file = fs.open("a")
    file.pwritev([b"NEW"], 0)
    with pytest.raises(OSError, match="eio"):
        file.sync_data()
    file.sync_data()
    assert file.pread(3, 0) == b"NEW"
    assert disk.image(disk.position, "none", 0).contents() == {"a": b"0123456789"}


def test_a_hook_runs_before_or_after_the_call() -> None:
    seen: list[tuple[str, str, bytes]] = []

    def hook(operation: str, path: str) -> None:
        seen.append((operation, path, disk.contents()[path][:1]))

    fs, disk = faulty(
        Fault("pwritev", 1, "call", hook=hook),
        Fault("pwritev", 2, "call", hook=hook, after=True),
    )
    file = fs.open("a")
    assert file.pwritev([b"A"], 0) == 1
    assert file.pwritev([b"B"], 0) == 1
    assert seen == [("pwritev", "a", b"0"), ("pwritev", "a", b"B")]


def test_a_hook_after_a_sync_shows_what_the_sync_did_not_cover() -> None:
    def late(operation: str, path: str) -> None:
        disk.open(path).pwritev([b"LATE"], 6)

    fs, disk = faulty(Fault("sync_data", 1, "call", hook=late, after=True))
    file = fs.open("a")
    file.pwritev([b"EARLY"], 0)
    file.sync_data()
    assert disk.image(disk.position, "none", 0).contents() == {"a": b"EARLY56789"}


def test_a_cached_read_can_miss() -> None:
    fs, _ = faulty(Fault("pread_nowait", 1, "miss"))
    file = fs.open("a")
    assert file.pread_nowait(3, 0) is None
    assert file.pread_nowait(3, 0) == b"012"


def test_a_sweep_over_every_call_leaves_the_old_file_or_the_new_one() -> None:
    for action in ("eio", "enospc", "short"):
        for forever in (False, True):
            operation = "pwritev" if action == "short" else "*"
            n = 0
            while True:
                n += 1
                fs, disk = faulty(Fault(operation, n, action, forever=forever))
                done = False
                try:
                    write_file_durably(fs, "a", [b"new"])
                    done = True
                except OSError:
                    assert fs.plan.fired
                for mode in ("none", "all", "subset", "garbage"):
                    found = disk.image(disk.position, mode, n).contents()["a"]
                    assert found == b"new" or (found == b"0123456789" and not done)
                if not fs.plan.fired:
                    break
            # unlink, create, write, sync, rename, sync_dir; then one past the end.
            assert n == (7 if operation == "*" else 2)
            assert done


def test_faults_strike_on_a_real_filesystem_too(tmp_path: Path) -> None:
    fs = FaultFilesystem(RealFilesystem(tmp_path), FaultPlan(Fault("sync", 1, "eio")))
    with pytest.raises(OSError, match="eio"):
        write_file_durably(fs, "a", [b"x"])
    assert fs.listdir("") == ["a.tmp"]
    write_file_durably(fs, "a", [b"x"])
    assert fs.listdir("") == ["a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fsync", 1, "eio"), "no operation"),
        (("sync", 0, "eio"), "from 1"),
        (("create", 1, "short"), "only for"),
        (("*", 1, "lie"), "only for"),
        (("sync", 1, "call"), "hook"),
    ],
)
def test_a_fault_that_could_never_strike_is_refused(
    arguments: tuple[str, int, Action], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        Fault(*arguments)
