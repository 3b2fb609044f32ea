"""What a power loss may take of bytes and names, and what it must leave, mode by mode."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.fs import read_file, write_all
from headrace.testing.diskmodel import MODES, PAGE_BYTES, SECTOR_BYTES, Mode
from headrace.testing.simdisk import SimDisk
from tests.support.sim_disks import SEEDS, disk_with, outcomes

DAMAGING: tuple[Mode, ...] = ("prefix", "subset", "torn", "garbage")


# What is pending, and what is not.


def test_none_loses_and_all_keeps_what_was_not_synced() -> None:
    disk = disk_with("a", b"old")
    disk.open("a").pwritev([b"new!"], 0)
    assert outcomes(disk, "a", ("none",)) == {b"old"}
    assert outcomes(disk, "a", ("all",)) == {b"new!"}


@pytest.mark.parametrize("sync", ["sync", "sync_data"])
def test_synced_bytes_survive_every_mode(sync: str) -> None:
    disk = disk_with("a", b"x" * 3000)
    file = disk.open("a")
    file.pwritev([b"y" * 700], 2900)
    getattr(file, sync)()
    assert outcomes(disk, "a") == {b"x" * 2900 + b"y" * 700}


def test_a_sync_covers_only_its_own_file() -> None:
    disk = disk_with("a", b"one")
    disk.open("a").pwritev([b"two"], 0)
    other = disk.create("b")
    other.sync()
    assert outcomes(disk, "a", ("none",)) == {b"one"}


def test_synced_pages_are_never_touched_by_writes_to_other_pages() -> None:
    synced = bytes(range(256)) * 32
    disk = disk_with("a", synced)
    file = disk.open("a")
    for index in range(4):
        file.pwritev([b"z" * 900], len(synced) + index * 900)
    for found in outcomes(disk, "a"):
        assert found is not None
        assert found[: len(synced)] == synced


def test_a_write_spoils_synced_neighbours_in_its_page_only_when_not_powersafe() -> None:
    for powersafe in (False, True):
        disk = disk_with("a", b"s" * 1000, powersafe=powersafe)
        disk.open("a").pwritev([b"n" * 1000], 1000)
        spoilt = set()
        for mode in MODES:
            if {f and f[:1000] for f in outcomes(disk, "a", (mode,))} != {b"s" * 1000}:
                spoilt.add(mode)
        assert spoilt == (set() if powersafe else {"torn", "garbage"})


def test_overwriting_in_place_gives_old_new_or_garbage() -> None:
    for powersafe in (False, True):
        disk = disk_with("a", b"o" * PAGE_BYTES, powersafe=powersafe)
        disk.open("a").pwritev([b"n" * SECTOR_BYTES], 1024)
        found = {f[1024:1536] for f in outcomes(disk, "a") if f is not None}
        assert {b"o" * 512, b"n" * 512, bytes(512)} < found
        assert any(set(sector) - set(b"on\0") for sector in found)


def test_prefix_keeps_writes_in_order() -> None:
    disk = disk_with("a", bytes(40))
    file = disk.open("a")
    for index in range(4):
        file.pwritev([b"w" * 10], index * 10)
    expected = {(b"w" * 10 * n).ljust(40, b"\0") for n in range(5)}
    assert outcomes(disk, "a", ("prefix",)) == expected


def test_prefix_can_be_one_moment_for_the_whole_disk() -> None:
    disk = disk_with("a", b"0")
    write_all(disk.create("b"), [b"0"], 0)
    disk.settle()
    for index in range(1, 5):
        disk.open("a").pwritev([b"%d" % index], 0)
        disk.open("b").pwritev([b"%d" % index], 0)
    found = [tuple(disk.image(8, "prefix", s).contents().values()) for s in range(400)]
    together = {(b"%d" % a, b"%d" % b) for a in range(5) for b in range(5) if a - b in (0, 1)}
    assert together < set(found), "files also have moments of their own"
    # Independent moments alone would agree in 9 of 25 images.
    assert sum(pair in together for pair in found) > len(found) / 2


def test_subset_keeps_later_writes_without_earlier_ones_and_single_sectors() -> None:
    disk = disk_with("a", bytes(4 * SECTOR_BYTES))
    disk.open("a").pwritev([b"1" * SECTOR_BYTES], 0)
    disk.open("a").pwritev([b"2" * 3 * SECTOR_BYTES], SECTOR_BYTES)
    found = {tuple(f[::SECTOR_BYTES]) for f in outcomes(disk, "a", ("subset",)) if f}
    assert found == set(product((0, ord("1")), *[(0, ord("2"))] * 3))


def test_torn_cuts_at_sectors_and_at_pages() -> None:
    disk = disk_with("a", bytes(4 * PAGE_BYTES), powersafe=True)
    disk.open("a").pwritev([b"w" * (2 * PAGE_BYTES)], 100)
    cuts = set()
    for found in outcomes(disk, "a", ("torn",)):
        assert found is not None
        kept = found[100 : 100 + 2 * PAGE_BYTES]
        cuts.add(100 + len(kept) - len(kept.lstrip(b"w")))
    whole = {cut for cut in cuts if cut % SECTOR_BYTES == 0}
    assert len(whole) >= 10
    assert {PAGE_BYTES, 2 * PAGE_BYTES} < whole
    assert cuts - whole <= {100}


def test_garbage_holds_bytes_nobody_wrote() -> None:
    disk = disk_with("a", b"")
    disk.open("a").pwritev([b"w" * 2048], 0)
    found = outcomes(disk, "a", ("garbage",))
    assert any(set(f or b"") - set(b"w\0") for f in found)
    assert any(b"w" * 512 + bytes(512) in (f or b"") for f in found)


def test_an_extension_may_survive_without_its_bytes_and_the_reverse() -> None:
    disk = disk_with("a", b"s" * PAGE_BYTES)
    disk.open("a").pwritev([b"w" * PAGE_BYTES], PAGE_BYTES)
    found = outcomes(disk, "a", ("subset",))
    assert b"s" * PAGE_BYTES + bytes(PAGE_BYTES) in found
    assert b"s" * PAGE_BYTES in found
    assert b"s" * PAGE_BYTES + b"w" * SECTOR_BYTES in found
    assert all(len(f or b"") >= PAGE_BYTES for f in found)


def test_a_truncate_is_pending_too() -> None:
    disk = disk_with("a", b"x" * 5000)
    file = disk.open("a")
    file.truncate(4500)
    assert outcomes(disk, "a", ("prefix",)) == {b"x" * 5000, b"x" * 4500}
    assert all(4500 <= len(f or b"") <= 5000 for f in outcomes(disk, "a"))
    file.sync()
    assert outcomes(disk, "a") == {b"x" * 4500}


def test_a_failed_sync_takes_the_bytes_from_every_later_sync() -> None:
    disk = disk_with("a", b"old")
    file = disk.open("a")
    file.pwritev([b"BAD"], 0)
    file.sync_failed()
    file.pwritev([b"more"], 3)
    file.sync()
    assert file.pread(9, 0) == b"BADmore"
    assert outcomes(disk, "a") == {b"oldmore", b"BADmore"}
    assert outcomes(disk, "a", ("all",)) == {b"BADmore"}


# Names.


def test_a_synced_file_whose_name_is_not_synced_can_be_gone() -> None:
    disk = SimDisk()
    file = disk.create("a")
    file.pwritev([b"x"], 0)
    file.sync()
    assert outcomes(disk, "a") == {None, b"x"}
    disk.sync_dir("")
    assert outcomes(disk, "a") == {b"x"}


def test_sync_dir_covers_only_its_own_directory() -> None:
    disk = SimDisk()
    disk.mkdir("d/e")
    for path in ("a", "d/a", "d/e/a"):
        disk.create(path)
    disk.sync_dir("d")
    assert disk.image(disk.position, "none", 0).contents() == {"d/a": b""}


@pytest.mark.parametrize("mode", DAMAGING)
def test_a_rename_not_synced_is_lost_or_kept_and_never_half_done(mode: Mode) -> None:
    disk = disk_with("a", b"new")
    write_all(disk.create("b"), [b"old"], 0)
    disk.settle()
    disk.rename("a", "b")
    found = [disk.image(1, mode, s).contents() for s in SEEDS]
    assert {"a": b"new", "b": b"old"} in found
    assert {"b": b"new"} in found
    assert all(f in ({"a": b"new", "b": b"old"}, {"b": b"new"}) for f in found)


def test_an_unlink_not_synced_may_come_back() -> None:
    disk = disk_with("a", b"x")
    disk.unlink("a")
    assert outcomes(disk, "a") == {b"x", None}
    disk.sync_dir("")
    assert outcomes(disk, "a") == {None}


def test_names_survive_in_order_or_in_any_subset_by_mode() -> None:
    disk = SimDisk()
    for name in "abc":
        disk.create(name)
    ordered = {"", "a", "ab", "abc"}
    for mode in DAMAGING:
        found = {"".join(disk.image(3, mode, s).contents()) for s in SEEDS}
        expected = ordered | {"b", "c", "ac", "bc"} if mode in ("subset", "garbage") else ordered
        assert found == expected, mode


def test_a_rename_across_directories_never_loses_the_file() -> None:
    for synced, expected in (
        (None, {("d/a",), ("e/a",)}),
        ("e", {("d/a", "e/a"), ("e/a",)}),
        ("d", {("e/a",)}),
    ):
        disk = disk_with("d/a", b"x")
        disk.mkdir("e")
        disk.rename("d/a", "e/a")
        if synced is not None:
            disk.sync_dir(synced)
        end = disk.position
        found = {tuple(disk.image(end, m, s).contents()) for m in MODES for s in range(50)}
        assert found == expected, synced


def test_mkdir_is_durable_on_return_and_a_crash_can_fall_inside() -> None:
    disk = SimDisk()
    disk.mkdir("d/e")
    assert disk.image(disk.position, "none", 0).exists("d/e")
    assert not disk.image(1, "none", 0).exists("d")
    assert disk.image(3, "none", 0).exists("d")
    assert not disk.image(3, "none", 0).exists("d/e")


def test_a_name_used_again_keeps_its_two_files_apart() -> None:
    disk = disk_with("a", b"first")
    disk.unlink("a")
    file = disk.create("a")
    file.pwritev([b"second"], 0)
    file.sync()
    assert outcomes(disk, "a", ("none", "all", "prefix", "subset")) == {b"first", b"second", None}


def test_zeros_replace_what_was_there() -> None:
    for start, length in ((0, 8192), (4096, 8192), (100, 12_000), (4000, 4200), (4096, 16_384)):
        disk = disk_with("a", b"x" * 20_000)
        disk.open("a").pwritev([bytes(length)], start)
        expected = (b"x" * start + bytes(length)).ljust(20_000, b"x")
        assert read_file(disk, "a") == expected[: max(20_000, start + length)]


# Properties against simple references.

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "zeros", "truncate", "sync"]),
        st.integers(0, 3 * PAGE_BYTES),
        st.integers(1, 2 * PAGE_BYTES),
        st.integers(1, 255),
    ),
    max_size=12,
)


def run_changes(
    disk: SimDisk, changes: list[tuple[str, int, int, int]]
) -> tuple[bytearray, bytes, list[tuple[int, int, bytes]], list[int]]:
    """Apply to the disk and to plain bytes: the live file, the synced one, and since the sync
    the writes and the lengths the file has had."""
    file = disk.open("a")
    live, synced = bytearray(), b""
    writes: list[tuple[int, int, bytes]] = []
    lengths = [0]
    for kind, offset, length, value in changes:
        if kind == "sync":
            file.sync()
            synced, writes, lengths = bytes(live), [], []
        elif kind == "truncate":
            file.truncate(offset)
            live = live[:offset].ljust(offset, b"\0")
        else:
            data = bytes([value if kind == "write" else 0]) * length
            assert file.pwritev([data], offset) == length
            live = live.ljust(offset, b"\0")
            live[offset : offset + length] = data
            writes.append((offset, length, data))
        lengths.append(len(live))
    return live, synced, writes, lengths


@settings(max_examples=150, deadline=None)
@given(CHANGES, st.integers(0, 2**32), st.booleans())
def test_survivors_are_made_of_what_was_there(
    changes: list[tuple[str, int, int, int]], seed: int, powersafe: bool
) -> None:
    disk = disk_with("a", b"", powersafe=powersafe)
    live, synced, writes, lengths = run_changes(disk, changes)
    assert read_file(disk, "a") == live
    end = disk.position
    assert disk.image(end, "none", seed).contents()["a"] == synced
    assert disk.image(end, "all", seed).contents()["a"] == live
    allowed = bytearray(max(len(live), len(synced), 5 * PAGE_BYTES + 1))
    for offset, length, _ in writes:
        first, last = offset, offset + length
        if not powersafe:
            first, last = first // PAGE_BYTES * PAGE_BYTES, -(-last // PAGE_BYTES) * PAGE_BYTES
        allowed[first:last] = b"\1" * (last - first)
    for mode in DAMAGING:
        found = disk.image(end, mode, seed).contents()["a"]
        assert min(lengths) <= len(found) <= max(lengths), mode
        if min(lengths) < len(synced):
            continue
        changed = [i for i in range(len(synced)) if found[i] != synced[i]]
        assert all(allowed[i] for i in changed), mode
        values = {0, *synced, *(value for _, _, data in writes for value in data[:1])}
        if mode in ("prefix", "subset"):
            assert set(found) <= values
