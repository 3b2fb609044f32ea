"""What a snapshot keeps of the deletes of a topic whose past is served from elsewhere.

Only this file knows the layout (docs/formats/snapshot.md).
"""

from __future__ import annotations

import msgspec


# On-disk field order: never change it, add only at the end and with a default.
class ErasedRecord(msgspec.Struct, array_like=True, frozen=True):
    """Which records of a topic somebody deleted, as far back as that is known."""

    since: int
    below: int = 0
    seqs: bytes = b""  # a serialised 64-bit roaring bitmap
    tags: list[tuple[str, bool, int]] = []  # tag, whether it is a prefix, last seq


_DECODER = msgspec.msgpack.Decoder(ErasedRecord)


def encode_erased(record: ErasedRecord) -> bytes:
    """
    >>> decode_erased(encode_erased(ErasedRecord(7))).since
    7
    """
    return msgspec.msgpack.encode(record)


def decode_erased(data: bytes) -> ErasedRecord:
    return _DECODER.decode(data)
