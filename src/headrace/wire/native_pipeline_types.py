"""The bodies of `/v0/pipelines` as types: what requests may hold, and what answers do.

In a request `null` is the same as leaving a field out; what is kept is a `Declaration`, which has
every field.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.core.limits import pipeline_error_bytes_max
from headrace.pipelines.declaration import (
    DEFAULT_CHECKPOINT,
    TIME_COLUMN,
    Declaration,
    EntryPoint,
    OnError,
    OutputMode,
    PipelineDest,
    PipelineSource,
    Start,
    Watermark,
)
from headrace.pipelines.store import Report
from headrace.wire.native import check_u64
from headrace.wire.native_types import Performance, Unsigned

# What a worker says; a pipeline that nobody has is `waiting`.
ReportedState = Literal["starting", "running", "retrying", "failed", "done", "stopped"]


class WatermarkBody(msgspec.Struct):
    """How late records may be."""

    delay: str
    column: str | None = None


class SourceBody(msgspec.Struct):
    """A topic to read."""

    topic: str
    alias: str | None = None
    schema: str | None = None
    watermark: WatermarkBody | None = None
    unique_by: list[str] | None = None
    start: Start | None = None
    max_records: Unsigned | None = None


class EntryBody(msgspec.Struct):
    """A function that the worker's own list has."""

    entry: str
    args: dict[str, str | int | float | bool | None] | None = None


class DestBody(msgspec.Struct):
    """Where the result goes: a topic, or a table of the lake."""

    topic: str | None = None
    table: str | None = None


class PipelineBody(msgspec.Struct):
    """What to read, what to compute, where to write."""

    sources: list[SourceBody]
    dest: DestBody
    sql: str | None = None
    python: EntryBody | None = None
    trigger: str | None = None
    output_mode: OutputMode | None = None
    checkpoint: str | None = None
    on_error: OnError | None = None
    dead_letter: str | None = None


class ClaimPipelinesBody(msgspec.Struct):
    """A worker asks for pipelines to run."""

    node: str
    max: Unsigned | None = None
    lease_ms: Unsigned | None = None


class ReportBody(msgspec.Struct):
    """A worker says how it goes, which is kept with a `state`, and holds the pipeline longer."""

    node: str
    lease_id: str
    version: Unsigned
    lease_ms: Unsigned | None = None
    state: ReportedState | None = None
    batch: Unsigned | None = None
    rows: Unsigned | None = None
    rows_per_s: float | None = None
    lag: Unsigned | None = None
    read: dict[str, Unsigned] | None = None
    state_rows: Unsigned | None = None
    state_bytes: Unsigned | None = None
    watermark: str | None = None
    bad_records: Unsigned | None = None
    bad_topic: str | None = None
    bad_seq: Unsigned | None = None
    failures: Unsigned | None = None
    retry_ms: Unsigned | None = None
    error: str | None = None


class ReleaseBody(msgspec.Struct):
    """A worker gives a pipeline back."""

    node: str
    lease_id: str
    version: Unsigned
    delay_ms: Unsigned | None = None


class PipelinePutAnswer(msgspec.Struct):
    """A pipeline as it is now; its version is the seq of its record in `_pipelines`."""

    pipeline: str
    created: bool
    version: int
    declaration: Declaration
    performance: Performance


class PipelineAnswer(msgspec.Struct):
    """A pipeline, who runs it, and what was last heard of it."""

    pipeline: str
    version: int
    state: str
    worker: str | None
    restarts: int
    declaration: Declaration
    progress: Report | None
    performance: Performance


class ListedPipeline(msgspec.Struct):
    """A pipeline in a list."""

    pipeline: str
    version: int
    state: str
    worker: str | None
    sources: list[str]
    dest: PipelineDest
    lag: int | None
    error: str | None


class PipelineListAnswer(msgspec.Struct):
    """A page of pipelines, by name."""

    pipelines: list[ListedPipeline]
    performance: Performance
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET


class PipelineDeletedAnswer(msgspec.Struct):
    """Whether there was a pipeline to delete."""

    pipeline: str
    deleted: bool
    performance: Performance


class ClaimedPipeline(msgspec.Struct):
    """A pipeline to run until `deadline`, or longer by what it reports."""

    pipeline: str
    version: int
    lease_id: str
    deadline: int
    declaration: Declaration


class ClaimPipelinesAnswer(msgspec.Struct):
    """Pipelines to run; none if there are none."""

    claimed: list[ClaimedPipeline]
    performance: Performance


class ReportAnswer(msgspec.Struct):
    """`held`: the worker may go on until `deadline`; not `current`: it is to stop and give back."""

    pipeline: str
    held: bool
    current: bool
    deadline: int
    performance: Performance


class ReleasedAnswer(msgspec.Struct):
    """Whether the pipeline was held."""

    pipeline: str
    released: bool
    performance: Performance


def declaration_of(body: PipelineBody) -> Declaration:
    """What was asked for, with every field."""
    return Declaration(
        sources=[_source_of(source) for source in body.sources],
        dest=PipelineDest(body.dest.topic, body.dest.table),
        sql=body.sql,
        python=None
        if body.python is None
        else EntryPoint(body.python.entry, body.python.args or {}),
        trigger=body.trigger,
        output_mode=body.output_mode or "append",
        checkpoint=DEFAULT_CHECKPOINT if body.checkpoint is None else body.checkpoint,
        on_error=body.on_error or "fail",
        dead_letter=body.dead_letter,
    )


def _source_of(body: SourceBody) -> PipelineSource:
    watermark = body.watermark
    return PipelineSource(
        topic=body.topic,
        alias=body.alias,
        schema=body.schema,
        watermark=None
        if watermark is None
        else Watermark(watermark.delay, watermark.column or TIME_COLUMN),
        unique_by=body.unique_by or [],
        start=body.start or "earliest",
        max_records=check_u64("max_records", body.max_records) or None,
    )


def report_of(name: str, body: ReportBody) -> Report:
    """What a worker said, cut to what is kept of it."""
    error = None if body.error is None else body.error[:pipeline_error_bytes_max]
    return Report(
        pipeline=name,
        version=body.version,
        state=body.state or "",
        node=body.node,
        batch=body.batch,
        rows=body.rows,
        rows_per_s=body.rows_per_s,
        lag=body.lag,
        read=body.read,
        state_rows=body.state_rows,
        state_bytes=body.state_bytes,
        watermark=None if body.watermark is None else body.watermark[:40],
        bad_records=body.bad_records,
        bad_topic=None if body.bad_topic is None else body.bad_topic[:600],
        bad_seq=body.bad_seq,
        failures=body.failures,
        retry_ms=body.retry_ms,
        error=error,
    )
