"""Pipelines: their declarations, what workers report of them, and the leases that workers hold.

In a request `null` is the same as leaving a field out; what is kept is a `Declaration`, which has
every field.  Declarations and reports are stored in these structs too, as records of the topics
`_pipelines` and `_pipelines.progress`.  pipelines/registry/declaration.py says what may be in them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from headrace.api.base import LEFT_OUT, Answer, Body, Unsigned, documented

OutputMode = Literal["append", "update", "complete"]
OnError = Literal["fail", "skip", "dead_letter"]
Start = Literal["earliest", "latest"]
# What a worker says; a pipeline that no worker has is `waiting`.
ReportedState = Literal["starting", "running", "retrying", "failed", "done", "stopped"]
Arguments = dict[str, str | int | float | bool | None]

DEFAULT_CHECKPOINT: Final = "1"
TIME_COLUMN: Final = "ts"

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


# Declarations as they are kept


class Watermark(msgspec.Struct, frozen=True):
    """How late records of a source may be, by a time that each of them has."""

    delay: str
    column: str = TIME_COLUMN


class PipelineSource(msgspec.Struct, frozen=True):
    """A topic that a pipeline reads, and the table that it is in the SQL."""

    topic: str
    alias: str | None = None
    schema: str | None = None
    watermark: Watermark | None = None
    unique_by: list[str] = []
    start: Start = "earliest"
    max_records: int | None = None

    @property
    def table(self) -> str:
        """The name of this source in the SQL."""
        return self.alias or self.topic


class EntryPoint(msgspec.Struct, frozen=True):
    """A function of the worker, by the name that the worker's own list gives it."""

    entry: str
    args: Arguments = {}


class PipelineDest(msgspec.Struct, frozen=True):
    """Where the result goes: one of the two."""

    topic: str | None = None
    table: str | None = None


class Declaration(msgspec.Struct, frozen=True):
    """A pipeline as it is declared and kept."""

    sources: list[PipelineSource]
    dest: PipelineDest
    sql: str | None = None
    python: EntryPoint | None = None
    trigger: str | None = None
    output_mode: OutputMode = "append"
    checkpoint: str = DEFAULT_CHECKPOINT
    on_error: OnError = "fail"
    dead_letter: str | None = None

    @property
    def tables(self) -> dict[str, PipelineSource]:
        """The sources by their names in the SQL, in lower case as SQL compares them."""
        return {source.table.lower(): source for source in self.sources}

    @property
    def remembers(self) -> bool:
        """Whether its sources keep state between batches, whatever is computed from them."""
        return any(source.unique_by for source in self.sources)

    def encode(self) -> bytes:
        """Return the declaration as JSON: the same bytes for the same declaration."""
        return _ENCODER.encode(self)

    def topics(self) -> list[str]:
        """Return the names of all topics that it reads or writes."""
        found = [source.topic for source in self.sources]
        return found + [name for name in (self.dest.topic, self.dead_letter) if name]


# Declarations as they are sent


class WatermarkBody(Body, frozen=True):
    """How late records may be."""

    delay: str
    column: str | None = None


class SourceBody(Body, frozen=True):
    """A topic to read."""

    topic: str
    alias: str | None = None
    schema: str | None = None
    watermark: WatermarkBody | None = None
    unique_by: list[str] | None = None
    start: Start | None = None
    max_records: Unsigned | None = None


class EntryBody(Body, frozen=True):
    """A function that the worker's own list has."""

    entry: str
    args: Arguments | None = None


class DestBody(Body, frozen=True):
    """Where the result goes: a topic, or a table of the lake."""

    topic: str | None = None
    table: str | None = None


class PipelineBody(Body, frozen=True):
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


# A client reads declarations as plain JSON, so that it can show fields that it does not know.
AnsweredDeclaration = Annotated[dict[str, Any], documented(Declaration)]


class PipelinePut(Answer, frozen=True):
    """A pipeline as it is now; its version is the seq of its record in `_pipelines`."""

    schema_name: ClassVar[str] = "PipelinePutAnswer"

    pipeline: str
    created: bool
    version: int
    declaration: AnsweredDeclaration


class PipelineDeleted(Answer, frozen=True):
    """Whether there was a pipeline to delete."""

    schema_name: ClassVar[str] = "PipelineDeletedAnswer"

    pipeline: str
    deleted: bool


# What workers report


class PipelineReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker says of a pipeline, and what a record of `_pipelines.progress` holds."""

    schema_name: ClassVar[str] = "Report"

    pipeline: str = ""
    version: int = 0
    state: str = ""
    node: str = ""
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

    def every_field(self) -> dict[str, Any]:
        """Return the report as it is stored and answered: with null for what was not said."""
        return msgspec.structs.asdict(self)


class ReportBody(Body, frozen=True):
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


class PipelineState(Answer, frozen=True):
    """A pipeline, who runs it, and what was last heard of it."""

    schema_name: ClassVar[str] = "PipelineAnswer"

    pipeline: str
    version: int
    state: str
    restarts: int
    declaration: AnsweredDeclaration
    worker: str | None = None
    progress: PipelineReport | None = None


class PipelineSummary(msgspec.Struct, frozen=True):
    """A pipeline in a list."""

    schema_name: ClassVar[str] = "ListedPipeline"

    pipeline: str
    version: int
    state: str
    sources: list[str]
    dest: Annotated[dict[str, Any], documented(PipelineDest)]
    worker: str | None = None
    lag: int | None = None
    error: str | None = None


class PipelinePage(Answer, frozen=True):
    """A page of pipelines, by name."""

    schema_name: ClassVar[str] = "PipelineListAnswer"

    pipelines: list[PipelineSummary]
    next_cursor: Annotated[str | None, LEFT_OUT] = None  # None on the last page


# Leases


class ClaimPipelinesBody(Body, frozen=True):
    """A worker asks for pipelines to run."""

    node: str
    max: Unsigned | None = None
    lease_ms: Unsigned | None = None


class ClaimedPipeline(msgspec.Struct, frozen=True):
    """A pipeline to run until `deadline`, or longer by what it reports."""

    pipeline: str
    version: int
    lease_id: str
    deadline: int
    declaration: AnsweredDeclaration


class ClaimedPipelines(Answer, frozen=True):
    """Pipelines to run; none if there are none."""

    schema_name: ClassVar[str] = "ClaimPipelinesAnswer"

    claimed: list[ClaimedPipeline]


class PipelineHeld(Answer, frozen=True):
    """`held`: the worker may go on until `deadline`; not `current`: it is to stop and give back."""

    schema_name: ClassVar[str] = "ReportAnswer"

    pipeline: str
    held: bool
    current: bool
    deadline: int


class ReleaseBody(Body, frozen=True):
    """A worker gives a pipeline back."""

    node: str
    lease_id: str
    version: Unsigned
    delay_ms: Unsigned | None = None


class PipelineReleased(Answer, frozen=True):
    """Whether the pipeline was held."""

    schema_name: ClassVar[str] = "ReleasedAnswer"

    pipeline: str
    released: bool
