"""Ten thousand topics, each with a record a minute: few files, short reads, little disk.

The real engine on a simulated disk, with files scaled down so that a run of minutes passes through
every level of merging that days pass through in full size.  The thirty days in full size are in
tests/unit/storage/files/test_merge_simulation.py, as numbers only.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.limits import MIB
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from headrace.storage.files.merge_policy import MergePolicy
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan, Hook
from headrace.testing.simdisk import SimDisk

TOPICS = 10_000
TOPICS_FEW = 2_500
MINUTES = 26
MINUTE_MS = 60_000
# A quarter of the topics forget, so that a part of every file dies all the time.
KEPT = 12
CONFIGS = {1: {"ttl_ms": KEPT * MINUTE_MS}, 5: {"cap_records": KEPT}}
DATA = b'{"device":4711,"temperature":21.5,"humidity":40.2,"battery":0.98,"firmware":"2.4.1-rc3"}'
# Measured: what a row takes in a file beside its payload.
ROW_AROUND_BYTES = 51
FILES_MAX = 200
FILES_PER_READ_MAX = 50
READ_RECORDS = 1_000

SETTINGS = Settings(
    checkpoint_wal_bytes=MIB,  # about one checkpoint a minute
    wal_file_bytes=4 * MIB,
    wal_batch_bytes_max=MIB,
    memory_budget_bytes=16 * MIB,
    read_cache_bytes=8 * MIB,
    tag_index_bytes_max=MIB,
    checkpoint_age_ms=1_000 * MINUTE_MS,
)
POLICY = MergePolicy(fan_in=4, shared_bytes_max=24 * MIB)


class World:
    """An engine with its disk and clock, and the extremes seen so far."""

    def __init__(self, settings: Settings) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.engine = opened(self.disk, self.clock, settings)
        self.files_max = 0
        self.levels: set[int] = set()
        self.rewritten_max = 0.0
        self.disk_max = 0.0

    def minute(self, names: list[str], batch: Batch) -> None:
        append = self.engine.append
        for name in names:
            append(name, batch)
        self.engine.runtime.run()
        self.clock.advance(MINUTE_MS)
        self.engine.runtime.run()
        self.disk.settle()
        self.measure()

    def measure(self) -> None:
        state = self.engine.state
        metas = state.catalog.metas()
        rows = sum(topic.count for topic in state.by_id.values())
        live = state.totals.bytes + rows * ROW_AROUND_BYTES
        sizes = {path: len(content) for path, content in self.disk.contents().items()}
        sealed = sum(size for path, size in sizes.items() if path.startswith("segments/"))
        self.files_max = max(self.files_max, len(sizes))
        self.levels |= {meta.level for meta in metas}
        self.rewritten_max = max(self.rewritten_max, sum(meta.size for meta in metas) / live)
        self.disk_max = max(self.disk_max, sealed / live)


def opened(disk: SimDisk, clock: ManualClock, settings: Settings, watch: Hook | None = None):
    """An engine on the disk; `watch` hears of every read of a sealed file."""
    faults = []
    if watch is not None:
        faults = [Fault("pread*", 1, "call", forever=True, path="segments/*", hook=watch)]
    fs = FaultFilesystem(disk, FaultPlan(*faults))
    engine = Engine(fs, StepRuntime(clock), settings, random=SeededRandom(1), policy=POLICY)
    engine.recover()
    return engine


@pytest.mark.parametrize("topics", [TOPICS_FEW, pytest.param(TOPICS, marks=pytest.mark.slow)])
def test_ten_thousand_topics(topics: int) -> None:
    # As many checkpoints for fewer topics, so that files pass through as many levels.
    settings = replace(SETTINGS, checkpoint_wal_bytes=MIB * topics // TOPICS)
    world = World(settings)
    names = [f"device/{number:05d}" for number in range(topics)]
    for number, name in enumerate(names):
        world.engine.put_topic(name, CONFIGS.get(number % 8))
    batch = Batch([DATA])
    for _ in range(MINUTES):
        world.minute(names, batch)
    assert len(world.levels) > 2, f"only the levels {world.levels} were reached"
    assert world.engine.checkpointer.checkpoints_total > MINUTES // 2
    assert world.engine.checkpointer.failures_total == 0
    assert world.files_max <= FILES_MAX, world.files_max
    assert world.rewritten_max <= 2.0, world.rewritten_max
    # What a checkpoint replaced is still needed by the snapshot before the newest.
    assert world.disk_max <= 2.5, world.disk_max
    world.engine.abandon()

    # A start finds all of it, and a read that finds nothing in memory looks into few files.
    paths: set[str] = set()
    cold = replace(SETTINGS, read_cache_bytes=0, memory_budget_bytes=MIB, tag_index_bytes_max=0)
    engine = opened(world.disk, world.clock, cold, lambda _operation, path: paths.add(path))
    assert len(engine.state.by_id) == topics
    for number in range(0, topics, 501):
        paths.clear()
        page = engine.read(names[number], limit=READ_RECORDS).result()
        kept = KEPT if number % 8 in CONFIGS else MINUTES
        seqs = [record.seq for record in page.records]
        assert seqs == list(range(MINUTES - kept + 1, MINUTES + 1)), (names[number], seqs)
        assert len(paths) <= FILES_PER_READ_MAX, len(paths)
