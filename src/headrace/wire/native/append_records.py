"""The JSON body of an append, and its records as the columns that the engine takes.

Most records have nothing but data.  A large body is first read as one that has only such: that
takes two thirds of the time, and no look at columns that nobody sent.  One that is not like that,
or that is wrong, is read again as any body, which also says what is wrong with it.
"""

from __future__ import annotations

import functools
from typing import Final

import msgspec

from headrace.api.records import AppendBody, Draft
from headrace.core.errors import InvalidRequest
from headrace.engine.appending.admission import Records
from headrace.storage.block import Batch, json_payloads
from headrace.wire.bodies import decode_json
from headrace.wire.counted_arrays import COUNTED_MAX, array_up_to, has_too_many, too_many

# Smaller bodies have few records to win by, and more to lose by being read twice.
PLAIN_BYTES_MIN: Final = 2 << 10

_DECODER: Final = msgspec.json.Decoder(AppendBody)
_META_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL: Final = msgspec.Raw(b"null")  # equal to a `Raw` only


class _PlainRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record that has nothing but data."""

    data: msgspec.Raw


class _PlainBody(AppendBody, frozen=True, gc=False):
    """A body that has only such records, whatever it says beside them."""

    records: list[_PlainRecord]  # type: ignore[assignment]


_PLAIN_DECODER: Final = msgspec.json.Decoder(_PlainBody)


def decode_append(body: bytes, most: int) -> AppendBody:
    """The body of an append, or a refusal that says where it is wrong.

    One with more than `most` records is refused, if that can be, before they are made objects.

    >>> bytes(decode_append(b'{"records":[{"data": [1] ,"tag":"a"}]}', 9).records[0].data)
    b'[1]'
    """
    if len(body) >= PLAIN_BYTES_MIN:
        check_count(body, most)
        try:
            if not body.isascii():
                str(body, "utf-8")
            return _PLAIN_DECODER.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError):
            pass  # it has more than that, or it is refused
    return decode_json(body, _DECODER)


def check_count(body: bytes, most: int) -> None:
    """Refuse more than `most` records, if that can be, before they are made objects."""
    if most > COUNTED_MAX or body.count(b"{") <= most:  # each record has one, and the body too
        return
    try:
        _counting_decoder(most).decode(body)
    except msgspec.ValidationError as error:
        if has_too_many(error):
            raise too_many(most, "records") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError):
        pass  # told by what reads the whole body


@functools.cache
def _counting_decoder(most: int) -> msgspec.json.Decoder[msgspec.Struct]:
    return msgspec.json.Decoder(msgspec.defstruct("Counted", [("records", array_up_to(most))]))


def batch_of(body: AppendBody, meta_keys_max: int) -> Records:
    """The columns of the records, or the only one as it came."""
    records = body.records
    if type(body) is _PlainBody:
        return _payloads([record.data for record in records], body.node)
    if len(records) == 1:
        record = records[0]
        if record.tag is None and record.node is None and body.node is None and not record.meta:
            data: msgspec.Raw = record.data
            return data
    return _columns(records, body.node, meta_keys_max)


def _payloads(data: list[msgspec.Raw], node: str | None) -> Records:
    if node is not None:
        return Batch(data, nodes=node)
    return data[0] if len(data) == 1 else json_payloads(data)


def _columns(records: list[Draft], node: str | None, meta_keys_max: int) -> Batch:
    data = [record.data for record in records]
    count = len(records)
    tags: list[str | None] | None = [record.tag for record in records]
    nodes: list[str | None] | str | None = [record.node for record in records]
    metas = [record.meta for record in records]
    if tags.count(None) == count:  # type: ignore[union-attr]
        tags = None
    if nodes.count(None) == count:  # type: ignore[union-attr, arg-type]
        nodes = node
    elif node is not None:
        nodes = [node if own is None else own for own in nodes]  # type: ignore[union-attr]
    kept = _metas(metas, meta_keys_max) if any(metas) else None
    return Batch(data, tags=tags, nodes=nodes, metas=kept)


def _metas(metas: list[msgspec.Raw], keys_max: int) -> list[bytes | None]:
    kept: list[bytes | None] = []
    for meta in metas:
        if not meta or meta == _NULL:
            kept.append(None)
            continue
        value = bytes(meta)
        # An object has at least four bytes a key, so most need no count.
        if value[:1] == b"{" and len(value) > 4 * keys_max:
            keys = len(_META_DECODER.decode(value))
            if keys > keys_max:
                raise InvalidRequest(
                    f"meta has {keys} keys", fix=f"use at most {keys_max} at its top level"
                )
        kept.append(value)
    return kept
