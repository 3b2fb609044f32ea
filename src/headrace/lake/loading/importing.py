"""Import: files become records of a topic, each file once however often it is brought.

The rule it owns: a file is known by its bytes.  What was stored of the same bytes, read the same
way, is not stored again, whatever the file is called; other bytes are another file.  Files are cut
into parts by their sizes alone.
"""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec
from xxhash import xxh3_128, xxh3_128_hexdigest

from headrace.core.errors import ConfigError
from headrace.lake.loading.import_formats import (
    CODECS,
    ENDINGS,
    FORMATS,
    FilePart,
    How,
    Opened,
    open_file,
    parquet_file,
)
from headrace.lake.loading.parallel_sender import Watch, bring
from headrace.lake.loading.producers import target_of
from headrace.lake.tables.tasks import Runner
from headrace.spark.options import Connection
from headrace.storage.fs import RealFilesystem

# How many bytes a part has, unless that made too many parts.  Each part is a producer of the topic
# for as long as the topic lives, so other numbers would be other parts.
PART_BYTES: Final = 32 << 20
PARTS_PER_FILE_MAX: Final = 1_024
HASH_BYTES: Final = 4 << 20
_PATTERN: Final = frozenset("*?[")


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What an import stored, and what it found stored by one before it."""

    to: str
    files: int
    parts: int
    rows: int
    rows_before: int
    bad_rows: int
    bad_rows_named: list[str]


def import_files(
    paths: Sequence[str],
    to: str,
    connection: Connection,
    runner: Runner | None = None,
    *,
    format: str | None = None,
    name: str = "",
    strings: bool = False,
    delimiter: str = ",",
    skip_bad: bool = False,
    in_order: bool = False,
    workers: int = 1,
    watch: Watch | None = None,
) -> Imported:
    """Append the rows of files to a topic.

    `name` tells imports of the same files apart.  `strings` leaves values of CSV as they are.
    Without a runner the parts are sent from here, by `workers` threads.
    """
    files = files_of(paths)
    hows = [how_of(path, format, strings, delimiter) for path in files]
    parts: list[FilePart] = []
    seen: Counter[str] = Counter()
    for path, how in zip(files, hows, strict=True):
        digest, size = digest_of(path)
        told = msgspec.json.encode([digest, size, how, seen[digest], name])
        seen[digest] += 1
        run = f"import-{xxh3_128_hexdigest(told)}"
        parts += parts_of(path, how, size, run)
    fed = bring(
        target_of(connection, to, skip_bad=skip_bad),
        parts,
        runner,
        workers=workers,
        in_order=in_order,
        watch=watch,
    )
    return Imported(
        to=to,
        files=len(files),
        parts=len(parts),
        rows=fed.rows,
        rows_before=fed.rows_before,
        bad_rows=fed.bad,
        bad_rows_named=fed.bad_named,
    )


# Which files


def files_of(paths: Sequence[str]) -> list[str]:
    """The files that were named, patterns such as `day-*.jsonl` written out; each once."""
    found = [file for path in paths for file in _matching(os.path.abspath(path))]
    twice = next((path for path, count in Counter(found).items() if count > 1), None)
    if twice is not None:
        raise ConfigError(f"{twice} is named twice", fix="name each file once")
    return found


def _matching(path: str) -> list[str]:
    directory, name = os.path.split(path)
    files = RealFilesystem(directory)
    if files.exists(name) or _PATTERN.isdisjoint(name):
        return [path]
    found = [one for one in files.listdir("") if fnmatchcase(one, name)]
    if not found:
        raise ConfigError(f"no file is called {path}", fix="name files that are there")
    return [os.path.join(directory, one) for one in found]


def how_of(path: str, format: str | None, strings: bool, delimiter: str) -> How:
    """By the endings of the name, unless the format is given.

    >>> how_of("orders.jsonl.gz", None, False, ",").codec
    'gzip'
    """
    name, ending = os.path.splitext(path.lower())
    codec = CODECS.get(ending)
    if codec is not None:
        ending = os.path.splitext(name)[1]
    found = format or ENDINGS.get(ending)
    if found is None:
        raise ConfigError(
            f"{path} does not say what it is", fix=f"give --format {', '.join(FORMATS)}"
        )
    if found == "parquet" and codec is not None:
        raise ConfigError(f"{path} is compressed as a whole", fix="unpack it first")
    if found != "csv":
        return How(found, codec)
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise ConfigError(f"--delimiter {delimiter!r} cannot be one", fix="give one character")
    return How(found, codec, strings, delimiter)


def digest_of(path: str) -> tuple[str, int]:
    """What a file holds, by a digest of all its bytes, and how many there are."""
    digest, at = xxh3_128(), 0
    try:
        file = open_file(path)
        try:
            while block := file.pread(HASH_BYTES, at):
                digest.update(block)
                at += len(block)
        finally:
            file.close()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", fix="name files that are there"
        ) from None
    return digest.hexdigest(), at


# Which parts


def parts_of(path: str, how: How, size: int, run: str) -> Iterator[FilePart]:
    """How a file is cut: lines by bytes, Parquet by row groups; what is packed, and CSV, not."""
    for number, (start, stop, part_bytes) in enumerate(_spans(path, how, size)):
        yield FilePart(run, number, path, size, start, stop, part_bytes, how)


def _spans(path: str, how: How, size: int) -> Iterator[tuple[int, int, int]]:
    if how.format == "csv" or how.codec is not None:
        yield 0, size, size
    elif how.format == "parquet":
        yield from _group_spans(path, size)
    else:
        step = part_bytes(size)
        for start in range(0, size, step):
            stop = min(size, start + step)
            yield start, stop, stop - start


def part_bytes(size: int) -> int:
    """
    >>> part_bytes(100) >> 20, part_bytes(1 << 40) >> 20
    (32, 1024)
    """
    return max(PART_BYTES, -(-size // PARTS_PER_FILE_MAX))


def _group_spans(path: str, size: int) -> Iterator[tuple[int, int, int]]:
    with Opened(path, size) as opened:
        meta = parquet_file(opened).metadata
        groups = [meta.row_group(at).total_byte_size for at in range(meta.num_row_groups)]
    start, waiting, step = 0, 0, part_bytes(sum(groups))
    for at, count in enumerate(groups):
        waiting += count
        if waiting >= step or at == len(groups) - 1:
            yield start, at + 1, size * waiting // max(1, sum(groups))
            start, waiting = at + 1, 0
