"""Import: lines, tables and exports of Kafka become records of a topic, each once.

The rule it owns: files are cut into jobs by their sizes alone, and a job gives the same rows when
it runs again.  So an import that was cut off is started again as it was, and stores nothing twice.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from xxhash import xxh3_64_hexdigest

from headrace.core.errors import ConfigError, HeadraceError, InvalidRequest
from headrace.lake.feeding import COLUMNS, JSON, send_rows
from headrace.lake.files import Seekable
from headrace.lake.tasks import Failed, Runner
from headrace.spark.options import Connection
from headrace.storage.fs import File, RealFilesystem

# A job reads about so many bytes of lines; another number would be other jobs.
PART_BYTES: Final = 32 << 20
# What is taken apart at once.
BLOCK_BYTES: Final = 4 << 20
LINE_BYTES_MAX: Final = 64 << 20
# Rows that are made into JSON at once.
ROWS_AT_ONCE: Final = 16_384

FORMATS: Final = ("jsonl", "kafka-json", "csv", "parquet")
ENDINGS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
# Columns of a Parquet file with `data` that say nothing about a new record.
_OF_OLD: Final = frozenset({"seq", "ts", "topic", "day", "value"})


class ImportJob(msgspec.Struct, frozen=True):
    """A part of a file: bytes of lines, or row groups."""

    path: str
    format: str
    start: int
    stop: int
    to: str
    connection: Connection
    write_id: str
    part: int
    strings: bool = False


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What an import stored, or had stored before under the same id."""

    to: str
    id: str
    files: int
    parts: int
    rows: int


def import_files(
    paths: Sequence[str],
    to: str,
    connection: Connection,
    runner: Runner,
    *,
    format: str | None = None,
    write_id: str | None = None,
    strings: bool = False,
) -> Imported:
    """Append the rows of files to a topic; `strings` leaves values of CSV as they are."""
    found = [(path, format or format_of(path), size_of(path)) for path in map(_whole, paths)]
    name = write_id or f"import-{xxh3_64_hexdigest(msgspec.json.encode([to, strings, found]))}"
    spans = [
        (path, kind, start, stop)
        for path, kind, size in found
        for start, stop in spans_of(path, kind, size)
    ]
    jobs = [
        ImportJob(path, kind, start, stop, to, connection, name, part, strings)
        for part, (path, kind, start, stop) in enumerate(spans)
    ]
    rows = 0
    for answer in runner(import_part, jobs):
        if isinstance(answer, Failed):
            raise answer.error
        rows += answer
    return Imported(to=to, id=name, files=len(found), parts=len(jobs), rows=rows)


def format_of(path: str) -> str:
    """By the name's ending.

    >>> format_of("orders.jsonl"), format_of("b.CSV")
    ('jsonl', 'csv')
    """
    found = ENDINGS.get(os.path.splitext(path)[1].lower())
    if found is None:
        raise ConfigError(
            f"{path} does not say what it is", fix=f"give --format {', '.join(FORMATS)}"
        )
    return found


def _whole(path: str) -> str:
    return os.path.abspath(path)


def _open(path: str) -> File:
    directory, name = os.path.split(path)
    return RealFilesystem(directory).open_read(name)


def size_of(path: str) -> int:
    try:
        opened = _open(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", fix="name files that are there"
        ) from None
    try:
        return opened.size()
    finally:
        opened.close()


def spans_of(path: str, format: str, size: int) -> Iterator[tuple[int, int]]:
    """How a file is cut: lines by bytes, Parquet by row groups, CSV not at all."""
    if format == "csv":
        yield 0, size
    elif format == "parquet":
        groups = _group_bytes(path)
        start, waiting = 0, 0
        for at, count in enumerate(groups):
            waiting += count
            if waiting >= PART_BYTES or at == len(groups) - 1:
                yield start, at + 1
                start, waiting = at + 1, 0
    else:
        for start in range(0, size, PART_BYTES):
            yield start, min(size, start + PART_BYTES)


def _group_bytes(path: str) -> list[int]:
    with _Reading(path) as opened:
        meta = pq.ParquetFile(pa.PythonFile(Seekable(opened), mode="r")).metadata
        return [meta.row_group(at).total_byte_size for at in range(meta.num_row_groups)]


