"""One file of the write-ahead log: its name, its birth, and its place in the shard's byte count.

Only this file creates log files.  A file is made ready ahead of time (zeroed, headed, synced, its
name synced) because an `fdatasync` into written blocks costs 115 µs here against 175 µs into
merely allocated ones and more into a growing file (docs/internals/storage.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.core.errors import WalCorrupt
from headrace.storage.fs import File, Filesystem, parent, write_all
from headrace.storage.wal.frame import (
    BATCH_HEADER_BYTES,
    FORMAT_VERSION,
    PAGE_BYTES,
    FileHeader,
    decode_batch_header,
    decode_file_header,
    encode_file_header,
)

_NAME = re.compile(r"wal-(\d{16})\.log\Z")
_SHARD = re.compile(r"shard-(\d{2,})\Z")
# Larger chunks leave the file in larger folios, into which small writes are dearer: 280 bytes cost
# 0.7 µs after chunks of 64 KiB, 0.9 after 256 KiB, 1.8 after 1 MiB, 6.3 after 8 MiB.
# How the files of a data directory begin that are no log files.
_OTHERS = (b"HRWMARK\0", b"HRSNAPSH", b"HRKEYFIL", b"ARROW1\0\0", b"headrace")
ZERO_CHUNK_BYTES = 256 << 10
_ZEROS = bytes(ZERO_CHUNK_BYTES)


def shard_directory(shard: int, shards: int) -> str:
    """`wal` for a single shard, `wal/shard-NN` for more."""
    return "wal" if shards == 1 else f"wal/shard-{shard:02d}"


def shard_of(directory: str) -> int:
    """The number of the shard whose log is in this directory.

    >>> shard_of("wal"), shard_of("wal/shard-03")
    (0, 3)
    """
    match = _SHARD.match(directory.rpartition("/")[2])
    return int(match[1]) if match is not None else 0


def file_path(directory: str, number: int) -> str:
    return f"{directory}/wal-{number:016d}.log"


def discover(fs: Filesystem) -> dict[str, list[int]]:
    """Every directory that holds log files, with the numbers of its files, ascending."""
    found: dict[str, list[int]] = {}
    directories = ["wal", *(f"wal/{n}" for n in fs.listdir("wal") if _SHARD.match(n))]
    for directory in directories:
        names = (_NAME.match(name) for name in fs.listdir(directory))
        numbers = sorted(int(match[1]) for match in names if match)
        if numbers:
            found[directory] = numbers
    return found


@dataclass(slots=True, eq=False)
class WalFile:
    """An open log file.  `base` is the shard position of its first byte.

    `end` is that of the byte after its last one, once the log has gone on in another file.
    """

    file: File
    path: str
    number: int
    salt: int
    limit: int  # rotate rather than write past it; one oversized batch may
    base: int = 0
    end: int = 0


def create_wal_file(
    fs: Filesystem, directory: str, header: FileHeader, limit: int, zeroed: int
) -> WalFile:
    """Make a file that is ready to take batches after its first page.

    The caller syncs the directory; with `zeroed` bytes written the file itself is synced here.
    """
    assert header.version == FORMAT_VERSION and limit > PAGE_BYTES
    header = header._replace(made_bytes=max(zeroed, PAGE_BYTES))
    path = file_path(directory, header.file_no)
    file = fs.create(path)
    try:
        write_all(file, [encode_file_header(header)], 0)
        at = PAGE_BYTES
        while at < zeroed:
            chunk = _ZEROS[: min(ZERO_CHUNK_BYTES, zeroed - at)]
            write_all(file, [chunk], at)
            at += len(chunk)
        file.sync()
    except BaseException:
        file.close()
        fs.unlink(path)
        raise
    return WalFile(file, path, header.file_no, header.salt, limit)


def removable(fs: Filesystem, positions: dict[str, int], number_min: int) -> list[str]:
    """Paths of log files that nothing needs: all their bytes are before the replay position.

    A directory without a position is one that no snapshot replays; there, files older than
    `number_min` are of no use.
    """
    paths = []
    for directory, numbers in discover(fs).items():
        if directory not in positions:
            paths += [file_path(directory, n) for n in numbers if n < number_min]
            continue
        holder = index_of(fs, directory, numbers, positions[directory])
        paths += [file_path(directory, n) for n in numbers[:holder]]
    return paths


def index_of(fs: Filesystem, directory: str, numbers: list[int], position: int) -> int:
    """Which of these files holds a shard position: the newest that begins at or before it.

    0 when none does.  Everything before it is of no interest to who starts there.
    """
    for index in range(len(numbers) - 1, -1, -1):
        base = first_position(fs, file_path(directory, numbers[index]))
        if base is not None and base <= position:
            return index
    return 0


def first_position(fs: Filesystem, path: str) -> int | None:
    """The shard position of a file's first byte; None while it has no batch.

    A file under another's name is refused: replay goes by the numbers in the names.
    """
    try:
        start = _start_of(fs, path)
    except FileNotFoundError:
        return None  # a spare file, given up meanwhile
    other = _other_file(fs, path, start)
    if other:
        raise WalCorrupt(
            f"{fs.describe(path)} {other}",
            fix="give the files their own names back, or run `headrace check --repair`",
            detail={"file": path},
        )
    batch = decode_batch_header(start[PAGE_BYTES:], 0)
    return None if batch is None else batch.position - PAGE_BYTES


def other_file(fs: Filesystem, path: str) -> str:
    """What a file under the name of a log file is instead, in words; empty if it is that file."""
    return _other_file(fs, path, _start_of(fs, path))


def _other_file(fs: Filesystem, path: str, start: bytes) -> str:
    if start[:8] in _OTHERS:
        return "holds the bytes of a file of another kind"
    header = decode_file_header(start[:PAGE_BYTES], fs.describe(path))
    if header is None:
        return ""
    other = file_path(parent(path), header.file_no) != path
    # Version 1 was not careful about the shard of a repaired log.
    other = other or (header.version > 1 and header.shard != shard_of(parent(path)))
    return f"holds the bytes of log file {header.file_no} of shard {header.shard}" if other else ""


def _start_of(fs: Filesystem, path: str) -> bytes:
    file = fs.open_read(path)
    try:
        return file.pread(PAGE_BYTES + BATCH_HEADER_BYTES, 0)
    finally:
        file.close()
