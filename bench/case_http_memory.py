"""Memory under appends that never rest: what is resident at the end and at most, who is refused.

Two loads, each as fast as it is acknowledged, to 100 topics, with the settings a server has by
itself: single records of 256 B, as in `http_appends`, and batches of many, which come faster than
they are sealed and make merges of hundreds of megabytes.
"""

from __future__ import annotations

from typing import Any

from bench.case_http_appends import CONNECTIONS, TOPICS, TOPICS_QUICK
from bench.measure import PAYLOAD_BYTES, Measured
from bench.served import serving

SECONDS = 30.0
QUICK_SECONDS = 0.2
BATCH_CONNECTIONS = 8
BATCH_RECORDS = 1_000
REFUSED = "headrace_wal_submit_full_total"
CHECKPOINTS = "headrace_checkpoints_total"


def run(directory: str, quick: bool) -> dict[str, Measured]:
    batches = {"records": 100 if quick else BATCH_RECORDS, "sizes": [PAYLOAD_BYTES]}
    return {
        **_loaded("http_memory", f"{directory}/single", CONNECTIONS, {}, quick),
        **_loaded("http_memory_batch", f"{directory}/batch", BATCH_CONNECTIONS, batches, quick),
    }


def _loaded(
    name: str, directory: str, connections: int, load_plan: dict[str, Any], quick: bool
) -> dict[str, Measured]:
    topics = TOPICS_QUICK if quick else TOPICS
    with serving(directory) as server:
        for number in range(topics):
            server.call("PUT", f"/v0/topics/t{number}", {"durability": "disk"})
        before = server.resident_mb
        plan = {"wire": "appends", "topics": topics, "throttled": True, **load_plan}
        (load,) = server.load(plan, connections, QUICK_SECONDS if quick else SECONDS)
        resident, peak = server.resident_mb, server.peak_mb
        refused, checkpoints = server.metrics(REFUSED, CHECKPOINTS)
    return {
        f"{name}_resident": resident,
        f"{name}_peak": peak,
        f"{name}_idle": before,
        f"{name}_refused": refused,
        f"{name}_checkpoints": checkpoints,
        f"{name}_rate": load["rate"],
        f"{name}_cpu": load["cpu"],
    }
