"""The snapshot store against a model: reload, fallback, retention, faults and every crash point."""

from __future__ import annotations

import copy
import struct
from itertools import chain
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import SnapshotCorrupt, UnsupportedFormat
from headrace.storage.fs import RealFilesystem, read_file, write_file_durably
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.snapshot import files
from headrace.storage.snapshot.chains import read_latest, snapshot_path
from headrace.storage.snapshot.files import SnapshotStore
from headrace.storage.snapshot.format import VERSION
from headrace.storage.snapshot.state import SnapshotState, TopicState
from headrace.testing.faultfs import ERRORS, Action, Fault, FaultFilesystem, FaultPlan
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

IDS = st.integers(1, 12)
CHANGES = st.lists(
    st.tuples(
        st.dictionaries(IDS, st.integers(0, 9)),  # topics: id -> head
        st.sets(IDS),  # topics removed
        st.sets(IDS, max_size=3),  # files
        st.sets(IDS, max_size=3),  # files removed
        st.dictionaries(st.sampled_from("abc"), st.binary(max_size=3)),
        st.sets(st.sampled_from("abc")),
        st.booleans(),  # full
        st.booleans(),  # reopen before the next
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60)
@given(CHANGES, st.integers(0, 4))
def test_any_sequence_of_changes_reloads_as_the_model_says(
    changes: list[
        tuple[dict[int, int], set[int], set[int], set[int], dict[str, bytes], set[str], bool, bool]
    ],
    chain_max: int,
) -> None:
    disk = SimDisk()
    store = opened(disk, chain_max)
    topics: dict[int, TopicState] = {}
    files: dict[int, SegmentMeta] = {}
    extra: dict[str, bytes] = {}
    previous_files: set[int] = set()
    for stamp, (heads, gone, new, dropped, more, less, full, reopen) in enumerate(changes, 1):
        change = change_of(
            stamp,
            topics={k: topic(k, head) for k, head in heads.items()},
            topics_removed=gone - heads.keys(),
            files={k: segment(k) for k in new},
            files_removed=dropped - new,
            extra=more,
            extra_removed=less - more.keys(),
        )
        topics = {k: v for k, v in topics.items() if k not in gone} | change.topics
        files = {k: v for k, v in files.items() if k not in dropped} | change.files
        extra = {k: v for k, v in extra.items() if k not in less} | more
        number = store.write(change, full=full)
        expected = SnapshotState(
            stamp,
            False,
            1,
            10**6,
            10**6,
            bytes(16),
            {"wal": 4096 * stamp},
            change.key_files,
            number=number,
            topics=topics,
            files=files,
            extra=extra,
        )
        assert store.latest == expected
        assert store.retained_files() == files.keys() | previous_files
        store.prune()
        loaded = read_latest(disk)
        assert loaded is not None
        assert loaded == (expected, [], False)
        if reopen:
            store = SnapshotStore(disk, chain_max=chain_max)
            assert store.load() == (expected, [], False)
            assert store.retained_files() == files.keys() | previous_files
            assert store.retained_key_files() == {stamp, max(1, stamp - 1)}
            assert store.replay_positions() == {"wal": 4096 * max(1, stamp - 1)}
        previous_files = set(files)


def test_nothing_there_is_none_and_a_lone_temporary_file_is_nothing() -> None:
    disk = SimDisk()
    assert SnapshotStore(disk).load() is None
    write_file_durably_in_meta(disk, "snapshot-0000000000000004.bin.tmp", b"half")
    store = SnapshotStore(disk)
    assert store.load() is None
    assert store.retained_files() == set()
    assert store.replay_positions() == {}
    assert store.prune() == []
    store.write(change_of(1))
    assert store.prune() == ["snapshot-0000000000000004.bin.tmp"]
    assert names(disk) == ["snapshot-0000000000000005.bin"]


def write_file_durably_in_meta(disk: SimDisk, name: str, data: bytes) -> None:
    disk.mkdir("meta")
    write_file_durably(disk, f"meta/{name}", [data])


def test_writing_before_loading_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="load first"):
        SnapshotStore(SimDisk()).write(change_of(1))


