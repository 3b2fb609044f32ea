"""Classes of durability for tests: topics of one, what is told as lost, what the log does."""

from __future__ import annotations

from headrace.core.clock import ManualClock
from headrace.engine.engine import Engine
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


def told(engine: Engine, name: str = "t") -> list[tuple[int, int, str]]:
    """Every range announced as lost, reading from the start."""
    found = []
    cursor = 0
    while True:
        page = engine.read(name, cursor).result()
        if page.tombstone is not None:
            stone = page.tombstone
            found.append((stone.gap_from, stone.gap_to, stone.reason))
        cursor = page.next_from_seq
        if page.caught_up:
            return found


def settle(engine: Engine, clock: ManualClock) -> None:
    """Let the background syncs happen."""
    clock.advance(1_000)
    engine.runtime.run()  # type: ignore[attr-defined]
    clock.advance(1_000)
    engine.runtime.run()  # type: ignore[attr-defined]


def disk_of(engine: Engine) -> SimDisk:
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    return disk


def filled(start: Start, durability: str, count: int = 5) -> Engine:
    engine = start()
    engine.put_topic("t", {"durability": durability}).result()
    for n in range(count):
        engine.append("t", [n]).result()
    return engine


def log_calls(engine: Engine, since: int) -> list[str]:
    return [op.kind for op in disk_of(engine).trace[since:] if op.path.startswith("wal")]
