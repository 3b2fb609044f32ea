"""Marks: what is said of a log in a second place, never too much, and what it proves (L18)."""

from __future__ import annotations

from functools import cache

import pytest
from xxhash import xxh3_64_intdigest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import HeadraceError, UnsupportedFormat, WalCorrupt
from headrace.core.runtime import StepRuntime
from headrace.engine.recovery.log_files import make_durable
from headrace.storage.fs import Filesystem, read_file
from headrace.storage.wal.file import discover, file_path
from headrace.storage.wal.frame import (
    ENTRY_STATE,
    PAGE_BYTES,
    State,
    decode_file_header,
    encode_control,
    encode_file_header,
)
from headrace.storage.wal.mark import (
    MARK_FILE_BYTES,
    Mark,
    decode_mark,
    encode_mark,
    mark_path,
    marks_that_count,
    read_mark,
    write_mark,
)
from headrace.storage.wal.next_file import FileSequence
from headrace.storage.wal.scan import ShardScan
from headrace.storage.wal.scan_shards import scan_all
from headrace.storage.wal.shard import WalShard
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk

FILE_BYTES = 16 << 10
PATH = mark_path("wal")


class Numbered:
    """A commit of 3 KB, and what it was told."""

    def __init__(self, number: int, sync: bool) -> None:
        self.entries = (encode_control(ENTRY_STATE, number, State(b"x" * 3_000)),)
        self.needs_sync = sync
        self.told: list[HeadraceError | None] = []

    def settle(self, error: HeadraceError | None) -> None:
        self.told.append(error)


class Log:
    """A shard on a simulated disk, stepped by hand."""

    def __init__(self, fs: Filesystem, first_number: int = 1) -> None:
        self.runtime = StepRuntime(ManualClock())
        numbers = iter(range(first_number, 10_000))
        files = FileSequence(
            fs, self.runtime, SeededRandom(first_number), "wal", 0, lambda: next(numbers),
            file_bytes=FILE_BYTES,
        )  # fmt: skip
        self.shard = WalShard(
            fs, self.runtime, files,
            batch_bytes_max=8 << 10, pending_bytes_max=1 << 20, sync_interval_ms=50,
        )  # fmt: skip

    def commit(self, number: int, *, sync: bool = True) -> Numbered:
        commit = Numbered(number, sync)
        self.shard.stage(commit)
        self.runtime.run()
        return commit

    def idle(self) -> None:
        for _ in range(4):
            self.runtime.clock.advance(50)  # type: ignore[attr-defined]
            self.runtime.run()


def scan(disk: SimDisk) -> dict[str, ShardScan]:
    marks = marks_that_count(disk, None, 0)
    return scan_all(disk, discover(disk), {}, lambda _kind, _entry: None, marks=marks)


def killed(disk: SimDisk) -> SimDisk:
    return disk.image(disk.position, "all", 0, power_loss=False)


def lost_power(disk: SimDisk) -> SimDisk:
    """The least that a power loss now may leave."""
    return disk.image(disk.position, "none", 0)


@cache
def several_files() -> SimDisk:
    """A log of three files, each with its acknowledgement marked, that then falls idle."""
    disk = SimDisk()
    log = Log(disk)
    log.shard.start(0, [])
    for number in range(9):
        assert log.commit(number).told == [None]
        disk.mark(log.shard.durable)
    log.idle()
    assert len(discover(disk)["wal"]) > 3
    return disk


def test_a_mark_comes_back_and_nothing_else_is_one() -> None:
    mark = Mark(7, 3, 4096)
    data = encode_mark(mark, "wal").ljust(MARK_FILE_BYTES, b"\0")
    assert decode_mark(data, "wal", PATH) == mark
    assert decode_mark(data, "wal/shard-00", PATH) is None
    for bit in range(8 * 56):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        assert decode_mark(bytes(spoilt), "wal", PATH) is None
    newer = data[PAGE_BYTES:] + encode_mark(Mark(8, 3, 9000), "wal").ljust(PAGE_BYTES, b"\0")
    assert decode_mark(newer, "wal", PATH) == Mark(8, 3, 9000)


def test_l4_marks_of_a_newer_version_are_refused_by_name() -> None:
    disk = SimDisk()
    disk.mkdir("meta")
    write_mark(disk, "wal", 1, 4096)
    data = bytearray(read_file(disk, PATH)[:48])
    data[8] = 2
    disk.overwrite(PATH, 0, bytes(data) + xxh3_64_intdigest(bytes(data)).to_bytes(8, "little"))
    with pytest.raises(UnsupportedFormat, match=r"mark-wal\.bin has format version 2"):
        read_mark(disk, "wal")


def test_what_is_acknowledged_as_synced_is_marked_before() -> None:
    disk = SimDisk()
    log = Log(disk)
    log.shard.start(0, [])
    for number in range(9):
        assert log.commit(number).told == [None]
        mark = read_mark(killed(disk), "wal").mark
        assert mark is not None and mark.durable == log.shard.durable
        assert mark.file_no == max(n for n, used in used_files(disk).items() if used)


def used_files(disk: SimDisk) -> dict[int, bool]:
    numbers = discover(disk)["wal"]
    return {n: any(disk.contents()[file_path("wal", n)][PAGE_BYTES:]) for n in numbers}


