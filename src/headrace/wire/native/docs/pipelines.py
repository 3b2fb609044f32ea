"""What `/openapi.json` says of the endpoints of pipelines, and of the fields of their bodies.

Only this file holds that prose; `endpoints.py` and `bodies.py` take it up.
"""

from __future__ import annotations

from typing import Final

from headrace.core.limits import (
    pipeline_keys_max,
    pipeline_sources_max,
    pipeline_sql_bytes_max,
    topic_name_bytes_max,
)
from headrace.pipelines.registry.declaration import (
    ALIAS_PATTERN,
    COLUMN_PATTERN,
    ENTRY_PATTERN,
    KEY_PATTERN,
    NAME_PATTERN,
    TOPIC_PATTERN,
)
from headrace.wire.openapi.json_schema import Schema
from headrace.wire.openapi.notes import EndpointNote

_DECLARED: Final = {
    "sources": [{"topic": "orders", "watermark": {"delay": "1m"}}],
    "sql": "select window(ts, '1 minute').start as minute, count(*) as orders from orders "
    "group by window(ts, '1 minute')",
    "dest": {"topic": "orders-per-minute"},
}
_KEPT: Final = {
    "sources": [
        {
            "topic": "orders", "alias": None, "schema": None,
            "watermark": {"delay": "1m", "column": "ts"}, "unique_by": [], "start": "earliest",
            "max_records": None,
        }
    ],
    "dest": {"topic": "orders-per-minute", "table": None},
    "sql": _DECLARED["sql"], "python": None, "trigger": None, "output_mode": "append",
    "checkpoint": "1", "on_error": "fail", "dead_letter": None,
}  # fmt: skip

PIPELINE_NOTES: Final[dict[tuple[str, str], EndpointNote]] = {
    ("PUT", "/v0/pipelines/{pipeline}"): EndpointNote(
        "pipelines",
        "put_pipeline",
        "The body is the whole declaration. `sql` is one query of Spark's SQL over the sources, "
        "by their aliases; `python` names a function that the worker's own list has. SQL that "
        "does not parse, or is not allowed, is refused with line and column; what only Spark "
        "knows becomes the state of the pipeline. A worker (`headrace pipelines run`) that is "
        "there begins by itself. The same declaration again changes nothing.",
        "The pipeline was there; from now on it is this one.",
        "The pipeline is new.",
        errors=(
            "sql_refused", "checkpoint_incompatible", "topic_not_found", "stream_conflict",
            "stream_closed",
        ),
        creates=True,
        request_examples={"per minute": _DECLARED},
        answer_example={
            "pipeline": "per-minute", "created": True, "version": 1, "declaration": _KEPT,
            "performance": {"server_total_ms": 4.1},
        },
    ),
    ("GET", "/v0/pipelines/{pipeline}"): EndpointNote(
        "pipelines",
        "get_pipeline",
        "`state` is `waiting` while no worker has it, else what its worker said last: `starting`, "
        "`running`, `retrying`, `failed`, `done` or `stopped`. All that was said is in the topic "
        "`_pipelines.progress`.",
        errors=("pipeline_not_found",),
    ),
    ("DELETE", "/v0/pipelines/{pipeline}"): EndpointNote(
        "pipelines",
        "delete_pipeline",
        "Its worker stops it before its lease is over. Absent is no error: `deleted` is false "
        "then. Its checkpoint stays where the worker keeps it.",
    ),
    ("GET", "/v0/pipelines"): EndpointNote(
        "pipelines",
        "list_pipelines",
        "By name. `next_cursor` is there unless this was the last page. A key with prefixes sees "
        "the pipelines whose name, topics and table it may use.",
    ),
    ("POST", "/v0/pipelines/{pipeline}/restart"): EndpointNote(
        "pipelines",
        "restart_pipeline",
        "A worker that waits after a failure tries at once, one that runs it stops and begins "
        "again. Nothing is lost or done twice: the checkpoint says where.",
        errors=("pipeline_not_found",),
    ),
    ("POST", "/v0/pipelines"): EndpointNote(
        "pipelines",
        "claim_pipelines",
        "For workers. A pipeline is leased to one node at a time, until its `deadline`; a new "
        "version is not handed out while an earlier one is held. Needs a key without prefixes.",
        "Pipelines; none if there are none.",
        request_examples={"one": {"node": "w1"}},
    ),
    ("POST", "/v0/pipelines/{pipeline}/progress"): EndpointNote(
        "pipelines",
        "report_pipeline",
        "For workers. With `lease_ms` the lease is held for so long from now; without `state` "
        "nothing is kept. "
        "Whoever is told that it is not `held` stops the query; whoever is told that it is not "
        "`current` stops it and gives it back.",
        request_examples={
            "progress": {
                "node": "w1", "lease_id": "lease_000000000000002a", "version": 7,
                "state": "running", "batch": 12, "rows": 5000, "rows_per_s": 950.5, "lag": 0,
            }
        },
    ),
    ("POST", "/v0/pipelines/{pipeline}/release"): EndpointNote(
        "pipelines",
        "release_pipeline",
        "For workers. The query has been stopped; another worker may have it after `delay_ms`.",
        request_examples={
            "at once": {"node": "w1", "lease_id": "lease_000000000000002a", "version": 7}
        },
    ),
}  # fmt: skip

