"""How soon appends of class fsync are acknowledged at half of the load that saturates the server.

Open loop: appends are due at even intervals, and the wait for a late answer counts for all that
were due meanwhile.
"""

from __future__ import annotations

from bench.measure import Measured
from bench.served import column, serving

CONNECTIONS = 64
ROUNDS = 5
SECONDS = 4.0


def run(directory: str, quick: bool) -> dict[str, Measured]:
    seconds, rounds = (0.2, 1) if quick else (SECONDS, ROUNDS)
    plan = {"wire": "append", "topic": "orders"}
    with serving(directory) as server:
        server.call("PUT", "/v0/topics/orders", {"durability": "fsync"})
        closed = server.load(plan, CONNECTIONS, seconds, min(rounds, 3))
        saturation = max(column(closed, "rate"))
        opened = server.load(plan, CONNECTIONS, seconds, rounds, rate=saturation / 2)
    return {
        "http_latency_saturation": saturation,
        "http_latency_rate": column(opened, "rate"),
        "http_latency_p50": [us / 1e3 for us in column(opened, "p50")],
        "http_latency_p99": [us / 1e3 for us in column(opened, "p99")],
        "http_latency_p999": [us / 1e3 for us in column(opened, "p999")],
    }
