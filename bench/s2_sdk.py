"""Partners of `--peers s2`: the Python SDK of S2 and the command `s2` as load generators.

Each takes one round for each line of its standard input and answers as `load.Window` reports: a
rate, and microseconds of CPU of the server and of the client for what is counted, a MiB or an
append.  The SDK is that of the tests (requirements/s2_sdk.txt).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import resource
import subprocess
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from bench.load import Window, cpu_seconds
from bench.measure import die_with_parent
from bench.wires import HOST

MIB = 1 << 20
BASIN = "bench-basin"
BATCH_RECORDS = 100
RECORD_BYTES = 1_024
SERIAL_BYTES = 128
WRITERS = 64

Work = Callable[[], Awaitable[float]]  # does a round; returns how much of what is counted


class Site(NamedTuple):
    """A server as the SDK sees it, and how long each append of the round took."""

    sdk: Any
    basin: Any
    latencies: array[float]  # seconds


def drive(plan: dict[str, Any], port: int, pids: list[int], **_: object) -> None:
    """A partner: the SDK does `plan["work"]`, `plan["count"]` times a round."""
    asyncio.run(_drive(plan, port, pids))


async def _drive(plan: dict[str, Any], port: int, pids: list[int]) -> None:
    # Only here: the rows that do not need it are measured without it.
    from tests.support.s2_sdk import load_sdk

    sdk = load_sdk()
    url = f"http://{HOST}:{port}"
    async with sdk.S2("any", endpoints=sdk.Endpoints(url, url)) as client:
        config = sdk.BasinConfig(create_stream_on_append=True)
        await client.create_basin(BASIN, config=config)
        site = Site(sdk, client.basin(BASIN), array("d"))
        work: Work = await WORKS[plan["work"]](site, plan)
        # Read by a thread, so that the client answers the server's pings meanwhile.
        while await asyncio.to_thread(sys.stdin.readline):
            del site.latencies[:]
            server, own, began = cpu_seconds(pids), time.process_time(), time.monotonic()
            done = await work()
            seconds = time.monotonic() - began
            server, own = cpu_seconds(pids) - server, time.process_time() - own
            window = Window(1, seconds, server, own, site.latencies)
            print(json.dumps(per_unit(window, done)), flush=True)


def per_unit(window: Window, done: float) -> dict[str, float]:
    """The report of a round in which `done` of what is counted were done."""
    report = window.report()
    costs = {name: report[name] / done for name in ("cpu", "generator_cpu")}
    return {**report, "rate": done / window.seconds, **costs}


# What the SDK does


async def append_session(site: Site, plan: dict[str, Any]) -> Work:
    """Batches of 100 records of 1 KiB in one session, to a new stream each round; in MiB."""
    rounds = iter(range(1 << 30))

    async def work() -> float:
        stream = site.basin.stream(f"session-{next(rounds)}")
        return await _fill(site, stream, plan["count"])

    return work


async def _fill(site: Site, stream: Any, batches: int) -> float:
    """Append so many batches, and return how many MiB they are."""
    chance = random.Random(1)
    bodies = [chance.randbytes(RECORD_BYTES) for _ in range(BATCH_RECORDS)]
    given = site.sdk.AppendInput([site.sdk.Record(body) for body in bodies])
    async with stream.append_session() as session:
        tickets = [await session.submit(given) for _ in range(batches)]
        for ticket in tickets:
            await ticket
    return batches * BATCH_RECORDS * RECORD_BYTES / MIB


async def read_session(site: Site, plan: dict[str, Any]) -> Work:
    """A session that reads a whole stream; in MiB."""
    stream = site.basin.stream("read")
    size = await _fill(site, stream, plan["count"])

    async def work() -> float:
        found = 0
        async for batch in stream.read_session(start=site.sdk.SeqNum(0), wait=0):
            found += len(batch.records)
        assert found == plan["count"] * BATCH_RECORDS, found
        return size

    return work


async def serial_appends(site: Site, plan: dict[str, Any]) -> Work:
    """One append after the other to one stream."""
    stream = site.basin.stream("serial")
    given = site.sdk.AppendInput([site.sdk.Record(b"x" * plan["size"])])
    await stream.append(given)  # creates it

    async def work() -> float:
        for _ in range(plan["count"]):
            began = time.monotonic()
            await stream.append(given)
            site.latencies.append(time.monotonic() - began)
        return float(plan["count"])

    return work


async def round_robin(site: Site, plan: dict[str, Any]) -> Work:
    """Appends by 64 writers, each to the next of so many streams."""
    streams = [site.basin.stream(f"many-{number}") for number in range(plan["streams"])]
    given = site.sdk.AppendInput([site.sdk.Record(b"x" * SERIAL_BYTES)])

    async def appended(count: int) -> float:
        places = iter(range(count))

        async def writer() -> None:
            for place in places:
                await streams[place % len(streams)].append(given)

        await asyncio.gather(*(writer() for _ in range(WRITERS)))
        return float(count)

    await appended(len(streams))  # creates them

    async def work() -> float:
        return await appended(plan["count"])

    return work


WORKS: dict[str, Callable[[Site, dict[str, Any]], Awaitable[Work]]] = {
    "append_session": append_session,
    "read_session": read_session,
    "serial_appends": serial_appends,
    "round_robin": round_robin,
}

# The command

TOLD = re.compile(r"(Write|Read|Catchup): ([0-9.]+) MiB/s.*?\((\d+) bytes")
COMMAND_SECONDS_MAX = 120


def command_bench(plan: dict[str, Any], port: int, pids: list[int], **_: object) -> None:
    """A partner: `s2 bench`, as fast as it can; MiB/s written, read meanwhile, and caught up."""
    url = f"http://{HOST}:{port}"
    names = ("S2_ACCOUNT_ENDPOINT", "S2_BASIN_ENDPOINT")
    variables = {**os.environ, **dict.fromkeys(names, url), "S2_ACCESS_TOKEN": "any"}
    variables |= {"NO_COLOR": "1", "HOME": plan["home"]}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [plan["program"], *arguments],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            preexec_fn=die_with_parent,
        )
        if done.returncode:
            raise RuntimeError(done.stdout[-2_000:])
        return done.stdout

    run("create-basin", BASIN)
    asked = ("-t", str(plan["target"]), "-d", f"{plan['seconds']}s", "-w", "0s")
    while sys.stdin.readline():
        server, own = cpu_seconds(pids), children_cpu()
        told = rates_told(run("bench", BASIN, *asked))
        server, own = cpu_seconds(pids) - server, children_cpu() - own
        mib = told.pop("mib")
        report = {"p50": 0.0, "p99": 0.0, "cpu": server / mib * 1e6} | told
        print(json.dumps({**report, "generator_cpu": own / mib * 1e6}), flush=True)


def children_cpu() -> float:
    """CPU seconds of all programs that were run and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rates_told(text: str) -> dict[str, float]:
    """What `s2 bench` says at its end: MiB/s, and how many MiB were written."""
    found = {what: (float(rate), int(size) / MIB) for what, rate, size in TOLD.findall(text)}
    return {
        "rate": found["Write"][0],
        "live": found["Read"][0],
        "catch_up": found["Catchup"][0],
        "mib": found["Write"][1],
    }
