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
from headrace.core.errors import CorruptionError, TopicNotFound
from headrace.lake.accounts import Gap, ranges_of, runs_of, whole
from headrace.lake.columns import NAMES, file_schema
from headrace.lake.copying import source_options, source_rows
from headrace.lake.files import DataFile, by_day, read_rows
from headrace.lake.gaps import read_gaps
from headrace.lake.layout import Lake
from headrace.lake.table import Table
from headrace.lake.tasks import Failed, Runner
from headrace.spark.connection import give_back
from headrace.spark.options import EARLIEST, Connection, Position, SourceOptions
from headrace.spark.reading.parts import ReadPart
from headrace.spark.reading.planning import plan
from headrace.spark.reading.spans import Span

# A task reads about so many bytes of files.
JOB_BYTES: Final = 64 << 20
FINDINGS_MAX: Final = 100


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
            for answer in runner(compare_part, jobs):
                compared += _counted(answer, findings)
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
        findings += [Finding("row twice", a, b) for a, b in ranges_of(found & seqs)]
        found |= seqs
    return found


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
        seqs = BitMap64()
        try:
            for rows in read_rows(store, job.table, file.path):
                findings += _rows_wrong(file, rows, seqs)
        except FileNotFoundError:
            findings.append(Finding("file missing", file.first_seq, file.last_seq, file.path))
        except CorruptionError as error:
            findings.append(Finding("damaged", file.first_seq, file.last_seq, str(error)))
        findings += [Finding("row twice", a, b, file.path) for a, b in ranges_of(seen & seqs)]
        bounds = (len(seqs), seqs.min(), seqs.max()) if seqs else (0, 0, 0)
        if seqs and bounds != (file.rows, file.first_seq, file.last_seq):
            findings.append(Finding("statistics", file.first_seq, file.last_seq, file.path))
        seen |= seqs
    return FilesSeen(seen.serialize(), findings[:FINDINGS_MAX])


def _rows_wrong(file: DataFile, rows: pa.RecordBatch, seqs: BitMap64) -> Iterator[Finding]:
    """Note the seqs of these rows; what is not as a file should be is a finding."""
    column: Any = rows.column("seq")
    steps = pc.subtract(column.slice(1), column.slice(0, len(column) - 1))
    least = pc.min(steps).as_py()
    newest = seqs.max() if seqs else 0
    first, last = column[0].as_py(), column[-1].as_py()
    if first <= newest or (least is not None and least < 1):
        yield Finding("order", first, last, file.path)
        seqs.update(column.to_pylist())
        return
    for a, b in runs_of(column):
        seqs.add_range(a, b + 1)
    for day, part in by_day(rows):
        if day != file.day:
            yield Finding("day", part.column("seq")[0].as_py(), last, f"{file.path} has {day}")


def _gap_seqs(table: Table, findings: list[Finding]) -> BitMap64:
    """The seqs of all gaps; one that is in two of them is a finding."""
    found = BitMap64()
    rows = read_gaps(table.lake, table.identity, table.place.gaps_version)
    newest = 0
    for row in rows.to_pylist():
        first, last = row["first"], row["last"]
        if first <= newest:
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
        findings += [Finding(what, a, b) for a, b in ranges_of(seqs)[:FINDINGS_MAX]]


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
    return CompareJob(table.lake, table.name, some, options, part)


def _counted(answer: Compared | Failed[CompareJob], findings: list[Finding]) -> int:
    if isinstance(answer, Failed):
        raise answer.error
    findings += answer.findings
    return answer.rows


def compare_part(job: CompareJob) -> Compared:
    """Compare each record that the source has with its row."""
    told: list[Gap] = []
    table_rows = _Rows(job)
    rows = 0
    findings: list[Finding] = []
    for batch in source_rows(job.options, job.part, told):
        rows += batch.num_rows
        if len(findings) < FINDINGS_MAX:
            findings += _differences(batch, table_rows.between(batch.column("seq")))
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
    for name in NAMES:
        a: Any = source.column(name)
        b: Any = rows[name].combine_chunks().cast(a.type)
        if a.equals(b):
            continue
        same = pc.fill_null(pc.equal(a, b), False)
        alike = pc.or_(same, pc.and_(pc.is_null(a), pc.is_null(b)))
        for first, last in runs_of(source.column("seq").filter(pc.invert(alike))):
            yield Finding("differs", first, last, name)


class _Rows:
    """The rows of a table in the order of their seqs, read once from front to back."""

    def __init__(self, job: CompareJob) -> None:
        self._batches = self._read(job)
        self._waiting: list[pa.RecordBatch] = []
        self._done = False

    def _read(self, job: CompareJob) -> Iterator[pa.RecordBatch]:
        store = job.lake.store()
        for file in job.files:
            try:
                yield from read_rows(store, job.table, file.path, NAMES)
            except (FileNotFoundError, CorruptionError):
                continue  # whoever looked at the files by themselves says so

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
            return file_schema(None).empty_table()
        rows = pa.Table.from_batches(self._waiting)
        return rows.filter(pc.is_in(rows["seq"], value_set=seqs))
