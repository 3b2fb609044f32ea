"""`./run bench --peers`: other servers and ours, in turns in the same run, and the goals.

Every row of a case is the same load, sent by the same generator: 64 connections, unless the row
says otherwise, that each wait for an answer before they send again.  All servers of a case are up
at once, and each has one round after the other.  What each promises before it answers differs, and
stands in its row (`peer_loads.py`); ratios are to the row of ours that promises the same.  The
goals are in `peer_goals.py`.

Rows of jobs are the load of `jobs.py`, and their rates are in jobs.  There each server has one
processor, and the generator the other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench import jobs, peer_goals, peer_loads, peer_servers, s2_loads, stream_loads
from bench.measure import Partner
from bench.peer_loads import CONNECTIONS, DRAMATIQ_JOBS, READ_CONNECTIONS, Load
from bench.served import Round, column, two_cores

ROUNDS = 8
# Where a round takes long.
ROUNDS_OF = {
    "http_sse": 5,
    "http_batch": 5,
    "http_arrow": 5,
    "ds_sse": 5,
    "ds_catch_up_1000": 3,
    "ds_at_rest": 1,
    "s2_append_session": 5,
    "s2_read_session": 5,
    "s2_unary": 5,
    "s2_serial": 5,
    "s2_streams": 3,
    "s2_bench": 3,
}
SECONDS = 1.0
WARM_UP = 0.2
JOBS_QUICK = 500
CONNECTIONS_QUICK = 64
GENERATOR_LIMIT = 0.9  # of a processor
COSTS = ("cpu", "p50", "p99", "generator_cpu")
LOADS = (*peer_loads.LOADS, *stream_loads.LOADS, *s2_loads.LOADS)
CASES = (*peer_loads.CASES, *stream_loads.CASES, *s2_loads.CASES)
PLANS = {
    peer_goals.NAME: peer_goals.PLAN,
    stream_loads.NAME: stream_loads.CASES,
    s2_loads.NAME: s2_loads.CASES,
}
CHOICES = (*PLANS, *CASES)
GOALS = (*peer_goals.GOALS, *stream_loads.GOALS, *s2_loads.GOALS)

Say = Callable[[str], None]


def chosen(names: Sequence[str]) -> list[str]:
    """Cases in the order of the table; the plan of the goals if none is named."""
    asked = set(names or [peer_goals.NAME])
    for plan in asked & PLANS.keys():
        asked |= set(PLANS[plan])
    return [case for case in CASES if case in asked]


def run(
    parent: str, quick: bool, say: Say, names: Sequence[str] = (), install: bool = True
) -> list[dict[str, Any]]:
    """One row for each load; a server that cannot run here has a `missing` that says why."""
    cases = chosen(names)
    loads = [load for load in LOADS if load.case in cases]
    kinds = list(dict.fromkeys(load.kind for load in loads))
    missing = peer_servers.install(say, kinds, install)
    rows: list[dict[str, Any]] = [
        {"name": load.name, "case": load.case, "what": load.what, "promise": load.promise}
        for load in loads
    ]
    for load, row in zip(loads, rows, strict=True):
        if load.kind in missing:
            row["missing"] = missing[load.kind]
    for case in cases:
        pairs = [pair for pair in zip(loads, rows, strict=True) if pair[0].case == case]
        run_case(case, pairs, parent, quick, say)
    add_ratios(loads, rows)
    return rows


def run_case(
    case: str, pairs: Sequence[tuple[Load, dict[str, Any]]], parent: str, quick: bool, say: Say
) -> None:
    """All servers of a case up at once, and measured in turns."""
    with contextlib.ExitStack() as stack:
        turns = []
        for load, row in pairs:
            if "missing" not in row:
                say(f"{case}: starting {load.name}")
                try:
                    turns.append((load, row, stack.enter_context(ready(load, parent, quick))))
                except peer_servers.NotOffered as error:
                    row["missing"] = str(error)
        # In turns, so that whatever else the machine does meets all of them.
        found: list[list[Round]] = [[] for _ in turns]
        rounds = 1 if quick else ROUNDS_OF.get(case, ROUNDS)
        for number in range(rounds):
            say(f"{case}: round {number + 1} of {rounds}, load {os.getloadavg()[0]:.1f}")
            for samples, (load, _, partner) in zip(found, turns, strict=True):
                samples.append(of_units(partner.ask(), load.units))
        for samples, (_, row, _) in zip(found, turns, strict=True):
            row |= best(samples)


def of_units(one: Round, units: int) -> Round:
    """The same round, where a request carries several of what is counted."""
    costs = {name: one[name] / units for name in ("cpu", "generator_cpu")}
    return {**one, "rate": one["rate"] * units, **costs}


def add_ratios(loads: Sequence[Load], rows: list[dict[str, Any]]) -> None:
    by_name = {row["name"]: row for row in rows}
    for load, row in zip(loads, rows, strict=True):
        ours = by_name[load.versus]
        if row.get("rate") and ours.get("rate"):  # what rests has none
            row["versus"] = load.versus
            row["rate_ratio"] = row["rate"] / ours["rate"]
            row["cpu_ratio"] = row["cpu"] / ours["cpu"] if ours["cpu"] else 0.0
            row["p99_ratio"] = row["p99"] / ours["p99"] if ours["p99"] else 0.0


@contextlib.contextmanager
def ready(load: Load, parent: str, quick: bool) -> Iterator[Partner]:
    """A server with a generator that is connected to it."""
    directory = tempfile.mkdtemp(prefix="headrace-bench-", dir=parent)
    own, other = two_cores()
    how: dict[str, Any] = {
        "seconds": 0.2 if quick else SECONDS,
        "warm_up": 0.1 if quick else WARM_UP,
    }
    if load.jobs:
        how = {"jobs": JOBS_QUICK if quick else load.jobs, "core": other}
    connections = min(load.connections, CONNECTIONS_QUICK) if quick else load.connections
    try:
        with load.start(directory) as (server, plan):
            if server and load.jobs:
                server.keep_on(own)
            with Partner(
                load.partner,
                plan=plan,
                port=server.port if server else 0,
                pids=[server.pid] if server else [],
                connections=connections,
                **how,
            ) as partner:
                yield partner
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def best(rounds: list[Round]) -> dict[str, Any]:
    """The best of the rounds, each figure for itself; and the rounds that goals look at."""
    return {
        "rate": max(column(rounds, "rate")),
        **{name: min(column(rounds, name)) for name in COSTS},
        "generator_busy": max(one["rate"] * one["generator_cpu"] / 1e6 for one in rounds),
        "rounds": {name: column(rounds, name) for name in peer_goals.FIGURES if name in rounds[0]},
        **{
            name: max(column(rounds, name)) for name in peer_goals.MORE_FIGURES if name in rounds[0]
        },
    }


def limited(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Rows in which the generator had hardly any time left, so that a rate may be its own."""
    return [row["name"] for row in rows if row.get("generator_busy", 0.0) >= GENERATOR_LIMIT]


