"""Checkpoints under way: whatever happens meanwhile, and wherever they fail, nothing is lost.

A checkpoint takes many turns.  Here something happens at each of them, or each call to the disk
fails, and then the process dies: what comes up has to be what was there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.core.runtime import StepRuntime
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine, TopicInfo
from headrace.storage.block import Batch, Record
from headrace.storage.files.merge_policy import MergePolicy
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk

Start = Callable[..., Engine]
View = dict[str, tuple[TopicInfo, list[Record]]]
MERGING = MergePolicy(fan_in=2)


def view(engine: Engine) -> View:
    """Everything a reader can see."""
    return {
        info.topic: (info, engine.read(info.topic).result().records) for info in engine.topics()
    }


def step(engine: Engine) -> bool:
    assert isinstance(engine.runtime, StepRuntime)
    return engine.runtime.step()


def disk_of(engine: Engine) -> SimDisk:
    disk = engine.state.fs
    return disk if isinstance(disk, SimDisk) else disk.inner  # type: ignore[attr-defined]


def killed(engine: Engine) -> SimDisk:
    engine.abandon()
    return disk_of(engine).image(disk_of(engine).position, "all", 0, power_loss=False)


def tagged(*tags: str) -> Batch:
    return Batch([tag.encode() for tag in tags], tags=list(tags))


def prepare(engine: Engine) -> None:
    """Two topics with something sealed and something not."""
    for n in range(3):
        engine.append("a", tagged("x", "y", "x"), config={"durability": "fsync"}).result()
        engine.append("b", tagged("x", "y"), idempotency_key=f"before-{n}").result()
        engine.append("c", [n], config={"durability": "fsync", "cap_records": 2}).result()
        engine.append("gone", [n]).result()
        if n < 2:
            engine.checkpoint().result()


def disturb(engine: Engine) -> None:
    """One of everything that changes state."""
    engine.append("a", tagged("y", "x"), producer=ProducerClaim("p", 0, 0))
    engine.append("b", tagged("z"), idempotency_key="meanwhile")
    engine.append("c", [7])
    engine.append("new", [1], config={"durability": "fsync"})
    engine.delete("a", match="x")
    engine.delete("b", before_seq=3)
    engine.delete_topic("gone")


def moments(limit: int = 400) -> Iterator[int]:
    yield from range(limit)
    pytest.fail("a checkpoint without end")


@pytest.mark.parametrize("again", [False, True], ids=["one", "another after it"])
def test_what_happens_during_a_checkpoint_is_there_once(start: Start, again: bool) -> None:
    for moment in moments():
        engine = start(policy=MERGING)
        prepare(engine)
        checkpoint = engine.checkpoint()
        for _ in range(moment):
            step(engine)
        over = checkpoint.done
        disturb(engine)
        while step(engine):
            pass
        if again:
            engine.checkpoint().result()
        before = view(engine)
        assert set(before) == {"a", "b", "c", "new"}
        engine = start(killed(engine), policy=MERGING)
        assert view(engine) == before, moment
        retry = engine.append("a", [0], producer=ProducerClaim("p", 0, 0)).result()
        assert retry.deduped and retry.first_seq == 10
        assert engine.append("b", [0], idempotency_key="meanwhile").result().deduped
        assert view(engine) == before
        if over:
            return


class Armed(FaultPlan):
    """A plan that counts, and strikes, only while it is armed."""

    armed = False

    def strike(self, operation: str, *paths: str) -> Fault | None:
        return super().strike(operation, *paths) if self.armed else None


def test_a_failed_checkpoint_leaves_everything_to_the_next_one(start: Start) -> None:
    """At every call to the disk; the topics are not touched again before the next one."""
    for at in moments():
        plan = Armed(Fault("*", at + 1, "eio"))
        engine = start(FaultFilesystem(SimDisk(), plan), policy=MERGING)
        prepare(engine)
        engine.delete("a", match="y").result()
        before = view(engine)
        plan.armed = True
        engine.checkpoint()
        while step(engine):
            pass
        plan.armed = False
        if engine.state.shards[0].state == "ok":
            engine.checkpoint().result()
        assert view(engine) == before, at
        engine = start(killed(engine), policy=MERGING)
        assert view(engine) == before, at
        assert engine.append("b", [0], idempotency_key="before-2").result().deduped
        if not plan.fired:
            return


@pytest.mark.parametrize("mode", ["none", "subset"])
def test_a_kill_during_a_checkpoint_and_a_power_loss_after_the_next_start(
    start: Start, mode: str
) -> None:
    """What a start has built on is durable, although it was another process that wrote it."""
    engine = start(policy=MERGING)
    prepare(engine)
    disk = disk_of(engine)
    first = disk.position
    before = view(engine)
    engine.checkpoint().result()
    for position in range(first, disk.crash_points):
        second = start(disk.image(position, "all", 0, power_loss=False), policy=MERGING)
        assert view(second) == before, position
        second.append("a", [8]).result()
        expected = view(second)
        again = disk_of(second)
        left = again.image(again.position, mode, position)  # type: ignore[arg-type]
        third = start(left, policy=MERGING)
        found = view(third)
        assert {name: found[name] for name in ("a", "c")} == {
            name: expected[name] for name in ("a", "c")
        }, position


@pytest.mark.parametrize("mode", ["none", "all", "subset", "torn"])
def test_power_lost_at_any_call_of_a_checkpoint_takes_nothing_synced(
    start: Start, mode: str
) -> None:
    """One that seals, merges, writes a snapshot and removes what that replaced."""
    engine = start(policy=MERGING)
    prepare(engine)
    disk = disk_of(engine)
    synced = {name: view(engine)[name] for name in ("a", "c")}
    first = disk.position
    merges = engine.checkpointer.files.merges_total
    engine.checkpoint().result()
    engine.append("b", [1]).result()
    engine.checkpoint().result()
    assert engine.checkpointer.files.merges_total > merges
    for position in range(first, disk.crash_points):
        image = disk.image(position, mode, position)  # type: ignore[arg-type]
        found = view(start(image, policy=MERGING))
        assert {name: found[name] for name in synced} == synced, position


def test_a_bad_newest_snapshot_falls_back_to_one_that_is_whole(start: Start) -> None:
    """Its log and its files are still there, however many checkpoints came before."""
    engine = start(policy=MERGING)
    for n in range(6):
        engine.append("a", [n] * 50, config={"durability": "fsync"}).result()
        engine.append("b", [n]).result()
        engine.checkpoint().result()
    engine.append("a", [6]).result()
    before = view(engine)
    disk = killed(engine)
    newest = max(path for path in disk.contents() if path.startswith("meta/snapshot-"))
    disk.flip(newest, 8 * 100)
    engine = start(disk, policy=MERGING)
    assert engine.recovered is not None and engine.recovered.problems
    assert view(engine) == before
