"""How long the loop is held at most while checkpoints, merges and snapshots run beside a load.

A ticker asks to be called every millisecond and notes how late it is.  That counts everything:
our own work on the loop, waiting for the interpreter lock or the disk, and the machine doing
something else.  `own` leaves out the time in which the loop thread was ready to run and other
threads had the cores, which the kernel counts; the same ticker without an engine shows the rest of
what is the machine's.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.measure import BATCH, SINGLE, Measured, open_as_server, run_loop, step
from headrace.engine.engine import Engine

SCHEDSTAT = Path("/proc/thread-self/schedstat")
TICK_SECONDS = 0.001
TOPICS = 50_000
CHECKPOINTS = 10  # so that eight files of a level meet, and merges run


def run(directory: str, quick: bool) -> dict[str, Measured]:
    seconds = 0.3 if quick else 5.0
    checkpoints = 2 if quick else CHECKPOINTS
    topics = 500 if quick else TOPICS
    one = step("case_stall:one_topic", directory=f"{directory}/one", seconds=seconds)
    many = step(
        "case_stall:many_topics",
        directory=f"{directory}/many",
        topics=topics,
        checkpoints=checkpoints,
    )
    idle = step("case_stall:idle", seconds=seconds)
    return {
        "stall_one_topic": one["gap"],
        "stall_one_topic_own": one["own"],
        "stall_many_topics": many["gap"],
        "stall_many_topics_own": many["own"],
        "stall_many_topics_cpu": many["cpu"],
        "stall_slice": max(one["slice"], many["slice"]),
        "stall_idle": idle["gap"],
    }


class Ticker:
    """The longest time between two turns of the loop, in full and by what it was spent on."""

    def __init__(self) -> None:
        self.gap = self.own = self.cpu = 0.0
        self._loop = asyncio.get_running_loop()
        self._last = self._now()
        self._handle = self._loop.call_later(TICK_SECONDS, self._tick)

    def _now(self) -> tuple[float, float, float]:
        """Wall clock, CPU of this thread, and how long it was ready while others had the cores."""
        waited_ns = int(SCHEDSTAT.read_text().split()[1])
        return time.perf_counter(), time.thread_time(), waited_ns / 1e9

    def _tick(self) -> None:
        now = self._now()
        wall, cpu, waited = (b - a for a, b in zip(self._last, now, strict=True))
        self.gap = max(self.gap, wall - TICK_SECONDS)
        self.own = max(self.own, wall - TICK_SECONDS - waited)
        self.cpu = max(self.cpu, cpu)
        self._last = now
        self._handle = self._loop.call_later(TICK_SECONDS, self._tick)

    def stop(self) -> dict[str, float]:
        self._handle.cancel()
        return {"gap": self.gap * 1e3, "own": self.own * 1e3, "cpu": self.cpu * 1e3}


def idle(seconds: float) -> dict[str, float]:
    async def main() -> dict[str, float]:
        ticker = Ticker()
        await asyncio.sleep(seconds)
        return ticker.stop()

    found: dict[str, float] = run_loop(main())
    return found


def one_topic(directory: str, seconds: float) -> dict[str, float]:
    """Batches into one topic as fast as they are acknowledged; checkpoints come by themselves."""

    async def main() -> dict[str, float]:
        engine = await open_as_server(directory)
        await engine.append("orders", BATCH)
        ticker = Ticker()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await engine.append("orders", BATCH)
        return finish(engine, ticker)

    found: dict[str, float] = run_loop(main())
    return found


def many_topics(directory: str, topics: int, checkpoints: int) -> dict[str, float]:
    """A record into each of very many topics, then a checkpoint; a small load all the time."""

    async def main() -> dict[str, float]:
        engine = await open_as_server(directory)
        names = [f"orders-{n:06d}" for n in range(topics)]
        await write_all(engine, names)
        ticker = Ticker()
        for _ in range(checkpoints):
            writing = asyncio.ensure_future(keep_writing(engine, names))
            await engine.checkpoint()
            writing.cancel()
            await write_all(engine, names)
        return finish(engine, ticker)

    found: dict[str, float] = run_loop(main())
    return found


async def write_all(engine: Engine, names: list[str]) -> None:
    for first in range(0, len(names), 64):
        tickets = [engine.append(name, SINGLE) for name in names[first : first + 64]]
        await tickets[-1]


async def keep_writing(engine: Engine, names: list[str]) -> None:
    while True:
        for first in range(0, len(names), 16):
            await write_all(engine, names[first : first + 16])
            await asyncio.sleep(TICK_SECONDS)


def finish(engine: Engine, ticker: Ticker) -> dict[str, float]:
    found = ticker.stop()
    assert engine.checkpointer.failures_total == 0, engine.checkpointer.last_error
    found["slice"] = engine.checkpointer.stall_ns_max / 1e6
    engine.abandon()
    return found
