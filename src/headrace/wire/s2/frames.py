"""Frames of s2s sessions: cut out of a body that arrives in any pieces, and written.

Only this file knows the bytes of a frame: three of its length, a flag, a payload.  The payload is a
message (`protobuf.py`), compressed if the flag says so; that of the last frame of a session that
failed is a status and an error's body.  No frame is decompressed beyond its bound.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError
from headrace.core.limits import MIB
from headrace.wire.held_pieces import HeldPieces
from headrace.wire.s2.errors import S2Refusal, bad_frame, failure_body

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CONTENT_TYPE: Final = b"s2s/proto"

Compression = Literal["zstd", "gzip"]

LENGTH_BYTES: Final = 3
FRAME_BYTES_MAX: Final = 2 * MIB  # flag and payload, also when the payload is decompressed
COMPRESS_BYTES_MIN: Final = 1024

_TERMINAL: Final = 0x80
_RECONNECT: Final = 0x10
_COMPRESSION_SHIFT: Final = 5
_COMPRESSIONS: Final[tuple[Compression | None, ...]] = (None, "zstd", "gzip")
_FLAGS: Final[dict[Compression, int]] = {"zstd": 0x20, "gzip": 0x40}

# At the lowest level: a session waits for it.
_ZSTD_LEVEL: Final = 1
_GZIP_LEVEL: Final = 1
_GZIP_WBITS: Final = 31  # zlib's word for: with a gzip header
# What a payload may make the decoder keep; no frame needs more.
_ZSTD_WINDOW_LOG_MAX: Final = 23


class FrameDecoder:
    """The frames of one session's request.

    >>> decoder = FrameDecoder()
    >>> written = frame(b"one") + frame(b"two")
    >>> list(decoder.take(written[:5])), list(decoder.take(written[5:])), decoder.buffered
    ([], [b'one', b'two'], 0)
    """

    __slots__ = ("_held", "_wanted", "buffered", "error", "frames")

    def __init__(self) -> None:
        self.error: S2Refusal | None = None  # why nothing is taken any more
        self.buffered = 0  # bytes of a frame that is not complete
        self.frames = 0  # that were complete
        self._held = HeldPieces()
        self._wanted = LENGTH_BYTES  # how many bytes it takes to go on

    def take(self, data: bytes) -> Iterator[bytes]:
        """The payloads that are complete now, as they were before compression.

        Each is decompressed when it is asked for, since a short frame may decompress to a long
        payload; all of them have to be asked for before there is more data.  Of a broken frame, and
        of those behind it, there is none; `error` says what is wrong.
        """
        if self.error is not None or not data:
            return
        self.buffered += len(data)
        if self.buffered < self._wanted:
            self._held.add(data)
            return
        held = data
        if self._held.size:
            self._held.add(data)
            held = self._held.take()
        at, end = 0, len(held)
        try:
            while end - at >= LENGTH_BYTES:
                length = int.from_bytes(held[at : at + LENGTH_BYTES], "big")
                self._wanted = LENGTH_BYTES + length
                if not 1 <= length <= FRAME_BYTES_MAX:
                    raise bad_frame(f"a frame of {length} bytes; it has 1 to {FRAME_BYTES_MAX}")
                if end - at < self._wanted:
                    break
                first = at + LENGTH_BYTES
                at = first + length
                self.frames += 1
                yield _payload(held[first], held[first + 1 : at])
            else:
                self._wanted = LENGTH_BYTES
        except S2Refusal as error:
            self.error = without_frames(error)
            at = end
        self.buffered = end - at
        if at < end:
            self._held.add(held[at:])

    def end(self) -> None:
        """The request has ended; `error` says so if that was inside of a frame."""
        if self.error is None and self.buffered:
            self.error = bad_frame("the session ends inside of a frame")


def _payload(flag: int, payload: bytes) -> bytes:
    """The message of a frame of a client."""
    if not flag:
        return payload
    if flag & _TERMINAL:
        raise bad_frame("a client sends no terminal frame")
    number = flag >> _COMPRESSION_SHIFT
    if number >= len(_COMPRESSIONS):
        raise bad_frame("a frame has a compression that is not known")
    compression = _COMPRESSIONS[number]
    return payload if compression is None else _decompress(payload, compression)


def _decompress(payload: bytes, compression: Compression) -> bytes:
    try:
        if compression == "gzip":
            unzip = zlib.decompressobj(_GZIP_WBITS)
            message = unzip.decompress(payload, FRAME_BYTES_MAX)
            whole = unzip.eof and not unzip.unused_data
        else:
            limit: dict[int, int] = {
                zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG_MAX
            }
            decoder = zstd.ZstdDecompressor(options=limit)
            message = decoder.decompress(payload, FRAME_BYTES_MAX)
            whole = decoder.eof and not decoder.unused_data
    except (zlib.error, zstd.ZstdError):
        raise bad_frame(f"the payload of a frame is not {compression}") from None
    if len(message) >= FRAME_BYTES_MAX:
        raise bad_frame(f"a frame decompresses to {FRAME_BYTES_MAX} bytes or more")
    if not whole:
        raise bad_frame(f"the payload of a frame is not one whole {compression} body")
    return message


def frame(
    payload: bytes, compression: Compression | None = None, *, reconnect: bool = False
) -> bytes:
    """A message as a frame; `reconnect` tells the client to leave for another connection.

    >>> frame(b"abc", reconnect=True)
    b'\\x00\\x00\\x04\\x10abc'
    """
    return frame_of_parts([payload], compression, reconnect=reconnect)


def frame_of_parts(
    parts: Sequence[bytes], compression: Compression | None = None, *, reconnect: bool = False
) -> bytes:
    """The same of a message in pieces, which are copied once."""
    flag = _RECONNECT if reconnect else 0
    size = sum(map(len, parts))
    if compression is not None and size >= COMPRESS_BYTES_MIN:
        payload = _compress(b"".join(parts), compression)
        if len(payload) < size:
            size, parts = len(payload), [payload]
            flag |= _FLAGS[compression]
    return b"".join(((size + 1).to_bytes(LENGTH_BYTES, "big"), b"%c" % flag, *parts))


def _compress(payload: bytes, compression: Compression) -> bytes:
    if compression == "zstd":
        return zstd.compress(payload, _ZSTD_LEVEL)
    return zlib.compress(payload, _GZIP_LEVEL, _GZIP_WBITS)


def terminal_frame(error: HeadraceError) -> bytes:
    """The last frame of a session that failed.

    >>> terminal_frame(bad_frame("no"))
    b'\\x00\\x00&\\x80\\x01\\x90{"code":"bad_frame","message":"no"}'
    """
    status, body = failure_body(error)
    length = (3 + len(body)).to_bytes(LENGTH_BYTES, "big")
    return b"%b%c%b%b" % (length, _TERMINAL, status.to_bytes(2, "big"), body)


def session_compression(accept_encoding: bytes) -> Compression | None:
    """How the frames of a session's answer are compressed for a client that accepts these.

    >>> session_compression(b"gzip, zstd"), session_compression(b"zstd;q=0, gzip;q=0.5")
    ('zstd', 'gzip')
    """
    accepted = set()
    for item in accept_encoding.decode("latin-1").lower().split(","):
        name, _, weight = item.partition(";")
        words = weight.replace(" ", "")
        if not words.startswith("q=") or words[2:].strip("0.") != "":
            accepted.add(name.strip())
    if "zstd" in accepted:
        return "zstd"
    return "gzip" if "gzip" in accepted else None
