"""Tiers over real directories: stores, the plan, relocation, the choice of a copy, sweeps."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, NotReady, SegmentCorrupt, UnsupportedFormat
from headrace.storage.block import Batch
from headrace.storage.block_encoding import encode_block
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import (
    COPY_CHUNK_BYTES,
    BytesFile,
    DirectoryStore,
    StoredFile,
    open_store,
)
from headrace.storage.files.store_role import redact_url
from headrace.storage.files.tier import (
    COLD,
    HOT,
    OWNER_PATH,
    Tiers,
    copy_and_verify,
    relocation_plan,
)
from headrace.storage.fs import Buffer, File, RealFilesystem, read_exact, read_file
from headrace.storage.segment.format import SegmentMeta, segment_path
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.writer import SegmentWriter, batch_of_blocks

POLICY = MergePolicy()


class TracingFilesystem(RealFilesystem):
    """The real one, which notes what it did and can be told to fail at the n-th effect."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.effects: list[str] = []
        self.fails_at = -1

    def effect(self, name: str) -> None:
        if len(self.effects) == self.fails_at:
            raise OSError(errno.EIO, "injected")
        self.effects.append(name)

    def create(self, path: str) -> TracedFile:  # type: ignore[override]
        self.effect(f"create {path}")
        return TracedFile(super().create(path), self)

    def rename(self, source: str, target: str) -> None:
        self.effect(f"rename {source} {target}")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        if self.exists(path):
            self.effect(f"unlink {path}")
        super().unlink(path)

    def sync_dir(self, path: str) -> None:
        self.effect(f"sync_dir {path}")
        super().sync_dir(path)


class TracedFile:
    def __init__(self, file: File, fs: TracingFilesystem) -> None:
        self.path = file.path
        self._file = file
        self._fs = fs

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._fs.effect(f"write {self.path}")
        return self._file.pwritev(buffers, offset)

    def sync(self) -> None:
        self._fs.effect(f"sync {self.path}")
        self._file.sync()

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def hot_fs(tmp_path: Path) -> RealFilesystem:
    fs = RealFilesystem(tmp_path / "hot")
    fs.mkdir("segments")
    return fs


@pytest.fixture
def cold_fs(tmp_path: Path) -> TracingFilesystem:
    fs = TracingFilesystem(tmp_path / "cold")
    fs.mkdir("")
    return fs


@pytest.fixture
def tiers(hot_fs: RealFilesystem, cold_fs: TracingFilesystem) -> Tiers:
    return Tiers(DirectoryStore(hot_fs), DirectoryStore(cold_fs))


def write_segment(fs: RealFilesystem, file_id: int, rows: int = 3_000) -> SegmentMeta:
    data = [b'{"row":%d,"pad":"%s"}' % (n, b"x" * 40) for n in range(rows)]
    block = encode_block(Batch(data), 7, 1, 1_000, 1_000)
    hints = {"payload_bytes_hint": sum(map(len, data)), "rows_hint": rows, "topics_hint": 1}
    writer = SegmentWriter(fs, file_id, 7, 0, 1_000, columns=None, **hints)
    writer.add(batch_of_blocks([(7, block, 0, rows)]))
    meta = writer.finish()
    fs.sync_dir("segments")
    return meta


def flip_bit(fs: RealFilesystem, path: str, offset: int) -> None:
    file = fs.open(path)
    byte = file.pread(1, offset)[0]
    file.pwritev([bytes([byte ^ 1])], offset)
    file.close()


def contents(tiers: Tiers, meta: SegmentMeta) -> bytes:
    file = tiers.open(meta)
    try:
        return read_exact(file, file.size(), 0)
    finally:
        file.close()


# ---- DirectoryStore


@pytest.mark.parametrize("size", [0, 1, COPY_CHUNK_BYTES, COPY_CHUNK_BYTES + 1])
def test_put_gives_back_the_same_bytes(cold_fs: TracingFilesystem, size: int) -> None:
    data = os.urandom(size)
    store = DirectoryStore(cold_fs)
    store.put("segments/a", BytesFile("a", data), size)
    assert read_file(cold_fs, "segments/a") == data
    assert store.list() == [StoredFile("segments/a", size)]


