"""Writing segments: plain Arrow on disk, in order, durable, and nothing left behind on failure."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.storage.block import Batch
from headrace.storage.block_encoding import encode_block
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.fs import Buffer, RealFile, RealFilesystem
from headrace.storage.segment.format import FLAG_DENSE, FLAG_TAGS, SegmentMeta
from headrace.storage.segment.reader import find_meta, open_segment
from headrace.storage.segment.writer import SegmentWriter, batch_of_blocks

TAGS = [None, "b", "a", "é", "a", None, "", "b"]


@pytest.fixture
def fs(tmp_path: Path) -> RealFilesystem:
    fs = RealFilesystem(tmp_path)
    fs.mkdir("segments")
    return fs


def batch_of(topic_id: int, first_seq: int, count: int, *, tags: bool = False) -> pa.RecordBatch:
    block = encode_block(
        Batch(
            [b"%d" % (first_seq + i) for i in range(count)],
            tags=[TAGS[i % len(TAGS)] for i in range(count)] if tags else None,
            metas=[b"m" if i % 2 else None for i in range(count)] if tags else None,
            headers=[[(b"k", b"%d" % i)] * (i % 3) for i in range(count)] if tags else None,
        ),
        topic_id,
        first_seq,
        first_seq,
        0,
    )
    return batch_of_blocks([(topic_id, block, 0, count)])


def write(fs: RealFilesystem, *batches: pa.RecordBatch, group_bytes: int = 1 << 20) -> SegmentMeta:
    names = frozenset(n for b in batches for n in b.schema.names[7:])
    writer = SegmentWriter(fs, 1, 0, 0, 5, columns=names, group_bytes=group_bytes)
    for batch in batches:
        writer.add(batch)
    return writer.finish()


def test_pyarrow_alone_reads_the_same_columns(fs: RealFilesystem) -> None:
    batches = [batch_of(1, 1, 40, tags=True), batch_of(2, 7, 1), batch_of(9, 1, 33, tags=True)]
    meta = write(fs, *batches, group_bytes=600)
    with pa.ipc.open_file(f"{fs.root}/{meta.path}") as file:
        assert file.num_record_batches > 5
        table = file.read_all()
        assert file.schema.metadata == {b"headrace.format": b"1"}
        place = [int(number) for number in file.metadata[b"headrace.index"].split()]
    table.validate(full=True)
    expected = pa.concat_tables(
        [pa.Table.from_batches([b]) for b in batches], promote_options="default"
    )
    assert table.select(expected.schema.names).to_pylist() == expected.to_pylist()
    assert place[0] == meta.footer_offset
    assert table.schema.names[-1] == "tag_order"


def test_the_segment_reads_back_what_pyarrow_reads(fs: RealFilesystem) -> None:
    meta = write(fs, batch_of(1, 1, 40, tags=True), batch_of(2, 1, 300), group_bytes=2_000)
    segment = open_segment(fs, meta, BlockCache(0))
    with pa.ipc.open_file(f"{fs.root}/{meta.path}") as file:
        assert pa.Table.from_batches(segment.batches()).equals(file.read_all())
    segment.close()


def test_a_column_nobody_has_is_not_in_the_file(fs: RealFilesystem) -> None:
    meta = write(fs, batch_of(1, 1, 5))
    with pa.ipc.open_file(f"{fs.root}/{meta.path}") as file:
        assert file.schema.names == [
            *("topic_id", "seq", "ts", "arrived_ms", "append_first_seq", "kind", "data")
        ]


def test_row_groups_keep_to_their_size(fs: RealFilesystem) -> None:
    wide = encode_block(Batch([bytes(5_000), b"", bytes(100), bytes(900)]), 3, 1, 1, 1)
    batch = batch_of_blocks([(3, wide, 0, 4)])
    meta = write(fs, batch_of(1, 1, 100), batch, group_bytes=1_000)
    segment = open_segment(fs, meta, BlockCache(0))
    groups = [batch.num_rows for batch in segment.batches()]
    # 42 or 43 bytes a row, and the row of 5,000 bytes is a group of its own.
    assert groups == [23, 23, 23, 23, 8, 1, 2, 1]
    segment.close()


def test_a_group_ends_where_the_caller_says(fs: RealFilesystem) -> None:
    """And a topic that goes on in the next one is in the directory once."""
    writer = SegmentWriter(fs, 1, 0, 0, 5, columns=frozenset())
    writer.end_group()  # nothing was added yet
    for first_seq, count in ((1, 3), (4, 2), (9, 4)):
        writer.add(batch_of(1, first_seq, count))
        writer.end_group()
    writer.add(batch_of(2, 1, 1))
    segment = open_segment(fs, writer.finish(), BlockCache(0))
    assert [batch.num_rows for batch in segment.batches()] == [3, 2, 4, 1]
    directory = segment.directory()
    assert list(directory.topic_ids) == [1, 2]
    assert (list(directory.first_seqs), list(directory.last_seqs)) == ([1, 1], [12, 1])
    assert list(directory.flags) == [0, FLAG_DENSE]
    segment.close()


def test_the_directory_says_what_the_rows_are(fs: RealFilesystem) -> None:
    gap = [batch_of(4, 10, 3), batch_of(4, 20, 3, tags=True)]
    meta = write(fs, batch_of(1, 1, 50), *gap, batch_of(7, 5, 2), group_bytes=300)
    segment = open_segment(fs, meta, BlockCache(0))
    directory = segment.directory()
    assert list(directory.topic_ids) == [1, 4, 7]
    assert list(directory.first_rows) == [0, 50, 56, 58]
    assert list(directory.first_seqs) == [1, 10, 5]
    assert list(directory.last_seqs) == [50, 22, 6]
    assert list(directory.min_ts) == [1, 10, 5]
    assert list(directory.max_ts) == [1, 20, 5]
    assert list(directory.payload_bytes) == [91, 6 + 6 + 1, 2]
    assert list(directory.flags) == [FLAG_DENSE, FLAG_TAGS, FLAG_DENSE]
    assert (meta.rows, meta.topics, meta.payload_bytes) == (58, 3, 106)
    assert (meta.min_ts, meta.max_ts, meta.created_ms) == (1, 20, 5)
    segment.close()


def test_tag_order_sorts_each_topic_in_each_group(fs: RealFilesystem) -> None:
    batches = [batch_of(t, 1, 20 + t, tags=True) for t in (1, 2, 3)]
    meta = write(fs, *batches, group_bytes=1_500)
    segment = open_segment(fs, meta, BlockCache(0))
    for group in segment.batches():
        topics, tags = group.column("topic_id").to_pylist(), group.column("tag").to_pylist()

        def key(row: int, topics: list[int] = topics, tags: list[str] = tags) -> tuple[object, ...]:
            tag = tags[row]
            return topics[row], tag is None, (tag or "").encode(), row

        assert group.column("tag_order").to_pylist() == sorted(range(len(tags)), key=key)
    segment.close()


def test_a_file_describes_itself(fs: RealFilesystem) -> None:
    meta = write(fs, batch_of(1, 1, 5), batch_of(2, 1, 5, tags=True))
    file = fs.open_read(meta.path)
    assert find_meta(file) == meta
    file.close()


def test_an_all_null_column_that_was_not_announced_is_dropped(fs: RealFilesystem) -> None:
    writer = SegmentWriter(fs, 1, 0, 0, 5, columns=frozenset())
    batch = batch_of(1, 1, 2)
    writer.add(batch.append_column("tag", pa.nulls(2, pa.utf8())))
    writer.finish()


@pytest.mark.parametrize(
    "wrong",
    [
        [batch_of(2, 1, 2), batch_of(1, 1, 2)],
        [batch_of(1, 5, 2), batch_of(1, 6, 2)],
        [batch_of(1, 5, 2), batch_of(1, 1, 2)],
    ],
    ids=["topics backwards", "a seq twice", "seqs backwards"],
)
@pytest.mark.parametrize("group_bytes", [80, 1 << 20])
def test_rows_out_of_order_are_never_sealed(
    fs: RealFilesystem, wrong: list[pa.RecordBatch], group_bytes: int
) -> None:
    with pytest.raises(AssertionError):
        write(fs, *wrong, group_bytes=group_bytes)
    assert fs.listdir("segments") == []


def test_a_column_that_was_not_announced_is_refused(fs: RealFilesystem) -> None:
    writer = SegmentWriter(fs, 1, 0, 0, 5, columns=frozenset())
    with pytest.raises(ValueError, match="tag"):
        writer.add(batch_of(1, 1, 3, tags=True))
    assert fs.listdir("segments") == []


def test_more_rows_than_the_inputs_had_are_refused(fs: RealFilesystem) -> None:
    writer = SegmentWriter(fs, 1, 0, 0, 5, columns=None, rows_hint=5)
    writer.add(batch_of(1, 1, 6))
    with pytest.raises(AssertionError):
        writer.finish()
    assert fs.listdir("segments") == []


def test_a_topics_own_file_takes_no_other_topic(fs: RealFilesystem) -> None:
    writer = SegmentWriter(fs, 1, 2, 0, 5, columns=None)
    writer.add(batch_of(1, 1, 6))
    with pytest.raises(AssertionError):
        writer.finish()


def test_an_existing_file_is_never_overwritten(fs: RealFilesystem) -> None:
    meta = write(fs, batch_of(1, 1, 5))
    with pytest.raises(FileExistsError):
        SegmentWriter(fs, 1, 0, 0, 5, columns=None)
    open_segment(fs, meta, BlockCache(0)).verify()


class FullDisk(RealFilesystem):
    """A directory with room for `room` more bytes."""

    room = 1 << 30
    synced = 0

    def create(self, path: str) -> RealFile:
        outer = self

        class Limited(RealFile):
            def pwritev(self, buffers: list[Buffer], offset: int) -> int:  # type: ignore[override]
                outer.room -= sum(map(len, buffers))
                if outer.room < 0:
                    raise OSError(errno.ENOSPC, "no space left", self.path)
                # Short on purpose, as the system call may be.
                return super().pwritev([memoryview(buffers[0])[:777]], offset)

            def sync(self) -> None:
                outer.synced += 1
                super().sync()

        real = super().create(path)
        return Limited(os.dup(real._fd), path)


def test_short_writes_are_finished_and_the_file_is_synced(tmp_path: Path) -> None:
    fs = FullDisk(tmp_path)
    fs.mkdir("segments")
    meta = write(fs, batch_of(1, 1, 500, tags=True), group_bytes=10_000)
    assert fs.synced == 1
    open_segment(fs, meta, BlockCache(0)).verify()


@pytest.mark.parametrize("room", [0, 100, 5_000, 60_000])
def test_a_full_disk_leaves_no_file(tmp_path: Path, room: int) -> None:
    fs = FullDisk(tmp_path)
    fs.mkdir("segments")
    fs.room = room
    with pytest.raises(OSError, match="no space"):
        write(fs, batch_of(1, 1, 2_000, tags=True), group_bytes=10_000)
    assert fs.listdir("segments") == []
