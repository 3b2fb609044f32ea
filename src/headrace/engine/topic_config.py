"""The seventeen settings of a topic: their defaults, their limits, how they are stored and echoed.

Only this file checks a config.  A config is complete and immutable; to change one is to replace
it.  `durability` is always resolved here, so that nothing else has to know the `durable` alias.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from headrace.core import limits
from headrace.core.errors import InvalidRequest

Durability = Literal["ephemeral", "memory", "disk", "fsync"]

EPHEMERAL: Final = "ephemeral"
MEMORY: Final = "memory"
DISK: Final = "disk"
FSYNC: Final = "fsync"


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How one topic behaves.

    >>> TopicConfig(cap_records=3).durability
    'disk'
    >>> TopicConfig(durable=True).durability
    'fsync'
    """

    type: Literal["log", "queue"] = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Literal["old", "reject"] = "old"
    durable: bool | None = None
    durability: Durability | None = None
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False

    def __post_init__(self) -> None:
        for field in _UNSIGNED:
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise InvalidRequest(
                    f"{field} is {value!r}", fix="send a whole number of 0 or more"
                )
        force = msgspec.structs.force_setattr
        durability = self.durability or (FSYNC if self.durable else DISK)
        force(self, "durability", durability)
        force(self, "durable", durability == FSYNC)
        lease_ms = min(max(self.lease_ms, limits.lease_ms_min), limits.lease_ms_max)
        force(self, "lease_ms", lease_ms)
        force(self, "claim_jitter_ms", min(self.claim_jitter_ms, limits.claim_jitter_ms_max))

    def encode(self) -> bytes:
        """As JSON, every field in it: what is stored, and what an answer echoes."""
        return msgspec.json.encode(self)


_UNSIGNED: Final = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
)


def decode_config(data: bytes) -> TopicConfig:
    """A config from JSON; an ill-typed field is an `InvalidRequest` that names it.

    >>> decode_config(b'{"ttl_ms": 5}').ttl_ms
    5
    """
    try:
        return msgspec.json.decode(data, type=TopicConfig)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"config: {error}", fix="send a config object") from None


def make_config(values: object) -> TopicConfig:
    """A config from a mapping, a `TopicConfig` or None (all defaults).

    >>> make_config({"discard": "reject"}).discard
    'reject'
    """
    if isinstance(values, TopicConfig):
        return values
    if values is None:
        return TopicConfig()
    try:
        return msgspec.convert(values, type=TopicConfig)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"config: {error}", fix="send a config object") from None
