"""`./run bench --peers`: other servers and ours, in turns in the same run, one table.

Every row is the same load, sent by the same generator: 64 connections that each wait for an answer
before they send again.  All servers are up at once, and each has one round after the other.  What
each promises before it answers differs, and stands in its row; ratios are to the row of ours that
promises the same.

Rows of jobs are the load of `jobs.py`, and their rates are in jobs.  There each server has one
processor, and the generator the other.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import jobs, jobs_peers, peer_servers
from bench.measure import Partner, die_with_parent
from bench.served import Round, Served, column, serving, two_cores

CONNECTIONS = 64
ROUNDS = 8
SECONDS = 1.0
WARM_UP = 0.2
READ_CONNECTIONS = 8
READ_RECORDS = 1_000
JOBS_QUICK = 500
DRAMATIQ = "peer_dramatiq.py"
DRAMATIQ_JOBS = 2_000  # it takes its time


class Load(NamedTuple):
    """One row: a server, what is sent, and the row of ours it is compared with."""

    name: str
    what: str
    promise: str  # when the answer comes
    start: Callable[[str], contextlib.AbstractContextManager[tuple[Served, dict[str, Any]]]]
    versus: str
    connections: int = CONNECTIONS
    case: str = "http_append"  # by which rows can be chosen
    jobs: int = 0
    partner: str = "load:take_turns"


APPEND = {"wire": "append", "topic": "orders"}
FILL_SECONDS = 1.0


@contextlib.contextmanager
def headrace(directory: str, durability: str) -> Iterator[tuple[Served, dict[str, Any]]]:
    with serving(directory) as server:
        server.call("PUT", "/v0/topics/orders", {"durability": durability})
        yield server, APPEND


@contextlib.contextmanager
def headrace_read(directory: str) -> Iterator[tuple[Served, dict[str, Any]]]:
    with serving(directory) as server:
        server.load(APPEND, 8, FILL_SECONDS, warm_up=0)
        yield (
            server,
            {"wire": "diff", "topic": "orders", "from_seq": 0, "limit": READ_RECORDS},
        )


@contextlib.contextmanager
def redis(directory: str, policy: str) -> Iterator[tuple[Served, dict[str, Any]]]:
    with peer_servers.redis(directory, policy) as server:
        yield server, {"wire": "redis_xadd", "topic": "orders"}


@contextlib.contextmanager
def redis_read(directory: str) -> Iterator[tuple[Served, dict[str, Any]]]:
    with peer_servers.redis(directory, "everysec") as server:
        server.load({"wire": "redis_xadd", "topic": "orders"}, 8, FILL_SECONDS, warm_up=0)
        yield server, {"wire": "redis_xread", "topic": "orders", "limit": READ_RECORDS}


@contextlib.contextmanager
def nats(directory: str, sync: str) -> Iterator[tuple[Served, dict[str, Any]]]:
    with peer_servers.nats(directory, sync) as server:
        yield server, {"wire": "nats_publish", "topic": "orders"}


@contextlib.contextmanager
def durable_streams(directory: str, stored: bool) -> Iterator[tuple[Served, dict[str, Any]]]:
    with peer_servers.durable_streams(directory, stored) as server:
        yield (
            server,
            {
                "wire": "http",
                "method": "POST",
                "path": peer_servers.STREAM_PATH,
                "body": peer_servers.STREAM_RECORD,
                "content_type": "application/json",
            },
        )


# Queues


@contextlib.contextmanager
def headrace_jobs(directory: str, how: str) -> Iterator[tuple[Served, dict[str, Any]]]:
    durability, _, leases = how.partition(" ")
    config = {"type": "queue", "durability": durability, "leases_durable": bool(leases)}
    with serving(directory) as server:
        server.call("PUT", "/v0/topics/jobs", config)
        yield server, {"jobs": "headrace", "topic": "jobs"}


@contextlib.contextmanager
def redis_jobs(directory: str, policy: str) -> Iterator[tuple[Served, dict[str, Any]]]:
    with peer_servers.redis(directory, policy) as server:
        jobs_peers.put_redis_group(server.port, "jobs")
        yield server, {"jobs": "redis", "topic": "jobs"}


@contextlib.contextmanager
def nats_jobs(directory: str, how: str) -> Iterator[tuple[Served, dict[str, Any]]]:
    sync, _, confirmed = how.partition(" ")
    with peer_servers.nats(directory, sync, with_stream=False) as server:
        jobs_peers.put_nats_queue(server.port, "jobs")
        yield server, {"jobs": "nats", "topic": "jobs", "confirmed": bool(confirmed)}


@contextlib.contextmanager
def dramatiq_jobs(directory: str, policy: str) -> Iterator[tuple[Served, dict[str, Any]]]:
    with peer_servers.redis(directory, policy) as server:
        yield server, {}


def _row(
    name: str,
    what: str,
    promise: str,
    start: Callable[..., Any],
    argument: Any,
    versus: str,
    connections: int = CONNECTIONS,
) -> Load:
    def started(directory: str) -> Any:
        return start(directory) if argument is None else start(directory, argument)

    case = "http_diff" if connections == READ_CONNECTIONS else "http_append"
    return Load(name, what, promise, started, versus, connections, case)


def _jobs(
    name: str, what: str, promise: str, start: Callable[..., Any], argument: str, versus: str,
    jobs_of_round: int = jobs.JOBS, partner: str = "jobs:take_turns",
) -> Load:  # fmt: skip
    def started(directory: str) -> Any:
        return start(directory, argument)

    return Load(
        name, what, promise, started, versus,
        jobs.WORKER_COUNT, "http_queue", jobs_of_round, partner,
    )  # fmt: skip


DISK, FSYNC, READ = "headrace disk", "headrace fsync", "headrace diff"
JOBS_DISK, JOBS_FSYNC = "headrace jobs disk", "headrace jobs fsync"
_ONE = "append 256 B"
_BATCHED = "jobs, claim 8, ack 8"
_READ = f"read {READ_RECORDS:,} x 256 B"
LOADS = (
    _row(DISK, _ONE, "written, synced within 50 ms", headrace, "disk", DISK),
    _row("redis everysec", _ONE, "in memory, written soon, synced each s", redis, "everysec", DISK),
    _row("nats file", _ONE, "written, synced each 2 min", nats, "default", DISK),
    _row("durable-streams memory", _ONE, "in memory", durable_streams, False, DISK),
    _row(FSYNC, _ONE, "on disk", headrace, "fsync", FSYNC),
    _row("redis always", _ONE, "on disk", redis, "always", FSYNC),
    _row("nats sync always", _ONE, "on disk", nats, "always", FSYNC),
    _row("durable-streams file", _ONE, "on disk", durable_streams, True, FSYNC),
    _row(READ, _READ, "", headrace_read, None, READ, READ_CONNECTIONS),
    _row("redis xread", _READ, "", redis_read, None, READ, READ_CONNECTIONS),
    _jobs(JOBS_DISK, _BATCHED, "written, synced within 50 ms", headrace_jobs, "disk", JOBS_DISK),
    _jobs(
        "redis jobs everysec", _BATCHED, "in memory, written soon, synced each s",
        redis_jobs, "everysec", JOBS_DISK,
    ),
    _jobs(
        "dramatiq on redis everysec", "jobs, one by one", "in memory, written soon, synced each s",
        dramatiq_jobs, "everysec", JOBS_DISK, DRAMATIQ_JOBS, "peers:dramatiq",
    ),
    _jobs(
        "nats jobs file", "jobs, claim 8, ack 1, unanswered", "written, synced each 2 min",
        nats_jobs, "default", JOBS_DISK,
    ),
    _jobs(
        "nats jobs file confirmed", "jobs, claim 8, ack 1", "written, synced each 2 min",
        nats_jobs, "default confirmed", JOBS_DISK,
    ),
    _jobs(JOBS_FSYNC, _BATCHED, "on disk", headrace_jobs, "fsync", JOBS_FSYNC),
    _jobs(
        "headrace jobs fsync leases", _BATCHED, "on disk, claims too",
        headrace_jobs, "fsync leases", JOBS_FSYNC,
    ),
    _jobs("redis jobs always", _BATCHED, "on disk, claims too", redis_jobs, "always", JOBS_FSYNC),
    _jobs(
        "nats jobs sync always", "jobs, claim 8, ack 1", "on disk",
        nats_jobs, "always confirmed", JOBS_FSYNC,
    ),
)  # fmt: skip
CASES = tuple(dict.fromkeys(load.case for load in LOADS))


def run(
    parent: str, quick: bool, say: Callable[[str], None], cases: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """One row for each load; a server that cannot run here has a `missing` that says why."""
    loads = [load for load in LOADS if not cases or load.case in cases]
    missing = peer_servers.install(say)
    rows: list[dict[str, Any]] = [
        {"name": load.name, "what": load.what, "promise": load.promise} for load in loads
    ]
    for row in rows:
        kind = row["name"].partition(" ")[0]
        if kind in missing:
            row["missing"] = missing[kind]
    with contextlib.ExitStack() as stack:
        turns = []
        for load, row in zip(loads, rows, strict=True):
            if "missing" not in row:
                say(f"starting {load.name}")
                try:
                    turns.append((row, stack.enter_context(ready(load, parent, quick))))
                except peer_servers.NotOffered as error:
                    row["missing"] = str(error)
        # In turns, so that whatever else the machine does meets all of them.
        found: list[list[Round]] = [[] for _ in turns]
        for number in range(1 if quick else ROUNDS):
            say(f"round {number + 1}")
            for samples, (_, partner) in zip(found, turns, strict=True):
                samples.append(partner.ask())
        for samples, (row, _) in zip(found, turns, strict=True):
            row |= best(samples)
    add_ratios(loads, rows)
    return rows


def add_ratios(loads: Sequence[Load], rows: list[dict[str, Any]]) -> None:
    by_name = {row["name"]: row for row in rows}
    for load, row in zip(loads, rows, strict=True):
        ours = by_name[load.versus]
        if "rate" in row and "rate" in ours:
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
    try:
        with load.start(directory) as (server, plan):
            if load.jobs:
                server.keep_on(own)
            with Partner(
                load.partner,
                plan=plan,
                port=server.port,
                pids=[server.pid],
                connections=load.connections,
                **how,
            ) as partner:
                yield partner
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def dramatiq(plan: dict[str, Any], **given: Any) -> None:
    """A partner: hands its lines to a Python that has Dramatiq."""
    command = [str(peer_servers.client_python()), str(Path(__file__).with_name(DRAMATIQ))]
    done = subprocess.run([*command, json.dumps(given)], preexec_fn=die_with_parent)
    if done.returncode:
        sys.exit(done.returncode)


def best(rounds: list[Round]) -> dict[str, float]:
    """The best of the rounds, each figure for itself."""
    return {
        "rate": max(column(rounds, "rate")),
        **{name: min(column(rounds, name)) for name in ("cpu", "p50", "p99", "generator_cpu")},
    }


EXPLAINED = (
    f"{CONNECTIONS} connections ({READ_CONNECTIONS} for reads), no pipelining, one generator of our"
    f" own for all;\nbest of {ROUNDS} rounds in turns; the last three columns are ratios to our row"
    " of the same promise.\nRows of jobs: "
    f"{jobs.JOBS:,} jobs of 256 B, {jobs.PRODUCER_COUNT} producers of {jobs.BATCH} at a time,"
    f" {jobs.WORKER_COUNT} workers, the server on\none processor; a rate is in jobs, CPU is of a"
    " job, p50 and p99 are of a claim; Dramatiq has no batches,\nand its own worker is what limits"
    f" it ({DRAMATIQ_JOBS:,} jobs a round)"
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
                f"{row['cpu']:.1f}",
                f"{row['generator_cpu']:.1f}",
                *(f"{row[name] / 1e3:.2f}" if row[name] else "" for name in ("p50", "p99")),
                *(f"{row[name]:.2f} x" if row[name] else "" for name in RATIOS),
            ]
        )
    if markdown:
        lines.insert(1, ["---"] * len(HEADINGS))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    widths = [
        max(len(line[n]) for line in lines if not line[3].startswith("not measured") or n < 3)
        for n in range(len(HEADINGS))
    ]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
