"""How far a pipeline is behind 20,000 events a second, and what it costs the server's appends.

The server and the generator share one core, the worker (`headrace pipelines run`) has the other.
Rounds without a pipeline, beside work that asks nothing of the server, and beside the pipeline
take turns.  Each result says how far it goes, and the server's clock stamps events and results
alike: no reader is needed to see the lag.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from bench.case_spark_serving import CONNECTIONS, STOP, by_mode, until_stopped
from bench.measure import ROOT, Measured, Partner, die_with_parent, percentile
from bench.served import Round, Served, last_words, serving
from bench.spark_run import tree_cpu_seconds
from bench.wires import HOST
from headrace.client import Client, Record

EVENTS, RESULTS, NAME = "events", "events.per-minute", "per-minute"
DECLARATIONS = "_pipelines"
PLAN = {"wire": "append", "topic": EVENTS}
RATE = 20_000.0
RATE_QUICK = 500.0
SECONDS = 12.0
ROUNDS = 3
MODES = ("alone", "busy", "beside")
PATIENCE_SECONDS = 240.0
STOP_SECONDS = 60.0
LOOK_SECONDS = 0.1
SAMPLE_MS = 5  # one event in each of these stands for those beside it
BUSY_NUMBERS = 1_000_000

PIPELINE: dict[str, Any] = {
    "sources": [{"topic": EVENTS, "schema": "order BIGINT"}],
    "sql": "select window(ts, '1 minute').start as minute, count(*) as events,"
    " sum(data.order) as orders, max(seq) as last_seq, unix_millis(max(ts)) as newest_ms"
    f" from {EVENTS} group by window(ts, '1 minute')",
    "dest": {"topic": RESULTS},
    "output_mode": "update",
}


class Result(NamedTuple):
    """A result that holds all events up to one, and when it was there."""

    ts_ms: int
    last_seq: int
    newest_ms: int


class Lags(NamedTuple):
    """Of one round: seconds from an event to a result with it, in the order of the events."""

    seconds: list[float]
    steps: list[float]  # from one result to the next
    records_max: float


def run(directory: str, quick: bool) -> dict[str, Measured]:
    cores = sorted(os.sched_getaffinity(0))
    # The server and the generator get this one from us; on a machine with one core all share it.
    os.sched_setaffinity(0, cores[:1])
    with (
        serving(f"{directory}/server") as server,
        Client(f"http://{HOST}:{server.port}") as client,
        working(server, directory, cores[-1]) as worker,
        Partner("case_spark_pipeline:busy", core=cores[-1]) as partner,
    ):
        for topic in (EVENTS, RESULTS):
            client.put_topic(topic)
        partner.hear()
        beside = Beside(server, client, worker.pid)
        found = beside.alternate(
            partner,
            1 if quick else ROUNDS,
            RATE_QUICK if quick else RATE,
            1.0 if quick else SECONDS,
        )
        partner.close()
    return found


@contextlib.contextmanager
def working(server: Served, directory: str, core: int) -> Iterator[subprocess.Popen[bytes]]:
    """`headrace pipelines run` on one core."""
    output = Path(directory, "worker.out")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    words = ["--url", f"http://{HOST}:{server.port}", "--checkpoints", f"{directory}/checkpoints"]

    def on_its_core() -> None:
        os.sched_setaffinity(0, {core})
        die_with_parent()

    with output.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace", "pipelines", "run", *words],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            preexec_fn=on_its_core,
        )
    try:
        yield process
        if process.poll() is not None:
            raise RuntimeError(f"the worker ended by itself\n{last_words(output)}")
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Beside:
    """A server with a pipeline that comes and goes."""

    def __init__(self, server: Served, client: Client, worker_pid: int) -> None:
        self._server = server
        self._client = client
        self._worker_pid = worker_pid
        self._read_to = self._last_seq = 0  # of the results: the last one, and how far it goes

    def alternate(
        self, partner: Partner, rounds: int, rate: float, seconds: float
    ) -> dict[str, Measured]:
        """Rounds of each mode in turn."""
        self._client.append(EVENTS, [{"order": 1}])
        self._declare()  # once before it counts: all is loaded and compiled then
        self._server.load(PLAN, CONNECTIONS, seconds, rate=rate, warm_up=0)
        self._caught_up()
        taken: dict[str, list[Round]] = {mode: [] for mode in MODES}
        lags: list[Lags] = []
        drains: list[float] = []
        costs: list[float] = []
        for _ in range(rounds):
            for mode in MODES:
                if mode == "beside":
                    self._declare()
                    self._caught_up()
                    head = self._client.topic(EVENTS).head_seq
                    cpu = tree_cpu_seconds(self._worker_pid)
                else:
                    self._withdraw()
                if mode == "busy":
                    partner.ask(mode)
                all_of = self._server.load(PLAN, CONNECTIONS, seconds, rate=rate, warm_up=0)
                taken[mode] += all_of
                if mode == "busy":
                    partner.ask(STOP)
                if mode == "beside":
                    ended = time.monotonic()
                    results = [self._before(head + 1), *self._caught_up()]
                    lags.append(lags_of(results, all_of[0]["rate"]))
                    drains.append(time.monotonic() - ended)
                    spent = tree_cpu_seconds(self._worker_pid) - cpu
                    costs.append(spent / all_of[0]["requests"] * 1e6)
        return by_mode("spark_pipeline", taken) | figures_of(lags, drains, costs)

    def _declare(self) -> None:
        self._client.put_pipeline(NAME, PIPELINE)

    def _withdraw(self) -> None:
        """Without the pipeline, once its worker has let go of it."""
        self._client.delete_pipeline(NAME)
        self._until(lambda: self._client.topic(DECLARATIONS).count == 0, "the query has stopped")

    def _caught_up(self) -> list[Result]:
        """Once the results hold every event: those that came since the last time."""
        head = self._client.topic(EVENTS).head_seq
        found: list[Result] = []

        def look() -> bool:
            for record in self._client.follow(RESULTS, self._read_to, to_head=True):
                if not isinstance(record, Record):
                    raise RuntimeError(f"results are lost: {record}")
                self._read_to, data = record.seq, record.data
                self._last_seq = max(self._last_seq, data["last_seq"])
                found.append(Result(record.ts, data["last_seq"], data["newest_ms"]))
            return self._last_seq >= head

        self._until(look, "a result with all events")
        return sorted(found, key=lambda result: result.last_seq)

    def _before(self, seq: int) -> Result:
        """As if there had been a result just before this event."""
        (first,) = self._client.diff(EVENTS, seq - 1, limit=1).records
        return Result(first.ts, seq - 1, first.ts)

    def _until(self, ready: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not ready():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {PATIENCE_SECONDS} s: {what}")
            time.sleep(LOOK_SECONDS)


def lags_of(results: list[Result], rate: float) -> Lags:
    """How long events waited for a result with them, from those after the first result on.

    >>> lags_of([Result(900, 5, 500), Result(1_500, 9, 510)], 10.0)
    Lags(seconds=[1.0, 0.995], steps=[0.6], records_max=10.0)
    """
    seconds: list[float] = []
    steps: list[float] = []
    for before, result in pairwise(results):
        events = range(before.newest_ms, result.newest_ms, SAMPLE_MS)
        seconds += [(result.ts_ms - at) / 1e3 for at in events]
        if result.ts_ms > before.ts_ms:  # a batch has a result for each minute
            steps.append((result.ts_ms - before.ts_ms) / 1e3)
    return Lags(seconds, steps, rate * max(seconds, default=0.0))


def figures_of(lags: list[Lags], drains: list[float], costs: list[float]) -> dict[str, Measured]:
    """Of all rounds together, since a lag that was there once can be there again."""
    seconds = [second for one in lags for second in one.seconds]
    return {
        "spark_pipeline_lag_p50": median(seconds),
        "spark_pipeline_lag_p99": percentile(seconds, 0.99),
        "spark_pipeline_lag_max": max(seconds),
        "spark_pipeline_lag_records": max(one.records_max for one in lags),
        "spark_pipeline_lag_growth": max(growth(one.seconds) for one in lags),
        "spark_pipeline_batch": median(step for one in lags for step in one.steps),
        "spark_pipeline_drain": max(drains),
        "spark_pipeline_cpu": costs,
    }


def growth(seconds: list[float]) -> float:
    """Whether the lag grows while it goes on: the last third to the first."""
    third = max(len(seconds) // 3, 1)
    return mean(seconds[-third:]) / mean(seconds[:third])


def busy(core: int) -> None:
    """A partner: sorts numbers from a line `busy` until the line `stop`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    os.sched_setaffinity(0, {core})
    pa.set_cpu_count(1)
    numbers = pc.random(BUSY_NUMBERS)

    def sort() -> None:
        pc.sort_indices(numbers)

    print(json.dumps("ready"), flush=True)
    while sys.stdin.readline().strip():
        print(json.dumps("begun"), flush=True)
        print(json.dumps(until_stopped(sort, BUSY_NUMBERS)), flush=True)
