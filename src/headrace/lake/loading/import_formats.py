"""Formats of files that can be imported: a part of a file in, rows of records out.

The rule it owns: which rows a part has follows from the bytes of the file and from constants.  A
row that cannot be a record is refused by its place; where its neighbours need it for counting, it
stays as a row without data.
"""

from __future__ import annotations

import os.path
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.lake.loading.json_rows import check_names, json_objects
from headrace.lake.loading.kafka_json import kafka_rows
from headrace.lake.loading.producers import COLUMNS, Reading, decoded, is_text
from headrace.lake.tables.files import Seekable
from headrace.storage.files.store import ReadOnlyFile
from headrace.storage.fs import File, RealFilesystem

# What is taken apart at once.
BLOCK_BYTES: Final = 4 << 20
LINE_BYTES_MAX: Final = 64 << 20
# For how many parts the line they begin with is remembered.
PARTS_REMEMBERED: Final = 16
# Rows that are made into JSON at once.
ROWS_AT_ONCE: Final = 16_384

FORMATS: Final = ("jsonl", "kafka-json", "csv", "parquet")
LINES: Final = ("jsonl", "kafka-json")
ENDINGS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
CODECS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_BOM: Final = b"\xef\xbb\xbf"
_BLANKS: Final = b" \t\r"
# Columns of a Parquet file with `data` that say nothing about a new record.
_OF_OLD: Final = frozenset({"seq", "ts", "topic", "day", "value"})


class How(msgspec.Struct, frozen=True):
    """How the values of a file are taken."""

    format: str
    codec: str | None = None
    strings: bool = False  # of CSV: as they are
    delimiter: str = ","


class FilePart(msgspec.Struct, frozen=True):
    """A part of a file: bytes of lines, row groups, or all of it."""

    run: str
    number: int
    path: str
    file_bytes: int
    start: int
    stop: int
    size: int
    how: How

    def rows(self, reading: Reading) -> Iterator[pa.RecordBatch]:
        if not self.file_bytes and self.how.format != "parquet":
            return
        with Opened(self.path, self.file_bytes, reading.read) as file:
            yield from _READERS[self.how.format](self, file, reading)

    def place(self, row: int) -> str:
        if self.how.format in LINES:
            return f"{self.path}:{line_of(self, row)}"
        before = 0
        if self.how.format == "parquet":
            with Opened(self.path, self.file_bytes) as file:
                meta = parquet_file(file).metadata
                before = sum(meta.row_group(at).num_rows for at in range(self.start))
        return f"{self.path}: row {before + row + 1}"


# Files


def open_file(path: str) -> File:
    directory, name = os.path.split(path)
    return RealFilesystem(directory).open_read(name)


class _Counted(ReadOnlyFile):
    """A file that tells how much of it was read."""

    def __init__(self, file: File, read: Callable[[int], None]) -> None:
        self.path = file.path
        self._file = file
        self._read = read

    def pread(self, length: int, offset: int) -> bytes:
        found = self._file.pread(length, offset)
        self._read(len(found))
        return found

    def pread_nowait(self, length: int, offset: int) -> bytes | None:
        return self._file.pread_nowait(length, offset)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class Opened:
    """A file that is open within a block; what is wrong with it is said by its name."""

    def __init__(
        self, path: str, size: int | None = None, read: Callable[[int], None] | None = None
    ) -> None:
        self._path = path
        self._size = size
        self._read = read
        self._file: File | None = None

    def __enter__(self) -> File:
        file = open_file(self._path)
        self._file, size = file, file.size()
        if self._size not in (None, size):
            file.close()
            raise self._wrong(f"it has {size} bytes now, and had {self._size} at the start")
        return file if self._read is None else _Counted(file, self._read)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._file is not None
        self._file.close()
        if isinstance(error, pa.ArrowException | OSError | UnicodeDecodeError):
            raise self._wrong(" ".join(str(error).split())[:300]) from None
        if isinstance(error, InvalidRequest) and "file" not in error.detail:
            raise self._wrong(error.message, error.fix) from None

    def _wrong(self, why: str, fix: str | None = None) -> InvalidRequest:
        return InvalidRequest(
            f"{self._path} cannot be imported: {why}",
            fix=fix or "is it whole, in UTF-8, and of the --format that was given?",
            detail={"file": self._path},
        )


def unpacked(part: FilePart, file: File) -> Any:
    """The bytes of a file, as Arrow reads them, without their compression."""
    source: Any = pa.PythonFile(Seekable(file), mode="r")
    codec: Any = part.how.codec
    return source if codec is None else pa.CompressedInputStream(source, codec)


# Lines


def blocks_of(part: FilePart, file: File) -> Iterator[bytes]:
    """Blocks of whole lines of a part."""
    if part.how.codec is None:
        found = lines_of(file, part.start, part.stop)
    else:
        found = packed_lines(unpacked(part, file))
    for number, block in enumerate(found):
        is_first = not number and not part.start
        yield block.removeprefix(_BOM) if is_first else block


def packed_lines(source: Any) -> Iterator[bytes]:
    """Blocks of whole lines of a file that can only be read from its beginning."""
    rest = b""
    while block := source.read(BLOCK_BYTES):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
        _check_line(rest)
    if rest:
        yield rest


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
            yield rest + block[:end] if rest or end < len(block) else block
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
    while block := opened.pread(min(BLOCK_BYTES, 64 << 10), at):
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


