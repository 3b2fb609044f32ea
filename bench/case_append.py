"""Batched appends, class disk, as a program that waits for each batch; checkpoints run as usual."""

from __future__ import annotations

import time

from bench.measure import BATCH, BATCH_RECORDS, Measured, opened

ROUNDS = 5
# About two checkpoints at the default of one each 64 MiB of log.
BATCHES = 8_800
WARM_UP = 200


def run(directory: str, quick: bool) -> dict[str, Measured]:
    batches = 50 if quick else BATCHES
    cpu, loop_cpu, wall = [], [], []
    with opened(directory) as engine:
        for _ in range(WARM_UP):
            engine.append("orders", BATCH).result()
        for _ in range(1 if quick else ROUNDS):
            records = batches * BATCH_RECORDS
            starts = time.process_time(), time.thread_time(), time.perf_counter()
            for _ in range(batches):
                engine.append("orders", BATCH).result()
            cpu.append((time.process_time() - starts[0]) / records * 1e6)
            loop_cpu.append((time.thread_time() - starts[1]) / records * 1e6)
            wall.append(records / (time.perf_counter() - starts[2]))
    return {
        "append_batched": [1e6 / cost for cost in cpu],
        "append_batched_cpu": cpu,
        "append_batched_loop_cpu": loop_cpu,
        "append_batched_wall": wall,
    }
