"""What a stream keeps beside its records: its dialect and type, its end, its life, its origin.

Only this file knows the bytes of a topic's `state` that belong to a stream.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from headrace.storage.block import KIND_JSON

MEDIA_TYPES_MAX = 1_000  # that are remembered without their parameters


class StreamState(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What makes a topic a stream.  On-disk field order: add only at the end, with a default.

    >>> decode_stream(encode_stream(StreamState("ds", "text/plain", 2))).content_type
    'text/plain'
    """

    dialect: str
    content_type: str  # as it was given at the creation
    kind: int  # of the records that it takes
    closed: bool = False
    closed_by: tuple[str, int, int] | None = None  # producer id, epoch and sequence that closed it
    sequence: str | None = None  # the last that a writer gave; latin-1, compared byte by byte
    ttl_s: int | None = None  # it expires when nobody has used it for so long
    expires_ms: int | None = None  # it expires then
    expires_at: str = ""  # the same, as the client wrote it
    source: str = ""  # the topic that it was forked from
    fork_seq: int = 0  # where, in the source
    fork_incarnation: int = 0
    sub_offset: int = 0
    deleted: bool = False  # it is kept for its forks alone
    own: bytes = b""  # what a dialect keeps for itself
    fence: str = ""  # the token that a writer has to know, if it gives one
    trim_to: int = 0  # records up to here are to be deleted
    sealed: bool = False  # its records are ciphertext: only its dialect can make any

    @property
    def takes_any_json(self) -> bool:
        """Whether it takes any JSON record at any time: nothing else has to be looked at."""
        return (
            self.kind == KIND_JSON
            and not (self.closed or self.deleted)
            and self.ttl_s is None
            and self.expires_ms is None
        )


_DECODER = msgspec.msgpack.Decoder(StreamState)
_ENCODER = msgspec.msgpack.Encoder()


def encode_stream(stream: StreamState) -> bytes:
    """The bytes that a topic keeps of a stream."""
    return _ENCODER.encode(stream)


def decode_stream(state: bytes) -> StreamState | None:
    """The stream that a topic's state describes; None: the topic is no stream.

    >>> decode_stream(b"") is decode_stream(b"what an embedding program keeps")
    True
    """
    if not state:
        return None
    try:
        return _DECODER.decode(state)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None  # of a program that embeds the engine and keeps its own


@lru_cache(MEDIA_TYPES_MAX)
def media_type(content_type: str) -> str:
    """A content type without its parameters, in lower case: what is compared of it.

    >>> media_type("Application/JSON; charset=utf-8")
    'application/json'
    """
    return content_type.partition(";")[0].strip().lower()