def test_no_power_loss_leaves_a_mark_that_says_too_much() -> None:
    """However the log and its marks reach the disk, every crash is accepted."""
    disk = several_files()
    for seed in range(2):
        for crash in disk.images(seed=seed, distinct=True):
            scan(crash.disk)
            assert not read_mark(crash.disk, "wal").problem


def test_what_was_acknowledged_in_a_new_file_is_missed_after_a_power_loss_too() -> None:
    disk = SimDisk()
    log = Log(disk)
    log.shard.start(0, [])
    number, seen = 0, {1}
    while len(seen) < 4:
        log.commit(number)
        number += 1
        newest = max(n for n, used in used_files(disk).items() if used)
        if newest in seen:
            continue
        seen.add(newest)
        after = lost_power(disk)
        assert scan(after)["wal"].last_number == newest
        after.unlink(file_path("wal", newest))
        with pytest.raises(WalCorrupt, match=f"{newest}.log"):
            scan(after)


def test_a_log_that_fell_idle_is_known_whole_after_a_power_loss() -> None:
    disk = lost_power(several_files())
    last = max(n for n, used in used_files(disk).items() if used)
    path = file_path("wal", last)
    end = len(disk.contents()[path].rstrip(b"\0"))
    disk.zero(path, end - 60, 60)
    with pytest.raises(WalCorrupt, match="says that it was on disk up to"):
        scan(disk)


def test_a_file_shorter_than_it_was_made_is_refused_though_no_batch_is_gone() -> None:
    disk = killed(several_files())
    for number, used in used_files(disk).items():
        path = file_path("wal", number)
        size = len(disk.contents()[path])
        disk.truncate_to(path, size - 1)
        if used:
            with pytest.raises(WalCorrupt, match="it is cut, and was made with 16384 bytes"):
                scan(disk)
        else:
            scan(disk)  # as a crash may leave it
        disk.truncate_to(path, size)
    scan(disk)


def test_files_of_version_1_say_nothing_of_their_length() -> None:
    disk = killed(several_files())
    disk.unlink(PATH)
    disk.settle()
    for number in used_files(disk):
        path = file_path("wal", number)
        header = decode_file_header(disk.contents()[path][:PAGE_BYTES], path)
        assert header is not None
        disk.overwrite(path, 0, encode_file_header(header._replace(version=1)))
        used = len(disk.contents()[path].rstrip(b"\0"))
        disk.truncate_to(path, used + 16 - used % 8)  # entries end with zeros
    assert scan(disk)["wal"].last_number > 1


def test_a_file_that_was_begun_and_holds_nothing_may_go_after_its_mark() -> None:
    disk = SimDisk()
    log = Log(disk)
    log.shard.start(0, [])
    log.commit(1)
    log.shard.rotate()
    disk = killed(disk)
    begun = read_mark(disk, "wal").mark
    assert begun is not None and begun.file_no == 2
    scans = scan(disk)
    assert file_path("wal", 2) in scans["wal"].useless
    make_durable(disk, discover(disk), scans)
    assert 2 not in discover(disk)["wal"]
    for crash in disk.images(distinct=True):
        scan(crash.disk)
    # Without that it is missed.
    disk = killed(disk)
    write_mark(disk, "wal", 2, 0)
    with pytest.raises(WalCorrupt, match=r"wal-0000000000000002\.log is missing or cut to nothing"):
        scan(disk)


def test_an_older_mark_says_less_and_is_still_true() -> None:
    disk = killed(several_files())
    number = 0
    while number < several_files().position:
        number += 7
        older = several_files().image(min(number, several_files().position), "all", 0)
        if PATH not in older.contents():
            continue
        data = older.contents()[PATH]
        disk.overwrite(PATH, 0, data)
        scan(disk)


@pytest.mark.parametrize("action", ["enospc", "eio"])
def test_a_mark_that_finds_no_room_can_wait_and_one_that_fails_cannot(action: str) -> None:
    # The file is made by one write, and the start marks twice.
    plan = FaultPlan(Fault("pwritev", 4, action, path="meta/*"))  # type: ignore[arg-type]
    log = Log(FaultFilesystem(SimDisk(), plan))
    log.shard.start(0, [])
    assert not plan.fired
    (error,) = log.commit(1).told
    assert plan.fired
    assert (error is None) == (action == "enospc")
    assert log.shard.state == ("ok" if action == "enospc" else "wal_read_only")


def test_without_room_for_marks_the_log_goes_on_without() -> None:
    disk = SimDisk()
    fs = FaultFilesystem(disk, FaultPlan(Fault("create", 1, "enospc", path="meta/*")))
    log = Log(fs)
    log.shard.start(0, [])
    assert log.commit(1).told == [None]
    log.shard.close()
    assert PATH not in disk.contents()
    scan(disk.copy())
    again = Log(disk, first_number=10)
    again.shard.start(1 << 20, [])
    assert read_mark(disk, "wal").mark == Mark(2, 10, again.shard.durable)


def test_what_is_wrong_with_a_file_of_marks_is_said() -> None:
    disk = killed(several_files())
    assert read_mark(disk, "wal").problem == ""
    disk.truncate_to(PATH, 5_000)
    assert "5000 bytes" in read_mark(disk, "wal").problem
    assert read_mark(disk, "wal").mark is not None
    disk.overwrite(PATH, 0, bytes(range(200)) * 25)
    disk.truncate_to(PATH, MARK_FILE_BYTES)
    assert "checksum" in read_mark(disk, "wal").problem
    scan(disk)
