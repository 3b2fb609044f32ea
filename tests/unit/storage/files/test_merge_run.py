"""Merging real files: all live rows stay, in order and byte for byte, and dead rows go."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from headrace.core.errors import SegmentCorrupt
from headrace.storage.files import merge_run
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.catalog import Catalog, Liveness, LiveStats, TopicLiveness
from headrace.storage.files.merge_policy import MergeJob, MergePolicy, plan
from headrace.storage.files.merge_run import MergeRun
from headrace.storage.fs import RealFilesystem
from headrace.storage.segment.format import OPTIONAL_COLUMNS, SegmentMeta, schema_of
from headrace.storage.segment.reader import open_segment
from headrace.storage.segment.writer import SegmentWriter


def run_merge(run: MergeRun) -> list[SegmentMeta]:
    """Take all steps of a merge; return its outputs."""
    while run.done is None:
        run.step()
    return run.done


class Row(NamedTuple):
    topic_id: int
    seq: int
    ts: int
    data: bytes
    tag: str | None = None
    meta: bytes | None = None
    node: str | None = None


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    columns: dict[str, list[object]] = {
        "topic_id": [row.topic_id for row in rows],
        "seq": [row.seq for row in rows],
        "ts": [row.ts for row in rows],
        "arrived_ms": [row.ts + 1 for row in rows],
        "append_first_seq": [row.seq // 3 * 3 for row in rows],
        "kind": [row.seq % 3 for row in rows],
        "data": [row.data for row in rows],
        "tag": [row.tag for row in rows],
        "meta": [row.meta for row in rows],
        "node": [row.node for row in rows],
    }
    optional = {
        name
        for name in OPTIONAL_COLUMNS & columns.keys()
        if any(value is not None for value in columns[name])
    }
    schema = schema_of(optional, tag_order=False)
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Store:
    """The part of an engine that keeps sealed files, with a dict as the model of what it holds."""

    def __init__(self, fs: RealFilesystem, policy: MergePolicy) -> None:
        fs.mkdir("segments")
        self.fs = fs
        self.policy = policy
        self.catalog = Catalog()
        self.stats = LiveStats()
        self.cache = BlockCache(1 << 20)
        self.model: dict[tuple[int, int], Row] = {}
        self.heads: dict[int, int] = {}
        self.floors: dict[int, int] = {}
        self.holes: dict[int, BitMap64] = {}
        self.deleted: set[int] = set()
        self.ids = count(1)
        self.clock = count(1000)

    def next_file_id(self) -> int:
        return next(self.ids)

    def append(self, rows_of: dict[int, list[Row]], group_bytes: int = 1 << 20) -> None:
        """A checkpoint of these rows, whose seqs are set here."""
        rows = []
        for topic_id in sorted(rows_of):
            for row in rows_of[topic_id]:
                seq = self.heads.get(topic_id, 0) + 1
                self.heads[topic_id] = seq
                row = row._replace(topic_id=topic_id, seq=seq, ts=next(self.clock))
                rows.append(row)
                self.model[topic_id, seq] = row
        if rows:
            meta = write(self.fs, self.next_file_id(), rows, group_bytes)
            self.catalog.add(open_segment(self.fs, meta, self.cache))

    def liveness(self) -> Liveness:
        return {
            topic_id: TopicLiveness(self.floors.get(topic_id, 1), self.holes.get(topic_id))
            for topic_id in self.heads
            if topic_id not in self.deleted
        }

    def is_live(self, row: Row) -> bool:
        return (
            row.topic_id not in self.deleted
            and row.seq >= self.floors.get(row.topic_id, 1)
            and row.seq not in self.holes.get(row.topic_id, ())
        )

    def plan(self) -> list[MergeJob]:
        segments = self.catalog.segments()
        counted = self.stats.count(segments, self.liveness())
        fresh = LiveStats().count(segments, self.liveness())
        assert [file[:3] for file in counted] == [file[:3] for file in fresh]
        return plan(counted, self.policy)

    def run(self, job: MergeJob) -> list[SegmentMeta]:
        segments = [self.catalog.get(file_id) for file_id in job.inputs]
        metas = run_merge(
            MergeRun(
                self.fs, job, segments[::-1], self.liveness(), self.next_file_id, 7, self.policy
            )
        )
        for file_id in job.inputs:
            segment = self.catalog.remove(file_id)
            segment.close()
            self.fs.unlink(segment.meta.path)
        for meta in metas:
            segment = open_segment(self.fs, meta, self.cache)
            segment.verify()
            self.catalog.add(segment)
            assert meta.level == job.level and meta.created_ms == 7
            for topic_id in segment.directory().topic_ids:
                dead = [row for row in self.read(topic_id, meta.file_id) if not self.is_live(row)]
                assert not dead, "a dead row was kept"
                assert meta.owner == (topic_id if topic_id in job.own_topics else 0)
        return metas

    def read(self, topic_id: int, only_file: int = 0) -> list[Row]:
        """All stored rows of a topic, dead ones too, through its runs."""
        found = []
        for run in self.catalog.runs(topic_id):
            if only_file and run.segment.meta.file_id != only_file:
                continue
            rows = run.rows(0, run.count)
            assert list(rows.seqs) == sorted(rows.seqs)
            assert (rows.seqs[0], rows.seqs[-1]) == (run.first_seq, run.last_seq)
            assert run.dense == (run.last_seq - run.first_seq + 1 == run.count)
            times = [rows.ts] * len(rows) if isinstance(rows.ts, int) else rows.ts
            nothing = [None] * len(rows)
            found += map(
                Row._make,
                zip(
                    [topic_id] * len(rows), rows.seqs, times, rows.data,
                    rows.tags or nothing, rows.metas or nothing, rows.nodes or nothing,
                    strict=True,
                ),
            )  # fmt: skip
            for tag in {row.tag for row in found if row.tag}:
                seqs = [row.seq for row in found if row.tag == tag]
                mine = [seq for seq in seqs if run.first_seq <= seq <= run.last_seq]
                assert run.find_tag(tag, prefix=False) == mine
        return found

    def check(self) -> None:
        for topic_id, head in self.heads.items():
            seqs = range(1, head + 1)
            expected = [row for seq in seqs if (row := self.model.get((topic_id, seq)))]
            stored = self.read(topic_id)
            assert all(a.seq < b.seq for a, b in pairwise(stored))
            assert [r for r in stored if self.is_live(r)] == [
                r for r in expected if self.is_live(r)
            ]


def write(
    fs: RealFilesystem, file_id: int, rows: list[Row], group_bytes: int = 1 << 20, owner: int = 0
) -> SegmentMeta:
    writer = SegmentWriter(
        fs, file_id, owner, 0, 5, columns=None,
        payload_bytes_hint=1 << 40, rows_hint=1 << 30, topics_hint=1 << 20,
        group_bytes=group_bytes,
    )  # fmt: skip
    writer.add(batch_of(rows))
    return writer.finish()


@contextmanager
def store_of(policy: MergePolicy) -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as root:
        yield Store(RealFilesystem(root), policy)


NEW = Row(0, 0, 0, b"")
a_row = st.builds(
    Row,
    st.just(0),
    st.just(0),
    st.just(0),
    st.binary(max_size=40),
    st.none() | st.sampled_from(["red", "green", "grün"]),
    st.none() | st.binary(max_size=5),
    st.none() | st.just("node-1"),
)
topic_ids = st.integers(1, 5)
steps = st.one_of(
    st.tuples(
        st.just("append"),
        st.dictionaries(topic_ids, st.lists(a_row, min_size=1, max_size=12), min_size=1),
    ),
    st.tuples(st.just("gap"), topic_ids),
    st.tuples(st.just("floor"), topic_ids, st.floats(0, 1)),
    st.tuples(st.just("holes"), topic_ids, st.integers(0, 2**60)),
    st.tuples(st.just("delete"), topic_ids),
    st.tuples(st.just("merge"), st.integers(1, 5)),
)
policies = st.builds(
    MergePolicy,
    fan_in=st.integers(2, 4),
    shared_bytes_max=st.sampled_from([8_000, 30_000, 1 << 20]),
    own_rows_min=st.sampled_from([3, 20]),
    own_bytes_min=st.sampled_from([50, 1 << 20]),
    own_bytes_max=st.sampled_from([500, 9_000, 1 << 20]),
    own_topics_max=st.integers(1, 4),
)


def apply(store: Store, step: tuple[object, ...], group_bytes: int) -> None:
    what, topic_id = step[0], step[1]
    if what == "append":
        assert isinstance(topic_id, dict)
        alive = {k: v for k, v in topic_id.items() if k not in store.deleted}
        store.append(alive, group_bytes)
        return
    assert isinstance(topic_id, int)
    head = store.heads.get(topic_id, 0)
    if what == "merge":
        for job in store.plan()[:topic_id]:
            store.run(job)
            store.check()
    elif what == "delete" and head:
        store.deleted.add(topic_id)
    elif what == "gap" and head and topic_id not in store.deleted:
        # A crash can leave seqs that were never written.
        store.heads[topic_id] = head + 3
    elif what == "floor":
        assert isinstance(step[2], float)
        floor = 1 + int(head * step[2])
        store.floors[topic_id] = max(store.floors.get(topic_id, 1), floor)
    elif what == "holes" and head:
        assert isinstance(step[2], int)
        seqs = [seq for seq in range(1, head + 1) if step[2] >> (seq % 60) & 1]
        store.holes.setdefault(topic_id, BitMap64()).update(seqs)


@settings(max_examples=80, deadline=None)
@given(policies, st.lists(steps, max_size=25), st.sampled_from([64, 1 << 20]))
def test_merges_by_the_policy_keep_exactly_the_live_rows(
    policy: MergePolicy, script: list[tuple[object, ...]], group_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Small portions and groups, so that topics lie across them.
        patch.setattr(merge_run, "PORTION_BYTES_MAX", group_bytes * 4)
        patch.setattr(merge_run, "ROW_GROUP_BYTES", group_bytes * 2)
        with store_of(policy) as store:
            for step in script:
                apply(store, step, group_bytes)
            for _ in range(40):
                jobs = store.plan()
                for job in jobs:
                    store.run(job)
                store.check()
                if not jobs:
                    break
            assert not jobs, "the plan never comes to rest"
            # With every topic deleted, every file is dropped.
            store.deleted = set(store.heads)
            for job in store.plan():
                assert store.run(job) == []
            assert len(store.catalog) == 0


def test_a_month_in_small(tmp_path: Path) -> None:
    """150 checkpoints of 40 topics, one of them big, floors moving behind."""
    policy = MergePolicy(
        shared_bytes_max=160_000, own_rows_min=300, own_bytes_max=60_000, own_topics_max=8
    )
    store = Store(RealFilesystem(tmp_path), policy)
    small = {topic_id: [NEW._replace(data=b"x" * 50)] * 2 for topic_id in range(1, 41)}
    files = 0
    for index in range(150):
        store.append({**small, 50: [NEW._replace(data=b"y" * 80, tag="t")] * 40})
        for topic_id in range(1, 21):
            store.floors[topic_id] = max(1, store.heads[topic_id] - 100)
        for job in store.plan():
            store.run(job)
        files = max(files, len(store.catalog))
        if index % 50 == 25:
            store.check()
    store.check()
    metas = store.catalog.metas()
    assert {meta.owner for meta in metas} == {0, 50}
    held = sum(meta.size for meta in metas)
    assert files <= 2 * held / policy.own_bytes_max + 3 * policy.fan_in
    live = sum(len(row.data) + 60 for row in store.model.values() if store.is_live(row))
    assert held <= 2 * live
    assert sorted(store.fs.listdir("segments")) == [Path(meta.path).name for meta in metas]


def test_a_large_topic_is_split_into_files_of_about_equal_size(tmp_path: Path) -> None:
    policy = MergePolicy(fan_in=2, own_bytes_max=50_000, own_rows_min=10)
    store = Store(RealFilesystem(tmp_path), policy)
    for _ in range(2):
        rows = {1: [NEW._replace(data=b"d" * 51)] * 600, 2: [NEW._replace(tag="t")]}
        store.append(rows, group_bytes=8_000)
    (job,) = store.plan()
    assert job.own_topics == {1}
    metas = store.run(job)
    store.check()
    own = [meta for meta in metas if meta.owner == 1]
    assert [meta.rows for meta in own] == [400, 400, 400]
    # Topic 2 has tags; the other's files have no column for them.
    assert "tag" not in store.catalog.get(own[0].file_id).columns()
    assert [meta.owner for meta in metas if meta not in own] == [0]


def test_own_files_that_fit_one_become_one(tmp_path: Path) -> None:
    """Else the same merge would be planned again and again."""
    store = Store(RealFilesystem(tmp_path), MergePolicy(own_rows_min=1))
    for _ in range(64):
        # Single rows with a meta: their size is most underestimated.
        store.append({1: [NEW._replace(data=b"0123456", meta=b"m")]})
        for job in store.plan():
            assert [meta.owner for meta in store.run(job)] == [1]
    (job,) = store.plan()
    assert [meta.rows for meta in store.run(job)] == [64]
    assert store.plan() == []
    store.check()


def test_rows_of_topics_without_a_file_of_their_own_share_one(tmp_path: Path) -> None:
    store = Store(RealFilesystem(tmp_path), MergePolicy(fan_in=2))
    store.append({1: [NEW], 2: [NEW] * 3})
    store.append({2: [NEW._replace(tag="late")] * 2, 3: [NEW]})
    (meta,) = store.run(store.plan()[0])
    assert (meta.owner, meta.rows, meta.topics, meta.level, meta.order) == (0, 7, 3, 1, 1)
    store.check()
    (run,) = store.catalog.runs(2)
    assert run.dense and run.find_tag("late", prefix=False) == [4, 5]


def test_only_topics_with_dead_rows_have_masks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each topic of each file would be freed in one step, while all threads wait."""
    made = []
    repeat = pa.repeat

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return repeat(*arguments)

    monkeypatch.setattr(pa, "repeat", counted)
    store = Store(RealFilesystem(str(tmp_path)), MergePolicy(fan_in=2))
    for holes in ([], [20]):
        for _ in range(2):
            store.append({topic_id: [Row(0, 0, 0, b"x")] * 3 for topic_id in range(1, 41)})
        for topic_id in holes:
            store.holes[topic_id] = BitMap64([2, 8])
        made.clear()
        (job,) = store.plan()
        store.run(job)
        store.check()
        # Before and after the one topic, in each of the files that have a dead row.
        assert len(made) <= 4 * len(holes)


