"""The engine on a disk that fails: at every call, once and from then on.

What is checked after each fault: an acknowledgement keeps its class's promise,
a failed commit publishes nothing, reads go on, a failed sync is never retried, a full disk is a
state that ends by itself, and damage is said aloud rather than answered with less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import CorruptionError, HeadraceError, Internal, NotReady
from headrace.core.runtime import StepRuntime, Ticket
from headrace.core.settings import Settings
from headrace.engine.appending.pending_append import Appended
from headrace.engine.engine import Engine
from headrace.testing.faultfs import Action, Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.engine_reads import all_data
from tests.support.wal_logs import IdleRuntime

SETTINGS = Settings(
    wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10, disk_reserve_bytes=64 << 10
)
CLASSES = ("fsync", "disk", "memory")


class Attempt(NamedTuple):
    """One append: where, what, and what became of it."""

    topic: str
    data: bytes
    ticket: Ticket[Appended]

    @property
    def acked(self) -> bool:
        return self.ticket.done and self.ticket.error is None


def open_engine(
    fs: FaultFilesystem | SimDisk,
    clock: ManualClock | None = None,
    runtime: type[StepRuntime] = StepRuntime,
) -> Engine:
    engine = Engine(fs, runtime(clock or ManualClock()), SETTINGS, random=SeededRandom(1))
    engine.recover()
    return engine


def settle(engine: Engine) -> None:
    runtime = engine.runtime
    assert isinstance(runtime, StepRuntime) and isinstance(runtime.clock, ManualClock)
    runtime.run()
    runtime.clock.advance(60)
    runtime.run()


class Scene:
    """A disk, a plan that starts counting after the start, and the appends made so far."""

    def __init__(self, *faults: Fault, runtime: type[StepRuntime] = StepRuntime) -> None:
        self.disk = SimDisk()
        self.fs = FaultFilesystem(self.disk, _Armed(*faults))
        self.engine = open_engine(self.fs, runtime=runtime)
        settle(self.engine)
        for durability in CLASSES:
            self.engine.put_topic(durability, {"durability": durability}).result()
        self.attempts: list[Attempt] = []
        settle(self.engine)
        self.plan.armed = True

    @property
    def plan(self) -> _Armed:
        assert isinstance(self.fs.plan, _Armed)
        return self.fs.plan

    def append(self, topic: str, size: int = 3_000) -> Attempt:
        data = b"%d:" % len(self.attempts) + b"x" * size
        attempt = Attempt(topic, data, self.engine.append(topic, [data]))
        self.attempts.append(attempt)
        return attempt

    def round(self) -> None:
        """One append of each class, in one turn, then time for the background."""
        for durability in CLASSES:
            self.append(durability)
        settle(self.engine)

    def check_live(self) -> None:
        """Every append has an answer; readers see exactly what was acknowledged."""
        for attempt in self.attempts:
            error = attempt.ticket.error
            assert attempt.ticket.done, "an append without an answer"
            if error is None:
                continue
            assert isinstance(error, NotReady | Internal), error
            assert error.fix
            if isinstance(error, Internal):
                assert error.detail["outcome"] == "unknown"
            else:
                assert error.detail["reason"] in ("wal_read_only", "disk_full")
        for topic in CLASSES:
            assert all_data(self.engine, topic) == self.acked(topic)
            assert self.engine.topic(topic).count == len(self.acked(topic))

    def acked(self, topic: str) -> list[bytes]:
        return [a.data for a in self.attempts if a.topic == topic and a.acked]

    def check_recovered(self, disk: SimDisk, promised: tuple[str, ...], *, lies: bool) -> None:
        """Acknowledged is a part of recovered, recovered is a part of written, in order."""
        try:
            engine = open_engine(disk)
            there = [info.topic for info in engine.topics()]
            assert lies or set(there) == set(CLASSES)
            recovered = {topic: all_data(engine, topic) for topic in there}
        except CorruptionError:
            assert lies, "nothing was promised falsely, so nothing may be missing"
            return
        for topic, found in recovered.items():
            written = [a.data for a in self.attempts if a.topic == topic]
            assert found == [data for data in written if data in set(found)]
            if topic in promised:
                assert set(self.acked(topic)) <= set(found)
        engine.abandon()

    def check(self, *, lies: bool = False) -> None:
        self.check_live()
        self.engine.abandon()
        disk = self.disk
        dead = disk.image(disk.position, "all", 0, power_loss=False)
        self.check_recovered(dead, CLASSES, lies=False)
        for mode in ("none", "subset"):
            cut = disk.image(disk.position, mode, 1)  # type: ignore[arg-type]
            self.check_recovered(cut, () if lies else ("fsync",), lies=lies)


class _Armed(FaultPlan):
    """A plan that lets everything pass until it is armed."""

    armed = False

    def strike(self, operation: str, *paths: str) -> Fault | None:
        return super().strike(operation, *paths) if self.armed else None


def every_n(limit: int = 400) -> Iterator[int]:
    yield from range(1, limit)
    pytest.fail("the faults never ran out")


APPEND_FAULTS: list[tuple[str, Action]] = [
    ("pwritev", "eio"),
    ("pwritev", "enospc"),
    ("pwritev", "short"),
    ("sync*", "eio"),
    ("sync*", "lie"),
    ("create", "eio"),
    ("create", "enospc"),
    ("unlink", "eio"),
]


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize(("operation", "action"), APPEND_FAULTS)
def test_l11_appends_with_a_fault_at_every_call(
    operation: str, action: Action, forever: bool
) -> None:
    fired = 0
    for n in every_n():
        scene = Scene(Fault(operation, n, action, forever))
        for _ in range(9):
            scene.round()
        scene.plan.armed = False
        scene.check(lies=action == "lie")
        if not scene.plan.fired:
            break
        fired += 1
    assert fired or operation == "unlink"


@pytest.mark.parametrize("count", [1, 55, 56, 57, 2_000])
def test_a_write_that_failed_halfway_publishes_nothing(count: int) -> None:
    """Some bytes land before the error; no later batch brings them alive."""
    for action in ("eio", "enospc"):
        for n in every_n():
            scene = Scene(Fault("pwritev", n, action, path="wal*", count=count))
            for _ in range(4):
                scene.round()
            scene.plan.armed = False
            scene.check()
            if not scene.plan.fired:
                break


# A failed sync


def test_l11_a_failed_sync_poisons_the_log_until_the_restart() -> None:
    scene = Scene(Fault("sync_data", 1, "eio"))
    lost = scene.append("fsync")
    settle(scene.engine)
    error = lost.ticket.error
    assert isinstance(error, Internal) and error.detail == {"outcome": "unknown"}
    later = [scene.append(topic).ticket.error for topic in CLASSES]
    later += [
        scene.engine.put_topic("new").error,
        scene.engine.delete_topic("disk").error,
        scene.engine.delete("fsync", before_seq=1).error,
    ]
    for refusal in later:
        assert isinstance(refusal, NotReady) and refusal.retryable and refusal.fix
        assert refusal.detail["reason"] == "wal_read_only"
    assert scene.engine.state.shards[0].state == "wal_read_only"
    calls = scene.plan.calls["sync_data"]
    for _ in range(5):
        settle(scene.engine)
    assert scene.plan.calls["sync_data"] == calls, "a failed sync is never tried again"
    scene.check()


@pytest.mark.parametrize("action", ["eio", "lie"])
def test_l11_a_lone_writer_with_a_fault_at_every_sync(action: Action) -> None:
    """Its syncs are the loop's own, and fail as those of the lane do."""
    inline = 0
    for n in every_n():
        scene = Scene(Fault("sync*", n, action), runtime=IdleRuntime)
        for turn in range(12):
            scene.append("fsync")
            if turn % 4 == 3:
                settle(scene.engine)
            else:
                scene.engine.runtime.drain()
        scene.plan.armed = False
        inline += scene.engine.state.shards[0].inline_syncs_total
        scene.check(lies=action == "lie")
        if not scene.plan.fired:
            break
    assert inline > n


