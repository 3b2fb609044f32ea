"""Write docs/operate/metrics.md from the metrics that a server registers.

python tools/metrics_page.py            rewrite the page
python tools/metrics_page.py --check    fail when the page is not what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.telemetry import Described
from headrace.engine.engine import Engine
from headrace.metrics.engine import TOPICS_SHOWN_MAX, watch_engine
from headrace.metrics.pipelines import PIPELINES_SHOWN_MAX, watch_pipelines
from headrace.metrics.process import watch_process
from headrace.metrics.requests import Metrics
from headrace.pipelines.registry.store import PipelineStore
from headrace.testing.simdisk import SimDisk

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operate" / "metrics.md"

HEAD = f"""\
# Metrics

`GET /v0/metrics` answers with the text that Prometheus scrapes, and with a JSON object of the
totals when `Accept` names `application/json`. It answers during recovery and while draining, too.
With API keys it needs one with the scope `read`:

```yaml
scrape_configs:
  - job_name: headrace
    metrics_path: /v0/metrics
    authorization: {{credentials: THE-KEY}}
    static_configs: [{{targets: ["127.0.0.1:4000"]}}]
```

[ops/alerts.yml](../../ops/alerts.yml) holds alerts and [ops/grafana.json](../../ops/grafana.json) a
dashboard; both use only what is on this page.

Counters start at 0 with the process. Histograms have `_bucket`, `_sum` and `_count`. Times are in
seconds and sizes in bytes, except for the names that existing clients of the native API expect
(`headrace_uptime_ms`, `headrace_wal_fsync_latency_us`). A request costs its counters about a
microsecond; a scrape costs the same however many topics there are, because totals are kept as they
change and only the first {TOPICS_SHOWN_MAX:,} topics have series of their own
(`headrace_topic_metrics_truncated` is 1 then).
"""

GROUPS = {
    "Topics": ("topic", "stream", "records", "bytes", "routers", "queue"),
    "Appends and reads": ("append", "read_records", "read_duration", "lake_read"),
    "Requests": ("http",),
    "Pipelines": ("pipeline",),
    "Live readers": ("sse", "watch"),
    "Pressure and priorities": ("pressure", "scheduler", "throttle"),
    "The log": ("wal",),
    "Files and memory": (
        "checkpoint",
        "segment",
        "memory",
        "read_cache",
        "idempotency",
        "producer",
        "disk",
        "held",
    ),
    "Start, and damage": (
        "ready",
        "degraded",
        "recovery",
        "uptime",
        "build",
        "corruption",
        "scrub",
        "clock",
        "tier",
    ),
    "The process": ("loop", "gc", "process", "metric"),
}

TAIL = """
`status` is the answer's, 0 where the client went away before there was one. `route` is the
template, never the path, and `(none)` for paths that have no route. Streams are counted as requests
when they end, and are not in the histogram of durations.

`headrace_loop_stall_seconds` is how late a timer was that is due every 20 ms: whatever kept the
loop busy kept every client waiting. A stall shows as its length less at most one tick.

Of pipelines the first {pipelines_shown_max:,} by name have series of their own
(`headrace_pipeline_metrics_truncated` is 1 then); `headrace_pipelines_by_state` counts all of them.
Right after a start these series are absent until a scrape has had them loaded. A pipeline has only
the series that are known: no batch before the first one, no lag before it has told how far it has
read its sources. The lag is counted to the current heads, so it grows while the pipeline stands
still; batch and rows a second are as they were last reported.

This page is written by `python tools/metrics_page.py`.
"""


def described() -> list[Described]:
    """Every metric of a serving process."""
    runtime = StepRuntime(ManualClock())
    engine = Engine(SimDisk(), runtime, random=SeededRandom(1))
    metrics = Metrics()
    watch_engine(metrics, engine)
    watch_process(metrics, runtime, int)
    watch_pipelines(metrics.registry, engine, PipelineStore(engine))
    engine.abandon()
    return metrics.registry.described()


def page() -> str:
    left = described()
    parts = [HEAD]
    for title, prefixes in GROUPS.items():
        starts = tuple(f"headrace_{prefix}" for prefix in prefixes)
        own = [one for one in left if one.name.startswith(starts)]
        left = [one for one in left if one not in own]
        parts.append(f"\n## {title}\n\n| series | kind | labels | meaning |\n|---|---|---|---|\n")
        for one in own:
            labels = ", ".join(f"`{label}`" for label in one.labels)
            parts.append(f"| `{one.name}` | {one.kind} | {labels} | {one.help_text} |\n")
    assert not left, f"no group for {[one.name for one in left]}"
    return "".join(parts) + TAIL.format(pipelines_shown_max=PIPELINES_SHOWN_MAX)


if __name__ == "__main__":
    # Beside this file, where Python looks first when it runs it.
    from pages import main

    sys.exit(main(PAGE, page(), __file__))