def line_of(part: FilePart, row: int) -> int:
    """The line of a row, both counted within their file and part; lines from 1."""
    line = 1 + (_lines_before(part.path, part.file_bytes, part.start) if part.start else 0)
    with Opened(part.path, part.file_bytes) as file:
        blocks = (block.removesuffix(b"\n") for block in blocks_of(part, file))
        for text in (text for block in blocks for text in block.split(b"\n")):
            is_row = bool(text.strip(_BLANKS))
            if is_row and not row:
                break
            row -= is_row
            line += 1
    return line


@lru_cache(maxsize=PARTS_REMEMBERED)
def _lines_before(path: str, size: int, start: int) -> int:
    """The lines that end before the first one of the part that begins there."""
    with Opened(path, size) as file:
        end = _next_line(file, start - 1)
        return sum(
            file.pread(min(BLOCK_BYTES, end - at), at).count(b"\n")
            for at in range(0, end, BLOCK_BYTES)
        )


def texts_of(block: bytes) -> Any:
    """The lines of a block that hold something, as a column; null: it is not UTF-8."""
    is_ended = block.endswith(b"\n")
    # Not `pa.array`, which begins by importing pandas where that is installed.
    ends = pa.py_buffer(array("i", (0, len(block) - is_ended)))
    buffers = [None, ends, pa.py_buffer(block)]
    whole: Any = pa.Array.from_buffers(pa.binary(), 1, buffers)
    parts: Any = pc.split_pattern(whole, "\n")
    lines: Any = parts.values
    try:
        texts: Any = lines.cast(pa.utf8())
    except pa.ArrowInvalid:
        given = (line.strip(_BLANKS) for line in block.split(b"\n"))
        return pa.array([decoded(line) for line in given if line], pa.utf8())
    texts = pc.ascii_trim(texts, characters=_BLANKS.decode())
    if pc.min(pc.binary_length(texts)).as_py() == 0:
        texts = texts.filter(pc.not_equal(texts, pa.scalar("")))
    return texts


def _jsonl(part: FilePart, file: File, reading: Reading) -> Iterator[pa.RecordBatch]:
    for block in blocks_of(part, file):
        texts = texts_of(block)
        if len(texts):
            yield pa.RecordBatch.from_arrays([texts], names=["data"])


def _kafka(part: FilePart, file: File, reading: Reading) -> Iterator[pa.RecordBatch]:
    return kafka_rows(blocks_of(part, file))


# Tables


def _csv(part: FilePart, file: File, reading: Reading) -> Iterator[pa.RecordBatch]:
    refused: list[HeadraceError] = []

    def odd_row(row: Any) -> str:
        why = f"{row.actual_columns} values, and the heading has {row.expected_columns}"
        try:
            reading.refuse(lambda: f"{part.path}: row {row.number}", why)
        except HeadraceError as error:
            # Raised where Arrow has returned to us: it does not carry errors of ours.
            refused.append(error)
            return "error"
        return "skip"

    names = _csv_reader(part, file, {}, lambda row: "skip").schema.names
    check_names(names)
    types = {name: pa.utf8() for name in names} if part.how.strings else {}
    try:
        for batch in _csv_reader(part, file, types, odd_row):
            yield from _objects(batch)
    except pa.ArrowInvalid as error:
        if refused:
            raise refused[0] from None
        raise InvalidRequest(
            " ".join(str(error).split())[:300],
            fix="types are those of the first rows: with --strings values stay text; and is it "
            "UTF-8, with this --delimiter?",
        ) from None


def _csv_reader(part: FilePart, file: File, types: dict[str, Any], odd: Any) -> Any:
    return pyarrow.csv.open_csv(
        unpacked(part, file),
        read_options=pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=part.how.delimiter, newlines_in_values=True, invalid_row_handler=odd
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=not part.how.strings,
            quoted_strings_can_be_null=False,
        ),
    )


def parquet_file(file: File) -> pq.ParquetFile:
    return pq.ParquetFile(pa.PythonFile(Seekable(file), mode="r"))


def _parquet(part: FilePart, opened: File, reading: Reading) -> Iterator[pa.RecordBatch]:
    file = parquet_file(opened)
    check_names(file.schema_arrow.names)
    as_records = holds_records(file.schema_arrow)
    groups = list(range(part.start, part.stop))
    for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=groups, use_threads=False):
        if as_records:
            yield batch.select([name for name in batch.schema.names if name not in _OF_OLD])
        else:
            yield from _objects(batch)


def holds_records(schema: pa.Schema) -> bool:
    """Whether rows are records already: text is JSON, and binary is what `kind` says, else bytes.

    >>> holds_records(pa.schema({"data": pa.binary(), "seq": pa.int64()}))
    True
    >>> holds_records(pa.schema({"data": pa.int64()}))
    False
    >>> holds_records(pa.schema({"data": pa.utf8(), "tag": pa.int64()}))
    False
    """
    names = set(schema.names)
    if "data" not in names or not names <= _OF_OLD | {*COLUMNS, "kind"}:
        return False
    data = schema.field("data").type
    texts = [schema.field(name).type for name in names - _OF_OLD - {"data"}]
    plain = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in texts)
    return all(is_text(kind) or pa.types.is_null(kind) for kind in plain) and (
        is_text(data) or bool(pa.types.is_binary(data) or pa.types.is_large_binary(data))
    )


def _objects(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Each row as one object of JSON."""
    for start in range(0, batch.num_rows, ROWS_AT_ONCE):
        texts = json_objects(batch.slice(start, ROWS_AT_ONCE))
        yield pa.RecordBatch.from_arrays([texts], names=["data"])


_READERS: Final[dict[str, Callable[[FilePart, File, Reading], Iterable[pa.RecordBatch]]]] = {
    "jsonl": _jsonl,
    "kafka-json": _kafka,
    "csv": _csv,
    "parquet": _parquet,
}
