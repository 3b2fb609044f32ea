"""Compressed bodies, both ways: gzip and zstd.

The rules this file alone owns: what a body's `Content-Encoding` may be, that no body is ever
decompressed beyond its bound, and which encoding an `Accept-Encoding` header chooses.  Whether an
answer is worth compressing, and on which thread the work is done, is the caller's to say: nothing
here keeps state between calls.
"""

from __future__ import annotations

import sys
import zlib
from functools import lru_cache
from typing import Final

from headrace.core.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GZIP: Final = "gzip"
ZSTD: Final = "zstd"
IDENTITY: Final = "identity"
_NAMES: Final = {"gzip": GZIP, "x-gzip": GZIP, "zstd": ZSTD, "identity": IDENTITY, "": IDENTITY}

# At the lowest level an answer shrinks by three quarters of what the highest could save, at a
# tenth of the time, all of which the client waits for.
GZIP_LEVEL = 1
ZSTD_LEVEL = 1
_GZIP_WBITS = 31  # zlib's word for: with a gzip header

# A body goes to the decoder in pieces of this size, and may be this many compressed parts one after
# another: each part costs a copy of what is left of its piece.
PIECE_BYTES = 64 * 1024
PARTS_MAX = 1_000
# The memory a zstd body may make us keep; RFC 9659 tells senders to stay within it.
ZSTD_WINDOW_LOG_MAX = 23

ACCEPT_HEADERS_REMEMBERED = 256
# A longer header is not looked at, and its answer not compressed.
ACCEPT_BYTES_MAX = 256


def decode_body(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """A request's body as it was before `Content-Encoding`; it may have `bytes_max` bytes.

    >>> decode_body(encode_body(b"abc", "zstd"), "zstd", 3)
    b'abc'
    >>> decode_body(encode_body(b"abcd", "gzip"), "gzip", 3)
    Traceback (most recent call last):
    headrace.core.errors.PayloadTooLarge: the body decompresses to more than 3 bytes; send less
    """
    name = _NAMES.get(encoding.strip().lower())
    if name is None:
        raise UnsupportedMediaType(
            f"content encoding {encoding!r}", fix="send gzip, zstd or no encoding"
        )
    if name == IDENTITY:
        _check_size(len(body), bytes_max)
        return body
    try:
        return _decode_parts(body, name, bytes_max)
    except (zlib.error, zstd.ZstdError) as error:
        raise InvalidRequest(
            f"the body is not {name}: {error}",
            fix="compress it again, with a window of at most 8 MiB",
        ) from None


def _decode_parts(body: bytes, name: str, bytes_max: int) -> bytes:
    """Decode parts that follow each other, each whole, with nothing after the last."""
    found: list[bytes] = []
    size = 0
    parts = 1
    decoder = _decoder(name)
    for start in range(0, len(body), PIECE_BYTES):
        piece = body[start : start + PIECE_BYTES]
        while piece:
            if decoder.eof:
                parts += 1
                if parts > PARTS_MAX:
                    raise InvalidRequest(
                        f"the body is more than {PARTS_MAX} {name} parts", fix="compress it as one"
                    )
                decoder = _decoder(name)
            data, piece = decoder.decode(piece, bytes_max - size + 1)
            size += len(data)
            found.append(data)
            _check_size(size, bytes_max)
    if not decoder.eof:
        raise InvalidRequest(f"the {name} body ends too early", fix="send all of it")
    return found[0] if len(found) == 1 else b"".join(found)


class _GzipDecoder:
    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(_GZIP_WBITS)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    def decode(self, piece: bytes, bytes_max: int) -> tuple[bytes, bytes]:
        """What a piece decodes to, as far as there is room, and what is left of the piece."""
        data = self._decoder.decompress(piece, bytes_max)
        return data, self._decoder.unused_data or self._decoder.unconsumed_tail


class _ZstdDecoder:
    def __init__(self) -> None:
        limit: dict[int, int] = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG_MAX}
        self._decoder = zstd.ZstdDecompressor(options=limit)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    def decode(self, piece: bytes, bytes_max: int) -> tuple[bytes, bytes]:
        # What the decoder has not consumed it keeps; it never gives more than it is allowed, and
        # the caller stops at one byte too many, so nothing that is kept is ever asked for.
        data = self._decoder.decompress(piece, bytes_max)
        return data, self._decoder.unused_data if self._decoder.eof else b""


def _decoder(name: str) -> _GzipDecoder | _ZstdDecoder:
    return _GzipDecoder() if name == GZIP else _ZstdDecoder()


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise PayloadTooLarge(
            f"the body decompresses to more than {bytes_max} bytes", fix="send less"
        )


def encode_body(body: bytes, encoding: str) -> bytes:
    """An answer's body in an encoding that `choose` named."""
    if encoding == ZSTD:
        return zstd.compress(body, ZSTD_LEVEL)
    assert encoding == GZIP, encoding
    return zlib.compress(body, GZIP_LEVEL, _GZIP_WBITS)


def choose(accept_encoding: bytes) -> str | None:
    """The encoding of an answer to a client that accepts these; None: as it is.

    >>> choose(b"gzip, deflate, br, zstd"), choose(b"gzip;q=0.5, zstd;q=0"), choose(b"br")
    ('zstd', 'gzip', None)
    """
    if not accept_encoding or len(accept_encoding) > ACCEPT_BYTES_MAX:
        return None
    return _choose(accept_encoding)


@lru_cache(ACCEPT_HEADERS_REMEMBERED)
def _choose(accept_encoding: bytes) -> str | None:
    weights: dict[str, float] = {}
    for item in accept_encoding.decode("latin-1").lower().split(","):
        name, *parameters = (word.strip() for word in item.split(";"))
        if name:
            weights.setdefault(_NAMES.get(name, name), _weight(parameters))
    # A client that takes anything is given what every client has.
    gzip, zstandard = weights.get(GZIP, weights.get("*", 0.0)), weights.get(ZSTD, 0.0)
    best, weight = (ZSTD, zstandard) if zstandard >= gzip else (GZIP, gzip)
    # Without a word about it, no encoding at all is the client's last choice.
    return best if weight > 0 and weight >= weights.get(IDENTITY, 0.0) else None


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
