"""What the documentation says of the fields of bodies beyond their types.

Only this file holds the limits that are settings or that the engine checks, and what each field is
for, as `/openapi.json` tells them.
"""

from __future__ import annotations

from typing import Final

from headrace.core.limits import (
    heartbeat_ms_max,
    heartbeat_ms_min,
    native_topic_name_bytes_max,
    priority_max,
)
from headrace.core.settings import Settings
from headrace.engine.topic_config import I32_MAX, U64_MAX
from headrace.wire.json_schema import REF, Extra, Schema

NAME_PATTERN: Final = (
    f"^(?!ds:|s2:)[A-Za-z0-9][A-Za-z0-9._:-]{{0,{native_topic_name_bytes_max - 1}}}$"
)

# By type and direction, then by field.
DESCRIPTIONS: Final[dict[str, dict[str, str]]] = {
    "TopicConfig:request": {
        "type": "Never changes. Records of a `queue` cannot be claimed yet.",
        "ttl_ms": "Age at which a record goes; 0: never.",
        "cap_records": "Most live records; 0: no bound.",
        "cap_bytes": "Most bytes of data and meta; 0: no bound.",
        "discard": "What a full topic does: evict the oldest, or reject the append.",
        "durable": "true means `fsync`, false `disk`, where `durability` is not given.",
        "durability": "When an append is acknowledged: `ephemeral` stays in memory; `memory` and "
        "`disk` are written and synced a little later; `fsync` is synced first. By default `disk`.",
        "priority": "For delivery; effective from -1000 to 1000.",
        "auto_priority": "Topics that are read often are delivered first.",
        "auto_create": "Whether an append that carries this config may create the topic.",
        "idempotency_window_ms": "How long an idempotency key is remembered.",
        "dedupe_node": "Whether readers may leave out records of a node.",
        "lease_ms": "Of a queue: how long a claim holds.",
        "claim_jitter_ms": "Of a queue: how long claims are gathered before they are dealt out.",
        "max_deliveries": "Of a queue: deliveries after which a job is dead; 0: no bound.",
        "dead_letter": "Of a queue: the topic that gets dead jobs.",
        "leases_durable": "Of a queue: whether leases survive a restart.",
    },
    "AppendBody:request": {
        "node": "Who wrote the records that name no node of their own.",
        "idempotency_key": "A repeat within the topic's window is answered as the first was.",
        "create": "Whether to create an absent topic; by default yes.",
        "config": "Of the topic, if this append creates it. Needs the scope admin then.",
        "disable_backpressure": "Do not refuse it with 429 because the server is overloaded.",
        "expected_head_seq": "Append only if this is the head.",
    },
    "DiffBody:request": {
        "from_seq": "The cursor: records beyond this seq. 0 is the beginning.",
        "limit": "Most records of the answer; 0 is the default, more than the bound is the bound.",
        "node": "Leave out the records of this node, or of these.",
        "include_tags": "Whether records carry `$tag`.",
        "include_meta": "Whether records carry `meta`.",
        "wait_ms": "How long to wait if there is no record; more than the bound is the bound.",
        "max_batch_bytes": "Most bytes of records; one record is always given.",
        "epoch": "Of the cursor: a topic that was made anew since is noticed. Without it only a "
        "cursor beyond the head shows that, and reading begins at the first record again.",
        "from_ts": "Instead of from_seq: begin at the first record of this time.",
        "last": "Instead of from_seq: the last so many records.",
    },
    "DeleteBody:request": {
        "before_seq": "Records with a smaller seq.",
        "match": "Records with this tag, or with tags that begin so (`x*`).",
    },
    "WatchBody:request": {
        "topics": "By name, where to begin in each. `orders:*` follows topics made later, too.",
        "node": "Leave out the records of this node, or of these.",
        "limit": "Most records of one event.",
        "max_batch_bytes": "Most bytes of one event; one record is always given.",
        "include_meta": "Whether records carry `meta`.",
        "include_tags": "Whether records carry `$tag`.",
        "include_data": "Whether records carry `data`.",
        "consistency": "`strong`: records are sent once they are synced to disk, whatever their "
        "class.",
        "heartbeat_ms": f"{heartbeat_ms_min} to {heartbeat_ms_max}; beyond is clamped.",
    },
}


