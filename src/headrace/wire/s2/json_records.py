"""Records as JSON: append bodies, acks, batches of a read and tails.

Only this file knows their fields.  The header `s2-format` says how bytes are text: `raw` is UTF-8,
where what is not UTF-8 is replaced on the way out; `base64` loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from headrace.storage.record_headers import Header
from headrace.wire.s2.errors import bad_header, bad_json, invalid
from headrace.wire.s2.names import fencing_token
from headrace.wire.s2.records import (
    BATCH_HEADERS_MAX,
    U64_MAX,
    AppendAck,
    AppendInput,
    Position,
    ReadBatch,
    RecordHeaders,
    too_many_headers,
)

# Whether a value of `s2-format` is base64.
_FORMATS: Final = {b"raw": False, b"json": False, b"base64": True, b"json-binsafe": True}

Text = TypeVar("Text", str, bytes)  # bytes are base64 in JSON


class _Record(msgspec.Struct, Generic[Text], gc=False):
    body: Text | None = None
    headers: list[tuple[Text, Text]] | None = None
    timestamp: int | None = None


class _Input(msgspec.Struct, Generic[Text]):
    records: list[_Record[Text]]
    match_seq_num: int | None = None
    fencing_token: str | None = None


class _Sequenced(msgspec.Struct, omit_defaults=True, gc=False):
    seq_num: int
    timestamp: int
    headers: Sequence[tuple[str, str]] | Sequence[Header] | UnsetType = UNSET
    body: str | bytes = b""


class _Batch(msgspec.Struct, omit_defaults=True):
    records: list[_Sequenced]
    tail: dict[str, int] | UnsetType = UNSET


_RAW_DECODER: Final = msgspec.json.Decoder(_Input[str])
_BASE64_DECODER: Final = msgspec.json.Decoder(_Input[bytes])
_encode = msgspec.json.Encoder().encode


def is_base64(s2_format: bytes | None) -> bool:
    """Whether the header `s2-format`, if there is one, asks for base64.

    >>> is_base64(None), is_base64(b"json-binsafe")
    (False, True)
    """
    if s2_format is None:
        return False
    try:
        return _FORMATS[s2_format]
    except KeyError:
        shown = s2_format[:40].decode("latin-1")
        raise bad_header(f"s2-format is {shown!r}; send raw or base64") from None


def decode_append_input(body: bytes, base64: bool) -> AppendInput:
    """The records and conditions of an append.

    >>> given = decode_append_input(b'{"records":[{"body":"aGk=","headers":[["aw==",""]]}]}', True)
    >>> given.bodies, given.headers
    ([b'hi'], [[(b'k', b'')]])
    """
    if base64:
        given = _decode_base64(body)
        _check_headers(given.records)
        bodies = [record.body or b"" for record in given.records]
        headers: list[RecordHeaders] = [record.headers for record in given.records]
        conditions = given.match_seq_num, given.fencing_token
        stamps = [record.timestamp for record in given.records]
    else:
        raw = _decode(body, _RAW_DECODER)
        _check_headers(raw.records)
        bodies = [record.body.encode() if record.body else b"" for record in raw.records]
        headers = [_utf8_headers(record.headers) for record in raw.records]
        conditions = raw.match_seq_num, raw.fencing_token
        stamps = [record.timestamp for record in raw.records]
    match_seq_num, token = conditions
    _check_u64("match_seq_num", match_seq_num)
    if token is not None:
        fencing_token(token, bad_json)
    some = [stamp for stamp in stamps if stamp is not None]
    if some:
        _check_u64("timestamp", min(some))
        _check_u64("timestamp", max(some))
    return AppendInput(
        bodies,
        headers if any(headers) else None,
        stamps if some else None,
        match_seq_num,
        token,
    )


def _check_headers(records: Sequence[_Record[str]] | Sequence[_Record[bytes]]) -> None:
    if sum([len(record.headers) for record in records if record.headers]) > BATCH_HEADERS_MAX:
        raise too_many_headers()


def _decode_base64(body: bytes) -> _Input[bytes]:
    try:
        return _BASE64_DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # It is either not the JSON that it should be, or only the base64 in it is wrong.
        _decode(body, _RAW_DECODER)
        raise invalid("a record's body or header is not base64") from None


def _decode(body: bytes, decoder: msgspec.json.Decoder[_Input[str]]) -> _Input[str]:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise bad_json(str(error)) from None
    except RecursionError:
        raise bad_json("the body is nested too deeply") from None


def _utf8_headers(headers: list[tuple[str, str]] | None) -> RecordHeaders:
    return [(name.encode(), value.encode()) for name, value in headers] if headers else None


def _check_u64(what: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= U64_MAX:
        raise bad_json(f"{what} is {value}, which is no whole number of 64 bits")


def encode_position(position: Position) -> bytes:
    """A position.

    >>> encode_position(Position(7, 9))
    b'{"seq_num":7,"timestamp":9}'
    """
    return b'{"seq_num":%d,"timestamp":%d}' % position


def encode_append_ack(ack: AppendAck) -> bytes:
    """An ack."""
    return b'{"start":%b,"end":%b,"tail":%b}' % tuple(map(encode_position, ack))


def encode_read_batch(batch: ReadBatch, base64: bool) -> bytes:
    """Records, and the tail if it is known; headers and bodies that are empty are left out.

    >>> encode_read_batch(ReadBatch([7, 8], [5, 5], [b"hi", b""]), base64=False)
    b'{"records":[{"seq_num":7,"timestamp":5,"body":"hi"},{"seq_num":8,"timestamp":5}]}'
    """
    bodies: Sequence[str | bytes] = batch.bodies
    if not base64:
        bodies = [body.decode(errors="replace") or b"" for body in batch.bodies]
    if batch.headers is None:
        records = [
            _Sequenced(seq_num, stamp, UNSET, body)
            for seq_num, stamp, body in zip(batch.seq_nums, batch.timestamps, bodies, strict=True)
        ]
    else:
        records = [
            _Sequenced(seq_num, stamp, _shown_headers(pairs, base64), body)
            for seq_num, stamp, body, pairs in zip(
                batch.seq_nums, batch.timestamps, bodies, batch.headers, strict=True
            )
        ]
    tail = UNSET if batch.tail is None else batch.tail._asdict()
    return _encode(_Batch(records, tail))


def _shown_headers(
    pairs: RecordHeaders, base64: bool
) -> Sequence[tuple[str, str]] | Sequence[Header] | UnsetType:
    if not pairs:
        return UNSET
    if base64:
        return pairs
    return [
        (name.decode(errors="replace"), value.decode(errors="replace")) for name, value in pairs
    ]
