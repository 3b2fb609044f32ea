"""How long the loop is held at most while checkpoints, merges and snapshots run beside a load.

A ticker asks to be called every millisecond and notes how late it is.  That counts everything:
our own work on the loop, waiting for the interpreter lock or the disk, and the machine doing
something else.  `own` leaves out the time in which the loop thread was ready to run and other
threads had the cores, which the kernel counts; the same ticker without an engine shows the rest of
what is the machine's.

For the longest gap of each step, standard error says who held the interpreter.  A thread that holds
it gives it up where Python next looks for others, which is right after the call that took so long,
and there it still stands when the late tick comes at last.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from bench.measure import BATCH, SINGLE, Measured, open_as_server, run_loop, step
from headrace.engine.engine import Engine

SCHEDSTAT = Path("/proc/thread-self/schedstat")
TICK_SECONDS = 0.001
TOPICS = 50_000
CHECKPOINTS = 10  # so that eight files of a level meet, and merges run
LATE_SECONDS = 0.008  # a gap of the loop that is worth a look at who caused it
LOOK_SECONDS = 0.004  # how often the watcher looks where the loop is
FRAMES_SHOWN = 3
WAITING = "thread_runtime.py"  # where a lane is that has nothing to do
GAPS_SHOWN = 6


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
        self._watcher = Watcher(threading.get_ident())
        self._last = self._now()
        self._handle = self._loop.call_later(TICK_SECONDS, self._tick)

    def _now(self) -> tuple[float, float, float]:
        """Wall clock, CPU of this thread, and how long it was ready while others had the cores."""
        waited_ns = int(SCHEDSTAT.read_text().split()[1])
        return time.perf_counter(), time.thread_time(), waited_ns / 1e9

    def _tick(self) -> None:
        self._look_around()
        now = self._now()
        self._look_around()  # reading a file gave the interpreter up, too
        wall, cpu, waited = (b - a for a, b in zip(self._last, now, strict=True))
        gap, own = wall - TICK_SECONDS, wall - TICK_SECONDS - waited
        self.gap = max(self.gap, gap)
        self.own = max(self.own, own)
        self.cpu = max(self.cpu, cpu)
        if gap > LATE_SECONDS:
            self._watcher.keep(gap, own, cpu, self._last[0])
        self._last = now
        self._handle = self._loop.call_later(TICK_SECONDS, self._tick)

    def _look_around(self) -> None:
        """If the tick is late: see at once where others are, before they go on."""
        if time.perf_counter() - self._last[0] > LATE_SECONDS + TICK_SECONDS:
            self._watcher.note_others()

    def stop(self, step: str = "") -> dict[str, float]:
        self._handle.cancel()
        self._watcher.stop(step)
        return {"gap": self.gap * 1e3, "own": self.own * 1e3, "cpu": self.cpu * 1e3}


class Watcher:
    """Tells where the threads were while the loop did not turn."""

    def __init__(self, loop_thread: int) -> None:
        self._loop_thread = loop_thread
        self._looks: list[tuple[float, str]] = []  # when, and where the loop was
        self._others: dict[str, str] = {}
        self._gaps: list[tuple[float, str]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        """Look where the loop is; a look waits for the interpreter like any other thread."""
        while not self._over.wait(LOOK_SECONDS):
            frame = sys._current_frames()[self._loop_thread]
            self._looks.append((time.perf_counter(), place(frame)))
            del self._looks[:-256]

    def note_others(self) -> None:
        """On the loop, late: where the other threads have given up the interpreter."""
        if self._others:
            return
        frames = sys._current_frames()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        places = {names.get(thread, "?"): place(frame) for thread, frame in frames.items()}
        self._others = {
            name: where
            for name, where in places.items()
            if name not in (threading.current_thread().name, self._thread.name)
            and not where.startswith(WAITING)
        }

    def keep(self, gap: float, own: float, cpu: float, since: float) -> None:
        """Remember a gap that began at `since`, if it is among the longest."""
        within = [where for when, where in self._looks if when > since]
        text = f"{gap * 1e3:.0f} ms ({own * 1e3:.0f} own, {cpu * 1e3:.0f} CPU of the loop)"
        if within:
            text += f"\n    loop: {max(set(within), key=within.count)}"
        for name, where in self._others.items():
            text += f"\n    {name}: {where}"
        self._others = {}
        self._gaps = sorted([*self._gaps, (own, text)], reverse=True)[:GAPS_SHOWN]

    def stop(self, step: str) -> None:
        self._over.set()
        self._thread.join()
        for _, text in self._gaps:
            print(f"  {step}: {text}", file=sys.stderr, flush=True)


def place(frame: FrameType | None) -> str:
    """Where a thread is: its innermost frames."""
    found: list[str] = []
    while frame is not None and len(found) < FRAMES_SHOWN:
        name = Path(frame.f_code.co_filename).name
        found.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(found)


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
        return finish(engine, ticker, "one topic")

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
        return finish(engine, ticker, "many topics")

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


def finish(engine: Engine, ticker: Ticker, step_name: str) -> dict[str, float]:
    found = ticker.stop(step_name)
    assert engine.checkpointer.failures_total == 0, engine.checkpointer.last_error
    found["slice"] = engine.checkpointer.stall_ns_max / 1e6
    engine.abandon()
    return found
