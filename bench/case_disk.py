"""Bytes that reach the disk for each byte of payload: log, zeroed files, segments, merges."""

from __future__ import annotations

import os
from collections.abc import Callable

from bench.measure import BATCH, PAYLOAD_BYTES, SINGLE, Measured, opened, step, written_bytes
from headrace.engine.engine import Engine

BATCHES = 30_000
SINGLES = 600_000
SYNCED = 320_000


def run(directory: str, quick: bool) -> dict[str, Measured]:
    scale = 100 if quick else 1
    steps = {
        "batched": ("case_disk:batched", BATCHES // scale),
        "single": ("case_disk:single", SINGLES // scale),
        "fsync": ("case_disk:synced", SYNCED // scale),
    }
    found = {
        name: step(function, directory=f"{directory}/{name}", appends=appends)
        for name, (function, appends) in steps.items()
    }
    return {
        "disk_batched": found["batched"]["all"],
        "disk_batched_log": found["batched"]["log"],
        "disk_batched_segments": found["batched"]["segments"],
        "disk_batched_rest": found["batched"]["rest"],
        "disk_single": found["single"]["all"],
        "disk_fsync": found["fsync"]["all"],
    }


def batched(directory: str, appends: int) -> dict[str, float]:
    def write(engine: Engine) -> None:
        for _ in range(appends):
            engine.append("orders", BATCH).result()

    return measure(directory, appends * len(BATCH.data), write)


def single(directory: str, appends: int, durability: str = "disk") -> dict[str, float]:
    def write(engine: Engine) -> None:
        engine.put_topic("orders", {"durability": durability}).result()
        for _ in range(appends // 32):
            tickets = [engine.append("orders", SINGLE) for _ in range(32)]
            tickets[-1].result()

    return measure(directory, appends // 32 * 32, write)


def synced(directory: str, appends: int) -> dict[str, float]:
    return single(directory, appends, "fsync")


def measure(directory: str, records: int, write: Callable[[Engine], None]) -> dict[str, float]:
    """From an open engine to everything sealed and synced, in bytes per payload byte."""
    payload = records * PAYLOAD_BYTES
    with opened(directory) as engine:
        engine.runtime.drain()  # the first log files are there
        before = written_bytes()
        write(engine)
        engine.checkpoint().result()
        engine.runtime.drain()
        os.sync()
        everything = (written_bytes() - before) / payload
        log = sum(shard.bytes_total for shard in engine.state.shards) / payload
        segments = engine.checkpointer.files.bytes_total / payload
    rest = max(everything - log - segments, 0.0)
    return {"all": everything, "log": log, "segments": segments, "rest": rest}
