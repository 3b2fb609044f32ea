"""One writer of class fsync, in turns with a bare `fdatasync` on the same disk."""

from __future__ import annotations

import time

from bench.measure import (
    NO_CHECKPOINTS,
    SINGLE,
    BareFile,
    Measured,
    open_as_server,
    opened,
    percentile,
    run_loop,
)

TURNS = 40
SYNCS = 50  # of each kind in a turn
FSYNC = {"durability": "fsync"}


def run(directory: str, quick: bool) -> dict[str, Measured]:
    turns, syncs = (2, 10) if quick else (TURNS, SYNCS)
    bare = BareFile(directory, turns * syncs * 2)
    bare_us, loop_us = run_loop(with_loop(f"{directory}/loop", bare, turns, syncs))
    blocking_us = []
    with opened(f"{directory}/blocking", **NO_CHECKPOINTS) as engine:
        engine.put_topic("orders", FSYNC).result()
        for _ in range(turns):
            bare_us += [bare.sync_us() for _ in range(syncs)]
            for _ in range(syncs):
                started = time.perf_counter_ns()
                engine.append("orders", SINGLE).result()
                blocking_us.append((time.perf_counter_ns() - started) / 1e3)
    bare.close()
    return {
        "fsync_bare_p50": percentile(bare_us, 0.5),
        "fsync_bare_p99": percentile(bare_us, 0.99),
        "fsync_one_writer_p50": percentile(loop_us, 0.5),
        "fsync_one_writer_p99": percentile(loop_us, 0.99),
        "fsync_blocking_p50": percentile(blocking_us, 0.5),
        "fsync_blocking_p99": percentile(blocking_us, 0.99),
    }


async def with_loop(
    directory: str, bare: BareFile, turns: int, syncs: int
) -> tuple[list[float], list[float]]:
    engine = await open_as_server(directory, **NO_CHECKPOINTS)
    await engine.put_topic("orders", FSYNC)
    bare_us: list[float] = []
    loop_us: list[float] = []
    for _ in range(turns):
        bare_us += [bare.sync_us() for _ in range(syncs)]
        for _ in range(syncs):
            started = time.perf_counter_ns()
            await engine.append("orders", SINGLE)
            loop_us.append((time.perf_counter_ns() - started) / 1e3)
    engine.abandon()
    return bare_us, loop_us
