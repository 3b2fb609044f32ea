"""Header blocks of HTTP/2: writing response heads.

Only this file writes HPACK.  It uses no dynamic table, so that an encoding holds for every
connection.  It knows no streams.
"""

from __future__ import annotations

from typing import Final

from hpack.hpack import Encoder
from hpack.table import HeaderTable

from headrace.server.http2.headers import CONNECTION_SPECIFIC
from headrace.server.http2.limits import CACHED_BLOCKS_MAX, CACHED_NAMES_MAX
from headrace.wire.exchange import Headers


class HeadWriter(Encoder):
    """The encoder of one connection: it only has to say that it keeps no table."""

    def __init__(self) -> None:
        super().__init__()
        self.shrunk = False  # the next block has to begin with `prefix`

    @property
    def header_table_size(self) -> int:
        return 0

    @header_table_size.setter
    def header_table_size(self, value: int) -> None:
        # A client that changed the bound waits for a size update; 0 is within any bound.
        self.shrunk = True

    def prefix(self) -> bytes:
        """What has to come first in the next block."""
        if not self.shrunk:
            return b""
        self.shrunk = False
        return b"\x20"


_LENGTHS: Final = [bytes([length]) for length in range(127)]
_STATUSES: Final = {
    int(value): bytes([0x80 | index])
    for index, (name, value) in enumerate(HeaderTable.STATIC_TABLE, 1)
    if name == b":status"
}
_STATUS_NAME: Final = b"\x08"  # literal, without indexing, named by the static table
_names: dict[bytes, bytes] = {}
_blocks: dict[tuple[int, bytes], bytes] = {}


def encode_head(status: int, headers: Headers) -> bytes:
    """A response head, of status and headers.

    >>> encode_head(200, [(b"content-type", b"a/b")])
    b'\\x88\\x0f\\x10\\x03a/b'
    """
    start = _STATUSES.get(status) or _STATUS_NAME + _string(b"%d" % status)
    return start + _encode_fields(headers)


def encode_whole(status: int, content_type: bytes, length: int, headers: Headers) -> bytes:
    """The head of an answer whose length is known."""
    start = _blocks.get((status, content_type))
    if start is None:
        named = [(b"content-type", content_type)] if content_type else []
        start = encode_head(status, named) + _encode_name(b"content-length")
        if len(_blocks) < CACHED_BLOCKS_MAX:
            _blocks[status, content_type] = start
    digits = b"%d" % length
    return b"%b%b%b%b" % (start, _LENGTHS[len(digits)], digits, _encode_fields(headers))


def _encode_fields(headers: Headers) -> bytes:
    parts = [
        (_names.get(name) or _encode_name(name)) + _string(value)
        for name, value in headers
        if name not in CONNECTION_SPECIFIC
    ]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _encode_name(name: bytes) -> bytes:
    known = HeaderTable.STATIC_TABLE_MAPPING.get(name)
    encoded = _number(known[0], 0x0F) if known is not None else b"\x00" + _string(name)
    if len(_names) < CACHED_NAMES_MAX:
        _names[name] = encoded
    return encoded


def _string(text: bytes) -> bytes:
    # A line break would be another header once a proxy speaks HTTP/1.1.
    assert b"\n" not in text, text
    assert b"\r" not in text, text
    return (_LENGTHS[len(text)] if len(text) < 127 else _number(len(text), 0x7F)) + text


def _number(value: int, mask: int) -> bytes:
    """A number with a prefix of the bits of `mask` and zeros before it (RFC 7541 §5.1).

    >>> list(_number(1337, 0x0F))
    [15, 170, 10]
    """
    if value < mask:
        return bytes([value])
    out = bytearray([mask])
    value -= mask
    while value >= 0x80:
        out.append(0x80 | value & 0x7F)
        value >>= 7
    out.append(value)
    return bytes(out)
