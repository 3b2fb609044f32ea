"""The twenty settings of a topic: their defaults, their limits, how they are stored and echoed.

Only this file checks a config.  A config is complete and immutable; to change one is to replace
it.  `durability` is always resolved here, so that nothing else has to know the `durable` alias.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal

import msgspec

from headrace.core import limits
from headrace.core.errors import InvalidRequest

Durability = Literal["ephemeral", "memory", "disk", "fsync"]

U64_MAX: Final = (1 << 64) - 1
I32_MAX: Final = (1 << 31) - 1

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
    retain_until_archived: bool = False
    retain_bytes_max: int = 0
    cold_reads: Literal["", "lake"] = ""

    def __post_init__(self) -> None:
        for field in _UNSIGNED:
            self._check(field, _is_whole(getattr(self, field), 0, U64_MAX), "0 to 2^64-1")
        for field in _FLAGS:
            self._check(field, isinstance(getattr(self, field), bool), "true or false")
        for field, allowed in _CHOICES.items():
            self._check(field, getattr(self, field) in allowed, f"one of {allowed}")
        self._check("durable", self.durable in (None, True, False), "true or false")
        whole = self.priority is None or _is_whole(self.priority, -I32_MAX - 1, I32_MAX)
        self._check("priority", whole, "a whole number of 32 bits")
        text = self.dead_letter is None or isinstance(self.dead_letter, str)
        self._check("dead_letter", text, "a topic name")
        force = msgspec.structs.force_setattr
        durability = self.durability or (FSYNC if self.durable else DISK)
        force(self, "durability", durability)
        force(self, "durable", durability == FSYNC)
        lease_ms = min(max(self.lease_ms, limits.lease_ms_min), limits.lease_ms_max)
        force(self, "lease_ms", lease_ms)
        force(self, "claim_jitter_ms", min(self.claim_jitter_ms, limits.claim_jitter_ms_max))
        if self.retain_until_archived and durability == EPHEMERAL and not self.retain_bytes_max:
            raise InvalidRequest(
                "what waits for the archive of an ephemeral topic fills memory without a bound",
                fix="send retain_bytes_max, the bytes that may wait, or another durability",
            )

        if self.cold_reads and (self.type == "queue" or durability == EPHEMERAL):
            what = "a queue" if self.type == "queue" else "an ephemeral topic"
            raise InvalidRequest(
                f"cold_reads is {self.cold_reads!r}, and this is {what}",
                fix="leave cold_reads out: the past of such a topic cannot be served",
            )

    def _check(self, field: str, right: bool, wanted: str) -> None:
        if not right:
            raise InvalidRequest(f"{field} is {getattr(self, field)!r}", fix=f"send {wanted}")

    @property
    def name_bytes(self) -> int:
        """How much the names in it hold; the rest is the same for every config."""
        return 0 if self.dead_letter is None else len(self.dead_letter.encode(errors="replace"))

    @property
    def is_bounded(self) -> bool:
        """Whether there is a cap or a TTL, so that records go by themselves."""
        return bool(self.ttl_ms or self.cap_records or self.cap_bytes)

    def encode(self) -> bytes:
        """As JSON, every field in it: what is stored, and what an answer echoes."""
        return _encoded(self)


_UNSIGNED: Final = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
    "retain_bytes_max",
)


# Those of the native contract are always echoed; these only where one of them is not the default.
SHOWN_WHERE_SET: Final = ("retain_until_archived", "retain_bytes_max", "cold_reads")
_FLAGS: Final = (
    "auto_priority",
    "auto_create",
    "dedupe_node",
    "leases_durable",
    "retain_until_archived",
)
_CHOICES: Final[dict[str, tuple[str | None, ...]]] = {
    "type": ("log", "queue"),
    "discard": ("old", "reject"),
    "durability": (None, EPHEMERAL, MEMORY, DISK, FSYNC),
    "cold_reads": ("", "lake"),
}


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


# Topics mostly share a few configs, and a checkpoint keeps one for each topic that changed.
@lru_cache(maxsize=1024)
def _encoded(config: TopicConfig) -> bytes:
    return msgspec.json.encode(config)


# And recovery decodes one for each topic.
@lru_cache(maxsize=1024)
def decode_config(data: bytes) -> TopicConfig:
    """A config from JSON; an ill-typed field is an `InvalidRequest` that names it.

    >>> decode_config(b'{"ttl_ms": 5, "type": null}').ttl_ms
    5
    """
    try:
        try:
            return msgspec.json.decode(data, type=TopicConfig)
        except msgspec.ValidationError:
            if b"null" not in data:
                raise
        # A field that is null is a field that is not there.
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        kept = {name: value for name, value in fields.items() if bytes(value) != b"null"}
        return msgspec.json.decode(msgspec.json.encode(kept), type=TopicConfig)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        field = str(error).partition("$.")[2].rstrip("`")
        wanted = ", ".join(value for value in _CHOICES.get(field, ()) if value)
        fix = f"send one of {wanted}" if wanted else "send a config object"
        raise InvalidRequest(f"config: {error}", fix=fix) from None


def _refuse_unknown(name: object) -> None:
    known = TopicConfig.__struct_fields__
    if name in known:
        return
    # difflib is imported here because it is needed once in a thousand starts.
    import difflib

    nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)[0]
    raise InvalidRequest(f"{name!r} is not a setting of a topic", fix=f"did you mean {nearest}?")


def make_config(values: object) -> TopicConfig:
    """A config from a mapping, a `TopicConfig` or None (all defaults).

    >>> make_config({"discard": "reject"}).discard
    'reject'
    """
    if isinstance(values, TopicConfig):
        return values
    if values is None:
        return TopicConfig()
    if isinstance(values, Mapping):
        for name in values:
            _refuse_unknown(name)
    try:
        return msgspec.convert(values, type=TopicConfig)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"config: {error}", fix="send a config object") from None
