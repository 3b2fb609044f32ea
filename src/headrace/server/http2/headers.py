"""Header blocks of HTTP/2: reading request heads, writing response heads.

Only this file knows HPACK and what makes a request head well-formed (RFC 9113 §8.2, §8.3).  The
reader takes the table of the `hpack` package and does the loop itself: it copies nothing twice, and
a head that came before in the same form is not read again.  The writer uses no dynamic table, so
that an encoding holds for every connection.  Neither knows streams.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, ProtocolError
from hpack.exceptions import HPACKError
from hpack.hpack import Decoder, Encoder
from hpack.huffman_table import decode_huffman
from hpack.struct import HeaderTuple
from hpack.table import HeaderTable

from headrace.server.http2.limits import (
    CACHED_BLOCKS_MAX,
    CACHED_HEAD_BYTES_MAX,
    CACHED_HEADS_MAX,
    CACHED_NAMES_MAX,
)
from headrace.wire.exchange import Header, Headers

# What RFC 9113 §6.5.2 adds to each field when the size of a list is counted.
FIELD_OVERHEAD: Final = 32
_INTEGER_BYTES_MAX: Final = 5

_PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path", b":protocol"})
CONNECTION_SPECIFIC: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
_SINGLE: Final = frozenset({b"host", b"content-length", b"content-type", b"authorization"})
# RFC 8441 has no key, because nothing between the two sides can mistake a stream for HTTP/1.1.
_NO_KEY: Final = b"AAAAAAAAAAAAAAAAAAAAAA=="
_is_name = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_is_method = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
_is_path = re.compile(rb"/[!\"$-~]*").fullmatch
_bad_in_value = re.compile(rb"[\x00\r\n]|\A[ \t]|[ \t]\Z").search


class BadCompression(ProtocolError):
    """A header block that cannot be decoded: nothing after it can be either."""

    error_code = ErrorCodes.COMPRESSION_ERROR


class Malformed(Exception):
    """A request that breaks the rules of RFC 9113 §8; the stream is reset."""


class Head(NamedTuple):
    """A request head that is well-formed."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    length: int | None  # of content-length
    upgrade: bytes  # of an extended CONNECT: the protocol
    bytes: int  # as RFC 9113 §6.5.2 counts them


class HeadReader(Decoder):
    """The decoder of one connection."""

    def __init__(self, list_bytes_max: int) -> None:
        super().__init__(list_bytes_max)
        # By compressed form; valid while the dynamic table stays as it is.
        self._known: dict[bytes, Head | Malformed] = {}

    def read(self, block: bytes) -> Head:
        """The head that a block holds, or `Malformed`; `ProtocolError` ends the connection."""
        known = self._known.get(block)
        if known is None:
            fields, size, changed = self._fields(block)
            try:
                known = _read_head(fields, size)
            except Malformed as error:
                known = error.with_traceback(None)
            if changed or len(self._known) >= CACHED_HEADS_MAX:
                self._known.clear()
            if not changed and max(len(block), size) <= CACHED_HEAD_BYTES_MAX:
                self._known[block] = known
        if isinstance(known, Malformed):
            raise Malformed(*known.args)
        return known

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        """What `h2` calls for trailers: the fields, unchecked."""
        fields, _, changed = self._fields(bytes(data))
        if changed:
            self._known.clear()
        return [HeaderTuple(name, value) for name, value in fields]

    def _fields(self, block: bytes) -> tuple[list[Header], int, bool]:
        """Name and value of each field, the size of the list, whether the table changed."""
        table = self.header_table
        fields: list[Header] = []
        size = 0
        changed = False
        at, end = 0, len(block)
        try:
            while at < end:
                first = block[at]
                if first & 0x80:
                    index, at = _integer(block, at, 0x7F)
                    name, value = table.get_by_index(index)
                elif first & 0xE0 == 0x20:
                    changed = True
                    at = self._resize(block, at, bool(fields))
                    continue
                else:
                    indexed = first & 0x40
                    index, at = _integer(block, at, 0x3F if indexed else 0x0F)
                    if index:
                        name = table.get_by_index(index)[0]
                    else:
                        name, at = _text(block, at)
                    value, at = _text(block, at)
                    if indexed:
                        table.add(name, value)
                        changed = True
                size += len(name) + len(value) + FIELD_OVERHEAD
                if size > self.max_header_list_size:
                    raise DenialOfServiceError(f"a header list of more than {size} bytes")
                fields.append((name, value))
        except (HPACKError, IndexError) as error:
            raise BadCompression(f"a header block that cannot be decoded: {error}") from error
        return fields, size, changed

    def _resize(self, block: bytes, at: int, late: bool) -> int:
        size, at = _integer(block, at, 0x1F)
        if late or size > self.max_allowed_table_size:
            raise BadCompression(f"a table size update to {size} that is not allowed")
        self.header_table_size = size
        return at


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """A number with a prefix of the bits of `mask`, and where it ends (RFC 7541 §5.1).

    >>> _integer(bytes([0x1F, 0x9A, 0x0A]), 0, 0x1F)
    (1337, 3)
    """
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= 7 * _INTEGER_BYTES_MAX:
            raise BadCompression("a number of too many bytes")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """A string literal, and where it ends (RFC 7541 §5.2)."""
    packed = block[at] & 0x80
    length, at = _integer(block, at, 0x7F)
    end = at + length
    text = block[at:end]
    if len(text) != length:
        raise BadCompression("a header block that ends too early")
    return (decode_huffman(text) if packed else text), end


