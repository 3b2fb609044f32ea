"""Verification: every seq up to the watermark is a row once or a gap, and rows are the source's.

Two kinds of jobs: one reads files of the table and says which seqs are in them; one reads a part of
the topic as the server has it now and compares each record with the row of its seq, all columns.
What the server has no more cannot be compared, and is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headrace.client import Client
from headrace.core.errors import CorruptionError, NotFound, SegmentCorrupt, TopicNotFound
from headrace.lake.tables.columns import VALUE, VARIANT, Values, file_schema, names_of
from headrace.lake.tables.files import DAMAGED, MISSING, DataFile, by_day, read_rows, read_whole
from headrace.lake.tables.gaps import read_gaps
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.seq_sets import Gap, ranges_of, runs_of, whole
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import Failed, Runner
from headrace.lake.writing.copy_task import source_options, source_rows
from headrace.spark.connection import give_back
from headrace.spark.options import EARLIEST, Connection, Position, SourceOptions
from headrace.spark.reading.parts import ReadPart
from headrace.spark.reading.planning import plan
from headrace.spark.reading.spans import Span

# A task reads about this many bytes of files.
JOB_BYTES: Final = 64 << 20
FINDINGS_MAX: Final = 100
_US_PER_MS: Final = 1_000


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong with seqs `first` to `last`."""

    what: str
    first: int
    last: int
    detail: str = ""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What there is in a table, and what is wrong with it; at most 100 findings are listed."""

    topic: str
    table: str
    version: int
    watermark: int
    rows: int
    gap_seqs: int
    files: int
    compared: int
    source: str  # `compared`, or why not: `deleted`, `skipped`
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        return not self.findings


class FilesJob(msgspec.Struct, frozen=True):
    lake: Lake
    table: str
    files: list[DataFile]


class FilesSeen(msgspec.Struct, frozen=True):
    """The seqs of some files, as a 64-bit Roaring bitmap."""

    rows: bytes
    findings: list[Finding]


class CompareJob(msgspec.Struct, frozen=True):
    lake: Lake
    table: str
    files: list[DataFile]  # those that may hold these seqs, in their order
    options: SourceOptions
    part: ReadPart
    topic: str
    value_ddl: str | None  # of fields that are made again, and compared
    stream: bool = False  # the table has the columns of one


class Compared(msgspec.Struct, frozen=True):
    rows: int
    findings: list[Finding]


def verify(
    table: Table,
    runner: Runner,
    client: Client | None = None,
    connection: Connection | None = None,
) -> Verified:
    """Look at everything; with a server compare with what it still has."""
    files, place, identity = table.files(), table.place, table.identity
    findings: list[Finding] = []
    present = _present(table, runner, files, findings)
    gaps = _gap_seqs(table, findings)
    _account(present, gaps, place.watermark, findings)
    compared, source = 0, "skipped"
    if client is not None and connection is not None:
        options = _options(connection, identity.topic)
        parts = _source_parts(client, options, table, place.watermark)
        source = "deleted" if parts is None else "compared"
        if parts is not None:
            made, pins = parts
            jobs = [_compare_job(table, files, options, part) for part in made]
            try:
                for answer in runner(compare_part, jobs):
                    compared += _counted(answer, findings)
            finally:
                give_back(client, pins)
    return Verified(
        topic=identity.topic,
        table=table.name,
        version=table.version,
        watermark=place.watermark,
        rows=len(present),
        gap_seqs=len(gaps),
        files=len(files),
        compared=compared,
        source=source,
        findings=findings[:FINDINGS_MAX],
    )


# The table by itself


def _present(
    table: Table, runner: Runner, files: list[DataFile], findings: list[Finding]
) -> BitMap64:
    """The seqs of all files; one that is in two of them is a finding."""
    jobs = [FilesJob(table.lake, table.name, some) for some in _shared_out(files)]
    found = BitMap64()
    for job, answer in zip(jobs, runner(look_at_files, jobs), strict=True):
        if isinstance(answer, Failed):
            first, last = job.files[0].first_seq, job.files[-1].last_seq
            findings.append(Finding("unreadable", first, last, str(answer.error)))
            continue
        findings += answer.findings
        seqs = BitMap64.deserialize(answer.rows)
        findings += _named("row twice", found & seqs)
        found |= seqs
    return found


def _named(what: str, seqs: BitMap64, detail: str = "") -> list[Finding]:
    return [Finding(what, a, b, detail) for a, b in ranges_of(seqs)[:FINDINGS_MAX]]


def _shared_out(files: list[DataFile]) -> Iterator[list[DataFile]]:
    waiting: list[DataFile] = []
    for file in files:
        waiting.append(file)
        if sum(one.size for one in waiting) >= JOB_BYTES:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def look_at_files(job: FilesJob) -> FilesSeen:
    """Read files whole, and compare each with what the log says of it."""
    store = job.lake.store()
    seen = BitMap64()
    findings: list[Finding] = []
    for file in job.files:
        looked = _Looked(file)
        try:
            for rows in read_whole(store, job.table, file.path, file.size):
                looked.add(rows)
            findings += looked.wrong()
        except SegmentCorrupt as error:
            what = str(error.detail.get("reason", DAMAGED))
            findings.append(Finding(what, file.first_seq, file.last_seq, str(error)))
        findings += _named("row twice", seen & looked.seqs, file.path)
        seen |= looked.seqs
    return FilesSeen(seen.serialize(), findings[:FINDINGS_MAX])


class _Looked:
    """One file as its rows are."""

    def __init__(self, file: DataFile) -> None:
        self._file = file
        self.seqs = BitMap64()
        self._rows = 0
        self._times: list[int] = []  # the least and the greatest of each batch
        self._findings: list[Finding] = []

    def add(self, rows: pa.RecordBatch) -> None:
        column: Any = rows.column("seq")
        steps = pc.subtract(column.slice(1), column.slice(0, len(column) - 1))
        least = pc.min(steps).as_py()
        newest = self.seqs.max() if self.seqs else 0
        first, last = column[0].as_py(), column[-1].as_py()
        self._rows += rows.num_rows
        bounds: Any = pc.min_max(rows.column("ts").cast(pa.int64()))
        self._times += [bounds[end].as_py() // _US_PER_MS for end in ("min", "max")]
        for day, part in by_day(rows):
            if day != self._file.day:
                at = part.column("seq")
                self._found("day", at[0].as_py(), at[-1].as_py(), f"{self._file.path} has {day}")
        if first <= newest or (least is not None and least < 1):
            self._found("order", first, last)
            self._one_by_one(column.to_pylist())
            return
        for a, b in runs_of(column):
            self.seqs.add_range(a, b + 1)

    def _one_by_one(self, seqs: list[int]) -> None:
        for seq in seqs:
            if seq in self.seqs:
                self._found("row twice", seq, seq)
            self.seqs.add(seq)

    def _found(self, what: str, first: int, last: int, detail: str = "") -> None:
        if len(self._findings) < FINDINGS_MAX:
            self._findings.append(Finding(what, first, last, detail or self._file.path))

    def wrong(self) -> list[Finding]:
        """All that is not as it should be, once every row was added."""
        file, seqs, times = self._file, self.seqs, self._times
        said = (file.rows, file.first_seq, file.last_seq, file.min_ts, file.max_ts)
        if not seqs or said != (self._rows, seqs.min(), seqs.max(), min(times), max(times)):
            self._found("statistics", file.first_seq, file.last_seq)
        return self._findings


def _gap_seqs(table: Table, findings: list[Finding]) -> BitMap64:
    """The seqs of all gaps; one that is in two of them is a finding."""
    found = BitMap64()
    watermark, version = table.place
    try:
        rows = read_gaps(table.lake, table.identity, version)
    except (NotFound, SegmentCorrupt) as error:
        what = str(error.detail.get("reason", MISSING))
        findings.append(Finding(what, 1, watermark, str(error)))
        return found
    newest = 0
    for batch in rows.select(["first", "last"]).to_batches():
        columns: Any = batch.columns
        for first, last in zip(*(column.to_pylist() for column in columns), strict=True):
            if first <= newest and len(findings) < FINDINGS_MAX:
                findings.append(Finding("gap twice", first, last))
            newest = max(newest, last)
            found.add_range(first, last + 1)
    return found


def _account(present: BitMap64, gaps: BitMap64, watermark: int, findings: list[Finding]) -> None:
    expected = whole(1, watermark)
    for what, seqs in (
        ("row and gap", present & gaps),
        ("missing", expected - present - gaps),
        ("beyond the watermark", (present | gaps) - expected),
    ):
        findings += _named(what, seqs)


# Against the source


def _options(connection: Connection, topic: str) -> SourceOptions:
    options = SourceOptions(connection, topics=(topic,), starting=Position(EARLIEST))
    return source_options(options)


def _source_parts(
    client: Client, options: SourceOptions, table: Table, watermark: int
) -> tuple[list[ReadPart], list[tuple[str, str]]] | None:
    """What the server still has of a table's seqs; None when it has another topic, or none."""
    identity = table.identity
    try:
        state = client.topic(identity.topic, touch=False)
    except TopicNotFound:
        return None
    if state.epoch != identity.epoch:
        return None
    span = Span(identity.topic, identity.epoch, max(1, state.earliest_seq), watermark)
    made = plan(client, options, [span], floating=True) if span.length else None
    return ([], []) if made is None else (made.parts, made.pins)


