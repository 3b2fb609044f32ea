"""Reading a range of seqs out of a lake, a little at a time, for readers of a topic.

The rule it owns: every seq of the range is accounted for, as a row, as deleted or as lost for a
reason, or it is an error that names it.  Tables and decoded row groups are kept within bounds; a
file that a compaction or a vacuum took meanwhile is looked for once more in the table as it is now.

This runs in a server.  A damaged footer can end the process that parses it, so a file is compared
with the hash in its name before anything of it is; then only the row groups that hold the range are
read, and the checksums of their pages are enough.
"""

from __future__ import annotations

import contextlib
import errno
import re
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from xxhash import xxh3_64

from headrace.core.errors import (
    ConfigError,
    CorruptionError,
    HeadraceError,
    LakeCorrupt,
    LakeUnavailable,
    NotFound,
    NotReady,
)
from headrace.lake.accounts import DELETED, Gap, runs_of
from headrace.lake.columns import NAMES, file_schema
from headrace.lake.files import DataFile, Seekable
from headrace.lake.gaps import read_gaps
from headrace.lake.layout import Identity, Lake, hash_named
from headrace.lake.table import Table, open_table
from headrace.storage.fs import File, read_exact
from headrace.storage.history import Kept, Part
from headrace.storage.page_columns import PAGE_SCHEMA
from headrace.storage.tier import Store

# Tables whose files are known without another look at the lake.
TABLES_MAX: Final = 16
# Decoded row groups, gaps and footers; the newest of them is kept however large it is.
CACHE_BYTES_MAX: Final = 64 << 20
# A file is hashed in pieces; its footer is in the last two.
HASHED_BYTES: Final = 4 << 20
# A part is accounted for as a whole: what a page does not need is not looked at.
PART_ROWS_MAX: Final = 4_096
# In the order of their numbers in a page.
KINDS: Final = ("json", "bytes", "command")
GROUP_BYTES: Final = 256  # what the place of a row group takes in the cache, or less
_FOOTER_TAIL: Final = 8  # the length of a footer, and a magic
_MAGIC: Final = b"PAR1"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")

T = TypeVar("T")


class _Place(NamedTuple):
    """A row group, and the seqs that are in it."""

    group: int
    first: int
    last: int


class _Footer(NamedTuple):
    """What a file is found to be, once it was found whole."""

    metadata: pq.FileMetaData
    places: Sequence[_Place]


class _Known(NamedTuple):
    """A table at one version."""

    table: Table
    watermark: int
    gaps_version: int | None
    files: Sequence[DataFile]


