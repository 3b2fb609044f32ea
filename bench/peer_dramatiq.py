"""Dramatiq on Redis: the same jobs by its own worker, in a Python that has it installed.

    python bench/peer_dramatiq.py '{"port": 6379, "pids": [1], "jobs": 2000, ...}'

A program of its own, since Dramatiq is nothing that the bench or the server needs.  One process,
50 worker threads, no middleware; for each line of standard input a round.  The library sends each
message by itself, and acknowledges each by itself.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PATIENCE_SECONDS = 60.0
PAYLOAD = "x" * 256


def main() -> None:
    import dramatiq  # type: ignore[import-not-found]
    from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]

    given = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {given["core"]})
    broker = RedisBroker(host="127.0.0.1", port=given["port"], middleware=[])
    dramatiq.set_broker(broker)
    counter, finished = Counter(), threading.Event()

    @dramatiq.actor  # type: ignore[untyped-decorator]
    def work(payload: str) -> None:
        if counter.add() == given["jobs"]:
            finished.set()

    worker = dramatiq.Worker(broker, worker_threads=given["connections"])
    worker.start()
    while sys.stdin.readline():
        counter.value = 0
        finished.clear()
        cpu, own, started = cpu_seconds(given["pids"]), time.process_time(), time.perf_counter()
        for _ in range(given["jobs"]):
            work.send(PAYLOAD)
        if not finished.wait(PATIENCE_SECONDS):
            raise TimeoutError(f"{counter.value} of {given['jobs']} jobs are done")
        worker.join()  # acknowledged as well
        seconds = time.perf_counter() - started
        cpu, own = cpu_seconds(given["pids"]) - cpu, time.process_time() - own
        print(json.dumps(report(given["jobs"], seconds, cpu, own)), flush=True)
    worker.stop()
    broker.close()


class Counter:
    """Counts in many threads."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self) -> int:
        with self._lock:
            self.value += 1
            return self.value


def cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as source:
            fields = source.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_SECOND


def report(jobs: int, seconds: float, cpu: float, own: float) -> dict[str, float]:
    """As `jobs.report`; the library does not tell how long a claim took."""
    return {
        "requests": jobs,
        "rate": jobs / seconds,
        "cpu": cpu / jobs * 1e6,
        "generator_cpu": own / jobs * 1e6,
        "busy": cpu / seconds,
        "generator_busy": own / seconds,
        "p50": 0.0,
        "p99": 0.0,
    }


if __name__ == "__main__":
    main()
