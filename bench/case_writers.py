"""64 writers of class fsync as asyncio tasks, each waiting for its answer, by number of shards."""

from __future__ import annotations

import asyncio
import time

from bench.figures import SHARDS, WRITERS
from bench.measure import (
    NO_CHECKPOINTS,
    SINGLE,
    BareFile,
    Measured,
    open_as_server,
    percentile,
    run_loop,
    step,
)

APPENDS = 1_000  # a writer
WARM_UP = 20
BARE_SYNCS = 400


def run(directory: str, quick: bool) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for shards in SHARDS:
        figures = step(
            "case_writers:measure",
            directory=f"{directory}/{shards}",
            shards=shards,
            appends=10 if quick else APPENDS,
            bare_syncs=20 if quick else BARE_SYNCS,
        )
        found |= {f"writers_64_shards_{shards}_{name}": value for name, value in figures.items()}
    return found


def measure(directory: str, shards: int, appends: int, bare_syncs: int) -> dict[str, float]:
    figures: dict[str, float] = run_loop(with_loop(directory, shards, appends, bare_syncs))
    return figures


async def with_loop(directory: str, shards: int, appends: int, bare_syncs: int) -> dict[str, float]:
    engine = await open_as_server(directory, wal_shards=shards, **NO_CHECKPOINTS)
    bare = BareFile(directory, 2 * bare_syncs)
    names = [f"orders-{n}" for n in range(WRITERS)]
    await asyncio.gather(*(engine.put_topic(name, {"durability": "fsync"}) for name in names))

    async def writer(name: str, count: int, latencies: list[float]) -> None:
        for _ in range(count):
            started = time.perf_counter_ns()
            await engine.append(name, SINGLE)
            latencies.append((time.perf_counter_ns() - started) / 1e3)

    async def all_writers(count: int) -> list[float]:
        latencies: list[float] = []
        await asyncio.gather(*(writer(name, count, latencies) for name in names))
        return latencies

    await all_writers(min(WARM_UP, appends))
    bare_us = [bare.sync_us() for _ in range(bare_syncs)]
    syncs = sum(shard.syncs_total for shard in engine.state.shards)
    starts = time.process_time(), time.perf_counter()
    latencies = await all_writers(appends)
    spent = time.process_time() - starts[0], time.perf_counter() - starts[1]
    syncs = sum(shard.syncs_total for shard in engine.state.shards) - syncs
    bare_us += [bare.sync_us() for _ in range(bare_syncs)]
    bare.close()
    engine.abandon()
    return {
        "acks_per_sync": len(latencies) / syncs,
        "p50": percentile(latencies, 0.5),
        "p99": percentile(latencies, 0.99),
        "cpu": spent[0] / len(latencies) * 1e6,
        "acks": len(latencies) / spent[1],
        "bare_p50": percentile(bare_us, 0.5),
    }