def _compare_job(
    table: Table, files: list[DataFile], options: SourceOptions, part: ReadPart
) -> CompareJob:
    first = min(one.span.first for one in part.slices)
    last = max(one.span.last for one in part.slices)
    some = [file for file in files if file.overlaps(first, last)]
    # What Java made of a VARIANT is not made again here.
    ddl = None if table.value_ddl == VARIANT else table.value_ddl
    topic = table.identity.topic
    return CompareJob(table.lake, table.name, some, options, part, topic, ddl, table.is_stream)


def _counted(answer: Compared | Failed[CompareJob], findings: list[Finding]) -> int:
    if isinstance(answer, Failed):
        raise answer.error
    findings += answer.findings
    return answer.rows


def compare_part(job: CompareJob) -> Compared:
    """Compare each record that the source has with its row."""
    told: list[Gap] = []
    table_rows = _Rows(job)
    values = None if job.value_ddl is None else Values(job.value_ddl)
    rows = 0
    findings: list[Finding] = []
    for batch in source_rows(job.options, job.part, told, job.stream):
        rows += batch.num_rows
        if len(findings) < FINDINGS_MAX:
            wanted = batch if values is None else values.added(job.topic, batch)
            findings += _differences(wanted, table_rows.between(batch.column("seq")))
    return Compared(rows, findings[:FINDINGS_MAX])


