"""Damaged segments: refused by name, never wrong data, never a crash of the process."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec
import pyarrow as pa
import pytest
from xxhash import xxh3_64_intdigest

from headrace.core.errors import SegmentCorrupt, UnsupportedFormat
from headrace.storage.block import Batch, Record
from headrace.storage.block_encoding import encode_block
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.fs import RealFilesystem
from headrace.storage.segment.format import BLOCK_BYTES, FORMAT_VERSION, SegmentMeta
from headrace.storage.segment.from_blocks import Piece
from headrace.storage.segment.reader import Segment, find_meta, open_segment
from headrace.storage.segment.run import run_of
from headrace.storage.segment.writer import SegmentWriter, batch_of_blocks

FLIPS = 1_000
Answer = TypeVar("Answer")


class Bytes:
    """A file in memory that may be damaged."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.data = bytearray(data)

    def pread(self, length: int, offset: int) -> bytes:
        return bytes(self.data[offset : offset + length])

    def pread_nowait(self, length: int, offset: int) -> bytes | None:
        data = self.pread(length, offset)
        return data if len(data) == length else None

    def size(self) -> int:
        return len(self.data)

    def close(self) -> None:
        pass

    def pwritev(self, buffers: object, offset: int) -> int:
        raise NotImplementedError

    def truncate(self, length: int) -> None:
        raise NotImplementedError

    def allocate(self, length: int) -> None:
        raise NotImplementedError

    def sync_data(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError


def pieces_of(topics: int, records: int, size: int) -> list[Piece]:
    random = Random(topics)
    pieces: list[Piece] = []
    for topic_id in range(1, topics + 1):
        batch = Batch(
            [random.randbytes(size) for _ in range(records)],
            tags=[random.choice(["a", "b", None]) for _ in range(records)],
            metas=[random.choice([b"m", None]) for _ in range(records)],
            headers=[[(b"h", b"%d" % i)] for i in range(records)],
        )
        pieces.append((topic_id, encode_block(batch, topic_id, 1, 10, 10), 0, records))
    return pieces


def write(root: Path, pieces: list[Piece], file_id: int = 1, group_bytes: int = 100_000) -> Sealed:
    fs = RealFilesystem(root)
    fs.mkdir("segments")
    writer = SegmentWriter(fs, file_id, 0, 0, 5, columns=None, group_bytes=group_bytes)
    writer.add(batch_of_blocks(pieces))
    meta = writer.finish()
    data = (root / meta.path).read_bytes()
    records = {t: block.rows(a, b).records() for t, block, a, b in pieces}
    return Sealed(fs, meta, data, records)


class Sealed(msgspec.Struct):
    fs: RealFilesystem
    meta: SegmentMeta
    data: bytes
    records: dict[int, list[Record]]

    def open(self, data: bytes | bytearray) -> Segment:
        return Segment(self.meta, Bytes(self.meta.path, bytes(data)), BlockCache(1 << 24))


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    return write(tmp_path_factory.mktemp("sealed"), pieces_of(4, 100, 600))


def read_everything(segment: Segment) -> dict[int, list[Record]]:
    found = {}
    for topic_id in segment.directory().topic_ids:
        run = run_of(segment, topic_id)
        assert run is not None
        found[topic_id] = run.rows(0, run.count).records()
        assert run.find_tag("a", prefix=False) == [r.seq for r in found[topic_id] if r.tag == "a"]
    return found


def unless_refused(read: Callable[[], Answer]) -> Answer | None:
    try:
        return read()
    except SegmentCorrupt:
        return None


def test_flipped_bits_are_refused_or_do_not_matter(sealed: Sealed) -> None:
    random = Random(1)
    size = len(sealed.data)
    footer = sealed.meta.footer_offset
    places = [random.randrange(size) for _ in range(FLIPS // 2)]
    places += [random.randrange(footer, size) for _ in range(FLIPS // 4)]  # small, so aimed at
    places += [random.randrange(2_000) for _ in range(FLIPS // 4)]
    table = pa.Table.from_batches(sealed.open(sealed.data).batches())
    refused = 0
    for place in places:
        damaged = bytearray(sealed.data)
        damaged[place] ^= 1 << random.randrange(8)
        with pytest.raises(SegmentCorrupt):
            sealed.open(damaged).verify()
        records = unless_refused(lambda data=damaged: read_everything(sealed.open(data)))
        rows = unless_refused(lambda data=damaged: list(sealed.open(data).batches()))
        assert records is None or records == sealed.records, place
        assert rows is None or pa.Table.from_batches(rows).equals(table), place
        refused += (records is None) + (rows is None)
    assert refused > FLIPS


@pytest.mark.parametrize("keep", [0, 1, 5, BLOCK_BYTES, -1, -10, -500])
def test_a_truncated_file_is_refused(sealed: Sealed, keep: int) -> None:
    with pytest.raises(SegmentCorrupt, match="bytes long"):
        run_of(sealed.open(sealed.data[:keep]), 1)


def test_a_longer_file_is_refused(sealed: Sealed) -> None:
    with pytest.raises(SegmentCorrupt, match="bytes long"):
        run_of(sealed.open(sealed.data + b"\0"), 1)


def test_a_file_that_shrinks_while_open_is_refused(sealed: Sealed) -> None:
    file = Bytes(sealed.meta.path, sealed.data)
    segment = Segment(sealed.meta, file, BlockCache(0))
    run = run_of(segment, 4)
    assert run is not None
    del file.data[BLOCK_BYTES:]
    with pytest.raises(SegmentCorrupt, match="ends before"):
        run.rows(0, 100)


def test_a_missing_file_is_refused_by_name(tmp_path: Path, sealed: Sealed) -> None:
    with pytest.raises(SegmentCorrupt, match=r"seg-0000000000000001\.arrow is missing"):
        open_segment(RealFilesystem(tmp_path), sealed.meta, BlockCache(0))


def test_two_files_that_were_swapped_are_refused(tmp_path: Path) -> None:
    pieces = pieces_of(2, 10, 20)
    one, two = write(tmp_path, pieces, 1), write(tmp_path, pieces, 2)
    assert one.meta.size == two.meta.size  # only the ids differ
    swap = tmp_path / "swap"
    shutil.move(tmp_path / one.meta.path, swap)
    shutil.move(tmp_path / two.meta.path, tmp_path / one.meta.path)
    shutil.move(swap, tmp_path / two.meta.path)
    with pytest.raises(SegmentCorrupt, match="footer of file 2"):
        run_of(open_segment(one.fs, one.meta, BlockCache(0)), 1)
    with pytest.raises(SegmentCorrupt, match="footer of file 1"):
        run_of(open_segment(two.fs, two.meta, BlockCache(0)), 1)


def test_a_snapshot_that_disagrees_with_the_file_is_refused(sealed: Sealed) -> None:
    wrong = msgspec.structs.replace(sealed.meta, rows=sealed.meta.rows + 1)
    with pytest.raises(SegmentCorrupt, match="not the file the snapshot lists"):
        run_of(Segment(wrong, Bytes(wrong.path, sealed.data), BlockCache(0)), 1)


def test_a_newer_format_is_refused_by_name(sealed: Sealed) -> None:
    data = bytearray(sealed.data)
    at = sealed.meta.footer_offset
    data[at + 8 : at + 10] = (FORMAT_VERSION + 1).to_bytes(2, "little")
    newer = msgspec.structs.replace(sealed.meta, footer_hash=xxh3_64_intdigest(data[at:]))
    file = Bytes(newer.path, bytes(data))
    for read in (lambda: run_of(Segment(newer, file, BlockCache(0)), 1), lambda: find_meta(file)):
        with pytest.raises(UnsupportedFormat) as caught:
            read()
        assert caught.value.detail == {"file": newer.path, "format": 2, "supported": 1}
        assert newer.path in str(caught.value)
        assert "newer Headrace" in caught.value.fix


def test_salvage_refuses_what_is_not_a_whole_segment(sealed: Sealed) -> None:
    footer = sealed.meta.footer_offset
    bad_index = bytearray(sealed.data)
    bad_index[footer + 100] ^= 1
    moved = bytes(8) + sealed.data
    for data in (b"", b"ARROW1", bytes(500), sealed.data[:-1], bytes(bad_index), moved):
        with pytest.raises(SegmentCorrupt):
            find_meta(Bytes("seg", data))
    assert find_meta(Bytes("seg", sealed.data)) == sealed.meta


def test_the_error_names_the_block_and_the_seqs_in_it(tmp_path: Path) -> None:
    random = Random(5)
    pieces: list[Piece] = []
    for topic_id in range(1, 6):
        batch = Batch([random.randbytes(5_000) for _ in range(60)])
        pieces.append((topic_id, encode_block(batch, topic_id, 11, 10, 10), 0, 60))
    sealed = write(tmp_path, pieces, group_bytes=400_000)
    everything = {(t, seq) for t in range(1, 6) for seq in range(11, 71)}
    named_least = len(everything)
    for block in range(len(sealed.open(sealed.data).index().hashes)):
        damaged = bytearray(sealed.data)
        low, high = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, sealed.meta.footer_offset)
        for at in range(low, high):
            damaged[at] ^= 0xFF
        with pytest.raises(SegmentCorrupt, match=f"block {block} at {low}") as caught:
            sealed.open(damaged).verify()
        assert caught.value.detail["block"] == block
        assert caught.value.detail["offset"] == low
        seqs = caught.value.detail["seqs"]
        assert isinstance(seqs, list)
        named = {(t, seq) for t, first, last in seqs for seq in range(first, last + 1)}
        assert named <= everything
        named_least = min(named_least, len(named))
        assert unreadable(sealed.open(damaged), everything) <= named
    # Where only payloads are hit, only the records they belong to are named.
    assert named_least <= BLOCK_BYTES // 5_000 + 2


def unreadable(segment: Segment, everything: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """The records whose payload or offsets cannot be read."""
    lost = set()
    for topic_id, seq in everything:
        run = run_of(segment, topic_id)
        assert run is not None
        row = seq - 11
        try:
            run.rows(row, row + 1)
        except SegmentCorrupt:
            lost.add((topic_id, seq))
    return lost


def test_an_index_never_allocates_by_what_it_claims(sealed: Sealed) -> None:
    """Counts of the header are checked against the bytes there are before they are used."""
    data = bytearray(sealed.data)
    at = sealed.meta.footer_offset
    data[at + 32 : at + 48] = array("I", [0xFFFF_FFFF] * 4).tobytes()
    with pytest.raises(SegmentCorrupt, match="damaged index"):
        find_meta(Bytes("seg", bytes(data)))
