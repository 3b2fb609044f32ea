"""What the calls of pipelines send and get back, as types, and the requests themselves.

A declaration is what its JSON is: a mapping, whose fields docs/reference/pipelines.md has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from headrace.client.calls import JSON_BODY, Call, query_text

_encode = msgspec.json.encode


class PipelineReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker said of a pipeline at `ts`; what it did not say is None."""

    state: str
    node: str = ""
    version: int = 0
    ts: int = 0
    batch: int | None = None
    rows: int | None = None
    rows_per_s: float | None = None
    lag: int | None = None
    read: dict[str, int] | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark: str | None = None
    bad_records: int | None = None
    bad_topic: str | None = None
    bad_seq: int | None = None
    failures: int | None = None
    retry_ms: int | None = None
    error: str | None = None


class PipelinePut(msgspec.Struct, frozen=True):
    """What `put_pipeline` did; `declaration` has every field."""

    pipeline: str
    created: bool
    version: int
    declaration: dict[str, Any]


class PipelineState(msgspec.Struct, frozen=True):
    """One pipeline: what it does, who runs it, and what was last heard of it."""

    pipeline: str
    version: int
    state: str
    restarts: int
    declaration: dict[str, Any]
    worker: str | None = None
    progress: PipelineReport | None = None


class PipelineSummary(msgspec.Struct, frozen=True):
    """One pipeline of a list."""

    pipeline: str
    version: int
    state: str
    sources: list[str]
    dest: dict[str, Any]
    worker: str | None = None
    lag: int | None = None
    error: str | None = None


class PipelinePage(msgspec.Struct, frozen=True):
    """One page of a list of pipelines; `next_cursor` is None on the last."""

    pipelines: list[PipelineSummary]
    next_cursor: str | None = None


class PipelineDeleted(msgspec.Struct, frozen=True):
    """What `delete_pipeline` did: whether there was one."""

    pipeline: str
    deleted: bool


class ClaimedPipeline(msgspec.Struct, frozen=True):
    """A pipeline to run until `deadline`, or longer by what is reported of it."""

    pipeline: str
    version: int
    lease_id: str
    deadline: int
    declaration: dict[str, Any]


class ClaimedPipelines(msgspec.Struct, frozen=True):
    """Pipelines to run."""

    claimed: list[ClaimedPipeline]


class PipelineHeld(msgspec.Struct, frozen=True):
    """Whether a worker still holds a pipeline, and whether there is no newer version of it."""

    pipeline: str
    held: bool
    current: bool
    deadline: int


class PipelineReleased(msgspec.Struct, frozen=True):
    """Whether the pipeline was held."""

    pipeline: str
    released: bool


# Requests


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
    body = {"node": node, "max": count, "lease_ms": lease_ms}
    return Call("POST", "/v0/pipelines", False, JSON_BODY, _encode(body))


def _held(claimed: ClaimedPipeline, node: str) -> dict[str, Any]:
    return {"node": node, "lease_id": claimed.lease_id, "version": claimed.version}


def report(
    claimed: ClaimedPipeline, node: str, lease_ms: int | None, said: PipelineReport | None
) -> Call:
    """Repeatable: to hold a lease twice is to hold it, and a report may be kept twice."""
    body = {} if said is None else msgspec.to_builtins(said)
    body |= {**_held(claimed, node), "lease_ms": lease_ms}
    return Call("POST", _path(claimed.pipeline, "/progress"), True, JSON_BODY, _encode(body))


def release(claimed: ClaimedPipeline, node: str, delay_ms: int) -> Call:
    body = {**_held(claimed, node), "delay_ms": delay_ms}
    return Call("POST", _path(claimed.pipeline, "/release"), True, JSON_BODY, _encode(body))