class _Reading:
    """A file that is open within a block; what is wrong with it is said by its name."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: File | None = None

    def __enter__(self) -> File:
        self._file = _open(self._path)
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._file is not None
        self._file.close()
        if isinstance(error, pa.ArrowException | UnicodeDecodeError | msgspec.MsgspecError):
            raise InvalidRequest(
                f"{self._path} cannot be imported: {error}",
                fix="mend the file, or give the --format that it has",
                detail={"file": self._path},
            ) from None


def import_part(job: ImportJob) -> int:
    """Read a part, and append its rows."""
    try:
        with _Reading(job.path) as opened:
            rows = _READERS[job.format](job, opened)
            return send_rows(job.connection, job.to, job.write_id, job.part, rows)
    except HeadraceError as error:
        if "file" not in error.detail:
            error.detail["file"] = job.path
        raise


# Lines


def lines_of(opened: File, start: int, stop: int) -> Iterator[bytes]:
    """Blocks of whole lines: those that begin between two places of a file."""
    at = start if not start else _next_line(opened, start - 1)
    rest = b""
    while at < stop:
        block = opened.pread(min(BLOCK_BYTES, stop - at), at)
        if not block:
            break
        at += len(block)
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
        _check_line(rest)
    if rest:
        # The last line began here, and ends in the next part.
        end = _next_line(opened, at)
        _check_line(rest, end - at)
        yield rest + opened.pread(end - at, at)


def _next_line(opened: File, at: int) -> int:
    """Where the next line begins; the end of the file where there is none."""
    while block := opened.pread(BLOCK_BYTES, at):
        found = block.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(block)
    return at


def _check_line(line: bytes, more: int = 0) -> None:
    if len(line) + more > LINE_BYTES_MAX:
        raise InvalidRequest(
            f"a line is longer than {LINE_BYTES_MAX} bytes", fix="are these lines at all?"
        )


def _texts(block: bytes) -> Any:
    """The lines of a block that hold something, as a column."""
    whole: Any = pa.array([block], pa.binary())
    parts: Any = pc.split_pattern(whole, "\n")
    lines: Any = pc.ascii_trim(parts[0].values.cast(pa.utf8()), characters=" \t\r")
    return lines.filter(pc.not_equal(lines, pa.scalar("")))


def _jsonl(job: ImportJob, opened: File) -> Iterator[pa.RecordBatch]:
    for block in lines_of(opened, job.start, job.stop):
        yield record_rows(_texts(block))


class KafkaRecord(msgspec.Struct):
    """A line of `kcat -J`, or of another tool that names things the same way."""

    payload: msgspec.Raw = msgspec.Raw(b"null")
    value: msgspec.Raw = msgspec.Raw(b"")  # what some tools call it
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    ts: int | None = None
    key: str | None = None
    headers: list[str] | None = None


def _kafka(job: ImportJob, opened: File) -> Iterator[pa.RecordBatch]:
    decoder = msgspec.json.Decoder(KafkaRecord)
    for block in lines_of(opened, job.start, job.stop):
        found = [decoder.decode(line) for line in block.split(b"\n") if line.strip()]
        yield record_rows(
            pa.array([_kafka_data(one) for one in found], pa.utf8()),
            tag=pa.array([one.key for one in found], pa.utf8()),
            meta=pa.array([_kafka_meta(one) for one in found], pa.utf8()),
        )


def _kafka_data(record: KafkaRecord) -> str:
    """The value; a text that is JSON itself is that JSON, as `kcat` wraps every value."""
    raw = bytes(record.value) or bytes(record.payload)
    if raw[:1] == b'"':
        text: str = msgspec.json.decode(raw)
        try:
            msgspec.json.decode(text, type=msgspec.Raw)
            return text
        except (msgspec.MsgspecError, UnicodeEncodeError):
            pass
    return raw.decode()


def _kafka_meta(record: KafkaRecord) -> str | None:
    names = ("topic", "partition", "offset", "ts", "headers")
    known = {name: getattr(record, name) for name in names}
    kafka = {name: value for name, value in known.items() if value is not None}
    return msgspec.json.encode({"kafka": kafka}).decode() if kafka else None


# Tables


def _csv(job: ImportJob, opened: File) -> Iterator[pa.RecordBatch]:
    source: Any = pa.PythonFile(Seekable(opened), mode="r")
    types: dict[str, Any] = {}
    if job.strings:
        line: Any = pa.BufferReader(opened.pread(BLOCK_BYTES, 0).split(b"\n")[0] + b"\n")
        types = {name: pa.utf8() for name in pyarrow.csv.open_csv(line).schema.names}
    reader = pyarrow.csv.open_csv(
        source,
        read_options=pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types, strings_can_be_null=not job.strings
        ),
    )
    for batch in reader:
        yield from _objects(batch)


def _parquet(job: ImportJob, opened: File) -> Iterator[pa.RecordBatch]:
    file = pq.ParquetFile(pa.PythonFile(Seekable(opened), mode="r"))
    names = set(file.schema_arrow.names)
    as_records = "data" in names and names <= _OF_OLD | {*COLUMNS, "kind"}
    for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=list(range(job.start, job.stop))):
        if as_records:
            yield _records(batch)
        else:
            yield from _objects(batch)


def _records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that are records already: text is JSON, and binary is what `kind` says, else bytes."""
    names = batch.schema.names
    data: Any = batch.column("data")
    is_text = pa.types.is_string(data.type) or pa.types.is_large_string(data.type)
    kind: Any = pa.repeat(pa.scalar(JSON if is_text else "bytes"), batch.num_rows)
    given = {name: batch.column(name) for name in ("tag", "node", "meta") if name in names}
    return record_rows(data, kind=batch.column("kind") if "kind" in names else kind, **given)


def _objects(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Each row as one object of JSON."""
    for start in range(0, batch.num_rows, ROWS_AT_ONCE):
        rows = batch.slice(start, ROWS_AT_ONCE).to_pylist()
        yield record_rows(pa.array([msgspec.json.encode(row).decode() for row in rows], pa.utf8()))


def record_rows(data: Any, **columns: Any) -> pa.RecordBatch:
    """Rows to be sent: with all columns of a record, and its kind."""
    count = len(data)
    given = {"kind": pa.repeat(pa.scalar(JSON), count), "data": data, **columns}
    names = [*COLUMNS, "kind"]
    arrays = [given.get(name, pa.nulls(count, pa.utf8())) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=names)


_READERS: Final[dict[str, Callable[[ImportJob, File], Iterable[pa.RecordBatch]]]] = {
    "jsonl": _jsonl,
    "kafka-json": _kafka,
    "csv": _csv,
    "parquet": _parquet,
}
