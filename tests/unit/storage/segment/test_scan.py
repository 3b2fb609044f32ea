"""Bulk reads of segments: the rows that `Run.rows` gives, in few reads, each of them verified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from headrace.core.errors import SegmentCorrupt
from headrace.storage.block import Batch
from headrace.storage.block_encoding import encode_block
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.fs import RealFile, RealFilesystem
from headrace.storage.record_headers import Header
from headrace.storage.segment.format import BLOCK_BYTES, SegmentMeta
from headrace.storage.segment.from_blocks import Piece
from headrace.storage.segment.page_columns import PAGE_SCHEMA
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.run import Run, run_of
from headrace.storage.segment.scan import groups_of
from tests.support.segments import random_pieces, seal

NAMES = PAGE_SCHEMA.names


class CountedFile(RealFile):
    """A file that notes what is read of it."""

    __slots__ = ("reads",)

    def __init__(self, fs: RealFilesystem, path: str) -> None:
        self.reads: list[tuple[int, int]] = []
        opened = fs.open_read(path)
        super().__init__(opened._fd, path)
        opened._fd = -1

    def pread(self, length: int, offset: int) -> bytes:
        self.reads.append((offset, length))
        return super().pread(length, offset)


@pytest.fixture
def fs(tmp_path: Path) -> RealFilesystem:
    fs = RealFilesystem(tmp_path)
    fs.mkdir("segments")
    return fs


def opened(fs: RealFilesystem, meta: SegmentMeta) -> tuple[Segment, CountedFile]:
    file = CountedFile(fs, meta.path)
    segment = Segment(meta, file, BlockCache(0))
    segment.index()
    file.reads.clear()
    return segment, file


def pairs_of(headers: Sequence[Header] | None) -> list[dict[str, bytes]] | None:
    if headers is None:
        return None
    return [{"name": name, "value": value} for name, value in headers]


def expected(run: Run, start: int, stop: int) -> list[dict[str, object]]:
    return [
        {
            "seq": record.seq, "ts": record.ts, "kind": record.kind, "tag": record.tag,
            "node": record.node, "meta": record.meta, "headers": pairs_of(record.headers),
            "data": record.data,
        }
        for record in run.rows(start, stop).records()
    ]  # fmt: skip


def found(run: Run, start: int, stop: int, names: list[str]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    at = start
    for group in groups_of(run, start, stop):
        batch = group.columns(names)
        assert (group.start, group.count) == (at, batch.num_rows)
        assert batch.schema.names == [name for name in NAMES if name in names]
        assert all(field == PAGE_SCHEMA.field(field.name) for field in batch.schema)
        batch.validate(full=True)
        if "ts" in names:
            ts = batch.column("ts").cast(pa.int64())
            batch = batch.set_column(batch.schema.names.index("ts"), "ts", ts)
        rows += batch.to_pylist()
        at += group.count
    assert at == stop
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_rows_are_those_of_the_run(fs: RealFilesystem, seed: int) -> None:
    random = Random(seed)
    pieces: list[Piece] = []
    topics = sorted(random.sample(range(1, 100), 3))
    for topic_id in topics:
        pieces += random_pieces(random, topic_id, random.random() < 0.5, random.random() < 0.7)
    segment, _ = opened(fs, seal(fs, pieces, random.choice([500, 5_000, 1 << 20])))
    for topic_id in topics:
        run = run_of(segment, topic_id)
        assert run is not None
        for _ in range(10):
            start = random.randrange(run.count)
            stop = random.randint(start, run.count)
            names = random.sample(NAMES, random.randint(1, len(NAMES)))
            rows = [{name: row[name] for name in NAMES if name in names}
                    for row in expected(run, start, stop)]  # fmt: skip
            assert found(run, start, stop, names) == rows


def large(fs: RealFilesystem) -> SegmentMeta:
    """Row groups of about 1 MiB, with 100 bytes a record."""
    random = Random(1)
    blocks = [
        encode_block(Batch([random.randbytes(100) for _ in range(1_000)]), 1, n * 1_000 + 1, 5, 5)
        for n in range(50)
    ]
    return seal(fs, [(1, block, 0, block.count) for block in blocks], 1 << 20)


def test_only_what_is_asked_for_is_read_and_once(fs: RealFilesystem) -> None:
    segment, file = opened(fs, large(fs))
    run = run_of(segment, 1)
    assert run is not None and run.dense
    groups = list(groups_of(run, 0, run.count))
    assert len(groups) > 3
    for group in groups:
        file.reads.clear()
        batch = group.columns(["seq", "data"])
        ((_, length),) = file.reads  # offsets and values lie side by side
        payload = 108 * group.count
        assert batch.num_rows == group.count and payload <= length <= payload + 3 * BLOCK_BYTES
        group.columns(["seq", "data"])
        assert len(file.reads) == 1
    file.reads.clear()
    (few,) = groups_of(run, 20_000, 20_100)
    assert few.columns(["seq", "data"]).column("seq").to_pylist() == list(range(20_001, 20_101))
    assert sum(length for _, length in file.reads) <= 4 * BLOCK_BYTES
    file.reads.clear()
    assert next(groups_of(run, 0, 10)).columns(["seq"]).num_rows == 10
    assert file.reads == []  # seqs without holes need no byte


def test_a_damaged_block_is_noticed(fs: RealFilesystem, tmp_path: Path) -> None:
    meta = large(fs)
    path = tmp_path / meta.path
    content = bytearray(path.read_bytes())
    content[meta.footer_offset // 2] ^= 1
    path.write_bytes(content)
    segment, _ = opened(fs, meta)
    run = run_of(segment, 1)
    assert run is not None
    with pytest.raises(SegmentCorrupt, match="damaged in block"):
        found(run, 0, run.count, NAMES)
