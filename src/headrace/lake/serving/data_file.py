"""One Parquet file of a lake as a server reads it: compared with its hash, its row groups found.

Nothing is made of a file's bytes before all of them have been compared with the hash in its name.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from xxhash import xxh3_64

from headrace.core.errors import (
    LakeCorrupt,
)
from headrace.lake.tables.files import DataFile
from headrace.lake.tables.layout import hash_named
from headrace.lake.tables.table import Table
from headrace.storage.files.store import Store
from headrace.storage.fs import File, read_exact
from headrace.storage.segment.page_columns import HEADERS, PAGE_SCHEMA, headers_column

# A file is hashed in pieces; its footer is in the last two.
HASHED_BYTES: Final = 4 << 20
# In the order of their numbers in a page.
KINDS: Final = ("json", "bytes", "command")
FOOTER_TAIL_BYTES: Final = 8  # the length of a footer, and a magic
PARQUET_MAGIC: Final = b"PAR1"


class RowGroup(NamedTuple):
    """A row group, and the seqs that are in it."""

    group: int
    first: int
    last: int


class Footer(NamedTuple):
    """What a file is found to be, once it was found whole."""

    metadata: pq.FileMetaData
    places: Sequence[RowGroup]


class TableVersion(NamedTuple):
    """A table at one version."""

    table: Table
    watermark: int
    gaps_version: int | None
    files: Sequence[DataFile]


@contextlib.contextmanager
def opened_file(store: Store, known: TableVersion, file: DataFile) -> Iterator[File]:
    path = f"{known.table.name}/{file.path}"
    opened = None
    try:
        opened = store.open_read(path)
        yield opened
    except (pa.ArrowException, OSError, EOFError) as error:
        # Arrow words damage as an error of I/O, without a number of the system.
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            raise
        raise LakeCorrupt(
            f"{store.describe(path)} cannot be read: {error}",
            fix="restore the file from a copy of the lake",
            detail={"file": file.path},
        ) from None
    finally:
        if opened is not None:
            opened.close()


def checked_tail(opened: File, known: TableVersion, file: DataFile) -> bytes:
    """The last bytes of a file, once all of them have been compared with the hash in its name."""
    if opened.size() != file.size:
        raise damaged_file(known, file, f"it has {opened.size()} bytes, not {file.size}")
    hasher, before, tail = xxh3_64(), b"", b""
    for offset in range(0, file.size, HASHED_BYTES):
        before, tail = tail, read_exact(opened, min(HASHED_BYTES, file.size - offset), offset)
        hasher.update(tail)
    if hasher.hexdigest() != hash_named(file.path):
        raise damaged_file(known, file, "its bytes are not those that were written")
    return before + tail


def row_groups_in(metadata: pq.FileMetaData) -> list[RowGroup]:
    """Where the seqs of a file are, by the statistics in it."""
    column = metadata.schema.to_arrow_schema().get_field_index("seq")
    found = []
    for group in range(metadata.num_row_groups):
        known: Any = metadata.row_group(group).column(column).statistics
        if known is None or not known.has_min_max:
            return []
        found.append(RowGroup(group, known.min, known.max))
    rising = all(before.last < after.first for before, after in pairwise(found))
    return found if rising else []


def as_page(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a file with the columns of a page: the same values under other types."""
    columns: dict[str, Any] = dict(zip(rows.schema.names, rows.columns, strict=True))
    kinds: Any = pa.array(KINDS, pa.utf8())
    columns["kind"] = pc.index_in(columns["kind"], value_set=kinds)
    columns[HEADERS] = _headers(columns.get(HEADERS), rows.num_rows)
    arrays = [columns[field.name].cast(field.type) for field in PAGE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=PAGE_SCHEMA)


def _headers(column: Any, count: int) -> Any:
    """The headers of rows; only the table of a stream has such a column."""
    if column is None or column.null_count == count:
        return pa.nulls(count, PAGE_SCHEMA.field(HEADERS).type)
    return headers_column(
        [
            None if row is None else [(pair["name"], pair["value"]) for pair in row]
            for row in column.to_pylist()
        ]
    )


def damaged_file(known: TableVersion, file: DataFile, why: str) -> LakeCorrupt:
    return LakeCorrupt(
        f"{file.path} of {known.table.name}: {why}",
        fix="run `headrace lake verify`, and restore the file from a copy of the lake",
        detail={"file": file.path},
    )
