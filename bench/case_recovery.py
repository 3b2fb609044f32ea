"""Replay of a log of 100-record batches after kill -9: how fast, and in how much memory."""

from __future__ import annotations

import time

from bench.measure import (
    BATCH,
    BATCH_RECORDS,
    NO_CHECKPOINTS,
    Measured,
    die,
    drop_page_cache,
    opened,
    peak_mb,
    reset_peak,
    resident_mb,
    settings_of,
    step,
)
from headrace.engine.engine import Engine

# All within the replay memory, and, with less of it, logs that are sealed on the way.
WHOLE = 2_000_000
WHOLE_REPLAY_BYTES = 1 << 29
LONG = 1_600_000
LONGER = 4 * LONG
REPLAY_BYTES = 64 << 20


def run(directory: str, quick: bool) -> dict[str, Measured]:
    scale = 50 if quick else 1
    found = {}
    cases = (
        ("whole", WHOLE, WHOLE_REPLAY_BYTES),
        ("long", LONG, REPLAY_BYTES),
        ("longer", LONGER, REPLAY_BYTES),
    )
    for name, records, replay_bytes in cases:
        place = f"{directory}/{name}"
        step("case_recovery:fill_and_die", directory=place, records=records // scale)
        found[name] = step(
            "case_recovery:replay",
            directory=place,
            records=records // scale,
            replay_bytes=max(1 << 20, replay_bytes // scale),
        )
    return {
        "recovery": found["whole"]["rate"],
        "recovery_cpu": found["whole"]["cpu_rate"],
        "recovery_sealing": found["long"]["rate"],
        "recovery_memory": found["long"]["memory"],
        "recovery_memory_ratio": found["longer"]["memory"] / found["long"]["memory"],
    }


def fill_and_die(directory: str, records: int) -> None:
    engine = Engine.open(directory, settings_of(directory, **NO_CHECKPOINTS))
    for _ in range(records // BATCH_RECORDS):
        engine.append("orders", BATCH).result()
    die()


def replay(directory: str, records: int, replay_bytes: int) -> dict[str, float]:
    drop_page_cache(directory)
    before = resident_mb()
    reset_peak()
    starts = time.perf_counter(), time.process_time()
    with opened(directory, replay_memory_bytes=replay_bytes) as engine:
        wall, cpu = time.perf_counter() - starts[0], time.process_time() - starts[1]
        memory = peak_mb() - before
        assert engine.topic("orders").count == records
    return {"rate": records / wall, "cpu_rate": records / cpu, "memory": max(memory, 0.1)}
