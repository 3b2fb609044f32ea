"""Every call of pipelines as a request; see `calls.py`.

A declaration is sent as the JSON that it is: a mapping, whose fields docs/reference/pipelines.md
has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from headrace.api.pipelines import (
    ClaimedPipeline,
    ClaimPipelinesBody,
    PipelineReport,
    ReleaseBody,
    ReportBody,
)
from headrace.client.calls import JSON_BODY, Call, query_text

_encode = msgspec.json.encode


def _path(pipeline: str, rest: str = "") -> str:
    return f"/v0/pipelines/{quote(pipeline, safe='')}{rest}"


def put(pipeline: str, declaration: Mapping[str, Any]) -> Call:
    """
    >>> put("per-minute", {"sql": "select 1"}).body
    b'{"sql":"select 1"}'
    """
    return Call("PUT", _path(pipeline), True, JSON_BODY, _encode(declaration))


def get(pipeline: str) -> Call:
    return Call("GET", _path(pipeline), True)


def page(prefix: str, page_size: int | None, cursor: str | None) -> Call:
    query = query_text(prefix=prefix or None, page_size=page_size, cursor=cursor)
    return Call("GET", f"/v0/pipelines{query}", True)


def delete(pipeline: str) -> Call:
    return Call("DELETE", _path(pipeline), False)


def restart(pipeline: str) -> Call:
    return Call("POST", _path(pipeline, "/restart"), False)


def claim(node: str, count: int, lease_ms: int | None) -> Call:
    body = ClaimPipelinesBody(node, count, lease_ms)
    return Call("POST", "/v0/pipelines", False, JSON_BODY, _encode(body))


def report(
    claimed: ClaimedPipeline, node: str, lease_ms: int | None, said: PipelineReport | None
) -> Call:
    """Repeatable: to hold a lease twice is to hold it, and a report may be kept twice.

    >>> claimed = ClaimedPipeline("p", 7, "lease_a", 0, {})
    >>> report(claimed, "w1", None, PipelineReport(state="running", rows=5)).body
    b'{"node":"w1","lease_id":"lease_a","version":7,"state":"running","rows":5}'
    """
    figures = {} if said is None else said.every_field()
    for name in ("pipeline", "version", "node", "ts"):
        figures.pop(name, None)
    body = ReportBody(node, claimed.lease_id, claimed.version, lease_ms, **figures)
    return Call("POST", _path(claimed.pipeline, "/progress"), True, JSON_BODY, _encode(body))


def release(claimed: ClaimedPipeline, node: str, delay_ms: int) -> Call:
    body = ReleaseBody(node, claimed.lease_id, claimed.version, delay_ms)
    return Call("POST", _path(claimed.pipeline, "/release"), True, JSON_BODY, _encode(body))
