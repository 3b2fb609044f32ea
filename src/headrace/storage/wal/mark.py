"""The mark of a log: in a second place, which file was begun last and how far the log is on disk.

Only this file knows the bytes (docs/formats/wal.md, "Marks").  A log file cannot say that it was
cut, put back from an older copy or removed, and zeros from a batch to its end look as if nothing
had been written there.  So `meta/mark-<shard>.bin` says what was there once: after every sync a
mark is written, without a sync of its own; when a file is begun, and when the shard falls idle, it
is synced, too.  A mark is never ahead of the log: one that is old says less, and is still true.

`scan.py` compares the log with it.
"""

from __future__ import annotations

import contextlib
import re
import struct
import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from headrace.storage.fs import File, Filesystem, read_file, write_all, write_file_durably
from headrace.storage.wal.failures import NO_ROOM_ERRNOS
from headrace.storage.wal.frame import PAGE_BYTES, refuse_newer

# Never change a value below: it is part of the persistent format.
MARK_MAGIC: Final = b"HRWMARK\0"
MARK_VERSION: Final = 1
#  magic version reserved | number file_no durable | hash of the directory's name
_MARK = struct.Struct("<8sIIQQQQ")
_HASH = struct.Struct("<Q")
# Marks that are synced take turns in two pages, so that a torn write spoils one of them at most.
# Those between them go to the third.
_SYNCED_SLOTS: Final = 2
_RUNNING_SLOT: Final = 2
MARK_FILE_BYTES: Final = 3 * PAGE_BYTES

_NAME = re.compile(r"mark-(wal|shard-\d{2,})\.bin\Z")


class Mark(NamedTuple):
    """What was true of one shard's log when the mark was made; the highest number counts."""

    number: int
    file_no: int  # this file and its name were on disk; 0: no file is meant
    durable: int  # the log was on disk up to this position


def mark_path(directory: str) -> str:
    """Where the marks of the log in `directory` are.

    >>> mark_path("wal"), mark_path("wal/shard-03")
    ('meta/mark-wal.bin', 'meta/mark-shard-03.bin')
    """
    return f"meta/mark-{directory.rpartition('/')[2]}.bin"


def marked_directory(path: str) -> str | None:
    """The log that a file of marks is about; None when it is no such file."""
    match = _NAME.match(path.removeprefix("meta/")) if path.startswith("meta/") else None
    if match is None:
        return None
    return "wal" if match[1] == "wal" else f"wal/{match[1]}"


def encode_mark(mark: Mark, directory: str) -> bytes:
    return _encode(*mark, xxh3_64_intdigest(directory.encode()))


def _encode(number: int, file_no: int, durable: int, own: int) -> bytes:
    bare = _MARK.pack(MARK_MAGIC, MARK_VERSION, 0, number, file_no, durable, own)
    return bare + _HASH.pack(xxh3_64_intdigest(bare))


def decode_mark(data: bytes, directory: str, name: str) -> Mark | None:
    """The newest mark of a file, None where there is none of this directory with a right hash."""
    found = None
    for at in range(0, MARK_FILE_BYTES, PAGE_BYTES):
        bare = data[at : at + _MARK.size]
        stored = data[at + _MARK.size : at + _MARK.size + _HASH.size]
        if stored != _HASH.pack(xxh3_64_intdigest(bare)) or bare[:8] != MARK_MAGIC:
            continue
        _, version, _, number, file_no, durable, own = _MARK.unpack(bare)
        refuse_newer(name, version, MARK_VERSION)
        if own == xxh3_64_intdigest(directory.encode()):
            mark = Mark(number, file_no, durable)
            found = max(found, mark) if found is not None else mark
    return found


class MarkRead(NamedTuple):
    """What a file of marks says, and what is wrong with it in words."""

    mark: Mark | None
    problem: str


def read_mark(fs: Filesystem, directory: str) -> MarkRead:
    """The newest mark of a log; none, and no problem, where there never was one."""
    path = mark_path(directory)
    if not fs.exists(path):
        return MarkRead(None, "")
    data = read_file(fs, path)
    mark = decode_mark(data, directory, fs.describe(path))
    if len(data) != MARK_FILE_BYTES:
        return MarkRead(mark, f"it has {len(data)} bytes, not {MARK_FILE_BYTES}")
    if mark is None:
        return MarkRead(None, "none of its marks matches its checksum")
    return MarkRead(mark, "")