def test_appends_in_flight_at_a_failed_sync_are_all_answered() -> None:
    scene = Scene(Fault("sync_data", 1, "eio"))
    for _ in range(20):
        for topic in CLASSES:
            scene.append(topic, 10)
        scene.engine.runtime.step()  # type: ignore[attr-defined]
    settle(scene.engine)
    scene.check()


def test_a_failed_background_sync_poisons_too() -> None:
    scene = Scene(Fault("sync_data", 1, "eio"))
    acked = scene.append("disk")
    settle(scene.engine)
    assert acked.acked, "written, which is all that its class promises"
    assert isinstance(scene.append("disk").ticket.error, NotReady)
    scene.check()


def test_reads_and_expiry_go_on_when_the_log_is_read_only() -> None:
    scene = Scene(Fault("sync_data", 4, "eio"))
    engine = scene.engine
    engine.append("ttl", [b"1"], config={"ttl_ms": 1_000}).result()
    settle(engine)
    while scene.append("fsync").ticket.error is None:
        settle(engine)
    assert all_data(engine, "ttl") == [b"1"]
    engine.runtime.clock.advance(2_000)  # type: ignore[attr-defined]
    assert all_data(engine, "ttl") == []
    assert engine.topic("ttl").count == 0
    engine.close()


def test_a_poisoned_engine_closes_and_the_next_one_recovers() -> None:
    scene = Scene(Fault("sync_data", 3, "eio", forever=True))
    for _ in range(3):
        scene.round()
    scene.check_live()
    scene.engine.close()
    scene.plan.armed = False
    dead = scene.disk.image(scene.disk.position, "all", 0, power_loss=False)
    scene.check_recovered(dead, CLASSES, lies=False)