def _differences(source: pa.RecordBatch, found: pa.Table) -> Iterator[Finding]:
    """Rows that are missing, and rows that are others."""
    seqs: Any = source.column("seq")
    places: Any = pc.index_in(seqs, value_set=found["seq"].combine_chunks())
    if places.null_count:
        for first, last in runs_of(seqs.filter(pc.is_null(places))):
            yield Finding("not in the table", first, last)
        source = source.filter(pc.is_valid(places))
        places = places.drop_null()
    rows = found.take(places)
    for name in source.schema.names:
        a: Any = source.column(name)
        b: Any = rows[name].combine_chunks().cast(a.type)
        if not a.equals(b):
            for first, last in runs_of(source.column("seq").filter(_others(a, b))):
                yield Finding("differs", first, last, name)


def _others(a: Any, b: Any) -> Any:
    """Which values are not the same."""
    if pa.types.is_nested(a.type):
        pairs = zip(a.to_pylist(), b.to_pylist(), strict=True)
        return pa.array([one != other for one, other in pairs], pa.bool_())
    same = pc.fill_null(pc.equal(a, b), False)
    return pc.invert(pc.or_(same, pc.and_(pc.is_null(a), pc.is_null(b))))


class _Rows:
    """The rows of a table in the order of their seqs, read once from front to back."""

    def __init__(self, job: CompareJob) -> None:
        names = names_of(job.stream)
        self._names = names if job.value_ddl is None else (*names, VALUE)
        self._schema = file_schema(job.value_ddl, job.stream)
        self._batches = self._read(job)
        self._waiting: list[pa.RecordBatch] = []
        self._done = False

    def _read(self, job: CompareJob) -> Iterator[pa.RecordBatch]:
        store = job.lake.store()
        for file in job.files:
            try:
                yield from read_rows(store, job.table, file.path, self._names)
            except (FileNotFoundError, CorruptionError):
                continue  # the look at the files by themselves reports it

    def between(self, seqs: Any) -> pa.Table:
        """The rows with these seqs, which ascend from call to call."""
        first, last = seqs[0].as_py(), seqs[-1].as_py()
        self._waiting = [one for one in self._waiting if one.column("seq")[-1].as_py() >= first]
        while not self._done and (
            not self._waiting or self._waiting[-1].column("seq")[-1].as_py() < last
        ):
            more = next(self._batches, None)
            self._done = more is None
            if more is not None and more.column("seq")[-1].as_py() >= first:
                self._waiting.append(more)
        if not self._waiting:
            return self._schema.empty_table()
        rows = pa.Table.from_batches(self._waiting)
        return rows.filter(pc.is_in(rows["seq"], value_set=seqs))