def test_put_names_the_file_only_over_synced_bytes(cold_fs: TracingFilesystem) -> None:
    DirectoryStore(cold_fs).put("segments/a", BytesFile("a", b"abc"), 3)
    assert cold_fs.effects == [
        "create segments/a.tmp",
        "write segments/a.tmp",
        "sync segments/a.tmp",
        "rename segments/a.tmp segments/a",
        "sync_dir segments",
    ]


def test_put_that_fails_at_any_effect_leaves_the_old_file_and_can_be_repeated(
    tmp_path: Path,
) -> None:
    steps = 5
    for step in range(steps):
        fs = TracingFilesystem(tmp_path / str(step))
        store = DirectoryStore(fs)
        store.put("segments/a", BytesFile("a", b"old"), 3)
        fs.effects.clear()
        fs.fails_at = step
        with pytest.raises(OSError, match="injected"):
            store.put("segments/a", BytesFile("a", b"newer"), 5)
        named = step > 3  # The rename had been done.
        assert read_file(fs, "segments/a") == (b"newer" if named else b"old")
        fs.fails_at = -1
        store.put("segments/a", BytesFile("a", b"newer"), 5)
        assert store.list() == [StoredFile("segments/a", 5)]


def test_put_of_a_source_that_is_too_short_leaves_nothing(cold_fs: TracingFilesystem) -> None:
    store = DirectoryStore(cold_fs)
    with pytest.raises(EOFError):
        store.put("segments/a", BytesFile("a", b"abc"), 4)
    assert store.list() == []


def test_a_missing_file_is_file_not_found_and_its_delete_is_fine(
    cold_fs: TracingFilesystem,
) -> None:
    store = DirectoryStore(cold_fs)
    store.delete("segments/a")
    assert store.list() == []
    with pytest.raises(FileNotFoundError):
        store.open_read("segments/a")


# ---- settings


def test_open_store_makes_the_directory_a_path_or_a_file_url_names(tmp_path: Path) -> None:
    for setting in (str(tmp_path / "a" / "b"), f"file://{tmp_path}/with%20space"):
        store = open_store(setting)
        store.put("segments/a", BytesFile("a", b"abc"), 3)
    assert (tmp_path / "a/b/segments/a").read_bytes() == b"abc"
    assert (tmp_path / "with space/segments/a").read_bytes() == b"abc"


@pytest.mark.parametrize(
    "setting", ["", " ", "s3:bucket", "file:/x", "file://host/x", "http://k:sesame@h/x?sig=sesame"]
)
def test_open_store_refuses_what_is_no_store(setting: str) -> None:
    with pytest.raises(ConfigError, match="set HEADRACE_COLD_URL to") as caught:
        open_store(setting)
    assert "sesame" not in str(caught.value) + repr(caught.value.detail)


def test_redaction_shows_only_what_is_known_to_be_harmless() -> None:
    url = "s3://key:sesame@bucket/p?endpoint_override=h:1&secret_key=sesame&scheme=http"
    shown = redact_url(url)
    assert shown == "s3://***@bucket/p?endpoint_override=h:1&secret_key=***&scheme=http"
    assert redact_url("/var/cold") == "/var/cold"


# ---- the plan


