"""What the dialect keeps of each stream, durable with its topic: configuration, cipher, birth.

Only this file knows the bytes of `StreamState.own` of such a stream, and which topic configuration
a stream's configuration is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from headrace.engine.topics.config import Durability, TopicConfig
from headrace.wire.s2.configs import Cipher, StreamConfig

DIALECT: Final = "s2"
CONTENT_TYPE: Final = "application/octet-stream"
# A longer age is as good as this one, which is 285,000 years: every sum of times stays exact.
TTL_MS_MAX: Final = (1 << 53) - 1
# Nearly all streams share a few configurations, and looking at one is part of every append.
REMEMBERED_MAX: Final = 4_096


class StreamOwn(msgspec.Struct, array_like=True, frozen=True):
    """What a stream is beside its records.  On-disk field order: add only at the end.

    >>> own = StreamOwn(1700000000000, StreamConfig(retention_secs=60), "aegis-256")
    >>> decode_own(own.encode()) == own
    True
    """

    created_ms: int
    config: StreamConfig
    cipher: Cipher | None = None  # immutable
    creation_key: bytes = b""  # of the request that created it (`configs.creation_key`)
    encryption_id: bytes = b""  # bound to every ciphertext: no other stream ever has it

    def encode(self) -> bytes:
        """The bytes that the stream's state keeps."""
        return _ENCODER.encode(self)


_DECODER: Final = msgspec.msgpack.Decoder(StreamOwn)
_ENCODER: Final = msgspec.msgpack.Encoder()


@lru_cache(REMEMBERED_MAX)
def decode_own(own: bytes) -> StreamOwn:
    """The inverse of `StreamOwn.encode`."""
    return _DECODER.decode(own)


def topic_config(config: StreamConfig, durability: Durability) -> TopicConfig:
    """How the topic of a stream behaves.

    >>> topic_config(StreamConfig(retention_secs=60), "fsync").ttl_ms
    60000
    """
    ttl_ms = min(config.retention_secs * 1000, TTL_MS_MAX)
    return TopicConfig(ttl_ms=ttl_ms, durability=durability)
