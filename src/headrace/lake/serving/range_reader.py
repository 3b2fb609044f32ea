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
import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.core.errors import (
    ConfigError,
    CorruptionError,
    HeadraceError,
    LakeCorrupt,
    LakeUnavailable,
    NotFound,
    NotReady,
)
from headrace.core.lru import LruMap
from headrace.lake.serving.data_file import (
    FOOTER_TAIL_BYTES,
    PARQUET_MAGIC,
    Footer,
    RowGroup,
    TableVersion,
    as_page,
    checked_tail,
    damaged_file,
    opened_file,
    row_groups_in,
)
from headrace.lake.tables.columns import file_schema, names_of
from headrace.lake.tables.files import DataFile, Seekable
from headrace.lake.tables.gaps import read_gaps
from headrace.lake.tables.layout import Identity, Lake
from headrace.lake.tables.seq_sets import DELETED, Gap, runs_of
from headrace.lake.tables.table import open_table
from headrace.storage.archive import ArchivedPart, ArchivedTopic
from headrace.storage.segment.page_columns import PAGE_SCHEMA

# Tables whose files are known without another look at the lake.
TABLES_MAX: Final = 16
# Decoded row groups, gaps and footers; the newest of them is kept however large it is.
CACHE_BYTES_MAX: Final = 64 << 20
# A part is accounted for as a whole: what a page does not need is not looked at.
PART_ROWS_MAX: Final = 4_096
GROUP_BYTES: Final = 256  # what the place of a row group takes in the cache, or less
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


class RangeReader:
    """Reads one lake.  Not for several threads at once."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._tables: LruMap[Identity, TableVersion] = LruMap(TABLES_MAX)
        self._cache: LruMap[tuple[object, ...], Any] = LruMap(CACHE_BYTES_MAX)

    def parts(self, kept: ArchivedTopic, first: int, last: int) -> Iterator[ArchivedPart]:
        """See `Archive.parts`."""
        identity = Identity(kept.topic, kept.topic_id, kept.epoch, kept.directory)
        at = first
        while at <= last:
            with _named(kept.topic, at):
                part = self._part(identity, at, last)
            yield part
            at = part.last + 1

    def _part(self, identity: Identity, first: int, last: int) -> ArchivedPart:
        known = self._tables.get(identity)
        if known is None or known.watermark < first:
            known = self._look(identity)
        if known.watermark < first:
            raise NotReady(
                f"{known.table.name} ends at seq {known.watermark}",
                fix="sync the lake that HEADRACE_LAKE of the server names: another one, or a newer"
                " copy of it, has more",
            )
        try:
            return self._read(known, first, last)
        except (CorruptionError, NotReady):
            # A vacuum may have removed what a compaction put into other files.
            now = self._look(identity)
            if now.table.version == known.table.version:
                raise
        return self._read(now, first, last)

    def _look(self, identity: Identity) -> TableVersion:
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
        return self._tables.put(identity, TableVersion(table, *table.place, files))

    def _read(self, known: TableVersion, first: int, last: int) -> ArchivedPart:
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

    def _account(
        self, known: TableVersion, first: int, last: int, rows: pa.RecordBatch
    ) -> ArchivedPart:
        """Rows are all of a range but what was deleted; or else what is before its first loss."""
        if rows.num_rows == last - first + 1:
            return ArchivedPart(first, last, rows)
        seqs: Any = rows.column("seq")
        gaps = self._gaps(known, first, last)
        for low, high in _between(first, last, runs_of(seqs)):
            for gap in _covering(gaps, low, high, known.table.name):
                if gap.reason == DELETED:
                    continue
                if gap.first == first:
                    return ArchivedPart(first, gap.last, None, gap.reason)
                before = _row_of(seqs, gap.first)
                return ArchivedPart(first, gap.first - 1, rows.slice(0, before))
        return ArchivedPart(first, last, rows)

    # Files

    def _footer(self, known: TableVersion, file: DataFile) -> Footer:
        """Where things lie in a file, all of which is what was written."""
        key = (known.table.name, file.path)
        found: Footer | None = self._cache.get(key)
        if found is not None:
            return found
        with opened_file(self._lake.store(), known, file) as opened:
            tail = checked_tail(opened, known, file)
            length = int.from_bytes(tail[-FOOTER_TAIL_BYTES:-4], "little") + FOOTER_TAIL_BYTES
            metadata = pq.read_metadata(pa.BufferReader(PARQUET_MAGIC + tail[-length:]))
        places = row_groups_in(metadata)
        if not places or (places[0].first, places[-1].last) != (file.first_seq, file.last_seq):
            raise damaged_file(known, file, "its seqs are not those that the log says")
        found = Footer(metadata, places)
        self._cache.put(key, found, length + GROUP_BYTES * len(places))
        return found

    def _rows(
        self, known: TableVersion, file: DataFile, footer: Footer, place: RowGroup
    ) -> pa.RecordBatch:
        """A row group, with the columns of a page."""
        key = (known.table.name, file.path, place.group)
        found: pa.RecordBatch | None = self._cache.get(key)
        if found is not None:
            return found
        with opened_file(self._lake.store(), known, file) as opened:
            parquet = pq.ParquetFile(
                pa.PythonFile(Seekable(opened), mode="r"),
                metadata=footer.metadata,
                page_checksum_verification=True,
            )
            stream = known.table.is_stream
            names = list(names_of(stream))
            table = parquet.read_row_group(place.group, columns=names, use_threads=False)
            if table.schema.remove_metadata() != file_schema(None, stream):
                raise damaged_file(known, file, "its columns are not those of a lake")
            (batch,) = table.combine_chunks().to_batches()
            found = as_page(batch)
        seqs: Any = found.column("seq")
        for field in PAGE_SCHEMA:
            if not field.nullable and found.column(field.name).null_count:
                raise damaged_file(known, file, f"a row has no {field.name}, or an unknown one")
        ends = seqs[0].as_py(), seqs[-1].as_py()
        rising: Any = pc.all(pc.less(seqs.slice(0, len(seqs) - 1), seqs.slice(1)))
        if ends != (place.first, place.last) or rising.as_py() is False:
            raise damaged_file(known, file, "its rows are not in the order of their seqs")
        self._cache.put(key, found, found.nbytes)
        return found

    def _gaps(self, known: TableVersion, first: int, last: int) -> list[Gap]:
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


_NO_ROWS: Final = pa.RecordBatch.from_arrays(
    [pa.nulls(0, field.type) for field in PAGE_SCHEMA], schema=PAGE_SCHEMA
)


def _last_seq(file: DataFile) -> int:
    return file.last_seq


def _last_of(place: RowGroup) -> int:
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