EXPLAINED = (
    f"{CONNECTIONS} connections ({READ_CONNECTIONS} for reads) where a row says nothing else, no"
    f" pipelining, one generator of our own for all;\nbest of {ROUNDS} rounds in turns; the last"
    " three columns are ratios to our row of the same promise.\nRows of jobs: "
    f"{jobs.JOBS:,} jobs of 256 B, {jobs.PRODUCER_COUNT} producers of {jobs.BATCH} at a time,"
    f" {jobs.WORKER_COUNT} workers, the server on\none processor; a rate is in jobs, CPU is of a"
    " job, p50 and p99 are of a claim; Dramatiq has no batches,\nand its own worker is what limits"
    f" it ({DRAMATIQ_JOBS:,} jobs a round).  Rows of SSE: CPU, p50 and p99 are of a delivery.\n"
    "Rows of 100 records and of Arrow: rate and CPU are of a record"
)
GOALS_EXPLAINED = (
    "Goals: ours to theirs, each the best of its rounds; the median is of the ratios of single"
    " rounds.\nFar from the ratio it means that the machine was busy, and that the run says little"
)
RATIOS = ("rate_ratio", "cpu_ratio", "p99_ratio")
HEADINGS = ("server", "load", "answers when", "requests/s", "CPU µs", "client µs", "p50 ms",
            "p99 ms", "rate", "CPU", "p99")  # fmt: skip


def table(rows: list[dict[str, Any]], markdown: bool) -> str:
    """Ratios are to our own row of the same promise: rate above 1 is faster than ours."""
    lines = [list(HEADINGS)]
    for row in rows:
        first = [row["name"], row["what"], row["promise"]]
        if "rate" not in row:
            lines.append([*first, f"not measured: {row['missing']}", *[""] * 7])
            continue
        lines.append(
            [
                *first,
                f"{row['rate']:,.0f}",
                f"{row['cpu']:.3g}" if row["cpu"] < 10 else f"{row['cpu']:.1f}",
                f"{row['generator_cpu']:.1f}" if row["generator_cpu"] else "",
                *(f"{row[name] / 1e3:.2f}" if row[name] else "" for name in ("p50", "p99")),
                *(f"{row[name]:.2f} x" if row.get(name) else "" for name in RATIOS),
            ]
        )
    return laid_out(lines, markdown)


def goals_table(judgements: Sequence[dict[str, Any]], markdown: bool) -> str:
    return laid_out(peer_goals.lines(judgements), markdown)


def laid_out(lines: list[list[str]], markdown: bool) -> str:
    """Columns as wide as what stands in them; a reason may run over those to its right."""
    if markdown:
        lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    widths = [
        max(len(line[n]) for line in lines if not line[n].startswith("not measured"))
        for n in range(len(lines[0]))
    ]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
