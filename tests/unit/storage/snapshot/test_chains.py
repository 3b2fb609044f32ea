"""Chains of snapshots: when one begins, what it holds; the newest two share no file (L7)."""

from __future__ import annotations

import copy

import pytest

from headrace.core.errors import SnapshotCorrupt
from headrace.storage.fs import read_file, write_file_durably
from headrace.storage.snapshot.chains import read_latest, snapshot_path
from headrace.storage.snapshot.files import SnapshotStore
from headrace.testing.simdisk import SimDisk
from tests.support.snapshot_store import (
    change_of,
    flip,
    names,
    opened,
    segment,
    three_written,
    topic,
)


def test_when_a_full_one_is_written() -> None:
    disk = SimDisk()
    store = opened(disk, chain_max=3)
    many = {k: topic(k) for k in range(500)}
    kinds = []
    for n in range(1, 12):
        number = store.write(change_of(n, topics=many if n == 1 else {1: topic(1, head=n)}))
        kinds.append(read_file(disk, snapshot_path(number))[12])
    assert kinds == [1, 1, 2, 2, 2, 2, 2, 2, 1, 1, 2]  # full, then chain_max deltas, in turns
    number = store.write(change_of(12, clean=True))
    assert read_file(disk, snapshot_path(number))[12] == 1
    number = store.write(change_of(13), full=True)
    assert read_file(disk, snapshot_path(number))[12] == 1
    number = store.write(change_of(14, topics=many))  # more than half of the full one by itself
    assert read_file(disk, snapshot_path(number))[12] == 2
    number = store.write(change_of(15))  # with what the one before it has
    assert read_file(disk, snapshot_path(number))[12] == 2
    for stamp in (16, 17):
        number = store.write(change_of(stamp))
        assert read_file(disk, snapshot_path(number))[12] == 1


@pytest.mark.parametrize("clean", [True, False])
def test_the_first_is_written_twice_and_later_ones_are_not(clean: bool) -> None:
    disk = SimDisk()
    store = opened(disk)
    for stamp, written in ((1, [1, 2]), (2, [1, 2, 3]), (3, [1, 2, 3, 4])):
        change = change_of(stamp, clean=clean, topics={stamp: topic(stamp)})
        store.write(change)
        store.double(change)
        assert names(disk) == [f"snapshot-{n:016d}.bin" for n in written]
        for number in written[-2:]:
            other = disk.copy()
            flip(other, number)
            loaded = read_latest(other)
            assert loaded is not None and loaded.state.topics.keys() >= set(range(1, stamp))


def test_the_newest_two_share_no_file_also_after_a_start() -> None:
    disk = SimDisk()
    store = opened(disk, chain_max=4)
    for stamp in range(1, 40):
        heads = {k: topic(k, head=stamp) for k in range(300) if stamp == 1 or k % 37 == stamp % 37}
        removed = {stamp - 2} if stamp > 3 else set()
        store.write(change_of(stamp, topics=heads, files={stamp: segment(stamp)},
                              topics_removed=removed - heads.keys()))  # fmt: skip
        store.prune()
        one, other = copy.deepcopy(store.latest), None
        for number in map(int, (name[9:25] for name in names(disk))):
            if stamp == 1:
                continue
            spoilt = disk.copy()
            flip(spoilt, number)
            loaded = read_latest(spoilt)
            assert loaded is not None
            other = loaded.state if loaded.fell_back else other
            assert loaded.fell_back or loaded.state == one
        assert stamp == 1 or (other is not None and other.created_ms == stamp - 1)
        if stamp % 9 == 0:
            store = opened(disk, chain_max=4)
            assert store.latest == one


def test_a_bad_or_missing_or_exchanged_base_costs_only_what_is_built_on_it() -> None:
    good, states = three_written()
    flipped, missing, exchanged = good.copy(), good.copy(), good.copy()
    flip(flipped, 1)
    missing.unlink(snapshot_path(1))
    other = SimDisk()
    opened(other).write(change_of(1, topics={1: topic(1)}))
    exchanged.unlink(snapshot_path(1))
    write_file_durably(exchanged, snapshot_path(1), [other.contents()[snapshot_path(1)]])
    for disk in (flipped, missing, exchanged):
        loaded = SnapshotStore(disk).load()
        assert loaded is not None and loaded.fell_back and loaded.state == states[1]
        assert "snapshot-0000000000000001.bin" in loaded.problems[0]
        flip(disk, 2)
        with pytest.raises(SnapshotCorrupt, match=r"snapshot-0000000000000002\.bin"):
            SnapshotStore(disk).load()


def test_prune_keeps_what_the_newest_two_are_built_on() -> None:
    disk = SimDisk()
    store = opened(disk, chain_max=2)
    for n in range(1, 8):
        store.write(change_of(n, topics={k: topic(k) for k in range(300 if n == 1 else 1)}))
    # 1 and 2 full, 3 and 5 on 1, 4 and 6 on 2, 7 full.
    assert store.prune() == [f"snapshot-{n:016d}.bin" for n in (1, 3, 5)]
    assert store.prune() == []  # 6 is the one before, and is built on 2 and 4
    assert store.replay_positions() == {"wal": 4096 * 6}
    store.write(change_of(8), full=True)
    assert store.prune() == [f"snapshot-{n:016d}.bin" for n in (2, 4, 6)]
    assert store.replay_positions() == {"wal": 4096 * 7}
    assert store.retained_key_files() == {7, 8}
