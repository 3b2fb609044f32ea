"""Appends of one record, class disk: several in a turn, one in a turn, from asyncio tasks."""

from __future__ import annotations

import asyncio
import time

from bench.measure import (
    NO_CHECKPOINTS,
    SINGLE,
    Measured,
    cpu_rounds,
    open_as_server,
    opened,
    run_loop,
)

ROUNDS = 20
APPENDS = 6_400
TASKS = 64


def run(directory: str, quick: bool) -> dict[str, Measured]:
    rounds, appends = (1, 320) if quick else (ROUNDS, APPENDS)
    with opened(f"{directory}/blocking", **NO_CHECKPOINTS) as engine:
        engine.append("orders", SINGLE).result()

        def turns_of(size: int) -> None:
            append = engine.append
            for _ in range(appends // size):
                tickets = [append("orders", SINGLE) for _ in range(size)]
                tickets[-1].result()

        together = cpu_rounds(rounds, appends, lambda: turns_of(32))
        alone = cpu_rounds(rounds, appends, lambda: turns_of(1))
    return {
        "append_single_32": together,
        "append_single_1": alone,
        "append_single_loop": run_loop(from_tasks(f"{directory}/loop", rounds, appends)),
    }


async def from_tasks(directory: str, rounds: int, appends: int) -> list[float]:
    engine = await open_as_server(directory, **NO_CHECKPOINTS)
    await engine.append("orders", SINGLE)

    async def writer() -> None:
        for _ in range(appends // TASKS):
            await engine.append("orders", SINGLE)

    costs = []
    for _ in range(rounds):
        started = time.process_time()
        await asyncio.gather(*(writer() for _ in range(TASKS)))
        costs.append((time.process_time() - started) / appends * 1e6)
    engine.abandon()
    return costs
