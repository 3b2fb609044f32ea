"""The catalog of live files, and the count of what is alive in them."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from headrace.storage.files import catalog as catalog_module
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.catalog import Catalog, LiveStats, TopicLiveness, live_rows_max
from headrace.storage.files.merge_policy import TopicShare
from headrace.storage.fs import RealFilesystem
from headrace.storage.segment.format import schema_of
from headrace.storage.segment.reader import Segment, open_segment
from headrace.storage.segment.writer import SegmentWriter

Seqs = dict[int, range | list[int]]


class Files:
    def __init__(self, root: Path) -> None:
        self.fs = RealFilesystem(root)
        self.fs.mkdir("segments")
        self.cache = BlockCache(1 << 20)
        self.ids = count(1)

    def make(self, seqs: Seqs, owner: int = 0) -> Segment:
        """A file with these seqs; each row's payload is 10 bytes."""
        writer = SegmentWriter(
            self.fs, next(self.ids), owner, 0, 5, columns=frozenset(),
            payload_bytes_hint=1 << 30, rows_hint=1 << 20, topics_hint=1 << 20,
        )  # fmt: skip
        rows = [(topic_id, seq) for topic_id in sorted(seqs) for seq in seqs[topic_id]]
        values = [
            [topic_id for topic_id, _ in rows],
            [seq for _, seq in rows],
            [seq for _, seq in rows],
            [seq for _, seq in rows],
            [seq for _, seq in rows],
            [0] * len(rows),
            [b"0123456789"] * len(rows),
        ]
        schema = schema_of(())
        arrays = [pa.array(v, field.type) for v, field in zip(values, schema, strict=True)]
        writer.add(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return open_segment(self.fs, writer.finish(), self.cache)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def spans(catalog: Catalog, topic_id: int) -> list[tuple[int, int]]:
    return [(run.first_seq, run.last_seq) for run in catalog.runs(topic_id)]


def test_runs_come_by_seq_from_shared_and_own_files(files: Files) -> None:
    catalog = Catalog()
    catalog.add(files.make({1: range(21, 31), 2: range(1, 4)}))
    catalog.add(files.make({1: range(1, 11)}))
    catalog.add(files.make({1: range(11, 21)}, owner=1))
    catalog.add(files.make({3: range(1, 2)}, owner=3))
    assert spans(catalog, 1) == [(1, 10), (11, 20), (21, 30)]
    assert spans(catalog, 2) == [(1, 3)]
    assert spans(catalog, 4) == []
    assert len(catalog) == 4
    assert [meta.file_id for meta in catalog.metas()] == [1, 2, 3, 4]
    assert catalog.get(3).meta.owner == 1


def test_runs_follow_what_is_added_and_removed(files: Files) -> None:
    catalog = Catalog()
    assert spans(catalog, 1) == []
    catalog.add(files.make({1: range(1, 4)}))
    assert spans(catalog, 1) == [(1, 3)]
    catalog.add(files.make({1: range(4, 6)}, owner=1))
    assert spans(catalog, 1) == [(1, 3), (4, 5)]
    catalog.remove(2).close()
    assert spans(catalog, 1) == [(1, 3)]
    catalog.remove(1).close()
    assert spans(catalog, 1) == []
    with pytest.raises(KeyError):
        catalog.get(1)


def test_files_that_hold_the_same_seqs_are_refused(files: Files) -> None:
    catalog = Catalog()
    catalog.add(files.make({1: range(1, 11)}))
    catalog.add(files.make({1: range(5, 7)}))
    with pytest.raises(AssertionError):
        catalog.runs(1)
    with pytest.raises(AssertionError):
        catalog.add(catalog.get(1))


def test_remembered_runs_are_bounded(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "CACHED_RUNS_MAX", 10)
    catalog = Catalog()
    catalog.add(files.make({topic_id: range(1, 3) for topic_id in range(1, 101)}))
    for topic_id in range(1, 101):
        assert spans(catalog, topic_id) == [(1, 2)]
    assert len(catalog._runs) <= 10


def test_live_rows() -> None:
    assert live_rows_max(11, 20, 10, TopicLiveness(1, None)) == 10
    assert live_rows_max(11, 20, 10, TopicLiveness(20, None)) == 1
    assert live_rows_max(11, 20, 10, TopicLiveness(21, None)) == 0
    assert live_rows_max(11, 20, 10, TopicLiveness(1, BitMap64(range(5, 16)))) == 5
    assert live_rows_max(11, 20, 10, TopicLiveness(1, BitMap64(range(11, 21)))) == 0
    # Seqs that are missing from the file are not counted twice.
    assert live_rows_max(11, 20, 4, TopicLiveness(1, BitMap64(range(11, 17)))) == 4
    assert live_rows_max(11, 20, 4, TopicLiveness(19, BitMap64(range(11, 17)))) == 2


def test_counts_follow_floors_holes_and_deleted_topics(files: Files) -> None:
    first = files.make({1: range(1, 11), 2: range(1, 11), 3: range(1, 11)})
    second = files.make({1: range(11, 21), 2: range(11, 21)})
    alive = TopicLiveness(1, None)
    state = {1: alive, 2: alive, 3: alive}
    stats = LiveStats()

    def counts() -> list[tuple[int, int]]:
        counted = stats.count([first, second], state)
        fresh = LiveStats().count([first, second], state)
        assert [file[:3] for file in counted] == [file[:3] for file in fresh]
        return [(file.live_rows, file.live_bytes) for file in counted]

    assert counts() == [(30, 300), (20, 200)]
    state[1] = TopicLiveness(6, None)
    assert counts() == [(25, 250), (20, 200)]
    state[2] = TopicLiveness(1, BitMap64([4, 12, 13]))
    assert counts() == [(24, 240), (18, 180)]
    state[2] = TopicLiveness(13, BitMap64([4, 12, 13]))
    assert counts() == [(15, 150), (17, 170)]
    del state[3]
    assert counts() == [(5, 50), (17, 170)]
    state.clear()
    assert counts() == [(0, 0), (0, 0)]


def test_earlier_stats_keep_their_numbers(files: Files) -> None:
    segment = files.make({1: range(1, 11), 2: range(1, 101)})
    stats = LiveStats()
    alive = TopicLiveness(1, None)
    (before,) = stats.count([segment], {1: alive, 2: alive})
    (after,) = stats.count([segment], {1: TopicLiveness(9, None), 2: alive})
    assert before.topics.of(1) == TopicShare(10, 100, 1, 10)
    assert after.topics.of(1) == TopicShare(2, 20, 1, 10)
    assert after.topics.of(2) == TopicShare(100, 1000, 1, 100)
    assert after.topics.of(3) is None
    assert list(before.topics.heavy(100)) == [1, 2]
    assert list(after.topics.heavy(100)) == [2]
    assert list(after.topics.heavy(1001)) == []


def test_only_what_changed_is_counted_again(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    old = files.make({topic_id: range(1, 11) for topic_id in range(1, 201)})
    new = files.make({topic_id: range(11, 21) for topic_id in range(1, 201)})
    calls = []

    def counting(first: int, last: int, rows: int, topic: TopicLiveness | None) -> int:
        calls.append(first)
        return live_rows_max(first, last, rows, topic)

    monkeypatch.setattr(catalog_module, "live_rows_max", counting)
    stats = LiveStats()
    state = {topic_id: TopicLiveness(1, None) for topic_id in range(1, 201)}
    stats.count([old, new], state)
    assert len(calls) == 400
    calls.clear()
    stats.count([old, new], dict(state))
    assert calls == []
    # A floor that moves through the older file says nothing about the newer one.
    state = {topic_id: TopicLiveness(5, None) for topic_id in range(1, 201)}
    assert stats.count([old, new], state)[0].live_rows == 200 * 6
    assert calls == [1] * 200
    calls.clear()
    state[7] = TopicLiveness(5, BitMap64([15]))
    assert stats.count([old, new], state)[1].live_rows == 1999
    assert calls == [1, 11]
    # A file that has gone is forgotten.
    assert [file.meta.file_id for file in stats.count([new], state)] == [2]