def _read_head(fields: list[Header], size: int) -> Head:
    pseudo: dict[bytes, bytes] = {}
    headers: dict[bytes, bytes] = {}
    for name, value in fields:
        if _bad_in_value(value):
            raise Malformed(f"a character in {name!r} that may not be there")
        if name[:1] == b":":
            if headers or name in pseudo or name not in _PSEUDO:
                raise Malformed(f"{name!r} here, or twice, or unknown")
            pseudo[name] = value
            continue
        if not _is_name(name) or name in CONNECTION_SPECIFIC:
            raise Malformed(f"a header named {name!r}")
        if name == b"te" and value.lower() != b"trailers":
            raise Malformed("te is not trailers")
        if name in headers:
            if name in _SINGLE:
                raise Malformed(f"{name!r} twice")
            value = headers[name] + (b"; " if name == b"cookie" else b", ") + value
        headers[name] = value
    return _head_of(pseudo, headers, size)


def _head_of(pseudo: dict[bytes, bytes], headers: dict[bytes, bytes], size: int) -> Head:
    method = pseudo.get(b":method", b"")
    if not _is_method(method):
        raise Malformed("no :method")
    authority = pseudo.get(b":authority", headers.get(b"host", b""))
    if not authority or headers.setdefault(b"host", authority) != authority:
        raise Malformed("no :authority, or another one than Host")
    length_text = headers.get(b"content-length")
    if length_text is not None and not (length_text.isdigit() and len(length_text) <= 18):
        raise Malformed("content-length is not a number")
    length = None if length_text is None else int(length_text)
    upgrade = pseudo.get(b":protocol", b"").lower()
    if method == b"CONNECT" and not upgrade:
        if b":scheme" in pseudo or b":path" in pseudo:
            raise Malformed("CONNECT with a path")
        return Head("CONNECT", "", "", headers, length, b"", size)
    if upgrade:
        if method != b"CONNECT":
            raise Malformed(":protocol without CONNECT")
        # An extended CONNECT (RFC 8441) is to HTTP/2 what GET with Upgrade is to HTTP/1.1, and is
        # handed on in that form, so that there is one form of an upgrade to check.
        method = b"GET"
        headers[b"upgrade"] = upgrade
        headers[b"sec-websocket-key"] = _NO_KEY
    target = pseudo.get(b":path", b"")
    if not pseudo.get(b":scheme") or not (_is_path(target) or target == b"*"):
        raise Malformed("no :scheme, or a :path that is none")
    path, _, query = target.decode("ascii").partition("?")
    return Head(method.decode("ascii"), path, query, headers, length, upgrade, size)


# Writing


class HeadWriter(Encoder):
    """The encoder of one connection: it only has to say that it keeps no table."""

    def __init__(self) -> None:
        super().__init__()
        self._shrunk = False

    @property
    def header_table_size(self) -> int:
        return 0

    @header_table_size.setter
    def header_table_size(self, value: int) -> None:
        # A client that changed the bound waits for a size update; 0 is within any bound.
        self._shrunk = True

    def prefix(self) -> bytes:
        """What has to come first in the next block."""
        if not self._shrunk:
            return b""
        self._shrunk = False
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
    start += _string(b"%d" % length)
    return start + _encode_fields(headers) if headers else start


def _encode_fields(headers: Headers) -> bytes:
    parts = []
    for name, value in headers:
        if name not in CONNECTION_SPECIFIC:
            parts.append(_names.get(name) or _encode_name(name))
            parts.append(_string(value))
    return b"".join(parts)


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
    """The opposite of `_integer`, with a prefix of zeros.

    >>> _integer(_number(1337, 0x0F), 0, 0x0F)
    (1337, 3)
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
