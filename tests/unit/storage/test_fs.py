"""One contract for every filesystem: the real one, the simulated one, and one that may fail."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import DataDirLocked
from headrace.storage.fs import (
    BUFFERS_PER_CALL_MAX,
    Filesystem,
    RealFilesystem,
    parent,
    read_exact,
    read_file,
    write_all,
    write_file_durably,
)
from headrace.testing.faultfs import FaultFilesystem
from headrace.testing.simdisk import MODES, SimDisk

MAKERS: dict[str, Callable[[Path], Filesystem]] = {
    "real": RealFilesystem,
    "sim": lambda _: SimDisk(),
    "fault-sim": lambda _: FaultFilesystem(SimDisk()),
    "fault-real": lambda path: FaultFilesystem(RealFilesystem(path)),
}


@pytest.fixture(params=sorted(MAKERS))
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Filesystem:
    return MAKERS[request.param](tmp_path)


def put(fs: Filesystem, path: str, data: bytes) -> None:
    file = fs.create(path)
    write_all(file, [data], 0)
    file.close()


def test_a_file_is_created_written_and_read(fs: Filesystem) -> None:
    file = fs.create("a")
    assert file.path == "a"
    assert file.size() == 0
    assert file.pwritev([b"hello ", bytearray(b"wor"), memoryview(b"ld")], 0) == 11
    assert file.pwritev([b"J"], 0) == 1
    assert file.pread(5, 0) == b"Jello"
    assert file.pread(100, 6) == b"world"
    assert file.pread(10, 11) == b""
    assert file.pread(10, 5000) == b""
    assert file.pread(0, 0) == b""
    assert file.size() == 11
    file.sync_data()
    file.sync()
    file.close()
    file.close()
    assert read_file(fs, "a") == b"Jello world"


def test_writing_beyond_the_end_leaves_zeros(fs: Filesystem) -> None:
    file = fs.create("a")
    file.pwritev([b"end"], 10_000)
    assert file.size() == 10_003
    assert file.pread(20_000, 0) == bytes(10_000) + b"end"
    assert file.pwritev([b""], 50_000) == 0
    assert file.pwritev([], 50_000) == 0
    assert file.size() == 10_003
    file.close()


def test_truncate_shrinks_and_grows_with_zeros(fs: Filesystem) -> None:
    file = fs.create("a")
    file.pwritev([b"x" * 9000], 0)
    file.truncate(5000)
    file.truncate(7000)
    assert file.pread(9000, 0) == b"x" * 5000 + bytes(2000)
    file.truncate(0)
    assert file.size() == 0
    file.close()


def test_a_read_without_waiting_is_whole_or_nothing(fs: Filesystem) -> None:
    put(fs, "a", b"0123456789")
    file = fs.open_read("a")
    assert file.pread_nowait(4, 2) in (b"2345", None)
    assert file.pread_nowait(11, 0) is None
    file.close()


def test_more_buffers_than_one_call_takes_are_a_short_write(fs: Filesystem) -> None:
    file = fs.create("a")
    buffers = [b"ab"] * (BUFFERS_PER_CALL_MAX + 5)
    assert file.pwritev(buffers, 0) == 2 * BUFFERS_PER_CALL_MAX
    assert write_all(file, buffers, 0) == 2 * len(buffers)
    assert file.pread(5000, 0) == b"".join(buffers)
    file.close()


def test_reading_handles_do_not_write(fs: Filesystem) -> None:
    put(fs, "a", b"x")
    file = fs.open_read("a")
    with pytest.raises(OSError) as caught:  # noqa: PT011
        file.pwritev([b"y"], 0)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(OSError) as caught:  # noqa: PT011
        file.truncate(0)
    assert caught.value.errno == errno.EINVAL
    assert file.pread(1, 0) == b"x"
    file.close()


def test_closed_handles_and_negative_offsets_are_refused(fs: Filesystem) -> None:
    file = fs.create("a")
    for wrong in (lambda: file.pread(1, -1), lambda: file.pwritev([b"x"], -1)):
        with pytest.raises(OSError) as caught:  # noqa: PT011
            wrong()
        assert caught.value.errno == errno.EINVAL
    file.close()
    calls: list[Callable[[], object]] = [
        lambda: file.pread(1, 0),
        lambda: file.pwritev([b"x"], 0),
        file.size,
    ]
    for call in calls:
        with pytest.raises(OSError) as caught:  # noqa: PT011
            call()
        assert caught.value.errno == errno.EBADF
    # Python itself refuses the descriptor of a closed file before the system could.
    for sync in (file.sync, file.sync_data):
        with pytest.raises((OSError, ValueError)):
            sync()


def test_create_needs_a_new_name_and_open_an_old_one(fs: Filesystem) -> None:
    put(fs, "a", b"x")
    with pytest.raises(FileExistsError):
        fs.create("a")
    for opener in (fs.open, fs.open_read):
        with pytest.raises(FileNotFoundError):
            opener("b")
    with pytest.raises(FileNotFoundError):
        fs.create("missing/b")
    with pytest.raises(NotADirectoryError):
        fs.create("a/b")
    assert read_file(fs, "a") == b"x"


def test_directories_are_made_with_parents_and_listed_in_order(fs: Filesystem) -> None:
    assert fs.listdir("") == []
    assert fs.listdir("d/e") == []
    fs.mkdir("d/e")
    fs.mkdir("d/e")
    fs.mkdir("d")
    put(fs, "d/z", b"")
    put(fs, "d/e/deep", b"")
    put(fs, "d/b", b"")
    assert fs.listdir("") == ["d"]
    assert fs.listdir("d") == ["b", "e", "z"]
    assert fs.listdir("d/e") == ["deep"]
    assert fs.exists("")
    assert fs.exists("d/e")
    assert fs.exists("d/b")
    assert not fs.exists("d/b/x")
    assert not fs.exists("e")
    with pytest.raises(NotADirectoryError):
        fs.listdir("d/b")
    with pytest.raises(IsADirectoryError):
        fs.open("d")


def test_rename_moves_and_replaces(fs: Filesystem) -> None:
    fs.mkdir("d")
    put(fs, "a", b"new")
    put(fs, "d/b", b"old")
    held = fs.open("d/b")
    fs.rename("a", "d/b")
    assert not fs.exists("a")
    assert read_file(fs, "d/b") == b"new"
    assert held.pread(3, 0) == b"old"
    held.close()
    fs.rename("d/b", "d/b")
    fs.rename("d/b", "c")
    assert fs.listdir("") == ["c", "d"]
    assert fs.listdir("d") == []
    with pytest.raises(FileNotFoundError):
        fs.rename("missing", "c")
    with pytest.raises(FileNotFoundError):
        fs.rename("c", "missing/c")
    with pytest.raises(IsADirectoryError):
        fs.rename("c", "d")
    assert read_file(fs, "c") == b"new"


def test_unlink_forgives_a_missing_file_and_open_handles_stay(fs: Filesystem) -> None:
    put(fs, "a", b"x")
    file = fs.open("a")
    fs.unlink("a")
    fs.unlink("a")
    fs.unlink("missing/a")
    assert fs.listdir("") == []
    assert file.pwritev([b"yz"], 1) == 2
    file.sync()
    assert file.pread(9, 0) == b"xyz"
    put(fs, "a", b"another")
    assert file.pread(9, 0) == b"xyz"
    file.close()
    fs.mkdir("d")
    with pytest.raises(IsADirectoryError):
        fs.unlink("d")


def test_sync_dir_wants_a_directory(fs: Filesystem) -> None:
    fs.mkdir("d")
    fs.sync_dir("")
    fs.sync_dir("d")
    put(fs, "a", b"")
    with pytest.raises(FileNotFoundError):
        fs.sync_dir("missing")
    with pytest.raises(NotADirectoryError):
        fs.sync_dir("a")


def test_a_lock_is_held_by_one_at_a_time(fs: Filesystem) -> None:
    lock = fs.lock(".lock")
    assert fs.exists(".lock")
    with pytest.raises(DataDirLocked) as caught:
        fs.lock(".lock")
    assert caught.value.fix
    fs.lock("other").release()
    lock.release()
    lock.release()
    fs.lock(".lock").release()


def test_a_filesystem_tells_about_itself(fs: Filesystem) -> None:
    assert fs.free_bytes() > 0
    assert len(fs.boot_id()) == 16
    assert fs.boot_id() == fs.boot_id()
    assert fs.describe("d/a").endswith("/d/a")


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "d/../../a"])
def test_paths_stay_inside(fs: Filesystem, path: str) -> None:
    with pytest.raises(AssertionError):
        fs.create(path)


def test_read_exact_says_where_a_file_ends(fs: Filesystem) -> None:
    put(fs, "a", b"0123456789")
    file = fs.open_read("a")
    assert read_exact(file, 10, 0) == b"0123456789"
    assert read_exact(file, 0, 50) == b""
    with pytest.raises(EOFError, match="ends at 10, wanted 12"):
        read_exact(file, 7, 5)
    file.close()


def test_write_file_durably_replaces_and_leaves_nothing_behind(fs: Filesystem) -> None:
    fs.mkdir("d")
    put(fs, "d/a.tmp", b"left by a crash")
    for data in (b"one", b"three"):
        write_file_durably(fs, "d/a", [data[:1], data[1:]])
        assert read_file(fs, "d/a") == data
        assert fs.listdir("d") == ["a"]


def test_write_file_durably_is_old_or_new_after_every_crash() -> None:
    disk = SimDisk()
    write_file_durably(disk, "a", [b"old" * 500])
    disk.settle()
    write_file_durably(disk, "a", [b"new" * 700])
    for seed in range(20):
        for position, mode, image in disk.images(MODES, seed):
            found = read_file(image, "a")
            last = position == disk.position
            assert found == b"new" * 700 or (found == b"old" * 500 and not last), mode


def test_parent() -> None:
    assert [parent(p) for p in ("", "a", "d/a", "d/e/a")] == ["", "", "d", "d/e"]


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["create", "write", "truncate", "rename", "unlink", "read", "sync"]),
        st.sampled_from(["a", "b", "d/a"]),
        st.sampled_from(["a", "b", "d/a"]),
        st.integers(0, 9000),
        st.integers(0, 9000),
    ),
    max_size=30,
)


def attempt(fs: Filesystem, call: tuple[str, str, str, int, int]) -> object:
    """Make one call; what came of it, an error by its number."""
    kind, path, other, offset, length = call
    result: object = None
    try:
        if kind == "rename":
            fs.rename(path, other)
            return result
        if kind == "unlink":
            fs.unlink(path)
            return result
        file = fs.create(path) if kind == "create" else fs.open(path)
        if kind == "write":
            result = file.pwritev([bytes([length % 251]) * length], offset)
        elif kind == "truncate":
            file.truncate(offset)
        elif kind == "sync":
            file.sync()
        else:
            result = file.pread(length, offset)
        file.close()
    except OSError as error:
        result = error.errno
    return result


@settings(max_examples=60, deadline=None)
@given(CALLS)
def test_simulated_and_real_agree_on_any_calls(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, str, str, int, int]]
) -> None:
    real, sim = RealFilesystem(tmp_path_factory.mktemp("fs")), SimDisk()
    for fs in (real, sim):
        fs.mkdir("d")
    for call in calls:
        assert attempt(real, call) == attempt(sim, call), call
    assert [real.listdir(d) for d in ("", "d")] == [sim.listdir(d) for d in ("", "d")]
    for path, data in sim.contents().items():
        assert read_file(real, path) == data