# A full disk


def fill_until_full(scene: Scene, *, tries: int = 400) -> NotReady:
    """Append until the disk stays full: after a first refusal a checkpoint may find room."""
    refusals = 0
    for _ in range(tries):
        attempt = scene.append("disk")
        settle(scene.engine)
        error = attempt.ticket.error
        refusals = refusals + 1 if error is not None else 0
        if error is not None:
            assert isinstance(error, NotReady), error
        if error is not None and refusals == 2:
            return error
    pytest.fail("the disk never filled up")


def test_a_full_disk_is_named_and_ends_by_itself() -> None:
    scene = Scene()
    disk, engine = scene.disk, scene.engine
    for turn in range(3):
        disk.space_bytes = disk.space_bytes - disk.free_bytes() + 40_000
        error = fill_until_full(scene)
        assert error.detail["reason"] == "disk_full" and error.retryable and error.fix
        assert engine.state.shards[0].state == "disk_full"
        for topic in CLASSES:
            refusal = scene.append(topic).ticket.error
            assert isinstance(refusal, NotReady) and refusal.detail["reason"] == "disk_full"
        assert isinstance(engine.put_topic(f"new{turn}").error, NotReady)
        scene.check_live()
        disk.space_bytes += 1 << 20
        scene.round()
        assert all(attempt.acked for attempt in scene.attempts[-3:]), "no restart was needed"
        assert engine.state.shards[0].state == "ok"
    heads = [engine.topic(topic).head_seq for topic in CLASSES]
    assert heads == [len(scene.acked(topic)) for topic in CLASSES], "no seq was spent on a refusal"
    scene.check()


def test_a_checkpoint_on_a_full_disk_fails_and_the_next_one_works() -> None:
    scene = Scene()
    for _ in range(5):
        scene.round()
    disk = scene.disk
    disk.space_bytes -= disk.free_bytes()
    failed = scene.engine.checkpoint()
    settle(scene.engine)
    assert failed.error is not None
    scene.check_live()
    disk.space_bytes += 1 << 20
    scene.round()
    scene.engine.checkpoint().result()
    assert all(attempt.acked for attempt in scene.attempts)
    scene.check()


def test_closing_on_a_full_disk_keeps_what_was_acknowledged() -> None:
    scene = Scene()
    for _ in range(3):
        scene.round()
    scene.disk.space_bytes -= scene.disk.free_bytes()
    scene.check_live()
    scene.engine.close()
    dead = scene.disk.image(scene.disk.position, "all", 0, power_loss=False)
    dead.space_bytes = 1 << 30
    scene.check_recovered(dead, CLASSES, lies=False)


# Checkpoints

CHECKPOINT_FAULTS: list[tuple[str, Action]] = [
    ("*", "eio"),
    ("*", "enospc"),
    ("pwritev", "short"),
    ("sync*", "lie"),
]


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize(("operation", "action"), CHECKPOINT_FAULTS)
def test_checkpoints_with_a_fault_at_every_call(
    operation: str, action: Action, forever: bool
) -> None:
    for n in every_n(1_000):
        scene = Scene(Fault(operation, n, action, forever))
        scene.plan.armed = False
        scene.round()
        scene.engine.checkpoint().result()
        scene.round()
        scene.plan.armed = True
        checkpoint = scene.engine.checkpoint()
        settle(scene.engine)
        assert checkpoint.done
        scene.plan.armed = False
        scene.round()
        second = scene.engine.checkpoint()
        settle(scene.engine)
        poisoned = scene.engine.state.shards[0].state == "wal_read_only"
        assert second.error is None or poisoned
        scene.check(lies=action == "lie")
        if not scene.plan.fired:
            return


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
def test_l10_starting_with_a_fault_at_every_call(forever: bool) -> None:
    """A start that fails raises; the next one finds everything."""
    scene = Scene()
    for _ in range(3):
        scene.round()
    scene.engine.checkpoint().result()
    scene.round()
    scene.engine.abandon()
    image = scene.disk.image(scene.disk.position, "all", 0, power_loss=False)
    for n in every_n(1_000):
        disk = image.copy()
        plan = _Armed(Fault("*", n, "eio", forever))
        plan.armed = True
        try:
            engine = open_engine(FaultFilesystem(disk, plan))
        except (OSError, HeadraceError):
            pass
        else:
            plan.armed = False
            for topic in CLASSES:
                assert all_data(engine, topic) == scene.acked(topic)
            engine.abandon()
        scene.check_recovered(disk.image(disk.position, "none", 2), CLASSES, lies=False)
        if not plan.fired:
            return