_LEASE_ID: Final = "As the claim gave it."
_VERSION: Final = "As the claim gave it: the seq of the declaration."

PIPELINE_DESCRIPTIONS: Final[dict[str, dict[str, str]]] = {
    "PipelineBody:request": {
        "sources": "The topics to read.",
        "dest": "Where rows go: `topic` or `table`.",
        "sql": "One query over the aliases of the sources. This or `python`.",
        "python": "A function of the worker, by its name there. This or `sql`.",
        "trigger": "How often, such as `10s`; by default as fast as it can. `available_now`: once, "
        "until it has read what there was.",
        "output_mode": "By default `append`.",
        "checkpoint": "A name for what is remembered between runs; a new name begins anew.",
        "on_error": "What happens to a record that does not fit its schema: the pipeline fails "
        "(by default), leaves it out, or copies it to `dead_letter`.",
        "dead_letter": "The topic for such records.",
    },
    "SourceBody:request": {
        "topic": "Its name.",
        "alias": "The table's name in the SQL; by default the topic's.",
        "schema": "Makes `data` a STRUCT of these fields, such as `id BIGINT, at TIMESTAMP`.",
        "watermark": "How late records may be: needed for windows, joins and dedup that end.",
        "unique_by": "Leaves out records whose fields, such as `data.id` or `tag`, came before "
        "within the watermark's delay.",
        "start": "Where a new checkpoint begins; by default the earliest.",
        "max_records": "Most records of one batch.",
    },
    "WatermarkBody:request": {
        "delay": "Such as `10m`.",
        "column": "`ts`, or a field of typed data such as `data.at`, which then is the column "
        "`event_time`. By default `ts`.",
    },
    "DestBody:request": {
        "topic": "Rows become records; it is created if it is not there.",
        "table": "Rows are added to a Delta table of the worker's lake.",
    },
    "EntryBody:request": {"entry": "Its name.", "args": "What it is called with, by name."},
    "ClaimPipelinesBody:request": {
        "node": "Who claims.",
        "max": "Most pipelines; 0 is 1. By default 1.",
        "lease_ms": "How long they are held from now on, from 100 ms to a day; beyond is clamped.",
    },
    "ReportBody:request": {
        "node": "Who runs it.",
        "lease_id": _LEASE_ID,
        "version": _VERSION,
        "lease_ms": "How long it is held from now on; by default as long as before.",
        "state": "What it does now.",
        "lag": "Records of its sources that it has not read.",
        "error": "Why it failed.",
    },
    "ReleaseBody:request": {
        "node": "Who had it.",
        "lease_id": _LEASE_ID,
        "version": _VERSION,
        "delay_ms": "How long nobody may claim it; more than a day is a day.",
    },
}


def pipeline_limits(u64: Schema, holder: Schema) -> dict[str, dict[str, Schema | None]]:
    """What the types of bodies do not say."""
    lease_id: Schema = {"pattern": "^lease_[0-9a-fA-F]{1,16}$"}
    held: dict[str, Schema | None] = {"node": holder, "lease_id": lease_id, "version": u64}
    name: Schema = {"pattern": NAME_PATTERN}
    duration: Schema = {"pattern": r"^\s*[0-9]{1,9} ?(ms|s|m|h|d)?\s*$"}
    one_of: Schema = {
        "oneOf": [
            {"required": [given], "properties": {given: {"not": {"type": "null"}}}}
            for given in ("sql", "python")
        ]
    }
    return {
        "PipelineBody:request": {
            "sources": {"minItems": 1, "maxItems": pipeline_sources_max},
            "sql": {"minLength": 1, "maxLength": pipeline_sql_bytes_max},
            "checkpoint": name,
            "trigger": {"pattern": r"^(available_now|[0-9]{1,9} ?(ms|s|m|h|d)?)$"},
            "dead_letter": {"pattern": TOPIC_PATTERN},
            "": one_of,
        },
        "SourceBody:request": {
            "topic": {"minLength": 1, "maxLength": topic_name_bytes_max},
            "alias": {"pattern": ALIAS_PATTERN},
            "max_records": u64,
            "unique_by": {
                "items": {"type": "string", "pattern": KEY_PATTERN},
                "maxItems": pipeline_keys_max,
            },
        },
        "WatermarkBody:request": {"delay": duration, "column": {"pattern": COLUMN_PATTERN}},
        "EntryBody:request": {"entry": {"pattern": ENTRY_PATTERN}},
        "DestBody:request": {
            "topic": {"pattern": f"{TOPIC_PATTERN}|^(ds|s2):", "maxLength": topic_name_bytes_max},
            "table": name,
            "": {
                "oneOf": [
                    {"required": [given], "properties": {given: {"type": "string"}}}
                    for given in ("topic", "table")
                ]
            },
        },
        "ClaimPipelinesBody:request": {"node": holder, "max": u64, "lease_ms": u64},
        "ReportBody:request": {**held, "lease_ms": u64},
        "ReleaseBody:request": {**held, "delay_ms": u64},
    }
