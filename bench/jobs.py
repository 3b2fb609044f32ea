"""The load of a queue: producers and workers in one epoll loop, until the last job is done.

As in `load.py` the requests are ready-made bytes and the loop is bare, since the generator shares
the machine with what it measures.  How a server is spoken to is in `jobs_wires.py` and
`jobs_peers.py`; here is only
who sends when, what a round measured, and that each job was done exactly once.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from array import array
from typing import Any

from bench import jobs_peers
from bench.jobs_wires import Claim, Produce, Work
from bench.load import BUFFER_BYTES, PARTS, SILENCE_SECONDS, at, cpu_seconds

PRODUCERS = {"headrace": Produce, **jobs_peers.PRODUCERS}
WORKERS = {"headrace": Claim, **jobs_peers.WORKERS}
JOBS = 20_000
WORKER_COUNT = 50
# Enough of them that the queue does not run dry while there is more to produce.
PRODUCER_COUNT = 4
BATCH = 100
CLAIM = 8


def one_round(
    plan: dict[str, Any], port: int, pids: list[int], jobs: int, workers: int = WORKER_COUNT
) -> dict[str, float]:
    """Jobs produced, claimed and acknowledged; rates, and microseconds a job."""
    given = dict(plan)
    name = given.pop("jobs")
    work = Work(jobs, BATCH, CLAIM)
    wires = [PRODUCERS[name](port, work, **given) for _ in range(PRODUCER_COUNT)]
    wires += [WORKERS[name](port, work, number=n, **given) for n in range(workers)]
    poller = select.epoll()
    by_fd = {wire.socket.fileno(): wire for wire in wires}
    try:
        for fd in by_fd:
            poller.register(fd, select.EPOLLIN)
        buffer = bytearray(BUFFER_BYTES)
        cpu, own, started = cpu_seconds(pids), time.process_time(), time.perf_counter()
        for wire in wires:
            wire.begin()
        while work.done < jobs:
            events = poller.poll(SILENCE_SECONDS)
            if not events:
                raise TimeoutError(f"{jobs - work.done} of {jobs} jobs are not done")
            for fd, _ in events:
                wire = by_fd[fd]
                wire.heard(buffer, wire.socket.recv_into(buffer))
        if name in jobs_peers.ENDINGS:
            jobs_peers.ENDINGS[name](port, **given)
        seconds = time.perf_counter() - started
        cpu, own = cpu_seconds(pids) - cpu, time.process_time() - own
    finally:
        poller.close()
        for wire in wires:
            wire.close()
    work.check()
    return report(work, seconds, cpu, own)


def report(work: Work, seconds: float, cpu: float, own: float) -> dict[str, float]:
    """As `load.Window` reports it, with a job in the place of a request."""
    return {
        "requests": work.jobs,
        "rate": work.jobs / seconds,
        "cpu": cpu / work.jobs * 1e6,
        "generator_cpu": own / work.jobs * 1e6,
        "busy": cpu / seconds,
        "generator_busy": own / seconds,
        "empty": work.empty,
        **percentiles(work.claims),
        **{f"ack_{name}": us for name, us in percentiles(work.acks).items()},
    }


def percentiles(latencies: array[float]) -> dict[str, float]:
    """Microseconds."""
    ordered = sorted(latencies)
    return {name: at(ordered, part) * 1e6 for name, part in PARTS.items()}


def drive(
    plan: dict[str, Any], port: int, pids: list[int], jobs: int, rounds: int, core: int
) -> list[dict[str, float]]:
    """A step: one round to warm up, then those that count, all on one core."""
    os.sched_setaffinity(0, {core})
    one_round(plan, port, pids, min(jobs, 2_000))
    return [one_round(plan, port, pids, jobs) for _ in range(rounds)]


def take_turns(
    plan: dict[str, Any], port: int, pids: list[int], connections: int, jobs: int, core: int
) -> None:
    """A partner: one round for each line of standard input."""
    os.sched_setaffinity(0, {core})
    while sys.stdin.readline():
        print(json.dumps(one_round(plan, port, pids, jobs, connections)), flush=True)
