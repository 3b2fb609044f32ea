"""Reading segments: every answer of a run is what a plain list of its records would answer."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from headrace.storage.block import Batch, Record
from headrace.storage.block_encoding import encode_block
from headrace.storage.files.block_cache import BlockCache, WouldBlock
from headrace.storage.fs import RealFile, RealFilesystem
from headrace.storage.segment.format import BLOCK_BYTES
from headrace.storage.segment.from_blocks import Piece
from headrace.storage.segment.reader import Segment, open_segment
from headrace.storage.segment.run import Run, run_of
from tests.support.segments import random_pieces, seal


@pytest.fixture
def fs(tmp_path: Path) -> RealFilesystem:
    fs = RealFilesystem(tmp_path)
    fs.mkdir("segments")
    return fs


def size(record: Record) -> int:
    return len(record.data) + len(record.meta or b"")


def check_run(run: Run, records: list[Record], random: Random) -> None:
    seqs = [record.seq for record in records]
    assert (run.count, run.first_seq, run.last_seq) == (len(records), seqs[0], seqs[-1])
    assert (run.min_ts, run.max_ts) == (records[0].ts, records[-1].ts)
    assert run.bytes == sum(map(size, records))
    assert run.dense == (seqs[-1] - seqs[0] + 1 == len(seqs))
    assert run.has_tags == any(record.tag is not None for record in records)
    assert run.rows(0, run.count).records() == records
    for _ in range(20):
        start = random.randrange(run.count)
        stop = random.randint(start, run.count)
        assert run.rows(start, stop).records() == records[start:stop]
        assert run.size_of(start, stop) == sum(map(size, records[start:stop]))
        seq = random.randint(seqs[0] - 2, seqs[-1] + 2)
        assert run.row_of(seq) == sum(s < seq for s in seqs)
        ts = random.randint(run.min_ts - 2, run.max_ts + 2)
        assert run.row_at_ts(ts) == sum(record.ts < ts for record in records)
        assert run.ts_at(start) == records[start].ts
        if stop > start:
            bytes_max = random.choice([-1, 0, 1, 50, 500, 10**6])
            fitting = start + 1
            while fitting < stop and sum(map(size, records[start : fitting + 1])) <= bytes_max:
                fitting += 1
            assert run.fit(start, stop, bytes_max) == fitting
    for tag in ["chat-42", "chat-42:", "chat", "é", "", "zz"]:
        exact = [r.seq for r in records if r.tag == tag]
        assert run.find_tag(tag, prefix=False) == exact
        starts = [r.seq for r in records if r.tag is not None and r.tag.startswith(tag)]
        assert run.find_tag(tag, prefix=True) == starts


@pytest.mark.parametrize("seed", range(12))
def test_a_run_answers_as_a_list_of_its_records_would(fs: RealFilesystem, seed: int) -> None:
    random = Random(seed)
    by_topic: dict[int, list[Piece]] = {}
    for topic_id in sorted(random.sample(range(1, 100), 5)):
        gaps, rich = random.random() < 0.5, seed % 3 > 0 and random.random() < 0.7
        by_topic[topic_id] = random_pieces(random, topic_id, gaps, rich)
    pieces = [piece for run in by_topic.values() for piece in run]
    meta = seal(fs, pieces, random.choice([500, 5_000, 1 << 20]))
    # From a cache too small for one block, to one that holds the file.
    segment = open_segment(fs, meta, BlockCache(random.choice([0, BLOCK_BYTES, 1 << 30])))
    assert list(segment.directory().topic_ids) == sorted(by_topic)
    for topic_id, run_pieces in by_topic.items():
        run = run_of(segment, topic_id)
        assert run is not None
        records = [r for _, b, start, stop in run_pieces for r in b.rows(start, stop).records()]
        check_run(run, records, random)
    assert run_of(segment, 1000) is None
    assert run_of(segment, 0) is None
    segment.verify()
    segment.close()


def test_values_that_span_many_blocks(fs: RealFilesystem) -> None:
    random = Random(1)
    data = [random.randbytes(n) for n in (10, 3 * BLOCK_BYTES, 0, BLOCK_BYTES, 5 * BLOCK_BYTES + 7)]
    block = encode_block(Batch(data), 1, 1, 1, 1)
    segment = open_segment(fs, seal(fs, [(1, block, 0, 5)], 1 << 30), BlockCache(1 << 20))
    run = run_of(segment, 1)
    assert run is not None
    for start in range(5):
        for stop in range(start, 6):
            assert run.rows(start, stop).data == data[start:stop]
    assert run.fit(0, 5, 3 * BLOCK_BYTES + 10) == 3
    segment.close()


def test_one_value_for_all_rows_stays_one_value(fs: RealFilesystem) -> None:
    pieces: list[Piece] = [(1, encode_block(Batch([b"x"] * 9), 1, 1, 77, 1), 0, 9)]
    segment = open_segment(fs, seal(fs, pieces, 1 << 20), BlockCache(0))
    run = run_of(segment, 1)
    assert run is not None
    rows = run.rows(2, 5)
    assert (rows.ts, rows.kinds, rows.append_firsts) == (77, 0, 1)
    assert rows.seqs == range(3, 6)
    assert (rows.tags, rows.nodes, rows.metas, rows.headers) == (None, None, None, None)
    segment.close()


class ColdFile(RealFile):
    """A file no byte of which is in the page cache; counts the reads that went to the disk."""

    reads = 0

    def pread_nowait(self, length: int, offset: int) -> bytes | None:
        return None

    def pread(self, length: int, offset: int) -> bytes:
        self.reads += 1
        return super().pread(length, offset)


def test_a_read_that_may_not_wait_says_so_and_works_once_cached(fs: RealFilesystem) -> None:
    random = Random(3)
    pieces = random_pieces(random, 1, gaps=True, rich=True)
    meta = seal(fs, pieces, 2_000)
    warm = fs.open_read(meta.path)
    file = ColdFile(os.dup(warm._fd), meta.path)
    segment = Segment(meta, file, BlockCache(1 << 30))
    with pytest.raises(WouldBlock):
        run_of(segment, 1, wait=False)
    run = run_of(segment, 1)
    assert run is not None
    assert run_of(segment, 1, wait=False) is not None
    calls = [
        lambda wait: run.rows(0, run.count, wait).records(),
        lambda wait: run.row_of(run.first_seq + 1, wait),
        lambda wait: run.row_at_ts(run.max_ts, wait),
        lambda wait: run.ts_at(0, wait),
        lambda wait: run.size_of(0, 1, wait),
        lambda wait: run.fit(0, run.count, 1, wait),
        lambda wait: run.find_tag("chat", True, wait),
    ]
    for call in calls:
        segment._cache.drop(1, 100)
        with pytest.raises(WouldBlock):
            call(False)
        answer = call(True)
        before = file.reads
        assert call(False) == answer
        assert file.reads == before
    segment.close()


def test_a_tag_is_found_without_reading_all_tags(fs: RealFilesystem) -> None:
    tags: list[str | None] = [f"tag-{i:06d}" for i in range(200_000)]
    Random(2).shuffle(tags)
    block = encode_block(Batch([b""] * len(tags), tags=tags), 1, 1, 1, 1)
    cache = BlockCache(1 << 30)
    segment = open_segment(fs, seal(fs, [(1, block, 0, len(tags))], 1 << 30), cache)
    run = run_of(segment, 1)
    assert run is not None
    assert run.find_tag("tag-123456", prefix=False) == [tags.index("tag-123456") + 1]
    # Two binary searches of 18 steps, at most three blocks a step.
    assert 0 < cache.misses <= 2 * 18 * 3 < segment.meta.footer_offset // BLOCK_BYTES
    segment.close()


def test_closing_gives_the_cache_its_room_back(fs: RealFilesystem) -> None:
    cache = BlockCache(1 << 30)
    pieces: list[Piece] = [(1, encode_block(Batch([bytes(200_000)]), 1, 1, 1, 1), 0, 1)]
    segment = open_segment(fs, seal(fs, pieces, 1 << 20), cache)
    run = run_of(segment, 1)
    assert run is not None
    run.rows(0, 1)
    assert cache.bytes > 200_000
    segment.close()
    assert cache.bytes == 0
