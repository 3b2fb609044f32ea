"""What the documentation says of each endpoint beyond its row in the route table.

Only this file holds prose and examples for `/openapi.json`; `body_notes.py` has the fields.  A key
is a route's method and template; a test compares the keys with the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.core.limits import seq_max
from headrace.wire.body_notes import NAME_PATTERN
from headrace.wire.json_schema import Schema

GROUPS: Final = {
    "topics": "Create, look at, list and delete topics.",
    "records": "Append records, read them, delete them.",
    "live": "Hear of records as they come.",
    "history": "Sealed files, for programs that read them directly.",
    "server": "Probes, metrics and this document.",
}


class Note(NamedTuple):
    """The documentation of one endpoint."""

    group: str = "server"
    operation: str = ""
    description: str = ""
    success: str = "Done."
    created: str = ""  # what 201 means, where it is possible
    errors: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    body_optional: bool = False
    creates: bool = False  # the topic of the path, if it is not there
    takes_arrow: bool = False
    gives_arrow: bool = False
    gives_events: bool = False
    gives_text: bool = False
    gives_object: bool = False
    upgrades: bool = False
    request_examples: Mapping[str, object] = {}
    answer_example: object = None


NO_NOTE: Final = Note()

# Only where a name is created it has to be a good one; elsewhere a bad one is merely absent.
NEW_NAME: Final[Schema] = {"type": "string", "pattern": NAME_PATTERN}
# true, 1, false and 0 mean what they say; anything else is the default.
_FLAG: Final[Schema] = {"type": ["boolean", "string"]}

PATH_PARAMETERS: Final[dict[str, Schema]] = {
    "topic": {
        "name": "topic",
        "description": "The topic's name, percent-encoded.",
        "schema": {"type": "string", "minLength": 1},
        "example": "orders",
    },
    "pin": {
        "name": "pin",
        "description": "The pin of a manifest.",
        "schema": {"type": "string", "minLength": 1},
    },
    "wid": {
        "name": "wid",
        "description": "The watch session's id.",
        "schema": {"type": "string", "pattern": "^wid_[A-Za-z0-9_-]{22}$"},
    },
}


def _flag(name: str, description: str, default: bool) -> Schema:
    schema = {**_FLAG, "default": default}
    return {"name": name, "description": description, "schema": schema}


def _header(name: str, description: str, schema: Schema) -> Schema:
    return {"name": name, "description": description, "schema": schema}


# Of queries and headers, by the name that routes and notes use.
PARAMETERS: Final[dict[str, Schema]] = {
    "touch": _flag("touch", "Whether this counts as a read of the topic.", True),
    "if_empty": _flag("if_empty", "Delete only if there are no live records.", False),
    "return_seqs": _flag("return_seqs", "Whether to list every seq in the answer.", True),
    "lenient": _flag("lenient", "Leave unknown topics out instead of answering 404.", False),
    "create": _flag("create", "Of an Arrow append: create the topic if it is not there.", True),
    "expected_head_seq": {
        "name": "expected_head_seq",
        "description": "Of an Arrow append: append only if this is the head.",
        "schema": {"type": "integer", "minimum": 0, "maximum": seq_max},
    },
    "prefix": {
        "name": "prefix",
        "description": "Only names that begin so.",
        "schema": {"type": "string"},
    },
    "page_size": {
        "name": "page_size",
        "description": "Items of a page; beyond the bounds it is taken as the nearest bound, and "
        "what is no number as the default.",
        "schema": {"type": ["integer", "string"], "default": 100},
    },
    "cursor": {
        "name": "cursor",
        "description": "`next_cursor` of the page before.",
        "schema": {"type": "string"},
    },
    "Idempotency-Key": _header(
        "Idempotency-Key",
        "A repeat with the same key within the topic's window is answered as the first was. "
        "Used when the body has no idempotency_key.",
        {"type": "string", "maxLength": 256},
    ),
    "Last-Event-ID": _header(
        "Last-Event-ID",
        "The id of the last event that was handled; the stream goes on after it.",
        {"type": "string"},
    ),
}

_CONFIG_EXAMPLE: Final[dict[str, object]] = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old",
    "durable": True, "durability": "fsync", "priority": None, "auto_priority": True,
    "auto_create": True, "idempotency_window_ms": 120000, "dedupe_node": True, "lease_ms": 30000,
    "claim_jitter_ms": 0, "max_deliveries": 0, "dead_letter": None, "leases_durable": False,
}  # fmt: skip

NOTES: Final[dict[tuple[str, str], Note]] = {
    ("PUT", "/v0/topics/{topic}"): Note(
        "topics",
        "put_topic",
        "The body is the whole config: a field that is left out gets its default. The type never "
        "changes. A tightened TTL or cap is enforced at once.",
        "The topic was there; its config is replaced.",
        "The topic is new.",
        errors=("topic_exists_incompatible",),
        body_optional=True,
        creates=True,
        request_examples={"durable": {"durability": "fsync"}, "capped": {"cap_records": 100000}},
        answer_example={
            "topic": "orders", "created": True, "epoch": 1, "config": _CONFIG_EXAMPLE,
            "performance": {"server_total_ms": 0.412},
        },
    ),
    ("GET", "/v0/topics/{topic}"): Note(
        "topics", "get_topic", "Never creates the topic.", errors=("topic_not_found",)
    ),
    ("DELETE", "/v0/topics/{topic}"): Note(
        "topics",
        "delete_topic",
        "Absent is no error: `deleted` is false then. A topic of the same name starts again at "
        "seq 1, with another epoch.",
        errors=("topic_not_empty",),
    ),
    ("GET", "/v0/topics"): Note(
        "topics",
        "list_topics",
        "By name. `next_cursor` is there unless this was the last page. A key with prefixes sees "
        "only its names.",
    ),
    ("POST", "/v0/topics/{topic}"): Note(
        "records",
        "append",
        "All records get consecutive seqs, or none is stored; the answer comes when the topic's "
        "durability class is met. The topic is created on the way unless `create` is false. `data` "
        "comes back byte for byte. An Arrow stream with a column `data` (binary, or utf8 holding "
        "JSON) and optional columns `tag`, `node` and `meta` does the same.\n\n"
        "A writer that numbers its appends sends the headers `Producer-Id`, `Producer-Epoch` and "
        "`Producer-Seq`, all or none: a repeat is answered as the last one was however late it "
        "comes, and a gap is refused.",
        "Stored, or stored before under the same key (`deduped`).",
        "Stored, and the topic is new.",
        errors=(
            "batch_too_large", "record_too_large", "topic_not_found", "head_mismatch",
            "producer_gap", "producer_fenced", "topic_full",
        ),
        headers=("Idempotency-Key",),
        creates=True,
        takes_arrow=True,
        request_examples={
            "one": {"records": [{"data": {"id": 1, "total": 9.5}}]},
            "tagged": {
                "records": [
                    {"data": {"id": 1}, "tag": "customer:7"},
                    {"data": {"id": 2}, "tag": "customer:9", "meta": {"source": "web"}},
                ],
                "node": "web-1",
                "idempotency_key": "batch-17",
            },
        },
        answer_example={
            "topic": "orders", "first_seq": 1, "last_seq": 2, "seqs": [1, 2], "head_seq": 2,
            "count": 2, "created": True, "deduped": False, "epoch": 1,
            "performance": {"server_total_ms": 0.31, "wal_append_ms": 0.021, "fsync_ms": 0.0},
        },
    ),
    ("POST", "/v0/topics/{topic}/diff"): Note(
        "records",
        "diff",
        "Records with a seq beyond `from_seq`. Send `next_from_seq` as the next `from_seq`. "
        "`wait_ms` waits for the first record when there is none. What a cap, a TTL or a crash "
        "took is announced as a `tombstone`; deletes are silent. With `Accept: "
        "application/vnd.apache.arrow.stream` the answer is an Arrow stream.",
        "A page of records; it may be empty.",
        errors=("topic_not_found",),
        body_optional=True,
        gives_arrow=True,
        request_examples={
            "from the start": {"from_seq": 0, "limit": 100},
            "wait for more": {"from_seq": 2, "wait_ms": 1000},
            "the last ten": {"last": 10},
        },
        answer_example={
            "topic": "orders", "epoch": 1,
            "records": [{"$seq": 1, "$ts": 1700000000000, "data": {"id": 1, "total": 9.5}}],
            "next_from_seq": 1, "head_seq": 1, "earliest_seq": 1, "caught_up": True,
            "tombstone": None, "lag": 0,
            "performance": {"server_total_ms": 0.12, "records_scanned": 1},
        },
    ),
    ("POST", "/v0/topics/{topic}/delete"): Note(
        "records",
        "delete_records",
        "Permanent, immediate and silent. `match` is a tag, a prefix ending in `*`, or "
        '`["tag","Eq","x"]`, `["tag","Glob","x*"]`. With `before_seq` too, a record has to fit '
        "both.",
        errors=("topic_not_found",),
        request_examples={"below": {"before_seq": 100}, "by tag": {"match": "customer:7*"}},
        answer_example={
            "topic": "orders", "deleted": 1, "earliest_seq": 2, "head_seq": 2, "count": 1,
            "bytes": 8, "performance": {"server_total_ms": 0.2},
        },
    ),
    ("GET", "/v0/topics/{topic}/segments"): Note(
        "history",
        "segments",
        "The sealed files that hold the topic, with seq ranges, hashes and locations, the deleted "
        "ranges, where the tail starts that only the server has, and a pin that keeps the files "
        "for ten minutes. Needs a key without prefixes.",
        errors=("topic_not_found",),
    ),
    ("POST", "/v0/topics/{topic}/segments/{pin}"): Note(
        "history",
        "renew_segments",
        "Keeps the files of a manifest for another ten minutes.",
        errors=("not_found", "topic_not_found"),
    ),
    ("DELETE", "/v0/topics/{topic}/segments/{pin}"): Note(
        "history",
        "release_segments",
        "Lets the files go before the pin ends by itself.",
        errors=("not_found", "topic_not_found"),
    ),
    ("POST", "/v0/watch"): Note(
        "live",
        "create_watch",
        "A session that follows up to 256 topics, each from its own seq; a name ending in `*` "
        "follows topics created later, too. The session is kept for five minutes without a stream, "
        "in memory only: after a restart of the server make another, with `cursor`.",
        "Open `stream_url` next.",
        errors=("topic_not_found",),
        request_examples={
            "one topic": {"topics": {"orders": {"from_seq": 0}}},
            "only what is new": {"topics": {"orders": {"tail": True}}, "heartbeat_ms": 5000},
        },
    ),
    ("GET", "/v0/watch/{wid}"): Note(
        "live",
        "open_watch",
        "Server-sent events: `record` (a batch), `tombstone`, `caught-up`, `topic-deleted` and "
        "`error`; comments are heartbeats. Each event's `id` holds the cursors of all topics: send "
        "it as `Last-Event-ID` and the stream goes on after it. A slow reader reads at its own "
        "pace and skips nothing that still exists.\n\n"
        "Without `Last-Event-ID`, or with one that is no id, the stream goes on behind what the "
        "session's last stream was sent. 404 means that the session is gone: create one with the "
        "last id as `cursor`.",
        "The stream; it ends when all its topics are gone or the server stops.",
        errors=("not_found", "not_acceptable"),
        headers=("Last-Event-ID",),
        gives_events=True,
    ),
    ("GET", "/v0/ws"): Note(
        "live",
        "websocket",
        "A WebSocket, for a program with a WebSocket library; a plain GET gets 400. Commands and "
        "answers are JSON texts. A command may have a `request_id`, which its answer has too.\n\n"
        '`{"op":"subscribe","topic":"orders","from_seq":0}`, with `tail` and `epoch` too, or with '
        "`topics` and the other fields of `POST /v0/watch`: `subscribed`, then `record`, "
        "`caught_up`, `tombstone` and `topic_deleted`.\n\n"
        '`{"op":"unsubscribe","topic":"orders"}`, or a list `topics`: `unsubscribed`.\n\n'
        '`{"op":"publish","topic":"orders","records":[{"data":1}]}`, with the other fields of an '
        "append and `return_seqs`: `ack`, before the record itself.\n\n"
        '`{"op":"ping"}`: `pong`. What is refused is `error`, with `code` and `message`.',
        upgrades=True,
    ),
    ("GET", "/v0/health"): Note(operation="health", success="Alive."),
    ("GET", "/healthz"): Note(operation="healthz", success="Alive."),
    ("GET", "/v0/ready"): Note(
        operation="ready",
        description="`detail.replay_progress` goes from 0 to 1 during recovery; `detail.reason` "
        "says why nothing can be written.",
        success="It takes writes.",
        errors=("not_ready", "shutting_down"),
    ),
    ("GET", "/readyz"): Note(
        operation="readyz", success="It takes writes.", errors=("not_ready", "shutting_down")
    ),
    ("GET", "/v0/metrics"): Note(
        operation="metrics",
        description="Prometheus text, or JSON when `Accept` names it.",
        success="The figures.",
        gives_text=True,
    ),
    ("GET", "/openapi.json"): Note(
        operation="openapi",
        description="This document.",
        success="An OpenAPI 3.1 document.",
        gives_object=True,
    ),
}  # fmt: skip
