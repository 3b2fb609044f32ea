"""Engines on disks in memory, every way to lose one, and what a reader finds in it.

Nothing runs by itself here: time moves when the clock is told to, work happens when a ticket is
asked for its result or the runtime is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import Store
from headrace.storage.fs import Filesystem
from headrace.testing.simdisk import SimDisk

KIB = 1 << 10
SMALL = {"wal_file_bytes": 64 * KIB, "wal_batch_bytes_max": 16 * KIB}

Start = Callable[..., Engine]


@pytest.fixture
def clock() -> ManualClock:
    """Starts at 1_700_000_000_000 ms."""
    return ManualClock()


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@contextmanager
def open_engines(clock: ManualClock) -> Iterator[Start]:
    """Yield what opens an engine on a disk in memory; each one opened is abandoned at the end."""
    opened: list[Engine] = []

    def open_engine(
        fs: Filesystem | None = None,
        *,
        clock: ManualClock = clock,
        cold: Store | None = None,
        policy: MergePolicy | None = None,
        **settings: int | str,
    ) -> Engine:
        engine = Engine(
            SimDisk() if fs is None else fs,
            StepRuntime(clock),
            Settings(**{**SMALL, **settings}),  # type: ignore[arg-type]
            random=SeededRandom(1),
            cold=cold,
            policy=policy,
        )
        engine.recover()
        opened.append(engine)
        return engine

    yield open_engine
    for engine in opened:
        engine.abandon()


@pytest.fixture
def start(clock: ManualClock) -> Iterator[Start]:
    """Open an engine: `start(disk, clock=, cold=, policy=, **settings)`; all optional."""
    with open_engines(clock) as open_engine:
        yield open_engine


@pytest.fixture
def engine(start: Start) -> Engine:
    return start()


def _disk(engine: Engine) -> SimDisk:
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    return disk


def _settings(engine: Engine, changed: dict[str, int | str]) -> dict[str, int | str]:
    kept = {name: getattr(engine.settings, name) for name in engine.settings.__slots__}
    return {**kept, **changed}


@pytest.fixture
def kill(start: Start) -> Start:
    """`kill -9`, then start again on what the kernel still holds."""

    def killed(engine: Engine, clock: ManualClock | None = None, **changed: int | str) -> Engine:
        disk = _disk(engine)
        engine.abandon()
        image = disk.image(disk.position, "all", 0, power_loss=False)
        clock = clock or engine.runtime.clock  # type: ignore[assignment]
        return start(image, clock=clock, **_settings(engine, changed))

    return killed


@pytest.fixture
def power_loss(start: Start) -> Start:
    """Power loss, then start again on what the disk holds: `power_loss(engine, mode, seed)`."""

    def lost(
        engine: Engine,
        mode: str = "none",
        seed: int = 0,
        clock: ManualClock | None = None,
        **changed: int | str,
    ) -> Engine:
        disk = _disk(engine)
        engine.abandon()
        image = disk.image(disk.position, mode, seed)  # type: ignore[arg-type]
        clock = clock or engine.runtime.clock  # type: ignore[assignment]
        return start(image, clock=clock, **_settings(engine, changed))

    return lost


@pytest.fixture
def restart(start: Start) -> Start:
    """A clean stop and start."""

    def restarted(engine: Engine, clock: ManualClock | None = None, **changed: int | str) -> Engine:
        disk = _disk(engine)
        engine.close()
        clock = clock or engine.runtime.clock  # type: ignore[assignment]
        return start(disk.copy(), clock=clock, **_settings(engine, changed))

    return restarted


@pytest.fixture(params=["kill", "restart", "checkpoint and kill"])
def again(request: pytest.FixtureRequest, kill: Start, restart: Start) -> Start:
    """Each way to come back that loses nothing of the classes `disk` and `fsync`."""
    if request.param == "kill":
        return kill
    if request.param == "restart":
        return restart

    def checkpointed(engine: Engine, **changed: int | str) -> Engine:
        engine.checkpoint().result()
        return kill(engine, **changed)

    return checkpointed
