"""What `/openapi.json` says of the parameters of the native API: of paths, queries and headers.

Only this file describes them; a route and a note name those that they take.
"""

from __future__ import annotations

from typing import Final

from headrace.core.limits import seq_max
from headrace.pipelines.registry.declaration import NAME_PATTERN as PIPELINE_NAME_PATTERN
from headrace.wire.native.docs.bodies import NAME_PATTERN, ROUTER_NAME_PATTERN
from headrace.wire.openapi.json_schema import Schema

# Only where a name is created it has to be a good one; elsewhere a bad one is merely absent.
NEW_NAMES: Final[dict[str, Schema]] = {
    "topic": {"type": "string", "pattern": NAME_PATTERN},
    "router": {"type": "string", "pattern": ROUTER_NAME_PATTERN},
    "pipeline": {"type": "string", "pattern": PIPELINE_NAME_PATTERN},
}
# true, 1, false and 0 mean what they say; anything else is the default.
_FLAG: Final[Schema] = {"type": ["boolean", "string"]}

PATH_PARAMETERS: Final[dict[str, Schema]] = {
    "topic": {
        "name": "topic",
        "description": "The topic's name, percent-encoded.",
        "schema": {"type": "string", "minLength": 1},
        "example": "orders",
    },
    "router": {
        "name": "router",
        "description": "The router's name, percent-encoded.",
        "schema": {"type": "string", "minLength": 1},
        "example": "orders-to-audit",
    },
    "pipeline": {
        "name": "pipeline",
        "description": "The pipeline's name.",
        "schema": {"type": "string", "minLength": 1},
        "example": "per-minute",
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
    "source": {
        "name": "source",
        "description": "Only routers from this topic.",
        "schema": {"type": "string"},
    },
    "dest": {
        "name": "dest",
        "description": "Only routers to this topic.",
        "schema": {"type": "string"},
    },
    "node": {
        "name": "node",
        "description": "Who works: the jobs are leased to this node.",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": 128},
    },
    "max": {
        "name": "max",
        "description": "Jobs that the connection holds at most; 0 is 1, more than 1000 is 1000.",
        "schema": {"type": "integer", "minimum": 0, "maximum": seq_max, "default": 1},
    },
    "lease_ms": {
        "name": "lease_ms",
        "description": "How long a job is leased; by default what the topic says.",
        "schema": {"type": "integer", "minimum": 0, "maximum": seq_max},
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
