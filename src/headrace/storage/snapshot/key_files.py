"""Key files: the idempotency keys of one generation, written once and never changed.

Only this file knows the layout (docs/formats/keys.md).  A key file is listed by a snapshot with
its size and hash, so a file is believed only when it is exactly the one the snapshot means; one
that no snapshot lists is an orphan.  Nothing here decides when a generation is closed, keeps keys
in memory, or removes a file: the engine does, by `expires_ms` and by what snapshots still list.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, starmap
from typing import NamedTuple

import msgspec
import xxhash

from headrace.core.errors import CorruptionError, UnsupportedFormat
from headrace.storage.fs import Filesystem, read_file, write_file_durably

MAGIC = b"HRKEYFIL"  # on disk: never change
VERSION = 1

#   magic version row_bytes | file_id rows | expires_ms_min expires_ms_max
HEADER = struct.Struct("<8sIIQQqq")
ROW = struct.Struct("<Q16sQIQq")
TRAILER = struct.Struct("<Q")
HEADER_BYTES = 48
ROW_BYTES = 52
assert HEADER.size == HEADER_BYTES
assert ROW.size == ROW_BYTES

KEY_BYTES = 16
TIME_MS_MAX = (1 << 63) - 1
# Rows packed in one go: small enough that the interpreter lock is held for about a millisecond.
ROWS_PER_PIECE = 4096

_FIX = "restore the data directory from a backup, or see `headrace check`"


class KeyRow(NamedTuple):
    """One key: XXH3-128 of what the client sent, and the answer its first append was given."""

    topic_id: int
    key: bytes  # 16 bytes
    first_seq: int
    records: int  # how many the append had
    head: int
    time_ms: int


class KeyFileMeta(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a snapshot says about a key file.  On-disk field order: add only at the end."""

    file_id: int
    rows: int
    expires_ms: int  # when its youngest key is past the window
    size: int
    hash: int

    @property
    def path(self) -> str:
        """Relative to the data directory.

        >>> KeyFileMeta(file_id=7, rows=1, expires_ms=0, size=108, hash=0).path
        'meta/keys-0000000000000007.bin'
        """
        return key_file_path(self.file_id)


def key_file_path(file_id: int) -> str:
    """The path of a key file, relative to the data directory."""
    assert 0 <= file_id < 10**16, file_id
    return f"meta/keys-{file_id:016d}.bin"


def live_key_files(metas: Iterable[KeyFileMeta], now_ms: int) -> list[KeyFileMeta]:
    """Those that still hold a key inside its window; the others may be dropped."""
    return [meta for meta in metas if meta.expires_ms > now_ms]


def encode_keys(file_id: int, rows: Sequence[KeyRow], window_ms: int) -> list[bytes]:
    """The bytes of a key file, in pieces.  A row's key expires `window_ms` after its time."""
    assert rows, "a key file holds at least one key"
    assert window_ms >= 0, window_ms
    assert all(len(row.key) == KEY_BYTES for row in rows)
    # A window may be longer than any time that fits the header: such keys never expire.
    oldest_ms = min(min(row.time_ms for row in rows) + window_ms, TIME_MS_MAX)
    newest_ms = min(max(row.time_ms for row in rows) + window_ms, TIME_MS_MAX)
    pieces = [HEADER.pack(MAGIC, VERSION, ROW_BYTES, file_id, len(rows), oldest_ms, newest_ms)]
    rest: Iterator[KeyRow] = iter(rows)
    while piece := b"".join(starmap(ROW.pack, islice(rest, ROWS_PER_PIECE))):
        pieces.append(piece)
    hasher = xxhash.xxh3_64()
    for piece in pieces:
        hasher.update(piece)
    pieces.append(TRAILER.pack(hasher.intdigest()))
    assert sum(map(len, pieces)) == HEADER_BYTES + len(rows) * ROW_BYTES + TRAILER.size
    return pieces


def decode_keys(data: bytes, meta: KeyFileMeta, name: str) -> list[KeyRow]:
    """The rows of the key file that `meta` means; `name` is for messages.

    Raises `CorruptionError` when the bytes are any others, `UnsupportedFormat` when a newer
    version wrote them.
    """
    if len(data) < HEADER_BYTES + TRAILER.size:
        raise _corrupt(name, f"it has {len(data)} bytes, the snapshot lists {meta.size}")
    body = memoryview(data)[: -TRAILER.size]
    magic, version, row_bytes, file_id, count, oldest_ms, newest_ms = HEADER.unpack_from(data)
    (stored_hash,) = TRAILER.unpack_from(data, len(body))
    if xxhash.xxh3_64_intdigest(body) != stored_hash:
        raise _corrupt(name, "its bytes do not match its XXH3-64")
    if magic != MAGIC:
        raise _corrupt(name, "it does not begin with the magic of a key file")
    if version > VERSION:
        raise UnsupportedFormat(
            f"{name} has key file version {version}; this Headrace reads up to {VERSION}",
            fix="start the version of Headrace that wrote it, or a later one",
            detail={"file": name, "version": version, "supported": VERSION},
        )
    found = (file_id, count, newest_ms, len(data), stored_hash)
    listed = (meta.file_id, meta.rows, meta.expires_ms, meta.size, meta.hash)
    if found != listed:
        raise _corrupt(name, f"it is {found}, the snapshot lists {listed}: another file's bytes")
    if version != VERSION or row_bytes != ROW_BYTES or oldest_ms > newest_ms:
        raise _corrupt(name, "its header contradicts itself")
    if len(body) != HEADER_BYTES + count * ROW_BYTES:
        raise _corrupt(name, f"{count} rows do not fit its {len(data)} bytes")
    return list(starmap(KeyRow, ROW.iter_unpack(body[HEADER_BYTES:])))


def write_keys(
    fs: Filesystem, file_id: int, rows: Sequence[KeyRow], *, window_ms: int
) -> KeyFileMeta:
    """Write one key file, durable on return, before a snapshot may list it.

    A file of the same id can only be an orphan, and is replaced.  On an `OSError`, the caller's
    to handle, nothing stays or an orphan does.
    """
    path = key_file_path(file_id)
    pieces = encode_keys(file_id, rows, window_ms)
    fs.mkdir("meta")
    try:
        write_file_durably(fs, path, pieces)
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(f"{path}.tmp")
        raise
    (file_hash,) = TRAILER.unpack(pieces[-1])
    *_, newest_ms = HEADER.unpack(pieces[0])
    meta = KeyFileMeta(file_id, len(rows), newest_ms, sum(map(len, pieces)), file_hash)
    # The pair of the check in decode_keys: what was asked for is what the disk gives back.
    stored = decode_keys(read_file(fs, path), meta, fs.describe(path))
    assert len(stored) == len(rows), (len(stored), len(rows))
    return meta


def read_keys(fs: Filesystem, meta: KeyFileMeta) -> list[KeyRow]:
    """All rows of a listed key file, after its hash was checked."""
    name = fs.describe(meta.path)
    try:
        data = read_file(fs, meta.path)
    except FileNotFoundError:
        raise _corrupt(name, "the snapshot lists it and it is missing") from None
    except EOFError:
        raise _corrupt(name, "it ends early") from None
    return decode_keys(data, meta, name)


def _corrupt(name: str, why: str) -> CorruptionError:
    return CorruptionError(
        f"{name} is damaged: {why}", fix=_FIX, detail={"file": name, "reason": why}
    )
