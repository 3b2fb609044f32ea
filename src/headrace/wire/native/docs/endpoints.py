"""What `/openapi.json` says of each endpoint of the native API beyond its row in the route table.

Only this file holds their prose and examples; `bodies.py` has the fields, `parameters.py` paths,
queries and headers.  A key is a route's method and template; a test compares the keys with the
table.
"""

from __future__ import annotations

from typing import Final

from headrace.wire.native.docs.pipelines import PIPELINE_NOTES
from headrace.wire.openapi.notes import EndpointNote

GROUPS: Final = {
    "topics": "Create, look at, list and delete topics.",
    "records": "Append records, read them, delete them.",
    "queues": "Lease records as jobs, and acknowledge them.",
    "routers": "Copy what is appended to one topic into others.",
    "pipelines": "Compute over topics, with Spark.",
    "live": "Hear of records as they come.",
    "history": "Sealed files, for programs that read them directly.",
    "server": "Probes, metrics and this document.",
}


_CONFIG_EXAMPLE: Final[dict[str, object]] = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old",
    "durable": True, "durability": "fsync", "priority": None, "auto_priority": True,
    "auto_create": True, "idempotency_window_ms": 120000, "dedupe_node": True, "lease_ms": 30000,
    "claim_jitter_ms": 0, "max_deliveries": 0, "dead_letter": None, "leases_durable": False,
}  # fmt: skip

