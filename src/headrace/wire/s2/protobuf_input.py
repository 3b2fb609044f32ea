"""The protobuf message AppendInput, read by hand.

Only this file knows its fields.  There are few of them, records are columns here and not objects,
and there is a short way for the form that every client writes: so it is faster than a library and
its objects (docs/internals/s2.md has the figures).  Another form of the same message, as with
fields in another order or of a newer version, takes the long way to the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.storage.record_headers import Header
from headrace.wire.s2.errors import bad_proto
from headrace.wire.s2.records import (
    BATCH_HEADERS_MAX,
    BATCH_RECORDS_MAX,
    U64_MAX,
    AppendInput,
    RecordHeaders,
    too_many_headers,
    too_many_records,
)

# Wire types.
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX: Final = 10
_FIELD_NUMBER_MAX: Final = (1 << 29) - 1
# Fields of a message, those of newer versions included.
_FIELDS_MAX: Final = BATCH_HEADERS_MAX + BATCH_RECORDS_MAX + 100
_STAMP_BYTES: Final = 6  # of the varint of milliseconds since 1970, from 2004 to 2109

# Tags of fields: number and wire type in one byte.
_RECORDS: Final = 0x0A  # AppendInput
_APPEND_STAMP: Final = 0x08  # AppendRecord
_APPEND_HEADERS: Final = 0x12
_APPEND_BODY: Final = 0x1A
_HEADER_NAME: Final = 0x0A  # Header
_HEADER_VALUE: Final = 0x12


class _Malformed(Exception):
    """The bytes are no message."""


def decode_append_input(data: bytes) -> AppendInput:
    """The records and conditions of an append.

    >>> given = decode_append_input(bytes.fromhex("0a041a026869 1003"))
    >>> given.bodies, given.match_seq_num, given.fencing_token
    ([b'hi'], 3, None)
    """
    bodies: list[bytes] = []
    headers: list[RecordHeaders] = []
    stamps: list[int | None] = []
    match_seq_num: int | None = None
    fencing_token: str | None = None
    try:
        at = _decode_records(data, bodies, headers, stamps)
        for number, wire, value in _fields(data, at, len(data)):
            if number == 1 and wire == _LENGTH:
                if len(bodies) == BATCH_RECORDS_MAX:
                    raise too_many_records()
                _decode_any_record(value, bodies, headers, stamps)
            elif number == 2 and wire == _VARINT:
                match_seq_num = int(value)
            elif number == 3 and wire == _LENGTH:
                assert isinstance(value, bytes)
                fencing_token = value.decode()
    except (IndexError, _Malformed, UnicodeDecodeError):
        raise bad_proto("the body is not an AppendInput message") from None
    return AppendInput(
        bodies,
        headers if any(headers) else None,
        None if stamps.count(None) == len(stamps) else stamps,
        match_seq_num,
        fencing_token,
    )


def _decode_records(
    data: bytes,
    bodies: list[bytes],
    headers: list[RecordHeaders],
    stamps: list[int | None],
) -> int:
    """Take the records at the beginning, as far as they have the usual form; return their end.

    The lengths of two bytes are read in place: what is called for each record is half of its cost.
    Few bytes can be many records or headers, so no more are made than a batch may have.
    """
    seen: dict[bytes, int] = {}  # timestamps by their bytes: those of a batch are often the same
    at, end = 0, len(data)
    room = BATCH_HEADERS_MAX
    for _ in range(BATCH_RECORDS_MAX):
        if at >= end or data[at] != _RECORDS:
            return at
        first = at
        size = data[at + 1]
        at += 2
        if size > 127:
            if data[at] > 127:
                size, at = _longer(data, at, size)
            else:
                size += (data[at] << 7) - 128
                at += 1
        stop = at + size
        if stop > end:
            raise _Malformed
        stamp: int | None = None
        if at < stop and data[at] == _APPEND_STAMP:
            at += 1
            written = data[at : at + _STAMP_BYTES]
            stamp = seen.get(written)
            if stamp is None:
                stamp, after = _varint(data, at)
                if after == at + _STAMP_BYTES:
                    seen[written] = stamp
                at = after
            else:
                at += _STAMP_BYTES
        pairs: list[Header] | None = None
        if at < stop and data[at] == _APPEND_HEADERS:
            pairs, at = _headers(data, at, stop, room)
            room -= len(pairs)
        body = b""
        if at < stop and data[at] == _APPEND_BODY:
            size = data[at + 1]
            at += 2
            if size > 127:
                if data[at] > 127:
                    size, at = _longer(data, at, size)
                else:
                    size += (data[at] << 7) - 128
                    at += 1
            body = data[at : at + size]
            at += size
        if at != stop:
            return first
        bodies.append(body)
        headers.append(pairs)
        stamps.append(stamp)
    if at < end and data[at] == _RECORDS:
        raise too_many_records()
    return at


def _headers(data: bytes, at: int, stop: int, most: int) -> tuple[list[Header], int]:
    """The headers at this place of a record, and where they end."""
    pairs: list[Header] = []
    while at < stop and data[at] == _APPEND_HEADERS:
        size = data[at + 1]
        at += 2
        if size > 127:
            size, at = _longer(data, at, size)
        if len(pairs) == most:
            raise too_many_headers()
        pairs.append(_header(data, at, at + size))
        at += size
    return pairs, at


def _decode_any_record(
    record: int | bytes,
    bodies: list[bytes],
    headers: list[RecordHeaders],
    stamps: list[int | None],
) -> None:
    """Take one record in whatever form."""
    assert isinstance(record, bytes)
    body, stamp = b"", None
    pairs: list[Header] = []
    for number, wire, value in _fields(record, 0, len(record)):
        if number == 1 and wire == _VARINT:
            stamp = int(value)
        elif wire == _LENGTH:
            assert isinstance(value, bytes)
            if number == 2:
                if len(pairs) == BATCH_HEADERS_MAX:
                    raise too_many_headers()
                pairs.append(_header(value, 0, len(value)))
            elif number == 3:
                body = value
    bodies.append(body)
    headers.append(pairs or None)
    stamps.append(stamp)


def _header(data: bytes, at: int, stop: int) -> Header:
    """The header between these places."""
    if stop > len(data):
        raise _Malformed
    if 4 <= stop - at < 128 and data[at] == _HEADER_NAME:
        # It may be a name and a value shorter than 128 bytes each, and nothing else.
        name_to = at + 2 + data[at + 1]
        if (
            name_to + 2 <= stop
            and data[name_to] == _HEADER_VALUE
            and name_to + 2 + data[name_to + 1] == stop
        ):
            return data[at + 2 : name_to], data[name_to + 2 : stop]
    name = value = b""
    for number, wire, given in _fields(data, at, stop):
        if wire == _LENGTH and number in (1, 2):
            assert isinstance(given, bytes)
            name, value = (given, value) if number == 1 else (name, given)
    return name, value


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and value of each field between these places."""
    for _ in range(_FIELDS_MAX):
        if at >= stop:
            return
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number <= _FIELD_NUMBER_MAX:
            raise _Malformed
        value: int | bytes
        if wire == _VARINT:
            value, at = _varint(data, at)
        else:
            if wire == _LENGTH:
                size, at = _varint(data, at)
            elif wire in (_FIXED64, _FIXED32):
                size = 8 if wire == _FIXED64 else 4
            else:
                raise _Malformed  # groups, which no version of these messages has
            value = data[at : at + size]
            at += size
        if at > stop:
            raise _Malformed
        yield number, wire, value
    if at < stop:
        raise _Malformed


def _longer(data: bytes, at: int, low: int) -> tuple[int, int]:
    """A length whose varint goes on behind its lowest byte, and where it ends."""
    byte = data[at]
    size = (low & 127) | (byte & 127) << 7
    at += 1
    if byte < 128:
        return size, at
    byte = data[at]
    if byte < 128:
        return size | byte << 14, at + 1
    return _varint(data, at - 2)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at this place, and where it ends."""
    value = data[at] & 127
    shift, last = 7, at + _VARINT_BYTES_MAX
    while data[at] > 127:
        at += 1
        if at == last:
            raise _Malformed
        value |= (data[at] & 127) << shift
        shift += 7
    return value & U64_MAX, at + 1