class Past:
    """Reads one lake.  Not for several threads at once."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._tables: OrderedDict[Identity, _Known] = OrderedDict()
        self._cache = _Cache(CACHE_BYTES_MAX)

    def parts(self, kept: Kept, first: int, last: int) -> Iterator[Part]:
        """See `History.parts`."""
        identity = Identity(kept.topic, kept.topic_id, kept.epoch, kept.directory)
        at = first
        while at <= last:
            with _named(kept.topic, at):
                part = self._part(identity, at, last)
            yield part
            at = part.last + 1

    def _part(self, identity: Identity, first: int, last: int) -> Part:
        known = self._tables.get(identity)
        if known is None or known.watermark < first:
            known = self._look(identity)
        if known.watermark < first:
            raise NotReady(
                f"{known.table.name} ends at seq {known.watermark}",
                fix="sync the lake that HEADRACE_LAKE of the server names: another one, or a newer"
                " copy of it, has more",
            )
        self._tables.move_to_end(identity)
        try:
            return self._read(known, first, last)
        except (CorruptionError, NotReady):
            # A vacuum may have removed what a compaction put into other files.
            now = self._look(identity)
            if now.table.version == known.table.version:
                raise
        return self._read(now, first, last)

    def _look(self, identity: Identity) -> _Known:
        """The table as it is now."""
        table = open_table(self._lake, identity)
        if table is None:
            raise NotFound(f"there is no table {identity.table}", fix="")
        files = table.files()
        for before, after in pairwise(files):
            if after.first_seq <= before.last_seq:
                raise LakeCorrupt(
                    f"{before.path} and {after.path} of {table.name} overlap",
                    fix="run `headrace lake verify`; only `headrace lake` may write to it",
                )
        known = _Known(table, *table.place, files)
        self._tables[identity] = known
        while len(self._tables) > TABLES_MAX:
            self._tables.popitem(last=False)
        return known

    def _read(self, known: _Known, first: int, last: int) -> Part:
        """What comes first of a range: rows, or a loss."""
        files, last = known.files, min(last, known.watermark)
        at = bisect_left(files, first, key=_last_seq)
        if at == len(files) or files[at].first_seq > last:
            return self._account(known, first, last, _NO_ROWS)
        file = files[at]
        footer = self._footer(known, file)
        found = footer.places[bisect_left(footer.places, first, key=_last_of)]
        if found.first > last:
            return self._account(known, first, last, _NO_ROWS)
        rows = self._rows(known, file, footer, found)
        seqs: Any = rows.column("seq")
        start = _row_of(seqs, first)
        stop = min(_row_of(seqs, last + 1), start + PART_ROWS_MAX)
        end = min(last, found.last)
        if stop < rows.num_rows:
            end = min(last, seqs[stop].as_py() - 1)
        return self._account(known, first, end, rows.slice(start, stop - start))

    def _account(self, known: _Known, first: int, last: int, rows: pa.RecordBatch) -> Part:
        """Rows are all of a range but what was deleted; or else what is before its first loss."""
        if rows.num_rows == last - first + 1:
            return Part(first, last, rows)
        seqs: Any = rows.column("seq")
        gaps = self._gaps(known, first, last)
        for low, high in _between(first, last, runs_of(seqs)):
            for gap in _covering(gaps, low, high, known.table.name):
                if gap.reason == DELETED:
                    continue
                if gap.first == first:
                    return Part(first, gap.last, None, gap.reason)
                before = _row_of(seqs, gap.first)
                return Part(first, gap.first - 1, rows.slice(0, before))
        return Part(first, last, rows)

    # Files

    def _footer(self, known: _Known, file: DataFile) -> _Footer:
        """Where things lie in a file, all of which is what was written."""
        key = (known.table.name, file.path)
        found: _Footer | None = self._cache.get(key)
        if found is not None:
            return found
        with _opened(self._lake.store(), known, file) as opened:
            tail = _checked_tail(opened, known, file)
            length = int.from_bytes(tail[-_FOOTER_TAIL:-4], "little") + _FOOTER_TAIL
            metadata = pq.read_metadata(pa.BufferReader(_MAGIC + tail[-length:]))
        places = _places_in(metadata)
        if not places or (places[0].first, places[-1].last) != (file.first_seq, file.last_seq):
            raise _unlike(known, file, "its seqs are not those that the log says")
        size = length + GROUP_BYTES * len(places)
        return self._cache.put(key, _Footer(metadata, places), size)

    def _rows(
        self, known: _Known, file: DataFile, footer: _Footer, place: _Place
    ) -> pa.RecordBatch:
        """A row group, with the columns of a page."""
        key = (known.table.name, file.path, place.group)
        found: pa.RecordBatch | None = self._cache.get(key)
        if found is not None:
            return found
        with _opened(self._lake.store(), known, file) as opened:
            parquet = pq.ParquetFile(
                pa.PythonFile(Seekable(opened), mode="r"),
                metadata=footer.metadata,
                page_checksum_verification=True,
            )
            table = parquet.read_row_group(place.group, columns=list(NAMES), use_threads=False)
            if table.schema.remove_metadata() != _FILE_SCHEMA:
                raise _unlike(known, file, "its columns are not those of a lake")
            (batch,) = table.combine_chunks().to_batches()
            found = _as_page(batch)
        seqs: Any = found.column("seq")
        for field in PAGE_SCHEMA:
            if not field.nullable and found.column(field.name).null_count:
                raise _unlike(known, file, f"a row has no {field.name}, or an unknown one")
        ends = seqs[0].as_py(), seqs[-1].as_py()
        rising: Any = pc.all(pc.less(seqs.slice(0, len(seqs) - 1), seqs.slice(1)))
        if ends != (place.first, place.last) or rising.as_py() is False:
            raise _unlike(known, file, "its rows are not in the order of their seqs")
        return self._cache.put(key, found, found.nbytes)

    def _gaps(self, known: _Known, first: int, last: int) -> list[Gap]:
        """The gaps that touch a range."""
        version = known.gaps_version
        if version is None:
            return []
        key = (known.table.name, version)
        table: pa.Table | None = self._cache.get(key)
        if table is None:
            table = read_gaps(self._lake, known.table.identity, version).combine_chunks()
            self._cache.put(key, table, table.nbytes)
        firsts, lasts = table.column("first"), table.column("last")
        start, stop = _row_of(lasts, first), _row_of(firsts, last + 1)
        if start >= stop:
            return []
        found = table.slice(start, stop - start).select(["first", "last", "reason"])
        return [Gap(*row.values()) for row in found.to_pylist()]


class _Cache:
    """Values by key, the latest used ones up to so many bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._values: OrderedDict[tuple[object, ...], tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[object, ...]) -> Any:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: tuple[object, ...], value: T, size: int) -> T:
        self._values[key] = value, size
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._values) > 1:
            _, (_, freed) = self._values.popitem(last=False)
            self._bytes -= freed
        return value


_FILE_SCHEMA: Final = file_schema(None)
_NO_ROWS: Final = pa.RecordBatch.from_arrays(
    [pa.nulls(0, field.type) for field in PAGE_SCHEMA], schema=PAGE_SCHEMA
)


