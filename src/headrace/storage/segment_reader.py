"""Reading sealed segments: every byte verified before anything is made of it.

`Segment` is an open file, `Run` the rows of one topic in it.  Files are never mapped: blocks of
64 KiB are read, checked against the index and kept in the `BlockCache`, and columns are cut out of
them with `struct`; Arrow only ever sees bytes that were verified.  With `wait=False` a read that
needs the disk raises `WouldBlock`, so that the loop can hand it to a reader thread.

Which rows are alive is not known here: deletes and floors are applied by the caller.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from headrace.core.errors import CorruptionError, HeadraceError, SegmentCorrupt
from headrace.storage.block import Rows
from headrace.storage.cache import BlockCache, WouldBlock
from headrace.storage.fs import File, Filesystem, read_exact
from headrace.storage.segment import (
    ARROW_MAGIC,
    BLOCK_BYTES,
    FLAG_DENSE,
    FLAG_TAGS,
    INDEX_TRAILER_BYTES,
    Directory,
    Index,
    SegmentMeta,
    buffer_slots,
    decode_index,
    meta_of,
    schema_of,
)
from headrace.storage.segment_columns import (
    fixed_bytes,
    headers,
    joined,
    null_rows,
    numbers,
    texts,
    value_ends,
    values,
    with_nulls,
)
from headrace.storage.segment_damage import affected_seqs

# `fit` looks at the offsets of this many rows at a time.
FIT_ROWS = 4096
# `verify` reads this many blocks at a time.
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

    __slots__ = ("_cache", "_file", "_index", "_slots", "_stride", "meta", "problem")

    def __init__(self, meta: SegmentMeta, file: File, cache: BlockCache) -> None:
        self.meta = meta
        self._file = file
        self._cache = cache
        self._index: Index | None = None
        self.problem: CorruptionError | None = None  # why its rows cannot be found
        self._slots: dict[str, int] = {}
        self._stride = 0

    def close(self) -> None:
        """Close the file and give its blocks' room in the cache to others."""
        self._file.close()
        self._cache.drop(self.meta.file_id, -(-self.meta.footer_offset // BLOCK_BYTES))

    def take_index(self, other: Segment) -> None:
        """The same file in another place: what is known of it need not be read again."""
        assert other.meta.file_id == self.meta.file_id
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
        return data

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

    # Topics

    def run(self, topic_id: int, wait: bool = True) -> Run | None:
        """The rows of one topic, None when the file has none."""
        topic_ids = self.index(wait).directory.topic_ids
        position = bisect_left(topic_ids, topic_id)
        if position == len(topic_ids) or topic_ids[position] != topic_id:
            return None
        return Run(self, position)

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


_TagKey = tuple[bool, bytes]  # whether it has no tag: those are sorted last


class Run:
    """One topic's rows in one file, numbered from 0 to `count` - 1."""

    __slots__ = (
        "bytes",
        "count",
        "dense",
        "first_row",
        "first_seq",
        "has_tags",
        "last_seq",
        "max_ts",
        "min_ts",
        "segment",
        "topic_id",
    )

    def __init__(self, segment: Segment, position: int) -> None:
        directory = segment.directory()
        self.segment = segment
        self.topic_id = directory.topic_ids[position]
        self.first_seq = directory.first_seqs[position]
        self.last_seq = directory.last_seqs[position]
        self.bytes = directory.payload_bytes[position]
        self.min_ts = directory.min_ts[position]
        self.max_ts = directory.max_ts[position]
        self.dense = bool(directory.flags[position] & FLAG_DENSE)
        self.has_tags = bool(directory.flags[position] & FLAG_TAGS)
        self.first_row = directory.first_rows[position]
        self.count = directory.first_rows[position + 1] - self.first_row
        assert self.count > 0 and self.first_seq <= self.last_seq, self.topic_id

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """(row group, first row in it, stop row in it) of the run's rows start..stop."""
        assert 0 <= start <= stop <= self.count, (start, stop, self.count)
        firsts = self.segment.index().group_first_rows
        at, end = self.first_row + start, self.first_row + stop
        group = bisect_right(firsts, at) - 1
        pieces = []
        while at < end:
            until = min(end, firsts[group + 1])
            pieces.append((group, at - firsts[group], until - firsts[group]))
            at = until
            group += 1
        return pieces

    def _number(self, column: str, row: int, wait: bool) -> int:
        ((group, at, _),) = self.pieces(row, row + 1)
        offset, _ = self.segment.buffer(group, column, 1)
        value = self.segment.read(offset + 8 * at, 8, wait)
        return int.from_bytes(value, "little", signed=column == "ts")

    # Places

    def row_of(self, seq: int, wait: bool = True) -> int:
        """The first row with this seq or a higher one; `count` if there is none."""
        if seq <= self.first_seq:
            return 0
        if seq > self.last_seq:
            return self.count
        if self.dense:
            return seq - self.first_seq
        rows = range(self.count)
        return bisect_left(rows, seq, key=lambda row: self._number("seq", row, wait))

    def row_at_ts(self, ts: int, wait: bool = True) -> int:
        """The first row with this ts or a later one; `count` if there is none."""
        if ts <= self.min_ts:
            return 0
        if ts > self.max_ts:
            return self.count
        return bisect_left(range(self.count), ts, key=lambda row: self.ts_at(row, wait))

    def ts_at(self, row: int, wait: bool = True) -> int:
        return self._number("ts", row, wait)

    # Sizes

    def size_of(self, start: int, stop: int, wait: bool = True) -> int:
        """Data and meta bytes of rows `start` to `stop` (exclusive), from offsets only."""
        if stop - start == self.count:
            return self.bytes
        total = 0
        for group, a, b in self.pieces(start, stop):
            for name, width in self._sized():
                offset, _ = self.segment.buffer(group, name, 1)
                low = self.segment.read(offset + width * a, width, wait)
                high = self.segment.read(offset + width * b, width, wait)
                total += int.from_bytes(high, "little") - int.from_bytes(low, "little")
        return total

    def fit(self, start: int, stop: int, bytes_max: int, wait: bool = True) -> int:
        """The largest stop whose rows from `start` have at most `bytes_max`; at least one row."""
        assert start < stop <= self.count, (start, stop, self.count)
        if start == 0 and stop == self.count and self.bytes <= bytes_max:
            return stop
        room = bytes_max
        for first in range(start, stop, FIT_ROWS):
            for group, a, b in self.pieces(first, min(first + FIT_ROWS, stop)):
                columns = [
                    value_ends(self.segment, group, name, a, b, wait) for name, _ in self._sized()
                ]
                sums = (
                    columns[0] if len(columns) == 1 else list(map(sum, zip(*columns, strict=True)))
                )
                fitting = bisect_right(sums, sums[0] + room) - 1 if room >= 0 else 0
                if fitting < b - a:
                    index = self.segment.index()
                    row = index.group_first_rows[group] + a + fitting - self.first_row
                    return max(row, start + 1)
                room -= sums[-1] - sums[0]
        return stop

    def _sized(self) -> list[tuple[str, int]]:
        """The columns that count as bytes of a record, and the width of their offsets."""
        has_meta = "meta" in self.segment.columns()
        return [("data", 8), ("meta", 4)] if has_meta else [("data", 8)]

    # Rows

    def rows(self, start: int, stop: int, wait: bool = True) -> Rows:
        """Rows `start` to `stop` (exclusive) as columns."""
        parts: list[Rows] = []
        for group, a, b in self.pieces(start, stop):
            parts.append(self._rows_of(group, a, b, start, wait))
            start += b - a
        if len(parts) == 1:
            return parts[0]
        return joined(parts) if parts else Rows([], [], [])

    def _rows_of(self, group: int, a: int, b: int, start: int, wait: bool) -> Rows:
        """Rows of one row group; `start` is the run's number of its row `a`."""
        segment, count = self.segment, b - a
        seqs: Sequence[int]
        if self.dense:
            seqs = range(self.first_seq + start, self.first_seq + start + count)
        else:
            seqs = array("Q", fixed_bytes(segment, group, "seq", a, b, wait))
        rows = Rows(
            seqs,
            numbers("q", fixed_bytes(segment, group, "ts", a, b, wait)),
            values(segment, group, "data", a, b, wait),
            numbers("B", fixed_bytes(segment, group, "kind", a, b, wait)),
            append_firsts=numbers("Q", fixed_bytes(segment, group, "append_first_seq", a, b, wait)),
        )
        columns = segment.columns()
        if "tag" in columns and self.has_tags:
            rows.tags = texts(segment, group, "tag", a, b, wait)
        if "node" in columns:
            rows.nodes = texts(segment, group, "node", a, b, wait)
        if "meta" in columns:
            rows.metas = with_nulls(
                values(segment, group, "meta", a, b, wait),
                null_rows(segment, group, "meta", a, b, wait),
            )
        if "headers" in columns:
            rows.headers = headers(segment, group, a, b, wait)
        return rows

    # Tags

    def find_tag(self, tag: str, prefix: bool, wait: bool = True) -> list[int]:
        """The seqs of rows with this tag, or with a tag that starts with it, ascending."""
        if not self.has_tags:
            return []
        segment, wanted = self.segment, tag.encode()
        length = len(wanted) if prefix else None
        found: list[int] = []
        for group, a, b in self.pieces(0, self.count):
            order_at, _ = segment.buffer(group, "tag_order", 1)

            def key(position: int, group: int = group, order_at: int = order_at) -> _TagKey:
                row = int.from_bytes(segment.read(order_at + 4 * position, 4, wait), "little")
                if null_rows(segment, group, "tag", row, row + 1, wait):
                    return (True, b"")
                return (False, values(segment, group, "tag", row, row + 1, wait)[0][:length])

            low = bisect_left(range(b), (False, wanted), lo=a, key=key)
            high = bisect_right(range(b), (False, wanted), lo=low, key=key)
            order = array("I", segment.read(order_at + 4 * low, 4 * (high - low), wait))
            base = segment.index().group_first_rows[group] - self.first_row
            found += sorted(base + row for row in order)
        if self.dense:
            return [self.first_seq + row for row in found]
        return [self._number("seq", row, wait) for row in found]
