"""What these tests share: an engine on a disk in memory, in which nothing runs by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.fs import Filesystem
from headrace.storage.merge import MergePolicy
from headrace.testing.simdisk import SimDisk

KIB = 1 << 10
Start = Callable[..., Engine]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def start(clock: ManualClock) -> Iterator[Start]:
    """Open an engine: `start(disk, policy=, **settings)`; all optional."""
    opened: list[Engine] = []

    def open_engine(
        fs: Filesystem | None = None, *, policy: MergePolicy | None = None, **settings: int
    ) -> Engine:
        small = {"wal_file_bytes": 64 * KIB, "wal_batch_bytes_max": 16 * KIB}
        engine = Engine(
            SimDisk() if fs is None else fs,
            StepRuntime(clock),
            Settings(**{**small, **settings}),  # type: ignore[arg-type]
            random=SeededRandom(1),
            policy=policy,
        )
        engine.recover()
        opened.append(engine)
        return engine

    yield open_engine
    for engine in opened:
        engine.abandon()
