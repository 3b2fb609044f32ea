"""What the tests of the tools share: a directory an engine was killed on, and ways to damage it."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import HeadraceError, TopicNotFound
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import Store
from headrace.storage.snapshot.chains import read_latest
from headrace.storage.tools.check import check
from headrace.storage.tools.findings import Report
from headrace.storage.wal.audit import ANYWHERE, WholeBatch, survey, walk_shard
from headrace.storage.wal.file import discover
from headrace.testing.simdisk import SimDisk

KIB = 1024
SETTINGS: dict[str, int] = {
    "wal_file_bytes": 128 * KIB,
    "wal_batch_bytes_max": 16 * KIB,
    "segment_max_events": 40,
    "sync_interval_ms": 1,
}
Seen = tuple[dict[int, bytes], list[tuple[int, int]]]


class World(NamedTuple):
    """A directory, and what could be read from it."""

    disk: SimDisk
    seen: dict[str, Seen]

    def files(self, prefix: str) -> list[str]:
        return [name for name in self.disk.contents() if name.startswith(prefix)]


class Lab:
    """Engines on disks in memory, and ways to damage what they leave."""

    Seen = Seen

    @staticmethod
    def start(
        disk: SimDisk,
        cold: Store | None = None,
        policy: MergePolicy | None = None,
        **settings: int,
    ) -> Engine:
        engine = Engine(
            disk,
            StepRuntime(ManualClock()),
            Settings(**(SETTINGS | settings)),  # type: ignore[arg-type]
            random=SeededRandom(1),
            cold=cold,
            policy=policy,
        )
        engine.recover()
        return engine

    @staticmethod
    def head_of(engine: Engine, topic: str) -> int:
        try:
            return engine.topic(topic).head_seq
        except TopicNotFound:
            return 0

    def fill(self, engine: Engine, topic: str, count: int, durability: str = "fsync") -> None:
        """Single records that name their topic and seq."""
        for seq in range(self.head_of(engine, topic) + 1, self.head_of(engine, topic) + count + 1):
            data = b"%s %d" % (topic.encode(), seq)
            engine.append(topic, [data], config={"durability": durability}).result()

    @staticmethod
    def settle(engine: Engine) -> None:
        """Let the log fall idle, so that its last window is closed."""
        for _ in range(4):
            engine.runtime.clock.advance(100)  # type: ignore[attr-defined]
            engine.runtime.run()  # type: ignore[attr-defined]

    @staticmethod
    def killed(engine: Engine) -> SimDisk:
        disk = engine.state.fs
        assert isinstance(disk, SimDisk)
        engine.abandon()
        return disk.image(disk.position, "all", 0, power_loss=False)

    @staticmethod
    def read_all(engine: Engine, topic: str) -> Seen:
        """Every record by seq, and every announced range."""
        records: dict[int, bytes] = {}
        gaps: list[tuple[int, int]] = []
        cursor = 0
        while True:
            page = engine.read(topic, cursor, limit=1000).result()
            if page.tombstone is not None:
                gaps.append((page.tombstone.gap_from, page.tombstone.gap_to))
            records |= {record.seq: record.data for record in page.records}
            if page.caught_up:
                return records, gaps
            assert page.next_from_seq > cursor
            cursor = page.next_from_seq

    def world(self) -> World:
        """Two checkpoints, then a log with appends and new topics.  Copy its disk to change it."""
        return _world()

    @staticmethod
    def used_log(disk: SimDisk) -> str:
        """The log file that holds what was written after the newest snapshot."""
        files = survey(disk, "wal", discover(disk)["wal"], None).files
        return [file for file in files if file.batches > 2][-1].path

    def batch_of(self, disk: SimDisk, data: bytes) -> int:
        """The offset, in the log in use, of the batch that holds these bytes."""
        path = self.used_log(disk)
        for item in walk_shard(disk, "wal", discover(disk)["wal"], ANYWHERE):
            if isinstance(item, WholeBatch) and item.path == path and data in item.body:
                return item.offset
        raise AssertionError(f"{data!r} is in no batch")

    @staticmethod
    def damage(disk: SimDisk, path: str, offset: int) -> None:
        """Flip one bit."""
        disk.overwrite(path, offset, bytes([disk.contents()[path][offset] ^ 0x10]))

    def opens(self, disk: SimDisk) -> bool:
        """Whether an engine accepts a directory, which is left as it is."""
        try:
            self.start(disk.copy()).abandon()
        except HeadraceError:
            return False
        return True

    @staticmethod
    def segments(disk: SimDisk) -> list[str]:
        return [name for name in disk.contents() if name.startswith("segments/")]

    @staticmethod
    def own_file(disk: SimDisk, topic: str) -> str:
        """The oldest file that holds rows of this topic only."""
        loaded = read_latest(disk)
        assert loaded is not None
        (topic_id,) = (t.id for t in loaded.state.topics.values() if t.name == topic)
        return next(m.path for m in loaded.state.files.values() if m.owner == topic_id)

    def expect_announced(
        self, disk: SimDisk, before: dict[str, Seen], report: Report
    ) -> dict[str, Seen]:
        """Open a repaired directory: whatever was there before is there, or is announced.

        Topics that only the log knew may be gone, or have another name, if it was damaged.
        """
        engine = self.start(disk)
        after = {info.topic: self.read_all(engine, info.topic) for info in engine.topics()}
        told = {lost.topic for finding in report.findings for lost in finding.lost}
        for topic, (records, _) in before.items():
            if topic not in after:
                assert topic in ("c", "d"), f"{topic} was in the snapshot"
                continue
            now, gaps = after[topic]
            assert now.items() <= records.items(), "nothing else than what was written"
            missing = [seq for seq in records if seq not in now]
            silent = [seq for seq in missing if not any(a <= seq <= b for a, b in gaps)]
            assert not silent, (topic, silent, gaps)
            assert not missing or topic in told
            assert self.head_of(engine, topic) >= max(records), "no seq is used twice"
        assert engine.append("a", [b"new"]).result().first_seq > max(before["a"][0])
        engine.checkpoint().result()
        engine.close()
        assert check(disk).ok
        return after


@cache
def _world() -> World:
    lab = Lab()
    engine = lab.start(SimDisk())
    lab.fill(engine, "a", 50)
    lab.fill(engine, "b", 20, "disk")
    engine.checkpoint().result()
    lab.fill(engine, "a", 30)
    engine.append("keyed", [b"once"], idempotency_key="k").result()
    engine.checkpoint().result()
    lab.fill(engine, "a", 10)
    lab.fill(engine, "c", 8)
    lab.fill(engine, "b", 5)
    engine.append("a", [b"a %d" % seq for seq in range(91, 111)]).result()
    lab.fill(engine, "d", 3, "disk")
    lab.fill(engine, "c", 5)
    lab.settle(engine)
    seen = {info.topic: lab.read_all(engine, info.topic) for info in engine.topics()}
    return World(lab.killed(engine), seen)


@pytest.fixture
def lab() -> Lab:
    return Lab()
