"""Data files: rows in the order of their seqs become Parquet files of one day each, and back.

The rules it owns: a file holds one UTC day in ascending order of seq, appears whole or not at all,
and its statistics are those of its rows.  Nothing here knows Delta, Spark or the server.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.core.clock import Random
from headrace.core.errors import NotReady, SegmentCorrupt
from headrace.lake.tables.columns import DAY
from headrace.lake.tables.layout import file_name, is_whole
from headrace.storage.files.store import BytesFile, Store
from headrace.storage.fs import File, read_exact

# A row group: what a reader decodes at once, and what a writer holds before it is encoded.
ROW_GROUP_ROWS: Final = 128 << 10
ROW_GROUP_BYTES: Final = 32 << 20
# A file is closed when it has this many bytes; it is built in memory.
FILE_BYTES_MAX: Final = 128 << 20
ZSTD_LEVEL: Final = 1
# What is wrong with a file: `detail.reason`, and the finding of a verification.
MISSING: Final = "file missing"
DAMAGED: Final = "damaged"
_US_PER_MS: Final = 1_000


class DataFile(msgspec.Struct, frozen=True):
    """One file of a table, by its statistics; `path` is relative to the table."""

    path: str
    size: int
    rows: int
    day: str | None
    first_seq: int
    last_seq: int
    min_ts: int  # milliseconds
    max_ts: int

    def overlaps(self, first: int, last: int) -> bool:
        return self.first_seq <= last and first <= self.last_seq


def shared_out(files: Iterable[DataFile], bytes_max: int) -> list[list[DataFile]]:
    """Return the files in their order, in groups of at most `bytes_max` bytes, or of one file."""
    groups: list[list[DataFile]] = []
    size = 0
    for file in files:
        if not groups or size + file.size > bytes_max:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return groups


class DayFiles:
    """Writes rows into files; `close` says which."""

    def __init__(
        self, store: Store, table: str, batch: str, schema: pa.Schema, random: Random
    ) -> None:
        self._store = store
        self._table = table
        self._batch = batch
        self._schema = schema
        self._random = random
        self._open: _OpenFile | None = None
        self._done: list[DataFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """More rows, with the columns of the schema."""
        for day, part in by_day(rows):
            if self._open is not None and self._open.day != day:
                self._finish()
            if self._open is None:
                self._open = _OpenFile(day, self._schema)
            self._open.add(part)
            if self._open.size >= FILE_BYTES_MAX:
                self._finish()

    def close(self) -> list[DataFile]:
        """All files, durable; nothing can be written any more."""
        self._finish()
        return self._done

    def _finish(self) -> None:
        if self._open is None:
            return
        content = self._open.close()
        name = f"{DAY}={self._open.day}/{file_name(self._batch, self._random, content)}"
        put(self._store, f"{self._table}/{name}", content)
        self._done.append(self._open.described(name, len(content)))
        self._open = None


class _OpenFile:
    """A file of one day that is being made, in memory."""

    def __init__(self, day: str, schema: pa.Schema) -> None:
        self.day = day
        self._schema = schema
        self._sink = pa.BufferOutputStream()
        self._writer = parquet_writer(self._sink, schema)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._rows = 0
        self._first_seq = 0
        self._last_seq = 0
        self._min_ts = 0
        self._max_ts = 0

    @property
    def size(self) -> int:
        """What is encoded so far."""
        return int(self._sink.tell())

    def add(self, rows: pa.RecordBatch) -> None:
        seqs: Any = rows.column("seq")
        bounds: Any = pc.min_max(rows.column("ts").cast(pa.int64()))
        low, high = bounds["min"].as_py() // _US_PER_MS, bounds["max"].as_py() // _US_PER_MS
        if not self._rows:
            self._first_seq, self._min_ts, self._max_ts = seqs[0].as_py(), low, high
        assert seqs[0].as_py() > self._last_seq, "rows come in the order of their seqs"
        self._last_seq = seqs[-1].as_py()
        self._min_ts, self._max_ts = min(self._min_ts, low), max(self._max_ts, high)
        self._rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._encode()

    def _encode(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, schema=self._schema)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> bytes:
        """Its bytes; nothing can be added any more."""
        self._encode()
        self._writer.close()
        return self._sink.getvalue().to_pybytes()

    def described(self, path: str, size: int) -> DataFile:
        """What is in it."""
        return DataFile(
            path,
            size,
            self._rows,
            self.day,
            self._first_seq,
            self._last_seq,
            self._min_ts,
            self._max_ts,
        )


def parquet_writer(sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """As all files of a lake are written."""
    names = schema.names
    # Where most values differ a dictionary would be made in vain.
    plain = ("seq", "ts", "data", "first", "last", "to_seq", "recorded")
    leaves = [leaf for field in schema for leaf in leaf_paths(field.name, field.type)]
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=cast_names([leaf for leaf in leaves if leaf not in plain]),
        column_encoding={name: "DELTA_BINARY_PACKED" for name in ("seq", "ts") if name in names},
        write_statistics=cast_names([leaf for leaf in leaves if leaf not in ("data", "meta")]),
        write_page_checksum=True,
        sorting_columns=[pq.SortingColumn(names.index("seq"))] if "seq" in names else None,
        store_schema=False,
    )


def leaf_paths(path: str, kind: Any) -> list[str]:
    """The columns of Parquet that a column of Arrow consists of.

    >>> leaf_paths("v", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.utf8()))]))
    ['v.a', 'v.b.list.element']
    """
    if pa.types.is_struct(kind):
        return [leaf for one in kind for leaf in leaf_paths(f"{path}.{one.name}", one.type)]
    if pa.types.is_map(kind):
        keys = leaf_paths(f"{path}.key_value.key", kind.key_type)
        return [*keys, *leaf_paths(f"{path}.key_value.value", kind.item_type)]
    if pa.types.is_list(kind):
        return leaf_paths(f"{path}.list.element", kind.value_type)
    return [path]


def cast_names(names: list[str]) -> Any:
    """The stubs of pyarrow know only one form of these arguments."""
    return names


def by_day(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows by their UTC day, cut wherever the day changes; times never go back within a topic."""
    if not rows.num_rows:
        return
    days: Any = rows.column("ts").cast(pa.date32())
    if days[0] == days[-1] and len(pc.unique(days)) == 1:
        yield days[0].as_py().isoformat(), rows
        return
    numbers = days.cast(pa.int32())
    changes: Any = pc.indices_nonzero(
        pc.not_equal(numbers.slice(1), numbers.slice(0, len(numbers) - 1))
    )
    starts = [0, *(at + 1 for at in changes.to_pylist()), rows.num_rows]
    for start, stop in pairwise(starts):
        yield days[start].as_py().isoformat(), rows.slice(start, stop - start)