def marked_directories(fs: Filesystem) -> list[str]:
    """Every log that has a file of marks."""
    found = (marked_directory(f"meta/{name}") for name in fs.listdir("meta"))
    return [directory for directory in found if directory is not None]


def marks_that_count(
    fs: Filesystem, positions: Mapping[str, int] | None, number_min: int
) -> dict[str, Mark]:
    """The marks that a log is compared with, by directory.

    A log that a snapshot does not replay (it has no position; `positions` is None without a
    snapshot) counts from the file `number_min` on.
    """
    marks = {}
    for directory in marked_directories(fs):
        mark = read_mark(fs, directory).mark
        replayed = positions is None or directory in positions
        if mark is not None and (replayed or mark.file_no >= number_min):
            marks[directory] = mark
    return marks


def write_mark(fs: Filesystem, directory: str, file_no: int, durable: int) -> None:
    """Make one mark that replaces all there are, durable on return."""
    number = (read_mark(fs, directory).mark or Mark(0, 0, 0)).number + 1
    fs.mkdir("meta")
    _write_file(fs, directory, Mark(number, file_no, durable))


def _write_file(fs: Filesystem, directory: str, mark: Mark) -> None:
    """A whole file of marks, durable on return; both of the synced ones are this one."""
    page = encode_mark(mark, directory).ljust(PAGE_BYTES, b"\0")
    write_file_durably(fs, mark_path(directory), [page, page, bytes(PAGE_BYTES)])


class MarkFile:
    """The marks of a shard that is being written.  The loop thread and the sync lane both mark."""

    def __init__(self, fs: Filesystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._own = xxh3_64_intdigest(directory.encode())
        self._file: File | None = None
        self._lock = threading.Lock()
        self._mark = Mark(0, 0, 0)
        self._synced_slot = 0
        self._synced_file_no = 0

    def open(self) -> None:
        """Have a file to mark in: before the log's first batch, which needs a mark.

        Without room for one the log goes on without marks: they prove that nothing is lost, and
        what they prove is in the log.
        """
        path = mark_path(self._directory)
        found = read_mark(self._fs, self._directory)
        try:
            if found.problem or not self._fs.exists(path):
                self._fs.mkdir("meta")
                _write_file(self._fs, self._directory, found.mark or self._mark)
            self._file = self._fs.open(path)
        except OSError as error:
            if error.errno not in NO_ROOM_ERRNOS:
                raise
        self._mark = found.mark or self._mark

    def begin(self, file_no: int, durable: int, answered: int) -> None:
        """Start over with a log that was just opened; marks up to `answered` say nothing."""
        self._mark = Mark(max(self._mark.number, answered), 0, 0)
        # Twice, so that none of the synced marks is about a log that was there before.
        self.synced(file_no, durable, idle=True)
        self.synced(file_no, durable, idle=True)

    def begun(self, file_no: int) -> None:
        """Mark that the log goes on in a file that is on disk with its name.

        If that fails the next sync does it, before anything in the file is acknowledged as synced.
        """
        with contextlib.suppress(OSError):
            self._write(file_no, 0, _RUNNING_SLOT)

    def synced(self, file_no: int, durable: int, *, idle: bool) -> None:
        """Mark how far the log is on disk.  In the sync lane.

        When the shard falls idle, and for a file that no synced mark names yet, the mark is on
        disk on return.
        """
        if self._file is None:
            return
        sync = idle or file_no > self._synced_file_no
        try:
            self._write(file_no, durable, self._synced_slot if sync else _RUNNING_SLOT)
            if sync:
                self._file.sync_data()
                self._synced_slot = (self._synced_slot + 1) % _SYNCED_SLOTS
                self._synced_file_no = file_no
        except OSError as error:
            # It is written in place; where even that takes room, a mark can wait.
            if error.errno not in NO_ROOM_ERRNOS:
                raise

    def _write(self, file_no: int, durable: int, slot: int) -> None:
        file = self._file
        if file is None:
            return
        with self._lock:
            number, file_before, durable_before = self._mark
            mark = Mark(number + 1, max(file_no, file_before), max(durable, durable_before))
            data = _encode(*mark, self._own)
            if file.pwritev((data,), slot * PAGE_BYTES) < len(data):
                write_all(file, [data], slot * PAGE_BYTES)
            self._mark = mark

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