@pytest.mark.parametrize("chain_max", [0, 16])
@pytest.mark.parametrize("harm", ["truncated", "empty", "garbage", "flipped"])
def test_a_bad_newest_one_falls_back_to_the_one_before(chain_max: int, harm: str) -> None:
    disk, states = three_written(chain_max)
    path = snapshot_path(3)
    size = len(disk.contents()[path])
    if harm == "garbage":
        disk.overwrite(path, 0, (bytes(range(256)) * 99)[:size])
    elif harm == "flipped":
        disk.flip(path, 8 * size - 1)
    else:
        disk.truncate_to(path, size - 1 if harm == "truncated" else 0)
    store = SnapshotStore(disk, chain_max=chain_max)
    loaded = store.load()
    assert loaded is not None
    assert loaded.state == states[1]
    assert loaded.fell_back
    assert len(loaded.problems) == 1
    assert "snapshot-0000000000000003.bin" in loaded.problems[0]
    assert store.retained_files() == {1, 2}
    # The bad one stays out of the way, also at the next start, and its number is not used again.
    assert names(disk)[-1] == "snapshot-0000000000000003.bin.broken"
    store.prune()
    assert names(disk)[-1] == "snapshot-0000000000000003.bin.broken"
    again = SnapshotStore(disk, chain_max=chain_max)
    reloaded = again.load()
    assert reloaded is not None
    assert reloaded.state == states[1]
    assert reloaded.fell_back
    # The next one is whole, so that one damaged file cannot take both.
    assert again.write(change_of(4, topics={1: topic(1, head=4)})) == 4
    assert read_file(disk, snapshot_path(4))[12] == 1
    assert again.retained_files() == {1, 2}
    assert "snapshot-0000000000000003.bin.broken" in again.prune()
    flip(disk, 4)
    last = SnapshotStore(disk).load()
    assert last is not None
    assert last.state == states[1]


def test_one_older_than_the_newest_two_is_never_tried() -> None:
    disk, _ = three_written(chain_max=0)
    flip(disk, 3)
    flip(disk, 2)
    with pytest.raises(SnapshotCorrupt) as caught:
        SnapshotStore(disk).load()
    assert "snapshot-0000000000000003.bin" in str(caught.value)
    assert "snapshot-0000000000000002.bin" in str(caught.value)
    assert not any(name.endswith(".broken") for name in names(disk))
    # Nor after the newest was set aside at one start and the next went bad before another.
    disk, states = three_written(chain_max=0)
    flip(disk, 3)
    loaded = SnapshotStore(disk).load()
    assert loaded is not None
    assert loaded.state == states[1]
    flip(disk, 2)
    with pytest.raises(SnapshotCorrupt):
        SnapshotStore(disk).load()


def test_a_bad_only_one_is_refused_by_name() -> None:
    disk = SimDisk()
    opened(disk).write(change_of(1))
    flip(disk, 1)
    with pytest.raises(SnapshotCorrupt, match=r"snapshot-0000000000000001\.bin: .*backup"):
        SnapshotStore(disk).load()


def test_swapped_files_are_noticed() -> None:
    disk, states = three_written(chain_max=0)
    disk.swap(snapshot_path(1), snapshot_path(3))
    loaded = SnapshotStore(disk).load()
    assert loaded is not None
    assert loaded.state == states[1]
    assert "another file's bytes" in loaded.problems[0]


@pytest.mark.parametrize("only", [True, False])
def test_every_flipped_bit_falls_back_or_refuses(only: bool) -> None:
    disk = SimDisk()
    store = opened(disk)
    before = None
    if not only:
        store.write(change_of(1, topics={k: topic(k) for k in range(9)}))
        before = copy.deepcopy(store.latest)
    number = store.write(change_of(2, topics={1: topic(1, head=5)}, files={1: segment(1)}))
    path = snapshot_path(number)
    for bit in range(8 * len(disk.contents()[path])):
        disk.flip(path, bit)
        if before is None:
            with pytest.raises(SnapshotCorrupt, match=path):
                read_latest(disk)
        else:
            loaded = read_latest(disk)
            assert loaded is not None
            assert loaded.state == before
            assert loaded.fell_back
        disk.flip(path, bit)
    assert read_latest(disk) == (store.latest, [], False)


