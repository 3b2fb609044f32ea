"""Key files: round trip, damage of every kind refused, and the worked example of the docs."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import CorruptionError, UnsupportedFormat
from headrace.storage.fs import RealFilesystem
from headrace.storage.snapshot.key_files import (
    HEADER_BYTES,
    ROW_BYTES,
    ROWS_PER_PIECE,
    KeyFileMeta,
    KeyRow,
    decode_keys,
    encode_keys,
    live_key_files,
    read_keys,
    write_keys,
)
from tests.support.checkout import ROOT

DOCS = ROOT / "docs" / "formats" / "keys.md"
U64 = st.integers(0, 2**64 - 1)
ROWS = st.builds(
    KeyRow,
    topic_id=U64,
    key=st.binary(min_size=16, max_size=16),
    first_seq=U64,
    records=st.integers(0, 2**32 - 1),
    head=U64,
    time_ms=st.integers(-(2**40), 2**45),
)


def some_rows(count: int) -> list[KeyRow]:
    return [
        KeyRow(n % 7, xxhash.xxh3_128_digest(b"key-%d" % n), 10 * n + 1, 10, 10 * n + 10, 1000 + n)
        for n in range(count)
    ]


def meta_of(pieces: list[bytes], file_id: int, rows: list[KeyRow], window_ms: int) -> KeyFileMeta:
    newest_ms = max(row.time_ms for row in rows) + window_ms
    (file_hash,) = struct.unpack("<Q", pieces[-1])
    return KeyFileMeta(file_id, len(rows), newest_ms, sum(map(len, pieces)), file_hash)


@given(st.lists(ROWS, min_size=1, max_size=20), st.integers(0, 10**16 - 1))
def test_what_is_encoded_is_decoded(rows: list[KeyRow], file_id: int) -> None:
    pieces = encode_keys(file_id, rows, window_ms=60_000)
    meta = meta_of(pieces, file_id, rows, 60_000)
    assert decode_keys(b"".join(pieces), meta, "x") == rows


def test_more_rows_than_one_piece(tmp_path: Path) -> None:
    fs = RealFilesystem(tmp_path)
    rows = some_rows(2 * ROWS_PER_PIECE + 1)
    meta = write_keys(fs, 3, rows, window_ms=500)
    assert read_keys(fs, meta) == rows
    assert meta.path == "meta/keys-0000000000000003.bin"
    assert meta.size == HEADER_BYTES + len(rows) * ROW_BYTES + 8
    assert (tmp_path / meta.path).stat().st_size == meta.size
    assert meta.expires_ms == rows[-1].time_ms + 500
    assert fs.listdir("meta") == ["keys-0000000000000003.bin"]


def test_an_orphan_of_the_same_id_is_replaced(tmp_path: Path) -> None:
    fs = RealFilesystem(tmp_path)
    orphan = write_keys(fs, 3, some_rows(5), window_ms=500)
    meta = write_keys(fs, 3, some_rows(2), window_ms=500)
    assert read_keys(fs, meta) == some_rows(2)
    with pytest.raises(CorruptionError, match="keys-0000000000000003"):
        read_keys(fs, orphan)


def test_every_flipped_bit_is_noticed() -> None:
    rows = some_rows(2)
    pieces = encode_keys(9, rows, window_ms=500)
    meta = meta_of(pieces, 9, rows, 500)
    good = b"".join(pieces)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError, match="the-file"):
            decode_keys(bytes(bad), meta, "the-file")


@pytest.mark.parametrize("cut", [0, 1, 40, 60, 107])
def test_truncated(tmp_path: Path, cut: int) -> None:
    fs = RealFilesystem(tmp_path)
    meta = write_keys(fs, 1, some_rows(1), window_ms=500)
    path = tmp_path / meta.path
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CorruptionError, match="keys-0000000000000001"):
        read_keys(fs, meta)


def test_missing_and_swapped(tmp_path: Path) -> None:
    fs = RealFilesystem(tmp_path)
    one = write_keys(fs, 1, some_rows(1), window_ms=500)
    two = write_keys(fs, 2, some_rows(1), window_ms=500)
    fs.rename(two.path, one.path)
    with pytest.raises(CorruptionError, match="another file's bytes"):
        read_keys(fs, one)
    with pytest.raises(CorruptionError, match="missing"):
        read_keys(fs, two)


def test_a_newer_version_is_refused_by_name() -> None:
    rows = some_rows(1)
    pieces = encode_keys(1, rows, window_ms=500)
    body = bytearray(b"".join(pieces[:-1]))
    body[8:12] = struct.pack("<I", 2)
    data = bytes(body) + struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(body)))
    with pytest.raises(UnsupportedFormat, match=r"the-file has key file version 2.*up to 1"):
        decode_keys(data, meta_of(pieces, 1, rows, 500), "the-file")


def test_dropped_once_expired() -> None:
    old, new = KeyFileMeta(1, 1, 1000, 1, 1), KeyFileMeta(2, 1, 2000, 1, 1)
    assert live_key_files([old, new], 999) == [old, new]
    assert live_key_files([old, new], 1000) == [new]


def test_the_worked_example_of_the_docs() -> None:
    dump = re.search(r"```hex\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert dump is not None
    data = bytes.fromhex("".join(line[10:58] for line in dump[1].splitlines()))
    row = KeyRow(5, xxhash.xxh3_128_digest(b"order-17"), 41, 3, 43, 1_700_000_000_000)
    pieces = encode_keys(7, [row], window_ms=120_000)
    assert b"".join(pieces) == data
    assert decode_keys(data, meta_of(pieces, 7, [row], 120_000), "example") == [row]
