"""Crashes of an engine with forks: made, written to, deleted and collected at every disk call.

Only this file judges forks after a crash.  Calls come one after the other and are of class fsync,
so that what a reader finds afterwards is what the last acknowledged call left, or the one that was
under way.  Once the engine has had a moment, nothing is kept that neither is shown nor has a fork.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.streams.spec import StreamSpec
from headrace.engine.topics.config import TopicConfig
from headrace.storage.block import KIND_BYTES, Batch
from headrace.storage.files.merge_policy import MergePolicy
from headrace.testing.simdisk import SimDisk
from tests.harness.crash_points import Point, Sweeper, run_sweeper
from tests.harness.events import Violation

SETTINGS = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10, disk_reserve_bytes=0)
MERGING = MergePolicy(fan_in=2, own_rows_min=1, own_bytes_min=1, own_topics_max=1_000)
PLAIN = TopicConfig(durability="fsync")
CAPPED = TopicConfig(durability="fsync", cap_records=3)
COLLECTED_MS = 3_000  # in that time what nobody needs is deleted

Call = Callable[[Engine], object]
Shown = dict[str, list[tuple[int, bytes]]]  # by name: seq and bytes of each record


def create(name: str, body: bytes, config: TopicConfig, source: str | None, engine: Engine) -> None:
    kind, content_type = (None, None) if source else (KIND_BYTES, "text/plain")
    spec = StreamSpec(
        dialect="test", content_type=content_type, kind=kind, source=source, config=config
    )
    engine.streams.create(name, spec, body or None).result()


def append(name: str, body: bytes, engine: Engine) -> None:
    engine.append(name, Batch([body], KIND_BYTES), create=False).result()


def delete(name: str, engine: Engine) -> None:
    engine.streams.delete(name).result()
    engine.runtime.drain()


def checkpoint(engine: Engine) -> None:
    engine.checkpoint().result()


def tree(config: TopicConfig) -> list[Call]:
    """A source, forks of it and of a fork, and the end of all of them from the top."""

    def new(name: str, body: bytes, source: str | None = None) -> Call:
        return partial(create, name, body, config if source is None else PLAIN, source)

    def add(name: str, *bodies: bytes) -> list[Call]:
        return [partial(append, name, body) for body in bodies]

    return [
        new("a", b"a1"),
        *add("a", b"a2", b"a3", b"a4"),
        new("b", b"b5", "a"),
        *add("a", b"a5", b"a6", b"a7"),
        checkpoint,
        new("c", b"", "b"),
        *add("c", b"c6"),
        partial(delete, "a"),
        *add("b", b"b6"),
        checkpoint,
        *add("c", b"c7"),
        checkpoint,
        partial(delete, "b"),
        new("d", b"d8", "c"),
        partial(delete, "c"),
        checkpoint,
        *add("d", b"d9"),
        partial(delete, "d"),
        checkpoint,
    ]


WORKLOADS: dict[str, tuple[list[Call], Settings]] = {
    "tree": (tree(PLAIN), SETTINGS),
    "capped_source": (tree(CAPPED), SETTINGS),
    "shards": (tree(CAPPED), replace(SETTINGS, wal_shards=3)),
}


def opened(disk: SimDisk, settings: Settings, clock: ManualClock, seed: int) -> Engine:
    engine = Engine(disk, StepRuntime(clock), settings, random=SeededRandom(seed), policy=MERGING)
    engine.recover()
    return engine


def shown(engine: Engine) -> Shown:
    """All that readers find."""
    found: Shown = {}
    for info in engine.topics():
        page = engine.read(info.topic, limit=1_000).result()
        found[info.topic] = [(record.seq, bytes(record.data)) for record in page.records]
    return found


class ForkExplorer(Sweeper):
    """Looks at states of forks."""

    module = "fork_sweep"

    def perform(self) -> SimDisk:
        calls, self._settings = WORKLOADS[self.workload]
        disk = SimDisk()
        engine = opened(disk, self._settings, ManualClock(), self.seed)
        self._after: list[Shown] = [{}]  # so many calls
        for call in calls:
            call(engine)
            self._after.append(shown(engine))
            disk.mark(len(self._after) - 1)
        engine.abandon()
        return disk

    def judge(self, point: Point, image: SimDisk) -> None:
        done = len(self.disk.marks_until(point.position))
        allowed = self._after[done : done + 2]
        clock = ManualClock(1_700_000_100_000)
        engine = opened(image, self._settings, clock, point.position)
        self._check(engine, allowed, "after the crash")
        clock.advance(COLLECTED_MS)
        engine.runtime.run()  # type: ignore[attr-defined]
        self._check(engine, allowed, "after a moment")
        for topic in engine.state.by_id.values():
            if topic.kept_for_forks and topic.forks is None:
                raise Violation(f"{topic.name} is kept for nobody")
        engine.checkpoint().result()
        engine.abandon()
        again = opened(
            image.image(image.position, "all", 0, power_loss=False), self._settings, clock, 7
        )
        self._check(again, allowed, "after another start")
        again.abandon()

    def _check(self, engine: Engine, allowed: Sequence[Shown], when: str) -> None:
        found = shown(engine)
        if found not in allowed:
            raise Violation(f"{when}: {found!r:.400} is none of {allowed!r:.800}")


if __name__ == "__main__":
    sys.exit(run_sweeper(ForkExplorer, WORKLOADS, None, __doc__))