def test_a_newer_version_is_refused_even_with_one_to_fall_back_to() -> None:
    disk, _ = three_written()
    head = bytearray(disk.contents()[snapshot_path(3)][:56])
    head[8:12] = struct.pack("<I", VERSION + 1)
    stamp = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(head)))
    disk.overwrite(snapshot_path(3), 0, bytes(head) + stamp)
    before = disk.contents()
    with pytest.raises(UnsupportedFormat, match=r"snapshot-0000000000000003\.bin.*version 5"):
        SnapshotStore(disk).load()
    assert disk.contents() == before


def test_an_unreadable_disk_is_no_reason_to_go_back_in_time() -> None:
    disk, _ = three_written()
    fs = FaultFilesystem(disk, FaultPlan(Fault("pread", 1, "eio")))
    with pytest.raises(OSError, match="injected"):
        SnapshotStore(fs).load()


def test_what_is_replaced_is_freed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once it would keep the interpreter from the loop: 30 ms for 50,000 topics."""
    freed: list[TopicState] = []
    monkeypatch.setattr(files, "let_go", freed.extend)
    store = opened(SimDisk())
    for stamp in (1, 2, 3):
        changed = {k: topic(k, 10 * stamp) for k in range(1, 6)}
        store.write(change_of(stamp, topics=changed))
    assert [one.head for one in freed] == [20] * 5 and store.latest.topics[1].head == 30


def test_a_log_directory_that_one_of_the_two_does_not_know_is_needed_whole() -> None:
    store = opened(SimDisk())
    store.write(change_of(1, positions={"wal": 8192}))
    store.write(change_of(2, positions={"wal": 9000, "wal/shard-00": 4096}))
    assert store.replay_positions() == {"wal": 8192, "wal/shard-00": 0}
    store.write(change_of(3, positions={"wal/shard-00": 5000}))
    store.write(change_of(4, positions={"wal/shard-00": 6000}))
    assert store.replay_positions() == {"wal/shard-00": 5000}


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("action", ["eio", "enospc"])
def test_a_write_that_fails_at_any_call_changes_nothing(
    action: Action, after: bool, full: bool
) -> None:
    for at in range(1, 100):
        disk, states = three_written()
        fs = FaultFilesystem(disk)
        store = opened(fs)
        fs.plan = plan = FaultPlan(Fault("*", at, action, after=after))
        change = change_of(4, topics={1: topic(1, head=4)}, files={9: segment(9)})
        raised = 0
        try:
            store.write(change, full=full)
        except OSError as error:
            raised = error.errno or 0
        if not plan.fired:
            assert raised == 0
            assert at > 8
            return
        assert raised == ERRORS[action], at
        fs.plan = FaultPlan()
        assert store.latest == states[2]
        assert not any(name.endswith(".tmp") for name in names(disk))
        for crash in disk.images(start=disk.position):
            loaded = SnapshotStore(crash.disk).load()
            assert loaded is not None
            # Either is right, so what the failed one lists is kept while it may still be there.
            assert loaded.state.topics[1].head in (3, 4)
            assert loaded.state.files.keys() <= store.retained_files(), crash
        assert store.write(change, full=full) >= 4
        assert store.latest.topics[1].head == 4
        assert store.retained_files() == {1, 2, 3, 9}
        assert read_latest(disk) == (store.latest, [], False)
        store.prune()
        assert read_latest(disk) == (store.latest, [], False)
    raise AssertionError("the faults never ran out")


def test_files_of_a_failed_write_that_may_still_be_there_are_kept_until_it_is_gone() -> None:
    disk, states = three_written()
    fs = FaultFilesystem(disk)
    store = opened(fs)
    fs.plan = FaultPlan(Fault("sync_dir", 1, "eio", forever=True), Fault("unlink", 2, "eio"))
    with pytest.raises(OSError, match="injected"):
        store.write(change_of(4, files={9: segment(9)}, files_removed={1}))
    assert store.latest == states[2]
    assert 9 in store.retained_files()
    assert 4 in store.retained_key_files()
    fs.plan = FaultPlan()
    store.write(change_of(5))
    assert 9 not in store.retained_files()
    assert 1 in store.retained_files()


@pytest.mark.parametrize("valid", [True, False])
def test_a_disk_that_gives_back_other_bytes_fails_the_write(valid: bool) -> None:
    disk, states = three_written()
    other = disk.copy()
    opened(other).write(change_of(99))
    fs = FaultFilesystem(disk)
    store = opened(fs)

    def spoil(operation: str, path: str) -> None:
        if valid:
            stale = other.contents()[snapshot_path(4)]
            disk.truncate_to(snapshot_path(4), len(stale))
            disk.overwrite(snapshot_path(4), 0, stale)
        else:
            flip(disk, 4)

    fs.plan = FaultPlan(Fault("sync_dir", 1, "call", after=True, hook=spoil))
    with pytest.raises(SnapshotCorrupt, match="snapshot-0000000000000004"):
        store.write(change_of(4, topics={1: topic(1)}))
    assert read_latest(disk) == (states[2], [], False)
    assert store.write(change_of(5)) == 5


def test_every_crash_point_leaves_a_usable_snapshot_and_its_files() -> None:
    """L3: A small engine: files synced, snapshot, prune, then what is not retained removed."""
    disk = SimDisk()
    disk.mkdir("segments")
    store = opened(disk, chain_max=2)
    history: dict[int, SnapshotState] = {}
    for n in range(1, 7):
        write_file_durably(disk, f"segments/{n}", [b"x"])
        gone = {n - 2} if n > 2 else set()
        topics = {k: topic(k, head=n) for k in range(40 if n == 1 else 1)}
        change = change_of(n, topics=topics, files={n: segment(n)}, files_removed=gone)
        store.write(change)
        history[n] = copy.deepcopy(store.latest)
        disk.mark(n)
        store.prune()
        for name in disk.listdir("segments"):
            if int(name) not in store.retained_files():
                disk.unlink(f"segments/{name}")
    images = chain.from_iterable(disk.images(seed=seed, distinct=True) for seed in range(3))
    for crash in images:
        acked = max((int(str(n)) for n in disk.marks_until(crash.position)), default=0)
        loaded = SnapshotStore(crash.disk).load()
        if loaded is None:
            assert acked == 0, crash
            continue
        assert loaded.state.number in (acked, acked + 1), crash
        check_usable(crash.disk, loaded.state, history)
        if loaded.state.number == 1:
            continue
        flip(crash.disk, loaded.state.number)
        fallback = SnapshotStore(crash.disk).load()
        assert fallback is not None
        assert fallback.state.number == loaded.state.number - 1, crash
        check_usable(crash.disk, fallback.state, history)


def check_usable(disk: SimDisk, state: SnapshotState, history: dict[int, SnapshotState]) -> None:
    assert state == history[state.number]
    assert all(disk.exists(f"segments/{file_id}") for file_id in state.files)


def test_cost_follows_what_changed(tmp_path: Path) -> None:
    fs = RealFilesystem(tmp_path)
    plan = FaultPlan()
    counting = FaultFilesystem(fs, plan)
    store = opened(counting)
    first = change_of(1, topics={k: topic(k) for k in range(100_000)})
    store.write(first)
    store.double(first)
    full_calls = plan.calls["pwritev"] + plan.calls["pread"]
    plan.calls.clear()
    number = store.write(change_of(2, topics={k: topic(k, head=1) for k in range(10)}))
    size = len(read_file(fs, snapshot_path(number)))
    assert size < 2000
    assert plan.calls["pwritev"] + plan.calls["pread"] < 12 < full_calls
    loaded = SnapshotStore(fs).load()
    assert loaded is not None
    assert loaded.state == store.latest
    assert loaded.state.topics[9].head == 1
    assert len(loaded.state.topics) == 100_000