def test_a_dead_file_is_dropped_without_reading_its_rows(tmp_path: Path) -> None:
    store = Store(RealFilesystem(tmp_path), MergePolicy())
    store.append({1: [NEW] * 10})
    (meta,) = store.catalog.metas()
    full = tmp_path / meta.path
    raw = bytearray(full.read_bytes())
    raw[meta.footer_offset // 2] ^= 1
    full.write_bytes(raw)
    store.deleted = {1}
    (job,) = store.plan()
    assert job.reason == "drop"
    assert store.run(job) == []
    assert len(store.catalog) == 0


def test_dropping_rows_clears_the_dense_flag_only_when_a_seq_is_missing(tmp_path: Path) -> None:
    store = Store(RealFilesystem(tmp_path), MergePolicy(dead_fraction=0.1))
    store.append({1: [NEW] * 10, 2: [NEW] * 10})
    store.floors[1] = 6
    store.holes[2] = BitMap64([4, 5])
    (job,) = store.plan()
    assert job.reason == "rewrite"
    store.run(job)
    (trimmed,), (holed,) = store.catalog.runs(1), store.catalog.runs(2)
    assert (trimmed.dense, trimmed.first_seq, trimmed.count) == (True, 6, 5)
    assert (holed.dense, holed.first_seq, holed.count) == (False, 1, 8)
    # What is sparse now is trimmed, and holed again.
    store.floors = {1: 9, 2: 3}
    store.run(store.plan()[0])
    assert [row.seq for row in store.read(2)] == [3, 6, 7, 8, 9, 10]
    store.floors[1] = 10
    store.holes[2].add(9)
    store.run(store.plan()[0])
    assert [row.seq for row in store.read(2)] == [3, 6, 7, 8, 10]
    store.check()


def test_a_floor_inside_a_run_with_missing_seqs_drops_what_is_below(tmp_path: Path) -> None:
    store = Store(RealFilesystem(tmp_path), MergePolicy())
    store.append({1: [NEW] * 10})
    store.heads[1] = 20
    for _ in range(7):
        store.append({1: [NEW] * 10, 2: [NEW]})
    store.run(store.plan()[0])
    assert [run.dense for run in store.catalog.runs(1)] == [False]
    store.floors[1] = 75
    (job,) = store.plan()
    assert job.reason == "rewrite"
    store.run(job)
    assert [row.seq for row in store.read(1)] == list(range(75, 91))


def test_a_damaged_input_stops_the_merge_and_leaves_no_output(tmp_path: Path) -> None:
    store = Store(RealFilesystem(tmp_path), MergePolicy(fan_in=2, own_rows_min=5))
    big = NEW._replace(data=b"y" * 1000)
    store.append({1: [big] * 10, 2: [NEW]})
    store.append({1: [big] * 10, 2: [NEW._replace(data=b"z" * 200_000)]}, group_bytes=8000)
    meta = store.catalog.metas()[1]
    full = tmp_path / meta.path
    raw = bytearray(full.read_bytes())
    raw[meta.footer_offset - 100_000] ^= 1
    full.write_bytes(raw)
    before = store.fs.listdir("segments")
    (job,) = store.plan()
    assert job.own_topics == {1}, "one output is complete before the damage is met"
    with pytest.raises(SegmentCorrupt):
        store.run(job)
    assert next(store.ids) == 5, "two outputs were begun"
    assert store.fs.listdir("segments") == before


@pytest.mark.parametrize(("topics", "rows"), [(4, 250), (250, 4)])
def test_memory_follows_the_row_groups_not_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: int, rows: int
) -> None:
    group_bytes = 1 << 16
    monkeypatch.setattr(merge_run, "PORTION_BYTES_MAX", group_bytes)
    monkeypatch.setattr(merge_run, "ROW_GROUP_BYTES", group_bytes)
    store = Store(RealFilesystem(tmp_path), MergePolicy(fan_in=8, own_topics_max=1))
    row = NEW._replace(data=b"m" * 1000)
    for _ in range(8):
        store.append({topic: [row] * rows for topic in range(1, topics + 1)}, group_bytes)
    (job,) = store.plan()
    segments = [store.catalog.get(file_id) for file_id in job.inputs]
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        (meta,) = run_merge(
            MergeRun(store.fs, job, segments, store.liveness(), store.next_file_id, 7, store.policy)
        )
        peak = tracemalloc.get_traced_memory()[1] + (pool.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert meta.payload_bytes == 8_000_000
    # One group and the block-aligned read of it for each input, a portion, and an output's group.
    assert peak < 50 * group_bytes < meta.payload_bytes / 2
