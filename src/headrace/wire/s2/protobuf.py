"""The protobuf messages AppendAck and ReadBatch, written by hand.

Only this file knows their fields.  Records are columns here and not objects, and of what comes
before a body only what changes from one record to the next is made again: so it is faster than a
library and its objects (docs/internals/s2.md has the figures).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from headrace.wire.s2.records import AppendAck, Position, ReadBatch, RecordHeaders

CONTENT_TYPE: Final = b"application/protobuf"

# Tags of fields: number and wire type in one byte.
_RECORDS_TAG: Final = b"\x0a"
_TAIL_TAG: Final = b"\x12"  # ReadBatch
_SEQ_NUM_TAG: Final = b"\x08"  # StreamPosition, SequencedRecord
_STAMP_TAG: Final = b"\x10"
_HEADERS_TAG: Final = b"\x1a"  # SequencedRecord
_BODY_TAG: Final = b"\x22"
_HEADER_NAME_TAG: Final = b"\x0a"
_HEADER_VALUE_TAG: Final = b"\x12"
# Records of a batch, and the acks of a session, have few different timestamps.
STAMPS_REMEMBERED: Final = 1_024


def varint(value: int) -> bytes:
    """A number as it is written.

    >>> varint(300)
    b'\\xac\\x02'
    """
    if value < 1 << 7:
        return _BYTES[value]
    if value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    if value < 1 << 21:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


@lru_cache(STAMPS_REMEMBERED)
def _stamp_field(stamp: int) -> bytes:
    """The timestamp of a position or of a record to read; a zero is left out."""
    return _STAMP_TAG + varint(stamp) if stamp else b""


_BYTES: Final = tuple(bytes([value]) for value in range(256))


def encode_append_ack(ack: AppendAck) -> bytes:
    """An ack as a message.

    >>> encode_append_ack(AppendAck(Position(0, 5), Position(1, 5), Position(1, 5))).hex()
    '0a0210051204080110051a0408011005'
    """
    start, end, tail = ack
    begins, ends = _position(start), _position(end)
    stops = ends if tail == end else _position(tail)
    return b"\x0a%c%b\x12%c%b\x1a%c%b" % (
        len(begins), begins, len(ends), ends, len(stops), stops
    )  # fmt: skip


def _position(position: Position) -> bytes:
    """A position, in which a zero is left out; it is never longer than 22 bytes."""
    seq_num, stamp = position
    if seq_num:
        return _SEQ_NUM_TAG + varint(seq_num) + _stamp_field(stamp)
    return _stamp_field(stamp)


def encode_read_batch(batch: ReadBatch) -> bytes:
    """Records, and the tail if it is known, as a message.

    >>> encode_read_batch(ReadBatch([7], [5], [b"hi"])).hex()
    '0a080807100522026869'
    """
    return b"".join(read_batch_parts(batch))


def read_batch_parts(batch: ReadBatch) -> list[bytes]:
    """The same in pieces, for a caller that joins them with others."""
    parts: list[bytes] = []
    if batch.headers is None:
        _add_plain_records(parts, batch)
    else:
        _add_records(parts, batch, batch.headers)
    if batch.tail is not None:
        written = _position(batch.tail)
        parts += (_TAIL_TAG, _BYTES[len(written)], written)
    return parts


def _add_plain_records(parts: list[bytes], batch: ReadBatch) -> None:
    """Add records without headers.

    A record is its head, the lowest byte of its seq_num, what stands between that and its body, and
    the body.  From one record to the next hardly more changes than the lowest byte.
    """
    head = middle = b""
    last = (-1, -1, -1)
    for seq_num, stamp, body in zip(batch.seq_nums, batch.timestamps, batch.bodies, strict=True):
        size = len(body)
        high = seq_num >> 7
        if (high, stamp, size) != last:
            last = (high, stamp, size)
            middle = varint(high) + _stamp_field(stamp) if high else _stamp_field(stamp)
            if size:
                middle += _BODY_TAG + varint(size)
            head = _RECORDS_TAG + varint(2 + len(middle) + size) + _SEQ_NUM_TAG
        if high:
            parts += (head, _BYTES[seq_num & 127 | 128], middle, body)
        elif seq_num:
            parts += (head, _BYTES[seq_num], middle, body)
        else:  # a zero is left out, and its tag with it
            parts += (_RECORDS_TAG, varint(len(middle) + size), middle, body)


def _add_records(parts: list[bytes], batch: ReadBatch, headers: list[RecordHeaders]) -> None:
    """Add records of which some have headers.

    What comes before a body is made again only as far as it is not that of the record before.
    """
    last_high = last_size = last_total = -1
    high_bytes = body_head = total_bytes = b""
    columns = zip(batch.seq_nums, batch.timestamps, batch.bodies, headers, strict=True)
    for seq_num, stamp, body, pairs in columns:
        high = seq_num >> 7
        if high != last_high:
            last_high, high_bytes = high, varint(high)
        if high:
            written = b"\x08%c%b%b" % (seq_num & 127 | 128, high_bytes, _stamp_field(stamp))
        else:
            written = _position(Position(seq_num, stamp))
        if pairs:
            fields = [written]  # joined once: of one record there may be thousands
            for name, value in pairs:
                named, valued = len(name), len(value)
                if 0 < named < 60 > valued > 0:  # so that each length is a byte
                    fields.append(
                        b"\x1a%c\x0a%c%b\x12%c%b" % (named + valued + 4, named, name, valued, value)
                    )
                else:
                    fields.append(_any_header(name, value))
            written = b"".join(fields)
        size = len(body)
        if size != last_size:
            last_size, body_head = size, _BODY_TAG + varint(size) if size else b""
        total = len(written) + len(body_head) + size
        if total != last_total:
            last_total, total_bytes = total, _RECORDS_TAG + varint(total)
        parts += (total_bytes, written, body_head, body)


def _any_header(name: bytes, value: bytes) -> bytes:
    """A header of whatever length; what is empty is left out."""
    field = _HEADER_NAME_TAG + varint(len(name)) + name if name else b""
    if value:
        field += _HEADER_VALUE_TAG + varint(len(value)) + value
    return _HEADERS_TAG + varint(len(field)) + field
