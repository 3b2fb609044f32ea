"""Why log files are zeroed ahead, and in which chunks: the disk alone, without the engine."""

from __future__ import annotations

import os
import time

from bench.measure import PAGE_BYTES, Measured, percentile

SYNCS = 500
WRITES = 2_000
ROUNDS = 15
FILE_BYTES = 16 << 20
SMALL = [b"h" * 56, b"x" * 224]  # a batch with one record of 150 bytes
CHUNKS = {"64k": 64 << 10, "256k": 256 << 10, "1m": 1 << 20}


def run(directory: str, quick: bool) -> dict[str, Measured]:
    syncs = 20 if quick else SYNCS
    found: dict[str, Measured] = {}
    for kind in ("growing", "allocated", "zeroed"):
        latencies = sync_latencies(f"{directory}/{kind}", kind, syncs)
        found[f"wal_file_{kind}_p50"] = percentile(latencies, 0.5)
        found[f"wal_file_{kind}_p99"] = percentile(latencies, 0.99)
    for name, chunk in CHUNKS.items():
        rounds = 2 if quick else ROUNDS
        found[f"wal_write_chunk_{name}"] = write_costs(f"{directory}/{name}", chunk, rounds)
    return found


def sync_latencies(path: str, kind: str, syncs: int) -> list[float]:
    """Microseconds of an `fdatasync` after a small write on a page of its own."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    size = syncs * PAGE_BYTES
    if kind == "allocated":
        os.posix_fallocate(fd, 0, size)
    elif kind == "zeroed":
        zero(fd, size, CHUNKS["256k"])
    os.fsync(fd)
    latencies = []
    for n in range(syncs):
        os.pwritev(fd, SMALL, n * PAGE_BYTES)
        started = time.perf_counter_ns()
        os.fdatasync(fd)
        latencies.append((time.perf_counter_ns() - started) / 1e3)
    os.close(fd)
    return latencies


def write_costs(path: str, chunk: int, rounds: int) -> list[float]:
    """Microseconds of CPU of a small write into a file zeroed in chunks of this size."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    zero(fd, FILE_BYTES, chunk)
    os.fsync(fd)
    length = sum(map(len, SMALL))
    costs = []
    for n in range(rounds):
        start = n * WRITES * length % (FILE_BYTES - WRITES * length)
        started = time.thread_time()
        for at in range(start, start + WRITES * length, length):
            os.pwritev(fd, SMALL, at)
        costs.append((time.thread_time() - started) / WRITES * 1e6)
    os.close(fd)
    return costs


def zero(fd: int, size: int, chunk: int) -> None:
    zeros = bytes(chunk)
    for at in range(0, size, chunk):
        os.pwrite(fd, zeros, at)
