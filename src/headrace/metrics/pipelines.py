"""How pipelines are doing, as metrics: how many are in which state, and how far behind each is.

Only this file reads pipelines for a scrape.  What a worker reported last may be old, so the lag is
not taken from its report: it is the present heads of the sources less what was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from headrace.core.telemetry import Described, Number, Registry, escape
from headrace.engine.engine import Engine
from headrace.pipelines.registry.store import STATES, PipelineStore, PipelineView

# Pipelines that have series of their own; the counts by state are of all.
PIPELINES_SHOWN_MAX: Final = 200
MS_PER_SECOND: Final = 1_000

DECLARED: Final = Described("headrace_pipelines", "gauge", (), "Pipelines that are declared.")
BY_STATE: Final = Described(
    "headrace_pipelines_by_state",
    "gauge",
    ("state",),
    "Pipelines by state; waiting: no worker has it.",
)
STATE: Final = Described(
    "headrace_pipeline_state",
    "gauge",
    ("pipeline", "state"),
    "1, with the state that a pipeline is in.",
)
BATCH: Final = Described(
    "headrace_pipeline_batch", "gauge", ("pipeline",), "The number of the last batch."
)
RATE: Final = Described(
    "headrace_pipeline_rows_per_second", "gauge", ("pipeline",), "How fast that was."
)
LAG: Final = Described(
    "headrace_pipeline_lag_records",
    "gauge",
    ("pipeline",),
    "Seqs of the sources that are not read: their heads of now less what was read.",
)
FAILURES: Final = Described(
    "headrace_pipeline_failures",
    "gauge",
    ("pipeline",),
    "Failures since a batch was finished; each is followed by another start.",
)
RESTARTS: Final = Described(
    "headrace_pipeline_restarts", "gauge", ("pipeline",), "Restarts that were asked for."
)
AGE: Final = Described(
    "headrace_pipeline_progress_age_seconds",
    "gauge",
    ("pipeline",),
    "Time since a worker said something of it; one that has nothing to read says nothing.",
)
TRUNCATED: Final = Described(
    "headrace_pipeline_metrics_truncated",
    "gauge",
    (),
    f"1 when only the first {PIPELINES_SHOWN_MAX} pipelines have series of their own.",
)
PER_PIPELINE: Final = (BATCH, RATE, LAG, FAILURES, RESTARTS, AGE)
ALL: Final = [DECLARED, BY_STATE, STATE, *PER_PIPELINE, TRUNCATED]


def watch_pipelines(registry: Registry, engine: Engine, store: PipelineStore) -> None:
    """Add the series of pipelines."""
    registry.block(ALL, lambda: _text(engine, store))


def _text(engine: Engine, store: PipelineStore) -> Iterator[str]:
    # Recovery makes topics in another thread: until it is done there is nothing to look at.
    found = store.now() if engine.ready else None
    if found is None:
        yield from (one.head for one in ALL)
        return
    found.sort(key=lambda one: one.name)
    shown = found[:PIPELINES_SHOWN_MAX]
    yield f"{DECLARED.head}{DECLARED.name} {len(found)}\n"
    yield BY_STATE.head
    for state in STATES:
        count = sum(one.state == state for one in found)
        yield f'{BY_STATE.name}{{state="{state}"}} {count}\n'
    yield STATE.head
    for one in shown:
        yield f'{STATE.name}{{pipeline="{escape(one.name)}",state="{one.state}"}} 1\n'
    figures = [(escape(one.name), _figures(engine, one)) for one in shown]
    for described in PER_PIPELINE:
        yield described.head
        yield from _lines(described, figures)
    yield f"{TRUNCATED.head}{TRUNCATED.name} {int(len(found) > len(shown))}\n"


def _lines(
    described: Described, figures: Iterable[tuple[str, dict[Described, Number | None]]]
) -> Iterator[str]:
    for name, values in figures:
        value = values[described]
        if value is not None:
            yield f'{described.name}{{pipeline="{name}"}} {value}\n'


def _figures(engine: Engine, one: PipelineView) -> dict[Described, Number | None]:
    """The figures of a pipeline; None where there is none to show."""
    report = one.report
    age_ms = None if report is None else max(engine.clock.now_ms() - report.ts, 0)
    return {
        BATCH: None if report is None else report.batch,
        RATE: None if report is None else report.rows_per_s,
        LAG: _lag(engine, one),
        FAILURES: 0 if report is None else report.failures or 0,
        RESTARTS: one.restarts,
        AGE: None if age_ms is None else age_ms / MS_PER_SECOND,
    }


def _lag(engine: Engine, one: PipelineView) -> int | None:
    """Seqs of all sources that are not read; None before a worker reported what it has read."""
    if one.read is None:
        return None
    lag = 0
    for source in one.declaration.sources:
        topic = engine.find(source.topic)
        if topic is not None:
            lag += max(topic.head - one.read.get(source.topic, 0), 0)
    return lag
