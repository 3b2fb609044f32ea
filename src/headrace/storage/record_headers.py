"""The headers of a record, name and value pairs of bytes, as one value.

A name may repeat, and both halves may hold any bytes: (u32 length, bytes) twice a pair.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

Header = tuple[bytes, bytes]

_U32 = struct.Struct("<I")


def encode_headers(headers: Sequence[Header] | None) -> bytes | None:
    """Name/value pairs of bytes as one value: (u32 length, bytes) twice a pair."""
    if headers is None:
        return None
    parts = []
    for name, value in headers:
        parts += [_U32.pack(len(name)), name, _U32.pack(len(value)), value]
    return b"".join(parts)


def decode_headers(value: bytes | None) -> list[Header] | None:
    """The inverse of `encode_headers`."""
    if value is None:
        return None
    items: list[bytes] = []
    at = 0
    while at < len(value):
        (length,) = _U32.unpack_from(value, at)
        at += 4
        items.append(value[at : at + length])
        at += length
    assert at == len(value) and len(items) % 2 == 0
    return list(zip(items[::2], items[1::2], strict=True))