def put(store: Store, path: str, content: bytes) -> None:
    """Store a file, all or nothing."""
    try:
        store.put(path, BytesFile(path, content), len(content))
    except OSError as error:
        raise NotReady(
            f"{store.describe(path)} could not be written: {error}",
            fix="check the room and the permissions where the lake is, then run this again",
            detail={"reason": "lake_not_writable", "file": path},
        ) from None


class Seekable(io.RawIOBase):
    """A file of a store as Arrow reads one: only what is asked for is fetched."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (self._file.size() if base is None else base)
        return self._at

    def readinto(self, target: Any) -> int:
        found = self._file.pread(len(target), self._at)
        target[: len(found)] = found
        self._at += len(found)
        return len(found)


def read_rows(
    store: Store, table: str, path: str, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, checked page by page; only what is asked for is fetched."""
    opened = store.open_read(f"{table}/{path}")
    try:
        source = pa.PythonFile(Seekable(opened), mode="r")
        yield from _batches(source, columns)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise _damaged(store, table, path, str(error)) from None
    finally:
        opened.close()


def read_whole(store: Store, table: str, path: str, size: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file, once all of it has been compared with the hash in its name.

    Checksums of pages are silent about the rest of a file: where its columns lie and what their
    statistics are.  A caller that removes a file in favour of another, or vouches for it, reads all
    of it.
    """
    try:
        opened = store.open_read(f"{table}/{path}")
    except FileNotFoundError as error:
        raise _damaged(store, table, path, str(error), MISSING) from None
    try:
        if opened.size() != size:
            why = f"it has {opened.size()} bytes, not {size}"
            raise _damaged(store, table, path, why)
        content = read_exact(opened, size, 0)
        if not is_whole(path, content):
            raise _damaged(store, table, path, "its bytes are not those that were written")
        yield from _batches(pa.BufferReader(content), None)
    except FileNotFoundError as error:
        raise _damaged(store, table, path, str(error), MISSING) from None
    except (pa.ArrowException, OSError, EOFError) as error:
        raise _damaged(store, table, path, str(error)) from None
    finally:
        opened.close()


def _batches(source: Any, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    file = pq.ParquetFile(source, page_checksum_verification=True)
    for group in range(file.num_row_groups):
        rows = file.read_row_group(group, columns=list(columns) if columns else None)
        yield from rows.combine_chunks().to_batches()


def _damaged(
    store: Store, table: str, path: str, why: str, reason: str = DAMAGED
) -> SegmentCorrupt:
    return SegmentCorrupt(
        f"{store.describe(f'{table}/{path}')} cannot be read: {why}",
        fix="restore the file from a copy of the lake, or sync the topic into a new lake",
        detail={"file": path, "reason": reason},
    )


def as_stored(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with the columns of a schema, in its order and types."""
    arrays = [rows.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
