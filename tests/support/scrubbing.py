"""Engines with sealed files to be verified, damage to these, and time that passes for the scrub."""

from __future__ import annotations

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.engine.scrubbing.scrub import Scrub
from headrace.storage.files.store import Store
from headrace.storage.fs import Filesystem
from headrace.storage.scrub.progress_file import SEGMENT, FileProgress

KIB = 1 << 10
HOUR_MS = 3_600_000
# What `start` of support/engines.py takes: files of a few blocks, and no merges in between.
SCRUBBED = {
    "segment_max_events": 10,
    "scrub_bytes_per_second": 64 * KIB,
    "scrub_interval_ms": HOUR_MS,
    "hot_retain_segments": 1,
    "wal_file_bytes": 1024 * KIB,
    "wal_batch_bytes_max": 512 * KIB,
    "record_bytes_max": 64 * KIB,
}


def seal(engine: Engine, name: str, blocks: int = 3) -> None:
    """Append so much to a topic that it gets a file of its own, of at least so many blocks."""
    for number in range(max(10, 4 * blocks)):
        engine.append(name, [{"n": number, "fill": "x" * 20 * KIB}]).result()
    engine.checkpoint().result()


def flip(fs: Filesystem, path: str, offset: int = 100) -> None:
    """Change one byte of a file."""
    file = fs.open(path)
    (byte,) = file.pread(1, offset)
    file.pwritev([bytes([byte ^ 1])], offset)
    file.close()


def pass_time(engine: Engine, clock: ManualClock, ms: int, step: int = 500) -> None:
    """Let time pass, in steps, and everything happen that is due by then."""
    assert isinstance(engine.runtime, StepRuntime)
    engine.runtime.run()
    for _ in range(0, ms, step):
        clock.advance(step)
        engine.runtime.run()


def scrub_with(engine: Engine, backup: Store) -> Scrub:
    """A scrub that repairs from this backup, started."""
    scrub = Scrub(engine.state, engine.checkpointer.files, lambda: backup)
    scrub.start()
    return scrub


def segments_of(scrub: Scrub) -> list[FileProgress]:
    """What is known of sealed files."""
    return [row for row, _ in scrub.files() if row.kind == SEGMENT]