def _last_seq(file: DataFile) -> int:
    return file.last_seq


def _last_of(place: _Place) -> int:
    return place.last


def _row_of(seqs: Any, seq: int) -> int:
    """The first row of a rising column that is at least `seq`."""
    return bisect_left(range(len(seqs)), seq, key=lambda row: seqs[row].as_py())


def _between(first: int, last: int, runs: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What runs leave of a range.

    >>> list(_between(1, 9, iter([(2, 3), (5, 7)])))
    [(1, 1), (4, 4), (8, 9)]
    """
    at = first
    for low, high in runs:
        if at < low:
            yield at, low - 1
        at = high + 1
    if at <= last:
        yield at, last


def _covering(gaps: list[Gap], first: int, last: int, table: str) -> Iterator[Gap]:
    """The gaps that a range consists of, cut to it; what is in none is an error."""
    at = first
    index = bisect_left(gaps, first, key=lambda gap: gap.last)
    while at <= last:
        if index == len(gaps) or gaps[index].first > at:
            raise LakeCorrupt(
                f"seq {at} is neither a row nor a gap of {table}",
                fix="run `headrace lake verify`, and restore the table from a copy",
            )
        gap = gaps[index]
        yield Gap(at, min(gap.last, last), gap.reason)
        at, index = gap.last + 1, index + 1


@contextlib.contextmanager
def _opened(store: Store, known: _Known, file: DataFile) -> Iterator[File]:
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


def _checked_tail(opened: File, known: _Known, file: DataFile) -> bytes:
    """The last bytes of a file, once all of them have been compared with the hash in its name."""
    if opened.size() != file.size:
        raise _unlike(known, file, f"it has {opened.size()} bytes, not {file.size}")
    hasher, before, tail = xxh3_64(), b"", b""
    for offset in range(0, file.size, HASHED_BYTES):
        before, tail = tail, read_exact(opened, min(HASHED_BYTES, file.size - offset), offset)
        hasher.update(tail)
    if hasher.hexdigest() != hash_named(file.path):
        raise _unlike(known, file, "its bytes are not those that were written")
    return before + tail


def _places_in(metadata: pq.FileMetaData) -> list[_Place]:
    """Where the seqs of a file are, by the statistics in it."""
    column = metadata.schema.to_arrow_schema().get_field_index("seq")
    found = []
    for group in range(metadata.num_row_groups):
        known: Any = metadata.row_group(group).column(column).statistics
        if known is None or not known.has_min_max:
            return []
        found.append(_Place(group, known.min, known.max))
    rising = all(before.last < after.first for before, after in pairwise(found))
    return found if rising else []


def _as_page(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a file with the columns of a page: the same values under other types."""
    columns: dict[str, Any] = dict(zip(rows.schema.names, rows.columns, strict=True))
    kinds: Any = pa.array(KINDS, pa.utf8())
    columns["kind"] = pc.index_in(columns["kind"], value_set=kinds)
    arrays = [columns[field.name].cast(field.type) for field in PAGE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=PAGE_SCHEMA)


def _unlike(known: _Known, file: DataFile, why: str) -> LakeCorrupt:
    return LakeCorrupt(
        f"{file.path} of {known.table.name}: {why}",
        fix="run `headrace lake verify`, and restore the file from a copy of the lake",
        detail={"file": file.path},
    )


@contextlib.contextmanager
def _named(topic: str, seq: int) -> Iterator[None]:
    """What is wrong with a lake, as errors that say which records cannot be had."""
    detail = {"topic": topic, "first_seq": seq}
    what = f"seq {seq} of {topic!r} is only in the lake"
    try:
        yield
    except CorruptionError as error:
        raise LakeCorrupt(
            f"{what}: {error.message}", fix=error.fix, detail={**error.detail, **detail}
        ) from None
    except NotFound as error:
        raise LakeUnavailable(
            f"{what}: {error.message}",
            fix="set HEADRACE_LAKE of the server to where `headrace lake sync` writes, or mount it",
            detail=detail,
        ) from None
    except (NotReady, ConfigError, OSError) as error:
        said = error.message if isinstance(error, HeadraceError) else str(error)
        said = _COLOUR.sub("", said)  # Delta's are for a terminal
        fix = error.fix if isinstance(error, HeadraceError) else ""
        raise LakeUnavailable(
            f"{what}: {said}",
            fix=fix or "check the place of the lake and its permissions",
            detail=detail,
        ) from None
    except BaseException as error:
        # Where Delta's own code ends unexpectedly it is no `Exception`, and would end the lane.
        if type(error).__name__ != "PanicException":
            raise
        raise LakeCorrupt(
            f"{what}: its log cannot be read: {error}",
            fix="run `headrace lake verify`",
            detail=detail,
        ) from None
