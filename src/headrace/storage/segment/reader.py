"""An open sealed segment: every byte is verified before anything is made of it.

Files are never mapped: blocks of 64 KiB are read, checked against the index and kept in the
`BlockCache`; Arrow only ever sees bytes that were verified.  With `wait=False` a read that needs
the disk raises `WouldBlock`, so that the loop can hand it to a reader thread.

What the rows say is for `run.py`, which reads those of one topic.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from headrace.core.errors import CorruptionError, HeadraceError, SegmentCorrupt
from headrace.storage.files.block_cache import BlockCache, WouldBlock
from headrace.storage.fs import File, Filesystem, read_exact
from headrace.storage.segment.damage import affected_seqs
from headrace.storage.segment.format import (
    ARROW_MAGIC,
    BLOCK_BYTES,
    INDEX_TRAILER_BYTES,
    Directory,
    Index,
    SegmentMeta,
    buffer_slots,
    decode_index,
    meta_of,
    schema_of,
)

# `verify` and `check` read this many blocks at a time.
VERIFY_BLOCKS = 16
# How many topics an error about a damaged block lists.
AFFECTED_LISTED_MAX = 16

_FIX = "run `headrace check`, then restore the file from a backup or the cold tier"


def open_segment(fs: Filesystem, meta: SegmentMeta, cache: BlockCache) -> Segment:
    """Open the file of `meta`; one that is missing is `SegmentCorrupt`."""
    try:
        file = fs.open_read(meta.path)
    except FileNotFoundError:
        raise _corrupt(meta.path, f"is missing ({fs.describe(meta.path)})") from None
    return Segment(meta, file, cache)


def find_meta(file: File) -> SegmentMeta:
    """What a snapshot would record of this file, from the file alone; for salvage.

    The index vouches for itself and for every row; nothing vouches for the Arrow footer, which
    only other programs use.  Served files are opened with the `SegmentMeta` of a snapshot.
    """
    size = file.size()
    ending = 4 + len(ARROW_MAGIC)
    tail = read_exact(file, min(ending, size), size - min(ending, size))
    arrow_at = size - ending - int.from_bytes(tail[:4], "little")
    if tail[4:] != ARROW_MAGIC or arrow_at < INDEX_TRAILER_BYTES:
        raise _corrupt(file.path, "does not end as a segment does")
    trailer = read_exact(file, INDEX_TRAILER_BYTES, arrow_at - INDEX_TRAILER_BYTES)
    footer_offset = arrow_at - int.from_bytes(trailer[:8], "little")
    if footer_offset < 0:
        raise _corrupt(file.path, "has a damaged index")
    footer = read_exact(file, size - footer_offset, footer_offset)
    index = decode_index(footer, file.path)
    if index.footer_offset != footer_offset:
        raise _corrupt(file.path, "has an index that belongs elsewhere")
    return meta_of(index, footer)


class Segment:
    """An open sealed file.  May be used from several threads."""

    __slots__ = ("_cache", "_file", "_index", "_slots", "_stride", "_verified", "meta", "problem")

    def __init__(self, meta: SegmentMeta, file: File, cache: BlockCache) -> None:
        self.meta = meta
        self._file = file
        self._cache = cache
        self._index: Index | None = None
        self.problem: CorruptionError | None = None  # why its rows cannot be found
        self._slots: dict[str, int] = {}
        self._stride = 0
        self._verified = bytearray()  # a 1 for each block that was found right; since the index

    @property
    def file(self) -> File:
        """What is open; nobody else closes it."""
        return self._file

    def close(self) -> None:
        """Close the file and give its blocks' room in the cache to others."""
        self._file.close()
        self._cache.drop(self.meta.file_id, -(-self.meta.footer_offset // BLOCK_BYTES))

    def take_index(self, other: Segment) -> None:
        """The same file in another place: what is known of it need not be read again."""
        assert other.meta.file_id == self.meta.file_id
        self._verified = bytearray(len(other._verified))  # these bytes are others
        self._slots, self._stride, self._index = other._slots, other._stride, other._index

    # The index

    def index(self, wait: bool = True) -> Index:
        """The file's index, read and verified on first use."""
        return self._index or self._load(wait)

    def directory(self, wait: bool = True) -> Directory:
        """The topics of this file, sorted by id, as parallel arrays."""
        return self.index(wait).directory

    def columns(self, wait: bool = True) -> frozenset[str]:
        """The optional columns this file has."""
        return self.index(wait).columns

    def _load(self, wait: bool) -> Index:
        meta = self.meta
        length = meta.size - meta.footer_offset
        if not wait:
            # Raises `WouldBlock` where even asking for the size would wait.
            self._pread(length, meta.footer_offset, wait)
        size = self._file.size()
        if size != meta.size:
            raise self._corrupt(f"is {size} bytes long, not {meta.size}")
        raw = self._pread(length, meta.footer_offset, wait)
        if xxh3_64_intdigest(raw) != meta.footer_hash:
            raise self._corrupt(f"has a damaged footer at {meta.footer_offset}{_whose(raw, meta)}")
        index = decode_index(raw, meta.path)
        found = (index.file_id, index.owner, index.rows, len(index.directory), index.footer_offset)
        if found != (meta.file_id, meta.owner, meta.rows, meta.topics, meta.footer_offset):
            raise self._corrupt(f"is not the file the snapshot lists: {found}")
        slots, count = buffer_slots(index.columns)
        self._slots, self._stride = slots, 2 + 2 * count
        self._verified = bytearray(len(index.hashes))
        self._index = index  # last, for other threads
        return index

    def _pread(self, length: int, offset: int, wait: bool) -> bytes:
        """Bytes of the file, not yet verified."""
        if not wait:
            data = self._file.pread_nowait(length, offset)
            if data is None:
                raise WouldBlock(self, offset, length)
            return data
        try:
            return read_exact(self._file, length, offset)
        except EOFError:
            raise self._corrupt(f"ends before {offset + length}") from None
        except FileNotFoundError:
            raise self._corrupt("is missing") from None

    # Verified bytes

    def read(self, offset: int, length: int, wait: bool = True) -> bytes:
        """Bytes of the file before its footer, verified."""
        footer_offset = self.index(wait).footer_offset
        assert offset >= 0 <= length and offset + length <= footer_offset, (offset, length)
        if not length:
            return b""
        first, at = divmod(offset, BLOCK_BYTES)
        stop = (offset + length - 1) // BLOCK_BYTES + 1
        found = self._cache.get(self.meta.file_id, first, stop)
        blocks = self._fill(found, first, wait) if None in found else found
        if stop - first == 1:
            block = blocks[0]
            assert block is not None
            return block[at : at + length]
        end = at + length - (stop - first - 1) * BLOCK_BYTES
        views = [memoryview(block) for block in blocks if block is not None]
        views[0], views[-1] = views[0][at:], views[-1][:end]
        joined = b"".join(views)
        assert len(joined) == length, (len(joined), length)
        return joined

    def _fill(self, found: list[bytes | None], first: int, wait: bool) -> list[bytes | None]:
        """Fetch the missing blocks, neighbours in one read, and cache them."""
        at = 0
        while at < len(found):
            if found[at] is not None:
                at += 1
                continue
            stop = at + 1
            while stop < len(found) and found[stop] is None:
                stop += 1
            view = memoryview(self.fetch(first + at, first + stop, wait))
            fetched = [bytes(view[i : i + BLOCK_BYTES]) for i in range(0, len(view), BLOCK_BYTES)]
            self._cache.put(self.meta.file_id, first + at, fetched)
            found[at:stop] = fetched
            at = stop
        return found

    def fetch(self, first: int, stop: int, wait: bool) -> bytes:
        """Blocks `first` to `stop` (exclusive) from the file, verified, not cached."""
        index = self.index(wait)
        offset = first * BLOCK_BYTES
        length = min(stop * BLOCK_BYTES, index.footer_offset) - offset
        data = self._pread(length, offset, wait)
        bad = _first_bad(data, first, index)
        if bad is not None:
            raise self._damaged(bad)
        self._verified[first:stop] = b"\1" * (stop - first)
        return data

    def check(self, offset: int, length: int, wait: bool = True) -> None:
        """Verify a range that is sent without being read here, once while the file is open."""
        assert self.index(wait).footer_offset >= offset + length and length > 0, (offset, length)
        first, stop = offset // BLOCK_BYTES, (offset + length - 1) // BLOCK_BYTES + 1
        verified = self._verified
        at = verified.find(0, first, stop)
        while at >= 0:
            if not wait:
                raise WouldBlock(self, at * BLOCK_BYTES, BLOCK_BYTES)
            end = verified.find(1, at, min(at + VERIFY_BLOCKS, stop))
            end = end if end >= 0 else min(at + VERIFY_BLOCKS, stop)
            self.fetch(at, end, wait)
            at = verified.find(0, end, stop)

    def verify(self) -> None:
        """Read and check every byte of the file, none of it from the cache."""
        blocks = len(self._load(wait=True).hashes)
        for first in range(0, blocks, VERIFY_BLOCKS):
            self.fetch(first, min(first + VERIFY_BLOCKS, blocks), wait=True)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The whole file, row group by row group, past the cache; for merges and tools."""
        index = self.index()
        schema = schema_of(index.columns)
        for group in range(index.groups):
            offset, length = index.spans[group * self._stride : group * self._stride + 2]
            first = offset // BLOCK_BYTES
            stop = (offset + length - 1) // BLOCK_BYTES + 1
            at = offset - first * BLOCK_BYTES
            view = memoryview(self.fetch(first, stop, wait=True))[at : at + length]
            batch = pa.ipc.read_record_batch(pa.py_buffer(view), schema)
            rows = index.group_first_rows[group + 1] - index.group_first_rows[group]
            assert batch.num_rows == rows, (batch.num_rows, rows)
            yield batch

    # Places of columns

    def buffer(self, group: int, column: str, number: int) -> tuple[int, int]:
        """File offset and length of the `number`-th Arrow buffer of a column in a row group."""
        assert self._index is not None
        at = group * self._stride + 2 + 2 * (self._slots[column] + number)
        offset, length = self._index.spans[at : at + 2]
        return offset, length

    # Errors

    def _corrupt(self, what: str, **detail: object) -> SegmentCorrupt:
        return _corrupt(self.meta.path, what, **detail)

    def _damaged(self, number: int) -> SegmentCorrupt:
        affected = affected_seqs(self.index(), self, number, self._data_ends)
        shown = ", ".join(f"topic {t} seq {a}..{b}" for t, a, b in affected[:AFFECTED_LISTED_MAX])
        more = len(affected) - AFFECTED_LISTED_MAX
        shown += f" and {more} more topics" if more > 0 else ""
        offset = number * BLOCK_BYTES
        return self._corrupt(
            f"is damaged in block {number} at {offset}, which holds {shown or 'no row'}",
            block=number,
            offset=offset,
            seqs=affected[:AFFECTED_LISTED_MAX],
            topics=len(affected),
        )

    def _data_ends(self, group: int) -> array[int] | None:
        """The data offsets of a row group, None when they are damaged themselves."""
        firsts = self.index().group_first_rows
        rows = firsts[group + 1] - firsts[group]
        offset, length = self.buffer(group, "data", 1)
        first = offset // BLOCK_BYTES
        stop = (offset + length - 1) // BLOCK_BYTES + 1
        at = first * BLOCK_BYTES
        data = self._pread(min(stop * BLOCK_BYTES, self.meta.footer_offset) - at, at, wait=True)
        if _first_bad(data, first, self.index()) is not None:
            return None
        return array("q", data[offset - at : offset - at + 8 * (rows + 1)])


def _corrupt(path: str, what: str, **detail: object) -> SegmentCorrupt:
    return SegmentCorrupt(f"{path} {what}", fix=_FIX, detail={"file": path, **detail})


def _first_bad(data: bytes, first: int, index: Index) -> int | None:
    """The number of the first block of `data` that is not what was written."""
    view = memoryview(data)
    for number, at in enumerate(range(0, len(data), BLOCK_BYTES), first):
        if xxh3_64_intdigest(view[at : at + BLOCK_BYTES]) != index.hashes[number]:
            return number
    return None


def _whose(raw: bytes, meta: SegmentMeta) -> str:
    """A hint for the message when the footer is that of another file."""
    try:
        other = decode_index(raw, meta.path).file_id
    except HeadraceError:
        return ""
    return f" (it is the footer of file {other})" if other != meta.file_id else ""
