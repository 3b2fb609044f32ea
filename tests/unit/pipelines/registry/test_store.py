"""Pipelines as records: versions, leases, reports, and every crash in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from headrace.api.pipelines import (
    Declaration,
    PipelineDest,
    PipelineHeld,
    PipelineReport,
    PipelineSource,
)
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import (
    CheckpointIncompatible,
    InvalidRequest,
    PipelineNotFound,
    Throttled,
    UnsupportedFormat,
)
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.pipelines.registry.records import DECLARATIONS, LEASE_MS, PROGRESS, VERSIONS_MAX
from headrace.pipelines.registry.store import HANDOVER_MS, LeasedPipeline, PipelineStore
from headrace.testing.simdisk import SimDisk

ONE = Declaration([PipelineSource("orders")], PipelineDest("out"), sql="select 1 from orders")
TWO = msgspec.structs.replace(ONE, sql="select 2 from orders")
THREE = msgspec.structs.replace(ONE, sql="select 3 from orders")

Open = Callable[..., Engine]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def opened(clock: ManualClock) -> Iterator[Open]:
    engines: list[Engine] = []

    def open_engine(disk: SimDisk, **more: int) -> Engine:
        settings = Settings(wal_file_bytes=1 << 16, wal_batch_bytes_max=1 << 14, **more)
        engine = Engine(disk, StepRuntime(clock), settings, random=SeededRandom(1))
        engine.recover()
        engines.append(engine)
        return engine

    yield open_engine
    for engine in engines:
        engine.abandon()


@pytest.fixture
def engine(opened: Open) -> Engine:
    return opened(SimDisk())


@pytest.fixture
def store(engine: Engine) -> PipelineStore:
    return PipelineStore(engine)


def versions(engine: Engine) -> list[int]:
    return [record.seq for record in engine.read(DECLARATIONS).result().records]


def hold(
    store: PipelineStore,
    handed: LeasedPipeline,
    node: str,
    state: str = "",
    lease_ms: int | None = LEASE_MS,
) -> PipelineHeld:
    report = PipelineReport(handed.view.name, handed.view.version, state, node, batch=3)
    return store.report(report, handed.lease_id, lease_ms, keep=bool(state)).result()


def claim(store: PipelineStore, node: str) -> LeasedPipeline | None:
    found = store.claim(node, 1, None).result()
    return found[0] if found else None


def test_put_get_list_delete(store: PipelineStore, engine: Engine) -> None:
    assert store.all().result() == []
    assert store.delete("a").result() is False
    with pytest.raises(PipelineNotFound):
        store.get("a").result()
    put = store.put("a", ONE, False).result()
    assert (put.created, put.view.version, put.view.declaration) == (True, 1, ONE)
    again = store.put("a", ONE, False).result()
    assert (again.created, again.view.version) == (False, 1)
    assert store.put("a", TWO, False).result().view.version == 2
    store.put("b", ONE, False).result()
    assert [shown.name for shown in store.all().result()] == ["a", "b"]
    assert versions(engine) == [2, 3]
    assert store.delete("a").result() is True
    assert store.delete("a").result() is False
    assert versions(engine) == [3]
    config = engine.topic(DECLARATIONS).config
    assert (config.type, config.durability, config.leases_durable) == ("queue", "fsync", True)


def test_a_restart_is_a_new_version_of_the_same(store: PipelineStore, engine: Engine) -> None:
    store.put("a", ONE, False).result()
    shown = store.restart("a").result()
    assert (shown.version, shown.declaration, shown.restarts) == (2, ONE, 1)
    assert versions(engine) == [2]
    with pytest.raises(PipelineNotFound):
        store.restart("b").result()


def test_what_was_put_is_there_after_a_start(
    store: PipelineStore, engine: Engine, opened: Open
) -> None:
    store.put("a", ONE, False).result()
    store.put("a", TWO, False).result()
    store.put("gone", ONE, False).result()
    handed = claim(store, "w1")
    assert handed is not None and handed.view.name == "a"
    assert hold(store, handed, "w1", "running") == PipelineHeld("a", True, True, handed.deadline)
    store.delete("gone").result()
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    engine.abandon()
    later = PipelineStore(opened(disk.image(disk.position, "all", 0, power_loss=False)))
    (shown,) = later.all().result()
    assert (shown.name, shown.declaration, shown.holder) == ("a", TWO, "w1")
    assert shown.report is not None
    assert (shown.report.state, shown.report.batch, shown.report.version) == ("running", 3, 2)
    assert hold(later, handed, "w1").held, "the lease outlives the server"


def test_one_worker_at_a_time(store: PipelineStore, clock: ManualClock) -> None:
    store.put("a", ONE, False).result()
    first = claim(store, "w1")
    assert first is not None
    assert claim(store, "w2") is None
    for _ in range(4):
        clock.advance(LEASE_MS // 2)
        assert hold(store, first, "w1").held
        assert claim(store, "w2") is None
    deadline = hold(store, first, "w1").deadline
    clock.advance(LEASE_MS // 2)
    assert hold(store, first, "w1", lease_ms=None) == PipelineHeld("a", True, True, deadline)
    assert hold(store, first, "w2", lease_ms=None) == PipelineHeld("a", False, True, 0)
    assert not hold(store, first._replace(lease_id="lease_1"), "w1", lease_ms=None).held
    clock.advance(LEASE_MS // 2 + 1)
    second = claim(store, "w2")
    assert second is not None
    assert hold(store, first, "w1") == PipelineHeld("a", False, True, 0)
    assert hold(store, second, "w2").held
    assert store.get("a").result().holder == "w2"


@pytest.mark.parametrize("deletes", [False, True])
def test_a_new_version_waits_for_the_old_ones_worker(
    store: PipelineStore, clock: ManualClock, engine: Engine, deletes: bool
) -> None:
    """Declared again, or deleted and declared again: the worker of the old one stops first."""
    store.put("a", ONE, False).result()
    old = claim(store, "w1")
    assert old is not None
    if deletes:
        assert store.delete("a").result() is True
        with pytest.raises(PipelineNotFound):
            store.get("a").result()
        assert store.all().result() == []
        assert not hold(store, old, "w1").current
    store.put("a", TWO, False).result()
    assert claim(store, "w2") is None
    assert hold(store, old, "w1") == PipelineHeld(
        "a", True, False, engine.state.clock.now_ms() + LEASE_MS
    )
    clock.advance(HANDOVER_MS)
    assert claim(store, "w2") is None
    assert store.release("a", "w1", old.view.version, old.lease_id, 0).result() is True
    clock.advance(HANDOVER_MS)
    new = claim(store, "w2")
    assert new is not None and new.view.declaration == TWO
    assert versions(engine) == [new.view.version]


def test_a_worker_that_died_holds_its_version_until_the_lease_is_over(
    store: PipelineStore, clock: ManualClock, engine: Engine
) -> None:
    store.put("a", ONE, False).result()
    assert claim(store, "w1") is not None
    store.put("a", TWO, False).result()
    store.put("a", THREE, False).result()
    assert claim(store, "w2") is None
    clock.advance(LEASE_MS - 1)
    assert claim(store, "w2") is None
    clock.advance(HANDOVER_MS)
    new = claim(store, "w2")
    assert new is not None and new.view.declaration == THREE
    assert versions(engine) == [3]


def test_versions_that_wait_are_bounded(store: PipelineStore, clock: ManualClock) -> None:
    store.put("a", ONE, False).result()
    old = claim(store, "w1")
    assert old is not None
    for n in range(VERSIONS_MAX - 1):
        store.put("a", TWO if n % 2 else THREE, False).result()
    with pytest.raises(Throttled, match="its worker has not stopped"):
        store.restart("a").result()
    assert store.delete("a").result() is True, "what is deleted is deleted"
    store.release("a", "w1", old.view.version, old.lease_id, 0).result()
    clock.advance(HANDOVER_MS)
    store.put("a", ONE, False).result()
    assert claim(store, "w1") is not None


def test_a_record_that_cannot_be_read_is_named(store: PipelineStore, engine: Engine) -> None:
    store.put("a", ONE, False).result()
    engine.append(DECLARATIONS, [b'{"pipeline":"b","declaration":{"later":1}}']).result()
    with pytest.raises(UnsupportedFormat, match="record 2 of the pipelines cannot be read"):
        PipelineStore(engine).all().result()


def test_a_report_that_cannot_be_read_is_named(store: PipelineStore, engine: Engine) -> None:
    store.put("a", ONE, False).result()
    engine.append(PROGRESS, [b'{"name":"a","version":1,"state":"running","node":"w1"}']).result()
    with pytest.raises(UnsupportedFormat, match="record 1 of the pipelines cannot be read"):
        PipelineStore(engine).all().result()


def test_deleted_while_it_runs(store: PipelineStore, clock: ManualClock, engine: Engine) -> None:
    store.put("a", ONE, False).result()
    old = claim(store, "w1")
    assert old is not None
    store.delete("a").result()
    assert store.delete("a").result() is False
    held = hold(store, old, "w1", "running")
    assert held.held and not held.current
    assert engine.state.find(PROGRESS) is None, "nothing is kept of a pipeline that is gone"
    store.release("a", "w1", old.view.version, old.lease_id, 0).result()
    assert versions(engine) == []
    clock.advance(HANDOVER_MS)
    assert claim(store, "w2") is None
    assert not hold(store, old, "w1").held


def test_reports_are_records(store: PipelineStore, engine: Engine) -> None:
    store.put("a", ONE, False).result()
    handed = claim(store, "w1")
    assert handed is not None
    assert hold(store, handed, "w1").held
    assert engine.state.find(PROGRESS) is None
    hold(store, handed, "w1", "starting")
    hold(store, handed, "w1", "running")
    assert not hold(store, handed, "w2", "running").held
    records = engine.read(PROGRESS).result().records
    assert [(r.tag, r.node) for r in records] == [("a", "w1"), ("a", "w1")]
    assert [msgspec.json.decode(r.data)["state"] for r in records] == ["starting", "running"]
    assert engine.topic(PROGRESS).config.cap_records > 0
    # A new version has not been heard of.
    store.restart("a").result()
    assert store.get("a").result().report is None


def test_a_given_back_pipeline_can_wait(store: PipelineStore, clock: ManualClock) -> None:
    store.put("a", ONE, False).result()
    handed = claim(store, "w1")
    assert handed is not None
    assert store.release("a", "w2", 1, handed.lease_id, 0).result() is False
    assert store.release("a", "w1", 1, handed.lease_id, 5_000).result() is True
    assert claim(store, "w2") is None
    clock.advance(5_000)
    assert claim(store, "w2") is not None


def test_a_changed_state_asks_for_a_new_checkpoint(store: PipelineStore) -> None:
    store.put("a", ONE, True).result()
    with pytest.raises(CheckpointIncompatible, match=r"keeps another state.*'1'.*another name"):
        store.put("a", TWO, False).result()
    other = msgspec.structs.replace(ONE, sources=[PipelineSource("b", alias="orders")])
    with pytest.raises(CheckpointIncompatible, match="reads other sources"):
        store.put("a", other, True).result()
    store.put("a", msgspec.structs.replace(ONE, trigger="1m"), True).result()
    store.put("a", msgspec.structs.replace(TWO, checkpoint="2"), True).result()
    # Without state in either, a checkpoint only says how far it has read.
    store.put("b", ONE, False).result()
    store.put("b", TWO, False).result()
    with pytest.raises(CheckpointIncompatible):
        store.put("b", THREE, True).result()


def test_a_crash_at_every_disk_call(opened: Open, clock: ManualClock) -> None:
    """What was answered holds, the newest version counts, and old ones are gone after a start."""
    disk = SimDisk()
    engine = opened(disk)
    store = PipelineStore(engine)
    answered = []  # position of the disk, and what a start has to find from there on
    for step in (ONE, TWO, None, THREE):
        asked = disk.position
        if step is None:
            store.delete("a").result()
        else:
            store.put("a", step, False).result()
        answered.append((asked, disk.position, step))
    engine.abandon()
    seen = set()
    for position in range(1, answered[-1][1] + 1):
        for mode in ("none", "all"):
            found = PipelineStore(opened(disk.image(position, mode, 0)))
            shown = found.all().result()
            now = shown[0].declaration if shown else None
            done = [step for _, end, step in answered if end <= position]
            begun = [step for start, _, step in answered if start < position]
            allowed = {
                step.encode() if step else None
                for step in [*(done[-1:] or [None]), *begun[max(len(done) - 1, 0) :]]
            }
            key = now.encode() if now else None
            assert key in allowed, (position, mode)
            seen.add(key)
            topic = found._engine.state.find(DECLARATIONS)
            if topic is not None:
                assert len(versions(found._engine)) == len(shown), (position, mode)
    assert len(seen) == 4


# Bytes


def wordy(size: int) -> Declaration:
    return msgspec.structs.replace(ONE, sql="select 1 from orders -- " + "x" * size)


def test_what_declarations_may_hold(opened: Open) -> None:
    """Native §1.9d: one, and all together; nothing of a refused one is kept."""
    disk = SimDisk()
    engine = opened(disk, pipeline_bytes_max=2_000, pipelines_bytes_max=4_000)
    store = PipelineStore(engine)
    with pytest.raises(InvalidRequest, match="HEADRACE_PIPELINE_BYTES_MAX") as refused:
        store.put("big", wordy(2_000), stateful=False).result()
    assert refused.value.detail == {"limit": "pipeline_bytes_max", "max": 2_000}
    assert (store.bytes, engine.find(DECLARATIONS)) == (0, None)
    for name in ("a", "b"):
        store.put(name, wordy(1_500), stateful=False).result()
    held = store.bytes
    assert 3_000 < held <= 4_000
    with pytest.raises(Throttled, match="HEADRACE_PIPELINES_BYTES_MAX"):
        store.put("c", wordy(1_500), stateful=False).result()
    store.put("b", wordy(1), stateful=False).result()
    store.put("c", wordy(1_400), stateful=False).result()
    report = PipelineReport("a", 1, "running", "n", watermark="w" * 2_000)
    with pytest.raises(InvalidRequest, match="the report has"):
        store.report(report, "", None, keep=True)
    assert PipelineStore(engine).all().result()
    store.delete("a").result()
    assert store.bytes < held - 1_400


def test_larger_declarations_are_loaded(opened: Open) -> None:
    disk = SimDisk()
    engine = opened(disk)
    PipelineStore(engine).put("big", wordy(5_000), stateful=False).result()
    engine.close()
    store = PipelineStore(opened(disk, pipeline_bytes_max=2_000, pipelines_bytes_max=2_000))
    [view] = store.all().result()
    assert view.declaration == wordy(5_000)
    assert store.bytes > 5_000
    store.put("big", wordy(1), stateful=False).result()
