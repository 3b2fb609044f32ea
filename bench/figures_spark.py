"""The figures of reading and writing by Spark, with their goals; `figures.py` adds them."""

from __future__ import annotations

from bench.goals import Figure, Goal, at_least, at_most
from bench.goals import figures_of as _case


def _scan(name: str, about: str, goal: Goal | None = None) -> list[Figure]:
    return _case(
        "spark_scan",
        (name, "rows/s", f"{about}: wall clock", goal),
        (f"{name}_cpu", "rows/CPU s", f"{about}: CPU of Java and Python", None),
    )


def _serving(name: str, about: str, goal: Goal | None = None) -> list[Figure]:
    """Appends while Spark does something; the case is all but the last word of the name."""
    return _case(
        name.rpartition("_")[0],
        (f"{name}_cpu", "µs", f"{about}: server CPU an append", goal),
        (f"{name}_p50", "ms", f"{about}: p50", None),
        (f"{name}_p99", "ms", f"{about}: p99", None),
        (f"{name}_rate", "requests/s", f"{about}: wall clock", None),
    )


_SEALED = "3 M sealed records of 142 B"
_APPENDS = "1 x 256 B, 64 connections"
_EVENTS = "20,000/s of 1 x 256 B"

SPARK_FIGURES: tuple[Figure, ...] = (
    *_scan("spark_scan", f"(seq, data) of {_SEALED}", at_least(1_300_000)),
    *_scan("spark_scan_bare", "a bare Arrow source over the same files"),
    *_case(
        "spark_scan",
        (
            "spark_scan_ratio", "x", "ours to the bare one, best rounds",
            Goal(False, lambda _: 0.85, ">= 0.85"),
        ),
        ("spark_scan_range", "s", "1 % of them by startingSeqs and endingSeqs", at_most(1.5)),
        ("spark_scan_range_filter", "s", "the same by a filter on seq, pushed down", at_most(1.5)),
    ),
    *_scan("spark_scan_lines", "Spark's own source, JSON lines"),
    *_scan("spark_scan_parquet", "Spark's own source, Parquet zstd"),
    *_case(
        "spark_sink",
        ("spark_sink", "rows/s", "2 M ready strings of 142 B, class disk", at_least(500_000)),
        ("spark_sink_cpu", "rows/CPU s", "the same, CPU of Java and Python", None),
        ("spark_sink_server_cpu", "µs", "the same, server CPU a row, sealing included", None),
        ("spark_sink_bare", "rows/s", "the same rows into an Arrow writer that drops them", None),
        ("spark_sink_bare_cpu", "rows/CPU s", "the same, CPU of Java and Python", None),
    ),
    *_case(
        "spark_batch_latency",
        ("spark_batch_latency", "ms", "append to readable through a query: p50", at_most(400)),
        ("spark_batch_latency_p99", "ms", "the same, p99", None),
        ("spark_batch_latency_next", "ms", "the next append as soon as one is there: p50", None),
        ("spark_batch_latency_add", "ms", "of a batch, running its tasks: p50", None),
        ("spark_batch_latency_offset", "ms", "of a batch, asking for the head: p50", None),
        ("spark_batch_latency_plan", "ms", "of a batch, planning: p50", None),
        ("spark_batch_latency_log", "ms", "of a batch, Spark's own logs: p50", None),
    ),
    *_case(
        "spark_lake",
        ("spark_lake_sync", "rows/s", f"{_SEALED} into a new lake", at_least(300_000)),
        ("spark_lake_sync_cpu", "rows/CPU s", "the same, CPU of Java and Python", None),
        ("spark_lake_sync_typed", "rows/s", "the same with four declared fields", None),
        ("spark_lake_sync_variant", "rows/s", "the same with a VARIANT", None),
        ("spark_lake_bytes", "B", "a row in the files of the lake", None),
        ("spark_lake_verify", "rows/s", "all of it, compared with the server", None),
        ("spark_lake_typed", "rows/s", "sum by group of declared fields, by headrace sql", None),
        ("spark_lake_typed_alone", "rows/s", "the same by Spark, given the same files", None),
        (
            "spark_lake_typed_ratio", "x", "headrace sql to Spark alone, best rounds",
            Goal(False, lambda _: 0.9, ">= 0.9"),
        ),
        ("spark_lake_typed_ratio_median", "x", "the same, median rounds", None),
        ("spark_lake_typed_cpu_ratio", "x", "the same, CPU of the median rounds", None),
        ("spark_lake_typed_layout", "x", "those files to a flat copy by Spark", None),
        ("spark_lake_replay", "rows/s", "all of it into a topic of class disk", at_least(300_000)),
        ("spark_lake_replay_cpu", "µs", "the same, CPU of the reader and sender a row", None),
        ("spark_lake_replay_server_cpu", "µs", "the same, server CPU a row, sealing too", None),
        ("spark_lake_import", "rows/s", "JSON lines into such a topic", at_least(300_000)),
        ("spark_lake_import_cpu", "µs", "the same, CPU of the reader and sender a row", None),
        ("spark_lake_import_server_cpu", "µs", "the same, server CPU a row, sealing too", None),
        ("spark_lake_compact", "s", "1,000 files of 10,000 rows", at_most(60)),
    ),
    *_serving("spark_serving_alone", f"{_APPENDS}, no scan"),
    *_serving(
        "spark_serving_scan", f"{_APPENDS}, beside a scan",
        Goal(True, lambda v: 1.15 * v["spark_serving_alone_cpu"], "<= 1.15 x alone"),
    ),
    *_serving("spark_serving_bare", f"{_APPENDS}, beside a scan by the bare source"),
    *_case(
        "spark_serving",
        ("spark_serving_rows", "rows/s", "what the scan read meanwhile, on one core", None),
        ("spark_serving_http_records", "records", "historical records over HTTP", at_most(0)),
        ("spark_serving_requests", "requests", "what one scan asks of the server", None),
    ),
    *_serving("spark_pipeline_alone", f"{_EVENTS}, no pipeline"),
    *_serving(
        "spark_pipeline_beside", f"{_EVENTS}, beside a pipeline",
        Goal(True, lambda v: 1.15 * v["spark_pipeline_alone_cpu"], "<= 1.15 x alone"),
    ),
    *_serving("spark_pipeline_busy", f"{_EVENTS}, beside work that asks nothing of the server"),
    *_case(
        "spark_pipeline",
        ("spark_pipeline_lag_p50", "s", "from an event's append to a result with it: p50", None),
        ("spark_pipeline_lag_p99", "s", "the same, p99", at_most(5)),
        ("spark_pipeline_lag_max", "s", "the same, the longest", None),
        ("spark_pipeline_lag_records", "records", "most that were in no result yet", None),
        ("spark_pipeline_lag_growth", "x", "the last third of a round to the first", at_most(2)),
        ("spark_pipeline_batch", "s", "from one result to the next: p50", None),
        ("spark_pipeline_drain", "s", "after the last append, until the result has all", None),
        ("spark_pipeline_cpu", "µs", "CPU of Java and Python an event", None),
    ),
)  # fmt: skip
