"""The messages of a JSON body: one of each element of an array, or the body itself.

Only this file takes a body of JSON apart; all of it is checked before any of it is kept.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from headrace.engine.appending.admission import Records
from headrace.storage.block import json_payloads
from headrace.wire.bodies import decode_json

_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)
_begins_array = re.compile(rb"[ \t\r\n]*\[").match
_FIX: Final = "send a JSON value, or an array of them"


def messages_of(body: bytes) -> Records | None:
    """Return the messages of a body as records; None: it is an empty array.

    >>> bytes(messages_of(b'[{"n": 1}]'))
    b'{"n": 1}'
    >>> messages_of(b"[]") is None, messages_of(b"[[1], 2]").rows
    (True, 2)
    """
    if body[:1] != b"[" and _begins_array(body) is None:
        return decode_json(body, _VALUE, _FIX)
    elements = decode_json(body, _ELEMENTS, _FIX)
    if len(elements) == 1:
        return elements[0]
    return json_payloads(elements) if elements else None
