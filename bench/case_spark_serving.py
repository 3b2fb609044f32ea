"""What appends cost the server while Spark scans sealed records on another core.

The server and the generator share one core, Spark has another to itself.  Rounds without a scan,
beside ours, and beside the bare Arrow source take turns: the last never speaks to the server, so
what it adds is the machine's (caches, memory, the host's sharing of cores).
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from bench import spark_data
from bench.case_spark_scan import TOPIC, bare, check, ours
from bench.measure import Measured, Partner
from bench.served import Round, Served, serving
from bench.spark_run import spark
from bench.wires import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROWS = 1_000_000
ROWS_QUICK = 20_000
ROUNDS = 4
SECONDS = 4.0
CONNECTIONS = 64
PLAN = {"wire": "append", "topic": "appended"}
MODES = ("alone", "scan", "bare")
STOP = "stop"
# Requests that are not the scan's: the load, our own looks at the figures.
OTHERS = re.compile(r'method="POST",route="/v0/topics/\{topic\}"|route="/v0/metrics"')


def run(directory: str, quick: bool) -> dict[str, Measured]:
    rows = ROWS_QUICK if quick else ROWS
    cores = sorted(os.sched_getaffinity(0))
    # The server and the generator get this one from us; on a machine with one core all share it.
    os.sched_setaffinity(0, cores[:1])
    with serving(f"{directory}/server", **spark_data.settings(quick)) as server:
        url = f"http://{HOST}:{server.port}"
        files = spark_data.fill(url, TOPIC, rows)
        arguments: dict[str, Any] = {"directory": directory, "url": url, "files": files}
        with Partner(
            "case_spark_serving:beside", core=cores[-1], rows=rows, **arguments
        ) as partner:
            partner.hear()
            found = alternate(server, partner, 1 if quick else ROUNDS, 0.3 if quick else SECONDS)
            partner.close()
    return found


def alternate(server: Served, partner: Partner, rounds: int, seconds: float) -> dict[str, Measured]:
    """Rounds of each mode in turn."""
    taken: dict[str, list[Round]] = {mode: [] for mode in MODES}
    rates: list[float] = []
    records = requests = 0.0
    scans = 0
    for _ in range(rounds):
        for mode in MODES:
            before = counted(server)
            if mode != "alone":
                partner.ask(mode)
            taken[mode] += server.load(PLAN, CONNECTIONS, seconds)
            if mode != "alone":
                answer = partner.ask(STOP)
            if mode == "scan":
                after = counted(server)
                records += after[0] - before[0]
                requests += after[1] - before[1]
                scans += answer["scans"]
                rates.append(answer["rows"] / answer["seconds"])
    found: dict[str, Measured] = {
        "spark_serving_rows": rates,
        "spark_serving_http_records": records,
        "spark_serving_requests": requests / scans,
    }
    return found | by_mode("spark_serving", taken)


def by_mode(case: str, taken: Mapping[str, list[Round]]) -> dict[str, Measured]:
    """What appends cost in each mode, and how long they took."""
    found: dict[str, Measured] = {}
    for mode, all_of in taken.items():
        found[f"{case}_{mode}_cpu"] = [one["cpu"] for one in all_of]
        found[f"{case}_{mode}_p50"] = [one["p50"] / 1e3 for one in all_of]
        found[f"{case}_{mode}_p99"] = [one["p99"] / 1e3 for one in all_of]
        found[f"{case}_{mode}_rate"] = [one["rate"] for one in all_of]
    return found


def counted(server: Served) -> tuple[float, float]:
    """By the server's own count: records given to readers, and requests that may be a scan's."""
    records = requests = 0.0
    for line in server.call("GET", "/v0/metrics", accept="text/plain").splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("headrace_read_records_total"):
            records += float(value)
        elif name.startswith("headrace_http_requests_total") and not OTHERS.search(name):
            requests += float(value)
    return records, requests


def beside(directory: str, url: str, files: list[str], rows: int, core: int) -> None:
    """A partner: scans again and again from a line `scan` or `bare` until the line `stop`."""
    os.sched_setaffinity(0, {core})
    with spark(f"{directory}/scratch") as session:
        queries: dict[str, Callable[[], None]] = {
            "scan": lambda: check(lambda: ours(session, url), 1, rows),
            "bare": lambda: check(lambda: bare(session, files), 1, rows),
        }
        for query in queries.values():
            query()
        print(json.dumps("ready"), flush=True)
        while mode := sys.stdin.readline().strip():
            print(json.dumps("begun"), flush=True)
            print(json.dumps(until_stopped(queries[mode], rows)), flush=True)


def until_stopped(query: Callable[[], None], rows: int) -> dict[str, float]:
    stopped = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stopped.set()

    threading.Thread(target=listen, daemon=True).start()
    started, count = time.monotonic(), 0
    while not stopped.is_set():
        query()
        count += 1
    return {
        "scans": count,
        "rows": count * rows,
        "seconds": time.monotonic() - started,
    }
