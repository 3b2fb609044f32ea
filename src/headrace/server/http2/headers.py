"""Header blocks of HTTP/2: reading request heads.

Only this file reads HPACK, and knows what makes a request head well-formed (RFC 9113 §8.2, §8.3).
It takes the table of the `hpack` package and does the loop itself: it copies nothing twice, and a
head that came before in the same bytes is not read again.  One that differs from another only in
values that differ from request to request (lengths, keys, trace ids) is not checked again but for
these values.  It knows no streams.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, ProtocolError
from hpack.exceptions import HPACKError
from hpack.hpack import Decoder
from hpack.huffman_table import decode_huffman
from hpack.struct import HeaderTuple
from hpack.table import HeaderTable

from headrace.core.lru import FifoMap
from headrace.server.http1.heads import VARYING
from headrace.server.http2.limits import (
    CACHED_HEAD_BYTES_MAX,
    CACHED_HEADS_MAX,
)
from headrace.wire.exchange import Header, Repeated

if TYPE_CHECKING:
    from headrace.wire.routes import Route

# What RFC 9113 §6.5.2 adds to each field when the size of a list is counted.
FIELD_OVERHEAD: Final = 32
_INTEGER_BYTES_MAX: Final = 5

_PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path", b":protocol"})
CONNECTION_SPECIFIC: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
_LENGTH: Final = b"content-length"
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


class Head:
    """A request head that is well-formed; requests that look alike share one."""

    __slots__ = (
        "bytes", "headers", "is_plain", "length", "memo", "method", "params", "path", "query",
        "route", "upgrade",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        target: str,
        headers: dict[bytes, bytes],
        length: int | None,
        upgrade: bytes,
        size: int,
    ) -> None:
        self.method = method
        self.path, _, self.query = target.partition("?")
        self.headers = headers
        self.length = length  # of content-length
        self.upgrade = upgrade  # of an extended CONNECT: the protocol
        self.bytes = size  # as RFC 9113 §6.5.2 counts them
        # What is found out about it once, and kept as long as the head is:
        self.route: Route | None = None
        self.params: Sequence[str] = ()
        self.is_plain = False  # a request with it is handed over whole, and nothing else is done
        self.memo: dict[object, object] | None = {}  # see `Exchange.memo`

    def like(self, fields: list[Header], size: int) -> Head:
        """The head that these fields are, which has the form of this one, or `Malformed`."""
        head = Head.__new__(Head)  # a copy, made for each request
        head.method, head.path, head.query = self.method, self.path, self.query
        head.route, head.params, head.is_plain = self.route, self.params, self.is_plain
        head.upgrade, head.memo, head.bytes = self.upgrade, self.memo, size
        head.headers = headers = self.headers.copy()
        for name, value in fields:
            if name in VARYING:
                if _bad_in_value(value):
                    raise Malformed(f"a character in {name!r} that may not be there")
                headers[name] = value
                if name != _LENGTH:
                    head.memo = None  # handlers may have looked at it
        head.length = _length_of(headers)
        return head


class HeadReader(Decoder):
    """The decoder of one connection."""

    def __init__(self, list_bytes_max: int) -> None:
        super().__init__(list_bytes_max)
        # By compressed form; valid while the dynamic table stays as it is.
        self._known: FifoMap[bytes, Head | Malformed] = FifoMap(CACHED_HEADS_MAX)
        # By all fields, without the values that vary.
        self._forms: FifoMap[tuple[bytes | Header, ...], Head] = FifoMap(CACHED_HEADS_MAX)

    def read(self, block: bytes) -> Head:
        """The head that a block holds, or `Malformed`; `ProtocolError` ends the connection."""
        known = self._known.get(block)
        if known is None:
            fields, size, changed = self._fields(block)
            is_small = max(len(block), size) <= CACHED_HEAD_BYTES_MAX
            try:
                known = self._read_fields(fields, size, is_small)
            except Malformed as error:
                known = error.with_traceback(None)
            if changed:
                self._known.clear()
            elif is_small:
                self._known.put(block, known)
                if isinstance(known, Head) and known.memo is None:
                    known.memo = {}  # for requests with exactly these values
        if isinstance(known, Malformed):
            raise Malformed(*known.args)
        return known

    def _read_fields(self, fields: list[Header], size: int, is_small: bool) -> Head:
        """The head that these fields are, by the form of those before it if it is known."""
        form = tuple([field[0] if field[0] in VARYING else field for field in fields])
        known = self._forms.get(form)
        if known is not None:
            return known.like(fields, size)
        head = _read_head(fields, size)
        varying = [part for part in form if isinstance(part, bytes)]
        if is_small and len(set(varying)) == len(varying):
            self._forms.put(form, head)
        return head

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        """What `h2` calls for trailers: the fields, unchecked."""
        fields, _, changed = self._fields(bytes(data))
        if changed:
            self._known.clear()
        return [HeaderTuple(name, value) for name, value in fields]

    def _fields(self, block: bytes) -> tuple[list[Header], int, bool]:
        """Name and value of each field, the size of the list, whether the table changed."""
        table, static = self.header_table, HeaderTable.STATIC_TABLE
        static_count = len(static)
        fields: list[Header] = []
        size = 0
        changed = False
        at, end = 0, len(block)
        try:
            while at < end:
                first = block[at]
                if first & 0x80:
                    index = first & 0x7F
                    if 0 < index <= static_count:
                        at += 1
                        name, value = static[index - 1]
                    else:
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
            value = Repeated(headers[name] + (b"; " if name == b"cookie" else b", ") + value)
        headers[name] = value
    return _head_of(pseudo, headers, size)


def _head_of(pseudo: dict[bytes, bytes], headers: dict[bytes, bytes], size: int) -> Head:
    method = pseudo.get(b":method", b"")
    if not _is_method(method):
        raise Malformed("no :method")
    authority = pseudo.get(b":authority", headers.get(b"host", b""))
    if not authority or headers.setdefault(b"host", authority) != authority:
        raise Malformed("no :authority, or another one than Host")
    length = _length_of(headers)
    upgrade = pseudo.get(b":protocol", b"").lower()
    if method == b"CONNECT" and not upgrade:
        if b":scheme" in pseudo or b":path" in pseudo:
            raise Malformed("CONNECT with a path")
        return Head("CONNECT", "", headers, length, b"", size)
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
    return Head(method.decode("ascii"), target.decode("ascii"), headers, length, upgrade, size)


def _length_of(headers: dict[bytes, bytes]) -> int | None:
    text = headers.get(_LENGTH)
    if text is None:
        return None
    if not (text.isdigit() and len(text) <= 18):
        raise Malformed("content-length is not a number")
    return int(text)
