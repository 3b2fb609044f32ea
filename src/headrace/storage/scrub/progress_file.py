"""The scrub's memory: when each file was last verified, in one small file that is replaced whole.

Only this file knows the layout (docs/formats/scrub.md).  Nothing depends on it: what cannot be read
is as good as none, and the scrub starts over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from headrace.core.errors import CorruptionError, UnsupportedFormat
from headrace.storage.fs import Filesystem, read_exact, write_file_durably
from headrace.storage.identity import SCRUB_PATH
from headrace.storage.segment.format import segment_path
from headrace.storage.snapshot.chains import snapshot_path
from headrace.storage.snapshot.key_files import key_file_path

# On disk: never change these.
MAGIC: Final = b"HRSCRUBF"
VERSION: Final = 1
SEGMENT: Final = 1
SNAPSHOT: Final = 2
KEY_FILE: Final = 3

HEADER = struct.Struct("<8sIIQ")
ROW = struct.Struct("<BB6sQqqQ")
TRAILER = struct.Struct("<Q")
assert (HEADER.size, ROW.size) == (24, 40)

ROWS_MAX: Final = 65_536
BYTES_MAX: Final = HEADER.size + ROWS_MAX * ROW.size + TRAILER.size
_ZEROS: Final = bytes(6)

Key = tuple[int, int]  # kind, file_id

_PATHS: Final = {SEGMENT: segment_path, SNAPSHOT: snapshot_path, KEY_FILE: key_file_path}


class FileProgress(NamedTuple):
    """What is known of one file.

    >>> FileProgress(SEGMENT, 7, False, 0, 0, 0).path
    'segments/seg-0000000000000007.arrow'
    """

    kind: int
    file_id: int
    damaged: bool
    seen_ms: int  # since when the scrub knows the file
    verified_ms: int  # when it was last found whole; 0: not yet
    offset: int  # up to where it was verified since; of a damaged one, where the damage is

    @property
    def key(self) -> Key:
        return self.kind, self.file_id

    @property
    def path(self) -> str:
        """Relative to the data directory, or to the cold tier."""
        return path_of(self.key)


def path_of(key: Key) -> str:
    """The path of a file, relative to the data directory or to the cold tier."""
    kind, file_id = key
    return _PATHS[kind](file_id)


def encode_progress(rows: Iterable[FileProgress]) -> bytes:
    """The bytes of the file, of at most `ROWS_MAX` rows, which are in the order of their keys."""
    packed = [
        ROW.pack(kind, damaged, _ZEROS, file_id, seen_ms, verified_ms, offset)
        for kind, file_id, damaged, seen_ms, verified_ms, offset in islice(rows, ROWS_MAX)
    ]
    data = HEADER.pack(MAGIC, VERSION, ROW.size, len(packed)) + b"".join(packed)
    return data + TRAILER.pack(xxh3_64_intdigest(data))


def decode_progress(data: bytes, name: str) -> list[FileProgress]:
    """The rows; `CorruptionError` or `UnsupportedFormat` if these are not what was written."""
    if len(data) < HEADER.size + TRAILER.size:
        raise _damaged(name, f"it has {len(data)} bytes, fewer than an empty one")
    body = memoryview(data)[: -TRAILER.size]
    (stored,) = TRAILER.unpack_from(data, len(body))
    if xxh3_64_intdigest(body) != stored:
        raise _damaged(name, "its bytes do not match its XXH3-64")
    magic, version, row_bytes, count = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _damaged(name, "it does not begin with its magic")
    if version > VERSION:
        raise UnsupportedFormat(
            f"{name} has version {version}; this Headrace reads up to {VERSION}",
            fix="nothing: the scrub starts over",
            detail={"file": name, "version": version, "supported": VERSION},
        )
    fits = count <= ROWS_MAX and len(body) == HEADER.size + count * ROW.size
    if version != VERSION or row_bytes != ROW.size or not fits:
        raise _damaged(name, "its header contradicts itself")
    rows: list[FileProgress] = []
    for kind, damaged, zeros, file_id, seen_ms, verified_ms, offset in ROW.iter_unpack(
        body[HEADER.size :]
    ):
        if kind not in _PATHS or damaged > 1 or zeros != _ZEROS:
            raise _damaged(name, "a row is of a kind that this version does not write")
        row = FileProgress(kind, file_id, bool(damaged), seen_ms, verified_ms, offset)
        if rows and rows[-1].key >= row.key:
            raise _damaged(name, "its rows are not in order")
        rows.append(row)
    return rows


def read_progress(fs: Filesystem) -> list[FileProgress]:
    """What was written last; nothing where there is no file yet.  Errors are the caller's."""
    name = fs.describe(SCRUB_PATH)
    try:
        file = fs.open_read(SCRUB_PATH)
    except FileNotFoundError:
        return []
    try:
        size = file.size()
        if size > BYTES_MAX:
            raise _damaged(name, f"it has {size} bytes, more than any that is written")
        return decode_progress(read_exact(file, size, 0), name)
    except EOFError:
        raise _damaged(name, "it became shorter while it was read") from None
    finally:
        file.close()


def write_progress(fs: Filesystem, rows: Iterable[FileProgress]) -> None:
    """Replace the file: a power loss leaves the old one or the new one."""
    write_file_durably(fs, SCRUB_PATH, [encode_progress(rows)])


def _damaged(name: str, why: str) -> CorruptionError:
    return CorruptionError(
        f"{name} is damaged: {why}",
        fix="nothing: the scrub starts over",
        detail={"file": name, "reason": why},
    )
