"""Reads of 1,000 records from each place they can be: memory, a hot segment, the cold tier."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.measure import (
    BATCH,
    BATCH_RECORDS,
    NO_CHECKPOINTS,
    SINGLE,
    Measured,
    cpu_rounds,
    drop_page_cache,
    opened,
    rates,
)
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page

ROUNDS = 10
PAGES = 50
PAGE_RECORDS = 1_000
RECORDS = 100_000
BYTES_MAX = 8 << 20


def run(directory: str, quick: bool) -> dict[str, Measured]:
    size = Size(quick)
    return {
        **from_memory(f"{directory}/memory", size),
        **from_hot(f"{directory}/hot", size),
        **from_cold(f"{directory}/cold", size),
    }


class Size:
    def __init__(self, quick: bool) -> None:
        self.rounds = 1 if quick else ROUNDS
        self.records = 5_000 if quick else RECORDS
        self.pages = 5 if quick else PAGES
        self.uncached = 3 if quick else 40

    def starts(self, count: int) -> list[int]:
        """Cursors all over the topic, each with a whole page after it."""
        span = self.records - PAGE_RECORDS
        return [n * 7_919 * PAGE_RECORDS % span for n in range(count)]


def fill(engine: Engine, records: int) -> None:
    for _ in range(records // BATCH_RECORDS):
        engine.append("orders", BATCH).result()


def page(engine: Engine, start: int, name: str = "orders") -> Page:
    found = engine.read(name, start, limit=PAGE_RECORDS, bytes_max=BYTES_MAX).result()
    assert found.count == PAGE_RECORDS, found.count
    return found


def rate(
    engine: Engine, size: Size, use: Callable[[Page], object], name: str = "orders"
) -> Measured:
    """Records per CPU second, once everything is where it will be."""
    starts = size.starts(size.pages)

    def read_all() -> None:
        for start in starts:
            use(page(engine, start, name))

    read_all()
    return rates(cpu_rounds(size.rounds, size.pages * PAGE_RECORDS, read_all))


def from_memory(directory: str, size: Size) -> dict[str, Measured]:
    with opened(directory, **NO_CHECKPOINTS) as engine:
        fill(engine, size.records)
        for _ in range(size.records // 50):
            tickets = [engine.append("singles", SINGLE) for _ in range(50)]
            tickets[-1].result()
        return {
            "read_memory": rate(engine, size, lambda found: found.rows),
            "read_memory_records": rate(engine, size, lambda found: found.records),
            "read_memory_single": rate(engine, size, lambda found: found.rows, "singles"),
        }


def seal(directory: str, size: Size, **settings: object) -> None:
    """Leave a directory in which every record is in files only."""
    with opened(directory, **settings) as engine:
        fill(engine, size.records)
        engine.checkpoint().result()
        engine.checkpoint().result()
        engine.close()


def from_hot(directory: str, size: Size) -> dict[str, Measured]:
    seal(directory, size)
    found: dict[str, Measured] = {}
    with opened(directory) as engine:
        assert not engine.state.totals.resident_bytes
        found["read_hot_cached"] = rate(engine, size, lambda found: found.rows)
        found["read_hot_cached_records"] = rate(engine, size, lambda found: found.records)
    wall, cpu = uncached(directory, directory, size)
    found["read_hot_uncached"] = PAGE_RECORDS / wall
    found["read_hot_uncached_cpu"] = PAGE_RECORDS / cpu
    return found


def from_cold(directory: str, size: Size) -> dict[str, Measured]:
    cold = f"{directory}-files"
    # Every topic of this size gets segments of its own, which are what moves.
    tiers = {"cold_url": cold, "hot_retain_bytes": 1, "segment_max_events": 1_000}
    seal(directory, size, **tiers)
    wall, _ = uncached(directory, cold, size, **tiers)
    return {"read_cold": PAGE_RECORDS / wall}


def uncached(directory: str, files: str, size: Size, **settings: object) -> tuple[float, float]:
    """Seconds (wall, CPU) a page, when neither we nor the kernel hold anything of it."""
    wall = cpu = 0.0
    with opened(directory, read_cache_bytes=0, **settings) as engine:
        if "cold_url" in settings:
            metas = engine.state.catalog.metas()
            assert metas and all(meta.tier == 1 for meta in metas), metas
        for start in size.starts(size.uncached):
            drop_page_cache(files)
            starts = time.perf_counter(), time.process_time()
            page(engine, start)
            wall += time.perf_counter() - starts[0]
            cpu += time.process_time() - starts[1]
    return wall / size.uncached, cpu / size.uncached
