"""Frames of S2 sessions: any pieces, compressed or not, broken in every way, and terminal."""

from __future__ import annotations

import random
import sys
import tracemalloc
import zlib

import pytest

from headrace.core.errors import FenceMismatch
from headrace.wire.s2.errors import S2Refusal, server_draining
from headrace.wire.s2.frames import (
    FRAME_BYTES_MAX,
    Compression,
    FrameDecoder,
    frame,
    frame_of_parts,
    session_compression,
    terminal_frame,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BOTH: list[Compression] = ["zstd", "gzip"]
ZSTD, GZIP = 0x20, 0x40


def raw_frame(flag: int, payload: bytes) -> bytes:
    """A frame as any client might send it."""
    return (len(payload) + 1).to_bytes(3, "big") + bytes([flag]) + payload


def gzipped(payload: bytes) -> bytes:
    return zlib.compress(payload, 1, 31)


def taken(*pieces: bytes) -> tuple[list[bytes], S2Refusal | None]:
    """What a decoder gives of a whole request."""
    decoder = FrameDecoder()
    found = [payload for piece in pieces for payload in decoder.take(piece)]
    decoder.end()
    return found, decoder.error


def refused(*pieces: bytes) -> str:
    found, error = taken(*pieces)
    assert not found and error is not None
    assert (error.code, error.status) == ("bad_frame", 400)
    return str(error)


def test_frames_come_whole_however_they_are_cut() -> None:
    payloads = [b"", b"a", bytes(300), random.Random(1).randbytes(70_000), b"z" * 5_000]
    written = b"".join(map(frame, payloads)) + frame(b"x" * 2_000, "zstd")
    payloads.append(b"x" * 2_000)
    assert taken(written) == (payloads, None)
    assert taken(*[written[at : at + 1] for at in range(len(written))]) == (payloads, None)
    for seed in range(20):
        chance = random.Random(seed)
        pieces, at = [], 0
        while at < len(written):
            size = chance.choice((0, 1, 2, 3, 4, 100, 40_000))
            pieces.append(written[at : at + size])
            at += size
        assert taken(*pieces) == (payloads, None)


def test_a_decoder_tells_what_it_holds() -> None:
    decoder = FrameDecoder()
    assert list(decoder.take(frame(b"one") + b"\0\0")) == [b"one"]
    assert decoder.buffered == 2
    assert list(decoder.take(b"\x05\0ab")) == []
    assert decoder.buffered == 6
    assert list(decoder.take(b"cd")) == [b"abcd"]
    assert decoder.buffered == 0
    decoder.end()
    assert decoder.error is None


@pytest.mark.parametrize("compression", BOTH)
def test_a_compressed_frame_comes_as_it_was(compression: Compression) -> None:
    payload = b"abc" * 1_000
    written = frame(payload, compression)
    assert len(written) < 1_000 and written[3] == {"zstd": ZSTD, "gzip": GZIP}[compression]
    assert taken(written) == ([payload], None)


@pytest.mark.parametrize("compression", BOTH)
def test_what_is_short_or_does_not_shrink_is_not_compressed(compression: Compression) -> None:
    assert frame(b"a" * 1_023, compression) == frame(b"a" * 1_023)
    assert frame(b"a" * 1_024, compression)[3] != 0
    noise = random.Random(7).randbytes(4_000)
    assert frame(noise, compression) == frame(noise)


def test_a_frame_in_tiny_pieces_takes_no_more_memory_than_it_has_bytes() -> None:
    """What is counted of it, so that sessions are bounded, is its bytes."""
    written = frame(random.Random(2).randbytes(20_000))
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        for at in range(0, len(written) - 2, 2):
            assert not list(decoder.take(written[at : at + 2]))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * decoder.buffered
    assert list(decoder.take(written[decoder.buffered :])) == [written[4:]]


def test_pieces_of_a_message_are_one_frame() -> None:
    assert frame_of_parts([b"ab", b"", b"cde"]) == frame(b"abcde") == b"\0\0\x06\0abcde"
    assert frame_of_parts([b"a" * 600] * 2, "zstd") == frame(b"a" * 1_200, "zstd")


def test_a_server_that_stops_says_so_in_its_frames() -> None:
    assert frame(b"x", reconnect=True) == b"\0\0\x02\x10x"
    assert frame(b"x" * 2_000, "zstd", reconnect=True)[3] == ZSTD | 0x10


@pytest.mark.parametrize(
    "broken",
    [
        b"\0\0\0",
        (FRAME_BYTES_MAX + 1).to_bytes(3, "big"),
        b"\xff\xff\xff\0",
        raw_frame(0x80, b"\x01\x90{}"),
        raw_frame(0xFF, b""),
        raw_frame(0x60, b""),
        raw_frame(ZSTD, b"not zstd"),
        raw_frame(GZIP, b"not gzip"),
        raw_frame(ZSTD, b""),
        raw_frame(GZIP, b""),
        raw_frame(ZSTD, zstd.compress(b"a" * 2_000)[:-1]),
        raw_frame(GZIP, gzipped(b"a" * 2_000)[:-1]),
        raw_frame(ZSTD, zstd.compress(b"a") + b"more"),
        raw_frame(GZIP, gzipped(b"a") + b"more"),
        raw_frame(ZSTD, zstd.compress(bytes(FRAME_BYTES_MAX))),
        raw_frame(GZIP, gzipped(bytes(FRAME_BYTES_MAX))),
        raw_frame(ZSTD, zstd.compress(bytes(64 * FRAME_BYTES_MAX))),
        raw_frame(GZIP, gzipped(bytes(8 * FRAME_BYTES_MAX))),
        b"\0",
        b"\0\0\x05\0abc",
    ],
    ids=range(20),
)
def test_a_broken_frame_is_refused(broken: bytes) -> None:
    refused(broken)
    refused(*[broken[at : at + 1] for at in range(len(broken))][:40_000])
    # What came before it counts, and what comes behind it does not.
    found, error = taken(frame(b"before") + broken)
    assert found == [b"before"] and error is not None and error.code == "bad_frame"
    decoder = FrameDecoder()
    list(decoder.take(broken))
    if decoder.error is not None:
        assert list(decoder.take(frame(b"behind"))) == []


@pytest.mark.parametrize("compression", BOTH)
def test_the_longest_frame_is_taken_and_one_byte_more_is_not(compression: Compression) -> None:
    longest = bytes(FRAME_BYTES_MAX - 1)
    assert taken(frame(longest)) == ([longest], None)
    assert taken(frame(longest, compression)) == ([longest], None)
    assert "decompresses" in refused(frame(longest + b"x", compression))


@pytest.mark.parametrize(("window_log", "right"), [(20, True), (23, True), (24, False)])
def test_a_payload_may_not_ask_for_much_memory(window_log: int, right: bool) -> None:
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: window_log})
    begun = packer.compress(b"abc", zstd.ZstdCompressor.FLUSH_BLOCK)  # so no size is in its head
    written = raw_frame(ZSTD, begun + packer.flush())
    if right:
        assert taken(written) == ([b"abc"], None)
    else:
        refused(written)