NOTES: Final[dict[tuple[str, str], EndpointNote]] = {
    ("PUT", "/v0/topics/{topic}"): EndpointNote(
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
    ("GET", "/v0/topics/{topic}"): EndpointNote(
        "topics",
        "get_topic",
        "Never creates the topic. Copies that routers owe it are made first.",
        errors=("topic_not_found",),
    ),
    ("DELETE", "/v0/topics/{topic}"): EndpointNote(
        "topics",
        "delete_topic",
        "Absent is no error: `deleted` is false then. Routers from or to it go with it, and are "
        "named in `routers_removed`; those that read from it copy what it holds first. A key with "
        "prefixes cannot delete a topic of routers that are not its own. A topic of the same name "
        "starts again at seq 1, with another epoch.",
        errors=("topic_not_empty", "topic_in_use", "throttled"),
    ),
    ("GET", "/v0/topics"): EndpointNote(
        "topics",
        "list_topics",
        "By name. `next_cursor` is there unless this was the last page. A key with prefixes sees "
        "only its names.",
    ),
    ("POST", "/v0/topics/{topic}"): EndpointNote(
        "records",
        "append",
        "All records get consecutive seqs, or none is stored; the answer comes when the topic's "
        "durability class is met. The topic is created on the way unless `create` is false. `data` "
        "comes back byte for byte. An Arrow stream with a column `data` (binary, or utf8 holding "
        "JSON) and optional columns `tag`, `node` and `meta` does the same.\n\n"
        "A writer that numbers its appends sends the headers `Producer-Id`, `Producer-Epoch` and "
        "`Producer-Seq`, all or none: a repeat is stored once however late it comes, and a gap is "
        "refused. A repeat has `producer_seq`, the highest number that is stored; the seqs and the "
        "count are its own, and left out once they are forgotten.",
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
    ("POST", "/v0/topics/{topic}/diff"): EndpointNote(
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
    ("POST", "/v0/topics/{topic}/delete"): EndpointNote(
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
    ("POST", "/v0/topics/{topic}/archived"): EndpointNote(
        "history",
        "archived",
        "A topic with `retain_until_archived` lets its caps and its TTL take records up to "
        "`to_seq` from then on. It is on disk before the answer comes, and only goes up: a lower "
        "one is answered with the one that holds. It belongs to the epoch: a topic that was made "
        "anew starts anew. `to_seq` beyond the head is refused.",
        errors=("topic_not_found", "epoch_mismatch"),
        request_examples={"up to": {"epoch": 1, "to_seq": 2}},
        answer_example={
            "topic": "orders", "epoch": 1, "archived_seq": 2, "head_seq": 2,
            "performance": {"server_total_ms": 0.4},
        },
    ),
    ("GET", "/v0/topics/{topic}/segments"): EndpointNote(
        "history",
        "segments",
        "The sealed files that hold the topic, with seq ranges, hashes and locations, the deleted "
        "ranges, where the tail starts that only the server has, and a pin that keeps the files "
        "for ten minutes. Needs a key without prefixes.",
        errors=("topic_not_found",),
    ),
    ("POST", "/v0/topics/{topic}/segments/{pin}"): EndpointNote(
        "history",
        "renew_segments",
        "Keeps the files of a manifest for another ten minutes.",
        errors=("not_found", "topic_not_found"),
    ),
    ("DELETE", "/v0/topics/{topic}/segments/{pin}"): EndpointNote(
        "history",
        "release_segments",
        "Lets the files go before the pin ends by itself.",
        errors=("not_found", "topic_not_found"),
    ),
    ("PUT", "/v0/routers/{router}"): EndpointNote(
        "routers",
        "put_router",
        "From now on what is appended to `source` is copied to `dest`, in the same order, with "
        "seqs of its own. Topics that are not there are created. A router that is there keeps its "
        "place and its total, and takes over everything but `source`, `dest` and `backfill`. A "
        "topic may be fed from one source only, and not in a circle unless `allow_cycle` says so: "
        "a record is copied 8 times at most then.",
        "The router was there; how it copies is replaced.",
        "The router is new.",
        errors=("topic_not_found", "topic_exists_incompatible", "router_cycle"),
        creates=True,
        request_examples={
            "all": {"source": "orders", "dest": "audit"},
            "some": {"source": "orders", "dest": "customer-7", "filter": ["tag", "Eq", "c:7"]},
            "from the start": {"source": "orders", "dest": "index", "backfill": True},
        },
        answer_example={
            "router": "orders-to-audit", "created": True, "source": "orders", "dest": "audit",
            "preserve_node": True, "preserve_tag": True, "filter": None, "allow_cycle": False,
            "guarantee": "at_least_once", "performance": {"server_total_ms": 1.2},
        },
    ),
    ("GET", "/v0/routers/{router}"): EndpointNote(
        "routers",
        "get_router",
        "It first does what it has left to do, so that `forwarded_total` counts everything that "
        "was appended before, as far as the destination takes it.",
        errors=("router_not_found",),
    ),
    ("DELETE", "/v0/routers/{router}"): EndpointNote(
        "routers",
        "delete_router",
        "What was appended before is copied, what comes later is not; copies stay. What a full "
        "destination does not take stays in the source: `records_left`, after the seq `copied_to`. "
        "Absent is no error: `deleted` is false then.",
    ),
    ("GET", "/v0/routers"): EndpointNote(
        "routers",
        "list_routers",
        "By name, as they are now. `next_cursor` is there unless this was the last page. A key "
        "with prefixes sees the routers whose name, source and dest it may use.",
    ),
    **PIPELINE_NOTES,
    ("POST", "/v0/topics/{topic}/claim"): EndpointNote(
        "queues",
        "claim",
        "The topic has to be a queue. A job is leased to one node at a time, until its `deadline`; "
        "jobs that come back go first, then the lowest seqs. With `claim_jitter_ms` in the "
        "topic's config, claims that come together share what there is. A job that was delivered "
        "`max_deliveries` times goes to the topic's `dead_letter`.",
        "Jobs; none if there are none.",
        errors=("topic_not_found", "not_a_queue"),
        request_examples={"one": {"node": "w1"}, "ten": {"node": "w1", "max": 10}},
        answer_example={
            "topic": "jobs",
            "claimed": [
                {
                    "$seq": 1, "lease_id": "lease_5f3a9c1e00000001", "deadline": 1700000030000,
                    "$ts": 1700000000000, "deliveries": 1, "data": {"id": 1},
                }
            ],
            "count": 1, "ready": 0, "performance": {"server_total_ms": 0.2},
        },
    ),
    ("POST", "/v0/topics/{topic}/ack"): EndpointNote(
        "queues",
        "ack",
        "Deletes jobs that the node holds, as durably as the topic's class says. What it does not "
        "hold, or not by the lease that is named, is `skipped`, and no error.",
        errors=("batch_too_large", "topic_not_found", "not_a_queue"),
        request_examples={
            "by seq": {"node": "w1", "seqs": [1, 2]},
            "by lease": {"node": "w1", "seqs": [1], "lease_ids": ["lease_5f3a9c1e00000001"]},
        },
    ),
    ("POST", "/v0/topics/{topic}/nack"): EndpointNote(
        "queues",
        "nack",
        "Jobs that the node holds can be claimed again, after `delay_ms` if that is given; until "
        "then they count in neither `ready` nor `in_flight`.",
        errors=("batch_too_large", "topic_not_found", "not_a_queue"),
        request_examples={"in a second": {"node": "w1", "seqs": [1], "delay_ms": 1000}},
    ),
    ("POST", "/v0/topics/{topic}/extend"): EndpointNote(
        "queues",
        "extend",
        "Jobs that the node holds are held for `lease_ms` from now, under the same leases.",
        errors=("batch_too_large", "topic_not_found", "not_a_queue"),
        request_examples={"a minute": {"node": "w1", "seqs": [1], "lease_ms": 60000}},
    ),
    ("POST", "/v0/topics/{topic}/redrive"): EndpointNote(
        "queues",
        "redrive",
        "The topic is one that got dead letters. Looks at the next `limit` records, and moves "
        "those that fit back to the queues that they came from, as fresh jobs. Until it is `done`, "
        "call again with `next_from_seq` as `from_seq`. A key with prefixes moves only to queues "
        "that it may use; what goes nowhere is `skipped` and stays.",
        errors=("topic_not_found",),
        body_optional=True,
        request_examples={
            "all": {},
            "of a queue": {"to": "jobs"},
            "by tag": {"match": "customer:7*"},
            "by meta": {"meta": {"kind": "mail"}},
        },
    ),
    ("GET", "/v0/topics/{topic}/work"): EndpointNote(
        "queues",
        "work",
        "Server-sent events: each `job` is one as in a claim, with `topic`, and its seq as `id`. "
        "The connection holds at most `max` jobs: an ack, nack or lapsed lease makes room for the "
        "next one at once. When it ends, what it holds can be claimed by others at once. `error` "
        "ends it: the topic is gone (`code` 409), or the server stops. Comments are heartbeats.",
        "The stream; it ends when the topic is gone or the server stops.",
        errors=("topic_not_found", "not_a_queue", "not_acceptable"),
        gives_events=True,
    ),
    ("POST", "/v0/watch"): EndpointNote(
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
    ("GET", "/v0/watch/{wid}"): EndpointNote(
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
    ("GET", "/v0/ws"): EndpointNote(
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
    ("GET", "/v0/health"): EndpointNote(operation="health", success="Alive."),
    ("GET", "/healthz"): EndpointNote(operation="healthz", success="Alive."),
    ("GET", "/v0/ready"): EndpointNote(
        operation="ready",
        description="`detail.replay_progress` goes from 0 to 1 during recovery; `detail.reason` "
        "says why nothing can be written. `degraded` names the parts that do not work while all "
        "else goes on, and says why.",
        success="It takes writes.",
        errors=("not_ready", "shutting_down"),
    ),
    ("GET", "/readyz"): EndpointNote(
        operation="readyz", success="It takes writes.", errors=("not_ready", "shutting_down")
    ),
    ("GET", "/v0/metrics"): EndpointNote(
        operation="metrics",
        description="Prometheus text, or JSON when `Accept` names it.",
        success="The figures.",
        gives_text=True,
    ),
    ("GET", "/v0/storage/scrub"): EndpointNote(
        "server",
        "list_scrubbed_files",
        "Every file that the server needs, by kind and number, and when the background scrub last "
        "found it whole. `damaged` counts those that are not; `why` says what is wrong with one. "
        "`next_cursor` is there unless this was the last page. A key with prefixes is refused.",
        "A page of files.",
        answer_example={
            "enabled": True, "bytes_per_second": 4194304, "interval_ms": 604800000,
            "files": [
                {
                    "file": "segments/seg-0000000000000007.arrow", "tier": "hot",
                    "verified_ms": 1700000060000, "damaged": False,
                },
            ],
            "total": 1, "damaged": 0, "performance": {"server_total_ms": 0.05},
        },
    ),
    ("GET", "/openapi.json"): EndpointNote(
        operation="openapi",
        description="This document.",
        success="An OpenAPI 3.1 document.",
        gives_object=True,
    ),
}  # fmt: skip
