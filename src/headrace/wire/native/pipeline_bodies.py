"""What the request bodies of `/v0/pipelines` become: declarations and reports with every field."""

from __future__ import annotations

import msgspec

from headrace.api.pipelines import (
    DEFAULT_CHECKPOINT,
    TIME_COLUMN,
    Declaration,
    EntryPoint,
    PipelineBody,
    PipelineDest,
    PipelineReport,
    PipelineSource,
    ReportBody,
    SourceBody,
    Watermark,
)
from headrace.core.limits import pipeline_error_bytes_max
from headrace.wire.native.request_checks import check_u64

TOPIC_CHARS_MAX = 600
WATERMARK_CHARS_MAX = 40


def declaration_of(body: PipelineBody) -> Declaration:
    """Return what was asked for, with every field."""
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
    check_u64("max_records", body.max_records)
    return PipelineSource(
        topic=body.topic,
        alias=body.alias,
        schema=body.schema,
        watermark=None
        if watermark is None
        else Watermark(watermark.delay, watermark.column or TIME_COLUMN),
        unique_by=body.unique_by or [],
        start=body.start or "earliest",
        max_records=body.max_records or None,
    )


def report_of(name: str, version: int, body: ReportBody) -> PipelineReport:
    """Return what a worker said, its texts cut to what is kept of them."""
    said = msgspec.structs.asdict(body)
    del said["lease_id"], said["lease_ms"]
    texts = {
        "watermark": _cut(body.watermark, WATERMARK_CHARS_MAX),
        "bad_topic": _cut(body.bad_topic, TOPIC_CHARS_MAX),
        "error": _cut(body.error, pipeline_error_bytes_max),
    }
    said |= {"pipeline": name, "version": version, "state": body.state or "", **texts}
    return PipelineReport(**said)


def _cut(text: str | None, chars_max: int) -> str | None:
    return None if text is None else text[:chars_max]