def test_a_terminal_frame_is_a_status_and_a_body() -> None:
    body = b'{"code":"server_draining","message":"stopping"}'
    assert terminal_frame(server_draining("stopping")) == raw_frame(0x80, b"\x01\xf7" + body)
    fence = FenceMismatch("no", detail={"fencing_token": "t"})
    body = b'{"fencing_token_mismatch":"t"}'
    assert terminal_frame(fence) == raw_frame(0x80, b"\x01\x9c" + body)


@pytest.mark.parametrize(
    ("accepts", "wanted"),
    [
        (b"", None),
        (b"identity", None),
        (b"br, deflate", None),
        (b"gzip", "gzip"),
        (b"GZIP, zstd", "zstd"),
        (b"zstd;q=0, gzip", "gzip"),
        (b"zstd; q=0.000, gzip;q=0", None),
        (b"gzip;q=1.0, zstd;q=0.1", "zstd"),
        (b"\xff;q=\xff", None),
    ],
)
def test_an_answer_is_compressed_as_its_client_accepts(accepts: bytes, wanted: str | None) -> None:
    assert session_compression(accepts) == wanted


@pytest.mark.parametrize("seed", range(6))
def test_damaged_sessions_give_frames_or_a_refusal_wherever_they_are_cut(seed: int) -> None:
    """The same bytes in other pieces give the same frames, and never more than their bound."""
    chance = random.Random(seed)
    corpus = [
        frame(b""),
        frame(b"\x0a\x04\x1a\x02hi"),
        frame(b"abc" * 700, "zstd"),
        frame(b"abc" * 700, "gzip"),
        raw_frame(0x10, b"reconnect"),
        terminal_frame(server_draining("stopping")),
        bytes(7),
    ]
    broken = 0
    for _ in range(300):
        whole = bytearray(b"".join(chance.choices(corpus, k=chance.randrange(1, 6))))
        for _ in range(chance.randrange(3)):
            place = chance.randrange(len(whole) + 1)
            whole[place : place + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        data = bytes(whole)
        ends = sorted(chance.randrange(len(data) + 1) for _ in range(4))
        pieces = [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]
        found, error = taken(data)
        again, other = taken(*pieces)
        assert again == found
        assert str(error) == str(other)
        assert all(len(payload) < FRAME_BYTES_MAX for payload in found)
        broken += error is not None
    assert 50 < broken < 300
