"""Partners of `--peers` beside the closed loop of `load.py`: bulk, one writer, watchers, Dramatiq.

Each takes one round for each line of its standard input and answers as `load.Window` reports:
rates, and microseconds.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import peer_servers
from bench.case_http_sse import deliveries
from bench.load import Generator, Window, cpu_seconds
from bench.measure import (
    NO_CHECKPOINTS,
    SINGLE,
    BareFile,
    die_with_parent,
    open_as_server,
    run_loop,
)
from bench.plans import wire_of

DRAMATIQ = "peer_dramatiq.py"
# After a round of bulk: what came in is sealed, and the disk has it, before the next one.
PAUSE_ROUNDS = 2.5
BARE_PAGES = 4_096
WATCH_RATE = 200.0  # an append every 5 ms
WATCH_SECONDS = 2.0  # for a round of one second
TIMED_WATCHERS = 50
REST_ROUNDS = 5.0  # how long a server rests in a round, in rounds of others


def bulk(
    plan: dict[str, Any],
    port: int,
    pids: list[int],
    connections: int,
    seconds: float,
    warm_up: float,
) -> None:
    """As `load.take_turns`, with a rest after each round."""
    while sys.stdin.readline():
        generator = Generator([wire_of(plan, port) for _ in range(connections)], pids)
        generator.closed(warm_up)
        report = generator.closed(seconds).report()
        generator.close()
        time.sleep(PAUSE_ROUNDS * seconds)
        print(json.dumps(report), flush=True)


def one_writer(plan: dict[str, Any], seconds: float, warm_up: float, **_: Any) -> None:
    """The engine in this process, or a bare file: one synced write after the other."""
    if plan["writes"] == "bare":
        run_loop(_bare(plan["directory"], seconds, warm_up))
    else:
        run_loop(_engine(plan["directory"], seconds, warm_up))


async def _bare(directory: str, seconds: float, warm_up: float) -> None:
    bare = BareFile(directory, BARE_PAGES)

    async def write() -> float:
        return bare.sync_us() / 1e6

    await _in_turns(write, seconds, warm_up)
    bare.close()


async def _engine(directory: str, seconds: float, warm_up: float) -> None:
    engine = await open_as_server(f"{directory}/engine", **NO_CHECKPOINTS)
    await engine.put_topic("orders", {"durability": "fsync"})

    async def write() -> float:
        started = time.perf_counter()
        await engine.append("orders", SINGLE)
        return time.perf_counter() - started

    await _in_turns(write, seconds, warm_up)
    engine.abandon()


async def _in_turns(write: Callable[[], Awaitable[float]], seconds: float, warm_up: float) -> None:
    # Read by a thread: an engine whose loop stands still for seconds takes that for overload.
    while await asyncio.to_thread(sys.stdin.readline):
        await _writes(write, warm_up)
        window = await _writes(write, seconds)
        print(json.dumps(window.report()), flush=True)


async def _writes(write: Callable[[], Awaitable[float]], seconds: float) -> Window:
    latencies = array("d")
    cpu, started = time.process_time(), time.perf_counter()
    while time.perf_counter() - started < seconds or not latencies:
        latencies.append(await write())
    took = time.perf_counter() - started
    return Window(len(latencies), took, time.process_time() - cpu, 0.0, latencies)


def watchers(
    plan: dict[str, Any],
    port: int,
    pids: list[int],
    connections: int,
    seconds: float,
    warm_up: float,
) -> None:
    """As many watchers as connections, over SSE, and one writer with an append every 5 ms."""
    appends = int(WATCH_RATE * WATCH_SECONDS * seconds)
    while sys.stdin.readline():
        found = deliveries(
            port, pids[0], connections, plan["watch"], WATCH_RATE, appends, TIMED_WATCHERS
        )
        report = {
            "rate": found["writer_rate"] * connections,
            "cpu": found["cpu"],
            "p50": found["p50"] * 1e3,
            "p99": found["p99"] * 1e3,
            "generator_cpu": 0.0,
        }
        print(json.dumps(report), flush=True)


def at_rest(port: int, pids: list[int], seconds: float, **_: Any) -> None:
    """Nobody asks for anything; what is resident meanwhile."""
    while sys.stdin.readline():
        cpu, started = cpu_seconds(pids), time.monotonic()
        time.sleep(REST_ROUNDS * seconds)
        used = (cpu_seconds(pids) - cpu) / (time.monotonic() - started)
        report = {"rate": 0.0, "p50": 0.0, "p99": 0.0, "generator_cpu": 0.0}
        report |= {"cpu": used * 1e6, "resident": sum(map(resident_mb, pids))}
        print(json.dumps(report), flush=True)


def resident_mb(pid: int) -> float:
    """As the kernel counts it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(pid)


def dramatiq(plan: dict[str, Any], **given: Any) -> None:
    """Hands its lines to a Python that has Dramatiq."""
    command = [str(peer_servers.client_python()), str(Path(__file__).with_name(DRAMATIQ))]
    done = subprocess.run([*command, json.dumps(given)], preexec_fn=die_with_parent)
    if done.returncode:
        sys.exit(done.returncode)
