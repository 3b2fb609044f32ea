"""Jobs produced, claimed and acknowledged over HTTP: 50 workers, the server on one processor.

The generator has the other processor.  What it takes of that stands beside the rates: as long as
the server is busy all the time and the generator is not, the generator is not the limit.
"""

from __future__ import annotations

from statistics import median

from bench.figures_queue import CLASSES
from bench.jobs import JOBS
from bench.measure import Measured, step
from bench.served import Round, column, serving, two_cores

JOBS_QUICK = 1_000
ROUNDS = 8


def run(directory: str, quick: bool) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for durability in CLASSES:
        rounds = jobs(f"{directory}/{durability}", durability, quick)
        name = f"http_queue_{durability}"
        found |= {
            name: column(rounds, "rate"),
            f"{name}_cpu": column(rounds, "cpu"),
            f"{name}_busy": 100 * median(column(rounds, "busy")),
            f"{name}_generator_cpu": column(rounds, "generator_cpu"),
            f"{name}_generator_busy": 100 * median(column(rounds, "generator_busy")),
            f"{name}_claim_p50": [one["p50"] / 1e3 for one in rounds],
            f"{name}_claim_p99": [one["p99"] / 1e3 for one in rounds],
            f"{name}_ack_p50": [one["ack_p50"] / 1e3 for one in rounds],
            f"{name}_ack_p99": [one["ack_p99"] / 1e3 for one in rounds],
        }
    return found


def jobs(directory: str, durability: str, quick: bool) -> list[Round]:
    own, other = two_cores()
    with serving(directory) as server:
        server.keep_on(own)
        server.call("PUT", "/v0/topics/jobs", {"type": "queue", "durability": durability})
        rounds: list[Round] = step(
            "jobs:drive",
            plan={"jobs": "headrace", "topic": "jobs"},
            port=server.port,
            pids=[server.pid],
            jobs=JOBS_QUICK if quick else JOBS,
            rounds=1 if quick else ROUNDS,
            core=other,
        )
        left = server.call("GET", "/v0/topics/jobs")
        assert left["count"] == left["queue"]["in_flight"] == 0, left
    return rounds
