"""What `/openapi.json` says of the fields of the native API's bodies beyond their types.

Only this file holds the limits that are settings or that the engine checks, and what each field is
for.
"""

from __future__ import annotations

from typing import Final

from headrace.core.limits import (
    claims_per_request_max,
    heartbeat_ms_max,
    heartbeat_ms_min,
    native_topic_name_bytes_max,
    priority_max,
)
from headrace.core.settings import Settings
from headrace.engine.topics.config import I32_MAX, SHOWN_WHERE_SET, U64_MAX, TopicConfig
from headrace.wire.native.docs.pipelines import PIPELINE_DESCRIPTIONS, pipeline_limits
from headrace.wire.openapi.json_schema import REF, Extra, Schema

NAME_PATTERN: Final = (
    f"^(?!ds:|s2:)[A-Za-z0-9][A-Za-z0-9._:-]{{0,{native_topic_name_bytes_max - 1}}}$"
)
ROUTER_NAME_PATTERN: Final = f"^[A-Za-z0-9][A-Za-z0-9._:>-]{{0,{native_topic_name_bytes_max - 1}}}$"

_LEASE: Final = "How long jobs are held from now on, from 100 ms to a day; beyond is clamped."
_HOLDER: Final = "Who holds the jobs."
_LEASE_IDS: Final = "One for each seq, as the claim gave it; an empty string stands for any."

# By type and direction, then by field.
DESCRIPTIONS: Final[dict[str, dict[str, str]]] = {
    **PIPELINE_DESCRIPTIONS,
    "TopicConfig:request": {
        "type": "Never changes. Records of a `queue` are jobs, which can be claimed.",
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
        "retain_until_archived": "Whether caps and TTL leave what is not archived yet; see "
        "`/v0/topics/{topic}/archived`. Deletes do not wait.",
        "retain_bytes_max": "Most bytes that are held back so; beyond, the oldest go all the same. "
        "0: no bound, which is refused for an ephemeral topic.",
        "cold_reads": "`lake`: what caps and TTL took is read from the lake, as far as it has it.",
    },
    "ArchivedBody:request": {
        "epoch": "Of the topic, as its state and every read give it.",
        "to_seq": "Records up to this seq, with it, are safe elsewhere.",
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
        "include_headers": "Whether an Arrow answer has the column `headers`.",
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
    "ClaimBody:request": {
        "node": "Who claims.",
        "max": "Most jobs; 0 is 1, more than the bound is the bound. By default 1.",
        "lease_ms": _LEASE + " By default what the topic says.",
    },
    "AckBody:request": {"node": _HOLDER, "seqs": "Jobs.", "lease_ids": _LEASE_IDS},
    "NackBody:request": {
        "node": _HOLDER,
        "seqs": "Jobs.",
        "delay_ms": "How long nobody may claim them; more than a day is a day.",
        "lease_ids": _LEASE_IDS,
    },
    "ExtendBody:request": {
        "node": _HOLDER,
        "seqs": "Jobs.",
        "lease_ms": _LEASE,
        "lease_ids": _LEASE_IDS,
    },
    "RedriveBody:request": {
        "match": "Dead letters with this tag, or with tags that begin so (`x*`).",
        "meta": "Dead letters whose meta has these values at its top level.",
        "limit": "How many records to look at; 0 is the default, more than 1000 is 1000.",
        "to": "Only what goes back to this queue.",
        "from_seq": "The cursor: records beyond this seq.",
    },
    "RouterBody:request": {
        "source": "The topic to copy from; another one than `dest`.",
        "dest": "The topic to copy to.",
        "preserve_node": "Whether copies keep their node; by default yes.",
        "preserve_tag": "Whether copies keep their tag; by default yes.",
        "create_dest": "Whether to create an absent `dest`; by default yes. An absent `source` "
        "always is.",
        "filter": "Copy only records with this tag, or with tags that begin so (`x*`).",
        "allow_cycle": "Whether the router may close a circle; by default no.",
        "guarantee": "`exactly_once` marks each copy in its meta (`_topics_router`), and makes "
        "none whose mark the destination still holds. By default `at_least_once`.",
        "backfill": "Of a new router: true begins with what the source holds, a number after that "
        "seq. By default only what is appended from now on is copied.",
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
    holder: Schema = {"minLength": 1, **node}
    seqs: Schema = {"items": {"type": "integer", "minimum": 0, **u64}}
    lease_id: Schema = {"type": "string", "pattern": "^(lease_[0-9a-fA-F]{1,16})?$"}
    most: Schema = {"maxItems": claims_per_request_max}
    held: dict[str, Schema | None] = {
        "node": holder,
        "seqs": {**seqs, **most},
        "lease_ids": {"items": lease_id, **most},
    }
    priority: Schema = {"minimum": -priority_max, "maximum": priority_max}
    limits: dict[str, dict[str, Schema | None]] = {
        "TopicConfig:request": _config_limits(),
        "TopicConfig:answer": {
            "durable": {"type": "boolean"},
            "durability": {"enum": ["ephemeral", "memory", "disk", "fsync"]},
            "priority": {"minimum": -I32_MAX - 1, "maximum": I32_MAX},
            "": {"required": sorted(set(TopicConfig.__struct_fields__) - set(SHOWN_WHERE_SET))},
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
        "ArchivedBody:request": {"epoch": u64, "to_seq": u64},
        "DeleteBody:request": {"before_seq": u64, "match": _matches(), "": {"anyOf": _DELETE_BY}},
        "ClaimBody:request": {"node": holder, "max": u64, "lease_ms": u64},
        "AckBody:request": held,
        "NackBody:request": {**held, "delay_ms": u64},
        "ExtendBody:request": {**held, "lease_ms": u64},
        "RedriveBody:request": {"match": _matches(), "limit": u64, "from_seq": u64},
        "RouterBody:request": {
            "source": {"pattern": NAME_PATTERN},
            "dest": {"pattern": NAME_PATTERN},
            "filter": _matches(tag),
            "backfill": u64,
        },
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
        **pipeline_limits(u64, holder),
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
        "retain_bytes_max": unsigned,
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


def _matches(length: Schema | None = None) -> Schema:
    """Which records, by their tag; `length` is the bound of one."""
    text = {"type": "string", **(length or {})}
    return {
        "type": ["string", "array", "null"],
        "anyOf": [
            text,
            _match("Eq", text),
            _match("Glob", {**text, "pattern": "\\*$"}),
            {"type": "null"},
        ],
    }


_DELETE_BY: Final = [
    {"required": ["before_seq"], "properties": {"before_seq": {"type": "integer"}}},
    {"required": ["match"], "properties": {"match": {"type": ["string", "array"]}}},
]
