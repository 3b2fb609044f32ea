"""Merges beside checkpoints: sealing never waits for them, and what they make is shown at the next.

The lane of merges is held here, so that one is half-way for as long as a test wants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from headrace.core.runtime import Done, StepRuntime
from headrace.engine.engine import Engine
from headrace.engine.sealing import merging
from headrace.storage.block import Batch
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.engine_reads import all_records
from tests.support.engines import Start
from tests.support.seqs import seqs_read

MERGING = MergePolicy(fan_in=2, own_rows_min=1_000, own_bytes_min=1 << 20, step_bytes=1)
OWN = MergePolicy(fan_in=2, own_rows_min=2, own_bytes_min=1, step_bytes=1)


class MergeLane:
    """The jobs of the lane of merges: they run one at a time, when a test says so."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = engine.runtime
        assert isinstance(runtime, StepRuntime)
        self._submit = runtime.submit
        self._jobs: deque[tuple[Callable[[], object], Done]] = deque()
        monkeypatch.setattr(runtime, "submit", self._take)

    def _take(self, lane: str, work: Callable[[], object], done: Done) -> None:
        if lane == merging.LANE:
            self._jobs.append((work, done))
        else:
            self._submit(lane, work, done)

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def go_on(self) -> None:
        """Run the job that waits, and whatever follows from it elsewhere."""
        work, done = self._jobs.popleft()
        self._submit(merging.LANE, work, done)

    def finish(self, engine: Engine) -> None:
        while self._jobs:
            self.go_on()
            engine.runtime.run()  # type: ignore[attr-defined]


def half_way(engine: Engine, monkeypatch: pytest.MonkeyPatch, jobs: int = 2) -> MergeLane:
    """Begin a merge of two files that hold two topics; stop after `jobs` jobs of its lane.

    The first one begins it, the second one writes rows.
    """
    for n in range(2):
        engine.append("t", Batch([b"1", b"2"], tags=["a", "b"])).result()
        engine.append("gone", [n]).result()
        if n == 0:
            engine.checkpoint().result()
    lane = MergeLane(engine, monkeypatch)
    engine.checkpoint()
    engine.runtime.run()  # type: ignore[attr-defined]
    for _ in range(jobs):
        lane.go_on()
        engine.runtime.run()  # type: ignore[attr-defined]
    assert lane.busy and engine.checkpointer.files.merges_total == 0
    return lane


def file_ids(engine: Engine) -> list[int]:
    return [meta.file_id for meta in engine.state.catalog.metas()]


def files_on_disk(engine: Engine) -> int:
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    return sum(path.startswith("segments/") for path in disk.contents())


def test_a_checkpoint_ends_while_a_merge_is_half_way(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the one that began the merge, since another is asked for, and that one's sealing."""
    engine = start(policy=MERGING)
    lane = half_way(engine, monkeypatch)
    assert engine.checkpointer.checkpoints_total == 1, "the second one waits for the merge"
    engine.append("t", [9]).result()
    engine.checkpoint()
    engine.runtime.run()  # type: ignore[attr-defined]
    assert engine.checkpointer.checkpoints_total == 2
    assert engine.state.totals.unsealed_bytes == 0 and len(file_ids(engine)) == 3
    before = all_records(engine)
    lane.finish(engine)
    # The third one, which waited for the end of the merge, has shown its output.
    assert engine.checkpointer.checkpoints_total == 3
    assert len(file_ids(engine)) < 3 and all_records(engine) == before


def test_memory_that_fills_up_does_not_wait_for_a_merge(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends are never refused because of a merge, however long that takes."""
    engine = start(
        policy=MERGING, memory_budget_bytes=1 << 20, read_cache_bytes=0, tag_index_bytes_max=0
    )
    half_way(engine, monkeypatch)
    for n in range(100):
        engine.append("t", [b"%02d" % n * 20_000]).result()
        engine.runtime.run()  # type: ignore[attr-defined]
    assert engine.checkpointer.files.merges_total == 0
    assert engine.state.totals.unsealed_bytes < 1 << 20


def test_what_was_merged_is_shown_though_nothing_else_happens(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge that ended without a checkpoint to wait for it makes one start."""
    fs = FaultFilesystem(SimDisk(), FaultPlan())
    engine = start(fs, policy=MERGING)
    lane = half_way(engine, monkeypatch)
    engine.append("t", [9]).result()
    fs.plan = FaultPlan(Fault("create", 1, "eio", path="segments*"))
    failed = engine.checkpoint()
    engine.runtime.run()  # type: ignore[attr-defined]
    assert failed.error is not None and engine.checkpointer.checkpoints_total == 2
    before = all_records(engine)
    lane.finish(engine)
    assert engine.checkpointer.checkpoints_total == 3
    assert engine.checkpointer.files.merges_total == 1 and len(file_ids(engine)) == 2
    assert all_records(engine) == before


def test_what_is_deleted_meanwhile_stays_deleted(
    start: Start, kill: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(policy=MERGING)
    lane = half_way(engine, monkeypatch)
    engine.delete("t", match="b").result()
    engine.delete_topic("gone").result()
    engine.checkpoint()
    engine.runtime.run()  # type: ignore[attr-defined]
    lane.finish(engine)
    assert engine.checkpointer.files.merges_total >= 1
    engine.state.forget_blocks(engine.state.topic("t"))
    for _ in range(2):
        assert seqs_read(engine) == [1, 3]
        assert [info.topic for info in engine.topics()] == ["t"]
        engine = kill(engine)


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_a_kill_half_way_leaves_the_inputs_and_no_output(
    start: Start, kill: Start, monkeypatch: pytest.MonkeyPatch, checkpoints: int
) -> None:
    engine = start(policy=MERGING)
    half_way(engine, monkeypatch)
    for _ in range(checkpoints):
        engine.append("t", [9]).result()
        engine.checkpoint()
        engine.runtime.run()  # type: ignore[attr-defined]
    before = all_records(engine)
    engine = kill(engine)
    assert all_records(engine) == before
    assert files_on_disk(engine) == len(file_ids(engine))


def test_a_close_half_way_gives_the_merge_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = start(policy=MERGING)
    lane = half_way(engine, monkeypatch, jobs=1)
    disk, before = engine.state.fs, all_records(engine)
    monkeypatch.undo()
    lane.go_on()
    engine.close()
    assert engine.checkpointer.files.merges_total == 0
    assert files_on_disk(engine) == len(file_ids(engine)) == 2
    engine = start(disk, policy=MERGING)
    assert engine.recovered is not None and engine.recovered.clean
    assert all_records(engine) == before


def test_the_cold_tier_takes_no_file_that_is_being_merged(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(policy=OWN, cold=DirectoryStore(SimDisk()), hot_retain_segments=1)
    lane = half_way(engine, monkeypatch)
    inputs = {meta.file_id for meta in engine.state.catalog.metas()}
    for n in range(2):
        engine.append("t", [n, n]).result()
        engine.checkpoint()
        engine.runtime.run()  # type: ignore[attr-defined]
    cold = {meta.file_id for meta in engine.state.catalog.metas() if meta.tier}
    assert not cold & inputs
    before = all_records(engine)
    lane.finish(engine)
    assert all_records(engine) == before