def limits_of(settings: Settings) -> Extra:
    """What the types of bodies do not say: limits that are settings, and raw fields."""
    u64: Schema = {"maximum": U64_MAX}
    tag: Schema = {"maxLength": settings.tag_bytes_max}
    node: Schema = {"maxLength": settings.node_bytes_max}
    priority: Schema = {"minimum": -priority_max, "maximum": priority_max}
    limits: dict[str, dict[str, Schema | None]] = {
        "TopicConfig:request": _config_limits(),
        "TopicConfig:answer": {
            "durable": {"type": "boolean"},
            "durability": {"enum": ["ephemeral", "memory", "disk", "fsync"]},
            "priority": {"minimum": -I32_MAX - 1, "maximum": I32_MAX},
        },
        "RecordIn:request": {"tag": tag, "node": node},
        "AppendBody:request": {
            "records": {"minItems": 1, "maxItems": settings.records_per_append_max},
            "node": node,
            "idempotency_key": {"maxLength": settings.idempotency_key_bytes_max},
            "config": {"anyOf": [{"$ref": REF + "TopicConfig"}, {"type": "null"}]},
            "expected_head_seq": u64,
        },
        "DiffBody:request": {
            **dict.fromkeys(("from_seq", "max_batch_bytes", "epoch", "from_ts", "last"), u64),
            "": {"allOf": [{"not": _both(*pair)} for pair in _STARTS]},
        },
        "DeleteBody:request": {"before_seq": u64, "match": _MATCH, "": {"anyOf": _DELETE_BY}},
        "WatchBody:request": {
            "topics": {
                "type": "object",
                "minProperties": 1,
                "maxProperties": settings.topics_per_watch_max,
            },
            "boxes": None,  # the same in the older words, which this document leaves out
            "max_batch_bytes": u64,
            "": {"required": ["topics"]},
        },
        "StateAnswer:answer": {"effective_priority": priority},
        "ListedTopic:answer": {"effective_priority": priority},
    }
    for place, fields in DESCRIPTIONS.items():
        of_type = limits.setdefault(place, {})
        for field, text in fields.items():
            of_type[field] = {**(of_type.get(field) or {}), "description": text}
    return limits


def _config_limits() -> dict[str, Schema | None]:
    unsigned: Schema = {"minimum": 0, "maximum": U64_MAX}
    return {
        **dict.fromkeys(("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms"), unsigned),
        **dict.fromkeys(("lease_ms", "claim_jitter_ms", "max_deliveries"), unsigned),
        "priority": {"minimum": -I32_MAX - 1, "maximum": I32_MAX},
        "dead_letter": {"pattern": NAME_PATTERN},
    }


# `from_seq` 0 is the same as none.
_STARTS: Final = (("from_seq", "from_ts"), ("from_seq", "last"), ("from_ts", "last"))


def _both(first: str, second: str) -> Schema:
    def given(name: str) -> Schema:
        return {"type": "integer", "minimum": 1 if name == "from_seq" else 0}

    return {
        "required": [first, second],
        "properties": {first: given(first), second: given(second)},
    }


def _match(operator: str, value: Schema) -> Schema:
    return {
        "type": "array",
        "prefixItems": [{"const": "tag"}, {"const": operator}, value],
        "minItems": 3,
        "maxItems": 3,
    }


_MATCH: Final[Schema] = {
    "type": ["string", "array", "null"],
    "anyOf": [
        {"type": "string"},
        _match("Eq", {"type": "string"}),
        _match("Glob", {"type": "string", "pattern": "\\*$"}),
        {"type": "null"},
    ],
}
_DELETE_BY: Final = [
    {"required": ["before_seq"], "properties": {"before_seq": {"type": "integer"}}},
    {"required": ["match"], "properties": {"match": {"type": ["string", "array"]}}},
]
