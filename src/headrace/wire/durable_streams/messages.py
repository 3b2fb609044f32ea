"""The messages of a JSON body: one of each element of an array, or the body itself.

Only this file takes a body of JSON apart; all of it is checked before any of it is kept.
"""

from __future__ import annotations

import functools
import re
from typing import Final

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.engine.appending.admission import Records
from headrace.storage.block import json_payloads
from headrace.wire.bodies import decode_json
from headrace.wire.counted_arrays import COUNTED_MAX, array_up_to, has_too_many, too_many

_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)
_begins_array = re.compile(rb"[ \t\r\n]*\[").match
_FIX: Final = "send a JSON value, or an array of them"


def messages_of(body: bytes, most: int) -> Records | None:
    """Return the messages of a body as records; None: it is an empty array.

    More than `most` are refused, if that can be, before they are made objects: a body of a few
    megabytes has millions of small ones, and all others would wait for them.

    >>> bytes(messages_of(b'[{"n": 1}]', 9))
    b'{"n": 1}'
    >>> messages_of(b"[]", 9) is None, messages_of(b"[[1], 2]", 9).rows
    (True, 2)
    """
    if body[:1] != b"[" and _begins_array(body) is None:
        return decode_json(body, _VALUE, _FIX)
    if len(body) > 2 * most and most <= COUNTED_MAX and body.count(b",") >= most:
        elements = _counted(body, most)
    else:
        elements = decode_json(body, _ELEMENTS, _FIX)
    if len(elements) == 1:
        return elements[0]
    return json_payloads(elements) if elements else None


def _counted(body: bytes, most: int) -> list[msgspec.Raw]:
    """The elements of an array that may have too many; the first one too many ends it."""
    try:
        elements = msgspec.structs.astuple(decode_json(body, _decoder_up_to(most), _FIX))
    except InvalidRequest as error:
        if has_too_many(error.__context__):
            raise too_many(most, "messages") from None
        raise
    return list(elements if elements[-1] is not None else elements[: elements.index(None)])


@functools.cache
def _decoder_up_to(most: int) -> msgspec.json.Decoder[msgspec.Struct]:
    return msgspec.json.Decoder(array_up_to(most))
