"""`./run bench --peers`: other servers and ours, in turns in the same run, one table.

Every row is the same load, sent by the same generator: 64 connections that each wait for an answer
before they send again.  All servers are up at once, and each has one round after the other.  What
each promises before it answers differs, and stands in its row; ratios are to the row of ours that
promises the same.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bench import peer_servers
from bench.measure import Partner
from bench.served import Round, Served, column, serving

CONNECTIONS = 64
ROUNDS = 8
SECONDS = 1.0
WARM_UP = 0.2
READ_CONNECTIONS = 8
READ_RECORDS = 1_000


class Load(NamedTuple):
    """One row: a server, what is sent, and the row of ours it is compared with."""

    name: str
    what: str
    promise: str  # when the answer comes
    start: Callable[[str], contextlib.AbstractContextManager[tuple[Served, dict[str, Any]]]]
    versus: str
    connections: int = CONNECTIONS


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

    return Load(name, what, promise, started, versus, connections)


DISK, FSYNC, READ = "headrace disk", "headrace fsync", "headrace diff"
_ONE = "append 256 B"
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
)


def run(parent: str, quick: bool, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row for each load; a server that cannot run here has a `missing` that says why."""
    missing = peer_servers.install(say)
    rows: list[dict[str, Any]] = [
        {"name": load.name, "what": load.what, "promise": load.promise} for load in LOADS
    ]
    for row in rows:
        kind = row["name"].partition(" ")[0]
        if kind in missing:
            row["missing"] = missing[kind]
    with contextlib.ExitStack() as stack:
        turns = []
        for load, row in zip(LOADS, rows, strict=True):
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
    add_ratios(rows)
    return rows


def add_ratios(rows: list[dict[str, Any]]) -> None:
    by_name = {row["name"]: row for row in rows}
    for load, row in zip(LOADS, rows, strict=True):
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
    try:
        with (
            load.start(directory) as (server, plan),
            Partner(
                "load:take_turns",
                plan=plan,
                port=server.port,
                pids=[server.pid],
                connections=load.connections,
                seconds=0.2 if quick else SECONDS,
                warm_up=0.1 if quick else WARM_UP,
            ) as partner,
        ):
            yield partner
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def best(rounds: list[Round]) -> dict[str, float]:
    """The best of the rounds, each figure for itself."""
    return {
        "rate": max(column(rounds, "rate")),
        **{name: min(column(rounds, name)) for name in ("cpu", "p50", "p99", "generator_cpu")},
    }


EXPLAINED = (
    f"{CONNECTIONS} connections ({READ_CONNECTIONS} for reads), no pipelining, one generator of our"
    f" own for all;\nbest of {ROUNDS} rounds in turns; the last three columns are ratios to our row"
    " of the same promise"
)
HEADINGS = ("server", "load", "answers when", "requests/s", "CPU µs", "p50 ms", "p99 ms",
            "rate", "CPU", "p99")  # fmt: skip


def table(rows: list[dict[str, Any]], markdown: bool) -> str:
    """Ratios are to our own row of the same promise: rate above 1 is faster than ours."""
    lines = [list(HEADINGS)]
    for row in rows:
        first = [row["name"], row["what"], row["promise"]]
        if "rate" not in row:
            lines.append([*first, f"not measured: {row['missing']}", *[""] * 6])
            continue
        lines.append(
            [
                *first,
                f"{row['rate']:,.0f}",
                f"{row['cpu']:.1f}",
                f"{row['p50'] / 1e3:.2f}",
                f"{row['p99'] / 1e3:.2f}",
                *(f"{row[ratio]:.2f} x" for ratio in ("rate_ratio", "cpu_ratio", "p99_ratio")),
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