def meta_of(
    file_id: int, owner: int = 7, size: int = 10, ts: int | None = None, tier: int = HOT
) -> SegmentMeta:
    when = file_id if ts is None else ts
    counts = {"level": 0, "rows": 1, "topics": 1, "size": size, "payload_bytes": size}
    footer = {"footer_offset": size // 2, "footer_hash": 0}
    times = {"min_ts": when, "max_ts": when, "created_ms": when}
    return SegmentMeta(file_id=file_id, owner=owner, tier=tier, **counts, **footer, **times)


def planned(metas: list[SegmentMeta], count: int, total: int) -> list[int]:
    return [meta.file_id for meta in relocation_plan(metas, count, total, POLICY)]


def test_plan_moves_the_oldest_beyond_the_count() -> None:
    assert planned([meta_of(n) for n in (3, 1, 5, 2, 4)], 2, 0) == [1, 2, 3]


def test_plan_takes_the_stricter_bound() -> None:
    metas = [meta_of(n) for n in range(1, 6)]
    assert planned(metas, 4, 25) == [1, 2, 3]
    assert planned(metas, 1, 25) == [1, 2, 3, 4]
    assert planned(metas, 0, 25) == [1, 2, 3]
    assert planned(metas, 0, 9) == [1, 2, 3, 4, 5]
    assert planned(metas, 0, 0) == []


def test_plan_bounds_each_topic_by_itself_and_orders_all_by_age() -> None:
    metas = [meta_of(n, owner=1 + n % 2) for n in range(1, 7)]
    assert planned(metas, 2, 0) == [1, 2]


def test_plan_goes_by_the_age_of_rows_and_not_of_files() -> None:
    # File 9 is a merge of the oldest rows.
    assert planned([meta_of(9, ts=1), meta_of(3, ts=3), meta_of(4, ts=4)], 2, 0) == [9]


def test_plan_leaves_shared_files_that_a_merge_will_take() -> None:
    full = POLICY.shared_bytes_max // 2 + 1
    metas = [meta_of(1, 0, full - 1), meta_of(2, 0, full), meta_of(3, 0, full), meta_of(4, 0, 1)]
    assert planned(metas, 1, 0) == [2]


def test_plan_does_not_move_what_is_cold() -> None:
    metas = [meta_of(1, tier=COLD), meta_of(2), meta_of(3)]
    assert planned(metas, 1, 0) == [2]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50), st.integers(0, 9)), max_size=30),
    st.integers(0, 5),
    st.integers(0, 120),
)
def test_after_the_plan_the_bounds_hold_and_nothing_moves_needlessly(
    files: list[tuple[int, int, int]], count: int, total: int
) -> None:
    metas = [meta_of(n, *file) for n, file in enumerate(files, 1)]
    leaving = relocation_plan(metas, count, total, POLICY)
    for owner in (1, 2, 3):
        mine = [meta for meta in metas if meta.owner == owner]
        kept = [meta for meta in mine if meta not in leaving]
        gone = [meta for meta in mine if meta in leaving]
        assert not count or len(kept) <= count
        assert not total or sum(meta.size for meta in kept) <= total
        assert all(old.max_ts <= new.max_ts for old in gone for new in kept)
        if gone:  # One more would break a bound.
            with_one = [*kept, max(gone, key=lambda meta: (meta.max_ts, meta.file_id))]
            too_many = bool(count) and len(with_one) > count
            assert too_many or (total and sum(meta.size for meta in with_one) > total)
    assert not relocation_plan([m for m in metas if m not in leaving], count, total, POLICY)


# ---- relocation


def test_relocation_keeps_name_and_bytes(
    tiers: Tiers, hot_fs: RealFilesystem, cold_fs: TracingFilesystem
) -> None:
    meta = write_segment(hot_fs, 1)
    original = read_file(hot_fs, meta.path)
    moved = tiers.relocate(meta)
    assert moved == msgspec.structs.replace(meta, tier=COLD)
    assert hot_fs.exists(meta.path), "the hot copy goes only after the flip"
    assert tiers.drop_hot_copies([moved]) == [meta.path]
    assert not hot_fs.exists(meta.path)
    assert contents(tiers, moved) == read_file(cold_fs, meta.path) == original
    segment = Segment(moved, tiers.open(moved), BlockCache(1 << 20))
    segment.verify()
    segment.close()


def test_each_step_may_be_repeated(
    tiers: Tiers, hot_fs: RealFilesystem, cold_fs: TracingFilesystem
) -> None:
    meta = write_segment(hot_fs, 1)
    moved = tiers.relocate(meta)
    cold_fs.effects.clear()
    assert tiers.relocate(meta) == moved
    assert cold_fs.effects == [], "a copy that is proven is not written again"
    assert tiers.drop_hot_copies([moved]) == [meta.path]
    assert tiers.drop_hot_copies([moved]) == []
    copy_and_verify(meta, tiers.hot, DirectoryStore(cold_fs))  # The hot copy is gone by now.


