"""Compressed bodies: what is read, what is refused, and what an answer is written in."""

from __future__ import annotations

import contextlib
import gzip
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from headrace.server import compression
from headrace.server.compression import choose, decode_body, encode_body

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIB = 1 << 20


@given(st.binary(max_size=5_000), st.sampled_from(["gzip", "zstd"]))
def test_round_trip_up_to_the_bound(body: bytes, encoding: str) -> None:
    packed = encode_body(body, encoding)
    assert decode_body(packed, encoding, len(body)) == body
    if body:
        with pytest.raises(PayloadTooLarge):
            decode_body(packed, encoding, len(body) - 1)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 3 * MIB])
def test_sizes_around_the_pieces(encoding: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert decode_body(encode_body(body, encoding), encoding, size) == body


@pytest.mark.parametrize("name", ["GZIP", "x-gzip", " gzip "])
def test_names_are_read_loosely(name: str) -> None:
    assert decode_body(gzip.compress(b"abc"), name, 10) == b"abc"


@pytest.mark.parametrize("name", ["", "identity", "Identity"])
def test_no_encoding_is_as_it_is(name: str) -> None:
    assert decode_body(b"abc", name, 3) == b"abc"
    with pytest.raises(PayloadTooLarge):
        decode_body(b"abcd", name, 3)


@pytest.mark.parametrize("name", ["deflate", "br", "compress", "gzip, gzip", "gzip, zstd", "x"])
def test_other_encodings_are_not_read(name: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        decode_body(b"abc", name, 10)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_several_parts_are_one_body(encoding: str) -> None:
    parts = [encode_body(text, encoding) for text in (b"one", b"", b"two" * 50_000)]
    whole = b"one" + b"two" * 50_000
    assert decode_body(b"".join(parts), encoding, len(whole)) == whole


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_stops_at_the_bound(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = encode_body(bytes(64 * MIB), encoding)
    assert len(bomb) < MIB
    largest = 0
    name = {"gzip": "_GzipDecoder", "zstd": "_ZstdDecoder"}[encoding]
    real = getattr(compression, name).decode

    def watched(self: object, piece: bytes, bytes_max: int) -> tuple[bytes, bytes]:
        nonlocal largest
        data, rest = real(self, piece, bytes_max)
        largest = max(largest, len(data))
        return data, rest

    monkeypatch.setattr(getattr(compression, name), "decode", watched)
    with pytest.raises(PayloadTooLarge):
        decode_body(bomb, encoding, MIB)
    assert largest <= MIB + 1


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_of_many_parts_is_refused(encoding: str) -> None:
    part = encode_body(b"", encoding)
    assert decode_body(part * compression.PARTS_MAX, encoding, 1) == b""
    with pytest.raises(InvalidRequest, match="parts"):
        decode_body(part * (compression.PARTS_MAX + 1), encoding, 1)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_damaged_bodies(encoding: str) -> None:
    packed = encode_body(b"abc" * 1_000, encoding)
    for at in range(len(packed)):
        with pytest.raises(InvalidRequest):
            decode_body(packed[:at], encoding, MIB)
    for damaged in (b"abc", packed + b"x", packed + packed[:-1], b"x" + packed):
        with pytest.raises(InvalidRequest):
            decode_body(damaged, encoding, MIB)


@given(st.binary(max_size=200), st.sampled_from(["gzip", "zstd"]), st.binary(max_size=4))
def test_any_bytes_are_a_body_or_a_refusal(body: bytes, encoding: str, start: bytes) -> None:
    packed = encode_body(body, encoding)
    for text in (body, packed[: len(start)] + body, packed[:-2] + start):
        with contextlib.suppress(InvalidRequest, PayloadTooLarge):
            decode_body(text, encoding, 1_000)


def test_a_checksum_is_verified() -> None:
    packed = bytearray(gzip.compress(b"abc"))
    packed[-5] ^= 1
    with pytest.raises(InvalidRequest):
        decode_body(bytes(packed), "gzip", 10)


def test_zlib_data_is_not_gzip() -> None:
    with pytest.raises(InvalidRequest):
        decode_body(zlib.compress(b"abc"), "gzip", 10)


def test_a_zstd_frame_that_asks_for_much_memory_is_refused() -> None:
    options: dict[int, int] = {zstd.CompressionParameter.window_log: 27}
    packer = zstd.ZstdCompressor(options=options)
    # In two steps: a size that is known from the start would make the window that small.
    frame = packer.compress(b"abc" * 10_000) + packer.flush()
    with pytest.raises(InvalidRequest, match="window"):
        decode_body(frame, "zstd", MIB)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        (b"", None),
        (b"gzip", "gzip"),
        (b"x-gzip", "gzip"),
        (b"GZIP", "gzip"),
        (b"zstd", "zstd"),
        (b"gzip, deflate", "gzip"),
        (b"gzip, deflate, br, zstd", "zstd"),
        (b"gzip;q=1.0, zstd;q=0.5", "gzip"),
        (b"gzip;q=0.2, zstd; q=0.3", "zstd"),
        (b"gzip;q=0", None),
        (b"gzip;q=0, zstd;q=0.000", None),
        (b"gzip;q=nonsense", None),
        (b"gzip;q=nan", None),
        (b"gzip;x=1;q=0.5", "gzip"),
        (b"br, deflate", None),
        (b"*", "gzip"),
        (b"*;q=0", None),
        (b"zstd, *;q=0", "zstd"),
        (b"gzip;q=0, *", None),
        (b"identity", None),
        (b"identity, gzip;q=0.5", None),
        (b"identity;q=0.5, gzip", "gzip"),
        (b"identity, gzip", "gzip"),
        (b",;,gzip,", "gzip"),
        (b"\xff\xfe", None),
        (b"gzip" + b"," * 1_000, None),
    ],
)
def test_what_an_answer_is_written_in(accepted: bytes, chosen: str | None) -> None:
    assert choose(accepted) == chosen


def test_an_answer_is_readable_by_others() -> None:
    body = b'{"records":[]}' * 100
    assert gzip.decompress(encode_body(body, "gzip")) == body
    assert zstd.decompress(encode_body(body, "zstd")) == body
