"""Memory under appends that never rest: what is resident at the end and at most, who is refused.

The load is that of `http_appends`: single records of 256 B to 100 topics as fast as they are
acknowledged, with the settings a server has by itself.
"""

from __future__ import annotations

from bench.case_http_appends import CONNECTIONS, TOPICS, TOPICS_QUICK
from bench.measure import Measured
from bench.served import serving

SECONDS = 30.0
QUICK_SECONDS = 0.2
REFUSED = "headrace_wal_submit_full_total"
CHECKPOINTS = "headrace_checkpoints_total"


def run(directory: str, quick: bool) -> dict[str, Measured]:
    topics = TOPICS_QUICK if quick else TOPICS
    with serving(directory) as server:
        for number in range(topics):
            server.call("PUT", f"/v0/topics/t{number}", {"durability": "disk"})
        before = server.resident_mb
        plan = {"wire": "appends", "topics": topics, "throttled": True}
        (load,) = server.load(plan, CONNECTIONS, QUICK_SECONDS if quick else SECONDS)
        resident, peak = server.resident_mb, server.peak_mb
        refused, checkpoints = server.metrics(REFUSED, CHECKPOINTS)
    return {
        "http_memory_resident": resident,
        "http_memory_peak": peak,
        "http_memory_idle": before,
        "http_memory_refused": refused,
        "http_memory_checkpoints": checkpoints,
        "http_memory_rate": load["rate"],
        "http_memory_cpu": load["cpu"],
    }