def test_relocation_that_fails_at_any_effect_loses_nothing(
    tmp_path: Path, hot_fs: RealFilesystem
) -> None:
    """M3: one readable copy at every point."""
    meta = write_segment(hot_fs, 1)
    original = read_file(hot_fs, meta.path)
    for step in range(5):
        cold_fs = TracingFilesystem(tmp_path / f"cold{step}")
        cold_fs.mkdir("")
        tiers = Tiers(DirectoryStore(hot_fs), DirectoryStore(cold_fs))
        cold_fs.fails_at = step
        with pytest.raises(OSError, match="injected"):
            tiers.relocate(meta)
        assert contents(tiers, meta) == original
        cold_fs.fails_at = -1
        tiers.relocate(meta)
        assert read_file(cold_fs, meta.path) == original


def test_a_decayed_hot_file_is_not_relocated_and_leaves_no_copy(
    tiers: Tiers, hot_fs: RealFilesystem, cold_fs: TracingFilesystem
) -> None:
    meta = write_segment(hot_fs, 1)
    for offset in (0, meta.footer_offset // 2, meta.footer_offset + 1, meta.size - 1):
        flip_bit(hot_fs, meta.path, offset)
        with pytest.raises(SegmentCorrupt):
            tiers.relocate(meta)
        assert not cold_fs.exists(meta.path)
        flip_bit(hot_fs, meta.path, offset)
    os.truncate(hot_fs.describe(meta.path), meta.size - 1)
    with pytest.raises(SegmentCorrupt, match="check"):
        tiers.relocate(meta)


def test_a_proven_copy_is_not_overwritten_by_a_hot_file_that_decayed_since(
    tiers: Tiers, hot_fs: RealFilesystem, cold_fs: TracingFilesystem
) -> None:
    meta = write_segment(hot_fs, 1)
    original = read_file(hot_fs, meta.path)
    tiers.relocate(meta)
    flip_bit(hot_fs, meta.path, 100)
    tiers.relocate(meta)
    assert read_file(cold_fs, meta.path) == original


def test_a_damaged_cold_copy_is_made_again(
    tiers: Tiers, hot_fs: RealFilesystem, cold_fs: TracingFilesystem
) -> None:
    meta = write_segment(hot_fs, 1)
    tiers.relocate(meta)
    flip_bit(cold_fs, meta.path, 100)
    tiers.relocate(meta)
    assert read_file(cold_fs, meta.path) == read_file(hot_fs, meta.path)


def test_the_hot_copy_stays_while_the_cold_one_is_missing_or_short(
    tiers: Tiers, hot_fs: RealFilesystem, cold_fs: TracingFilesystem
) -> None:
    meta = write_segment(hot_fs, 1)
    moved = msgspec.structs.replace(meta, tier=COLD)
    assert tiers.drop_hot_copies([moved]) == []
    DirectoryStore(cold_fs).put(meta.path, BytesFile("a", b"short"), 5)
    assert tiers.drop_hot_copies([moved]) == []
    assert hot_fs.exists(meta.path)
    assert tiers.drop_hot_copies([meta]) == [], "the pointer says hot"


# ---- which copy is read


@pytest.mark.parametrize("pointer", [HOT, COLD])
def test_the_hot_copy_is_preferred_and_a_surviving_one_is_used(
    tiers: Tiers, hot_fs: RealFilesystem, cold_fs: TracingFilesystem, pointer: int
) -> None:
    meta = msgspec.structs.replace(meta_of(1), tier=pointer)
    hot, cold = DirectoryStore(hot_fs), DirectoryStore(cold_fs)
    hot.put(meta.path, BytesFile("a", b"hot"), 3)
    cold.put(meta.path, BytesFile("a", b"cold"), 4)
    assert contents(tiers, meta) == b"hot"
    cold.delete(meta.path)
    assert contents(tiers, meta) == b"hot"
    cold.put(meta.path, BytesFile("a", b"cold"), 4)
    hot.delete(meta.path)
    assert contents(tiers, meta) == b"cold"
    cold.delete(meta.path)
    with pytest.raises(SegmentCorrupt, match="missing") as caught:
        tiers.open(meta)
    assert hot_fs.root in str(caught.value)
    assert cold_fs.root in str(caught.value)


def test_a_cold_file_without_a_cold_tier_is_said_so(hot_fs: RealFilesystem) -> None:
    tiers = Tiers(DirectoryStore(hot_fs))
    with pytest.raises(NotReady, match="HEADRACE_COLD_URL") as caught:
        tiers.open(meta_of(1, tier=COLD))
    assert caught.value.detail["reason"] == "cold_not_configured"
    with pytest.raises(SegmentCorrupt):
        tiers.open(meta_of(1))
    tiers.claim("mine", 0)
    with pytest.raises(NotReady, match="HEADRACE_COLD_URL"):
        tiers.claim("mine", 1)


# ---- deletes and sweeps


def test_delete_removes_the_file_from_both_tiers(
    tiers: Tiers, hot_fs: RealFilesystem, cold_fs: TracingFilesystem
) -> None:
    first, second = write_segment(hot_fs, 1), write_segment(hot_fs, 2)
    tiers.relocate(first)
    tiers.delete(first)  # The pointer was never flipped, and yet the copy must go.
    moved = tiers.relocate(second)
    tiers.drop_hot_copies([moved])
    tiers.delete(moved)
    tiers.delete(moved)
    assert hot_fs.listdir("segments") == cold_fs.listdir("segments") == []


def test_sweep_removes_orphans_and_unfinished_copies_only(
    tiers: Tiers, hot_fs: RealFilesystem, cold_fs: TracingFilesystem
) -> None:
    paths = [segment_path(1), segment_path(2), segment_path(1) + ".tmp", "segments/notes.txt"]
    for fs in (hot_fs, cold_fs):
        store = DirectoryStore(fs)
        fs.mkdir("segments")
        for path in paths:
            fs.create(path).close()
        assert [file.path for file in store.list()] == sorted(paths)
    removed = tiers.sweep({1})
    gone = [segment_path(1) + ".tmp", segment_path(2)]
    assert sorted(removed) == sorted(fs.describe(p) for fs in (hot_fs, cold_fs) for p in gone)
    for fs in (hot_fs, cold_fs):
        kept = [file.path for file in DirectoryStore(fs).list()]
        assert kept == ["segments/notes.txt", segment_path(1)]
    assert tiers.sweep({1}) == []


# ---- whose tier it is


def test_claim_is_repeatable_and_refuses_another_owner(
    tiers: Tiers, cold_fs: TracingFilesystem
) -> None:
    tiers.claim("mine", 0)
    tiers.claim("mine", 3)
    with pytest.raises(ConfigError, match="another data directory"):
        tiers.claim("theirs", 0)
    cold_fs.unlink(OWNER_PATH)
    with pytest.raises(NotReady, match="mount") as caught:
        tiers.claim("mine", 3)
    assert caught.value.detail["reason"] == "cold_unreachable"


def test_claim_refuses_a_newer_format_by_name(tiers: Tiers, cold_fs: TracingFilesystem) -> None:
    content = b"headrace-cold-tier 2\nmine\n"
    DirectoryStore(cold_fs).put(OWNER_PATH, BytesFile("a", content), len(content))
    with pytest.raises(UnsupportedFormat, match="headrace-cold-tier 2"):
        tiers.claim("mine", 0)


def test_the_data_directory_is_not_its_own_cold_tier(
    tmp_path: Path, hot_fs: RealFilesystem
) -> None:
    (tmp_path / "alias").symlink_to(hot_fs.root)
    for cold in (hot_fs.root, tmp_path / "alias"):
        tiers = Tiers(DirectoryStore(hot_fs), DirectoryStore(RealFilesystem(cold)))
        with pytest.raises(ConfigError, match="data directory itself"):
            tiers.claim("mine", 0)
    Tiers(DirectoryStore(hot_fs), open_store(str(tmp_path / "cold"))).claim("mine", 0)
