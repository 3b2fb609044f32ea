"""The scrub's memory on disk (native §10d): every byte of it is covered, and may be lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from headrace.core.errors import CorruptionError, UnsupportedFormat
from headrace.storage.identity import SCRUB_PATH
from headrace.storage.scrub.progress_file import (
    BYTES_MAX,
    HEADER,
    KEY_FILE,
    ROWS_MAX,
    SEGMENT,
    SNAPSHOT,
    TRAILER,
    FileProgress,
    decode_progress,
    encode_progress,
    read_progress,
    write_progress,
)
from headrace.testing.simdisk import SimDisk

DOCS = Path(__file__).resolve().parents[4] / "docs" / "formats" / "scrub.md"
T = 1_700_000_000_000
ROWS = [
    FileProgress(SEGMENT, 7, False, T, T + 60_000, 0),
    FileProgress(SEGMENT, 9, False, T, 0, 0x100000),
]
ALL_KINDS = [
    *ROWS,
    FileProgress(SNAPSHOT, 3, True, T, T, 64),
    FileProgress(KEY_FILE, 3, False, T, 0, 0),
]


def test_the_worked_example_of_the_docs() -> None:
    dump = re.search(r"```hex\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert dump is not None
    data = bytes.fromhex("".join(line[10:58] for line in dump[1].splitlines()))
    assert encode_progress(ROWS) == data
    assert decode_progress(data, "example") == ROWS


def test_what_was_written_is_read() -> None:
    disk = SimDisk()
    disk.mkdir("meta")
    assert read_progress(disk) == []
    write_progress(disk, ROWS)
    write_progress(disk, ALL_KINDS)
    assert read_progress(disk) == ALL_KINDS
    assert [row.path for row in ALL_KINDS[2:]] == [
        "meta/snapshot-0000000000000003.bin",
        "meta/keys-0000000000000003.bin",
    ]


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    data = encode_progress(ALL_KINDS)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(CorruptionError):
            decode_progress(bytes(flipped), "flipped")
        with pytest.raises(CorruptionError):
            decode_progress(data[:at], "cut")


def hashed(body: bytes) -> bytes:
    return body + TRAILER.pack(xxh3_64_intdigest(body))


def test_what_no_version_writes_is_refused() -> None:
    data = encode_progress(ALL_KINDS)
    body = bytearray(data[:-8])
    with pytest.raises(UnsupportedFormat):
        decode_progress(hashed(HEADER.pack(b"HRSCRUBF", 2, 40, 0)), "newer")
    with pytest.raises(CorruptionError, match="contradicts"):
        decode_progress(hashed(HEADER.pack(b"HRSCRUBF", 1, 40, 1)), "short")
    with pytest.raises(CorruptionError, match="magic"):
        decode_progress(hashed(HEADER.pack(b"HRSCRUBX", 1, 40, 0)), "other")
    body[HEADER.size] = 9
    with pytest.raises(CorruptionError, match="kind"):
        decode_progress(hashed(bytes(body)), "kind")
    with pytest.raises(CorruptionError, match="order"):
        decode_progress(encode_progress([ROWS[0], ROWS[0]]), "twice")


def test_its_size_is_bounded() -> None:
    many = [FileProgress(SEGMENT, number, False, T, T, 0) for number in range(ROWS_MAX + 1)]
    data = encode_progress(many)
    assert len(data) == BYTES_MAX
    assert decode_progress(data, "many") == many[:ROWS_MAX]
    disk = SimDisk()
    disk.mkdir("meta")
    disk.create(SCRUB_PATH).truncate(BYTES_MAX + 1)
    with pytest.raises(CorruptionError, match="more than"):
        read_progress(disk)
