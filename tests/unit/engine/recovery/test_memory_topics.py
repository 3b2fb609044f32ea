"""Rule F0b: topics of class `memory` do not delay readiness, and lose nothing by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import HeadraceError, NotReady
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.engine.recovery import second_reading
from headrace.engine.routers.state import RouterOptions
from headrace.storage.block import Batch
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk

SMALL = {
    "wal_file_bytes": 64 << 10,
    "wal_batch_bytes_max": 16 << 10,
    "disk_reserve_bytes": 0,
    "replay_memory_bytes": 1 << 20,
}
MEMORY = {"durability": "memory"}


def opened(disk: SimDisk | FaultFilesystem, *, at_once: bool = True, **settings: int) -> Engine:
    made = Settings(**(SMALL | settings))  # type: ignore[arg-type]
    engine = Engine(disk, StepRuntime(ManualClock()), made, random=SeededRandom(1))
    engine.recover(all_at_once=at_once)
    return engine


def disk_of(engine: Engine) -> SimDisk:
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    return disk


def dead(engine: Engine, mode: str = "all", *, power_loss: bool = False) -> SimDisk:
    """The disk after the death of the process, or after a loss of power."""
    disk = disk_of(engine)
    engine.abandon()
    return disk.image(disk.position, mode, 3, power_loss=power_loss)  # type: ignore[arg-type]


def settle(engine: Engine) -> None:
    engine.runtime.run()  # type: ignore[attr-defined]


def everything(engine: Engine) -> dict[str, object]:
    found: dict[str, object] = {}
    for info in engine.topics():
        records, lost, cursor = [], [], 0
        while True:
            page = engine.read(info.topic, cursor).result()
            records += page.records
            lost += [page.tombstone] if page.tombstone is not None else []
            cursor = page.next_from_seq
            if page.caught_up:
                break
        topic = engine.state.topic(info.topic)
        found[info.topic] = (info, records, lost, topic.producers, topic.state)
    return found


def busy(engine: Engine) -> None:
    """Every entry that a topic of class memory can have, between those of others."""
    engine.put_topic("capped", {"cap_records": 4} | MEMORY).result()
    engine.put_topic("aged", {"ttl_ms": 50} | MEMORY).result()
    engine.put_topic("becomes-disk", MEMORY).result()
    engine.put_topic("becomes-memory", {"durability": "disk"}).result()
    engine.put_topic("jobs", {"type": "queue", "dead_letter": "dead"} | MEMORY).result()
    for part in range(2):
        for n in range(5):
            for name in ("capped", "aged", "becomes-disk", "becomes-memory", "dead"):
                engine.append(name, [f"{name}{part}{n}"], config=MEMORY).result()
            engine.append("jobs", [n]).result()
            engine.append(
                "cache",
                Batch([b"%d" % n] * 2, tags=[f"t{n % 3}", None]),
                config=None if engine.find("cache") else MEMORY,  # type: ignore[arg-type]
                idempotency_key=f"k{part}{n}",
                producer=ProducerClaim("p", part, n),
                state=b"s%d" % n,
            ).result()
            engine.append("ledger", [n], config={"durability": "fsync"}).result()
            engine.append("doomed", [n], config=MEMORY).result()
        engine.delete("cache", match="t1").result()
        engine.delete("capped", before_seq=2).result()
        engine.delete_topic("doomed").result()
        if part == 0:
            engine.checkpoint().result()
            engine.put_topic("becomes-disk", {"durability": "disk"}).result()
            engine.put_topic("becomes-memory", MEMORY).result()
    engine.put_topic("capped", {"cap_records": 3} | MEMORY).result()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("at_once", [True, False])
def test_f0b_everything_is_as_it_was(shards: int, at_once: bool) -> None:
    """Brought back before or after the start, and twice: the same state."""
    engine = opened(SimDisk(), wal_shards=shards)
    busy(engine)
    before = everything(engine)
    for _ in range(2):
        engine = opened(dead(engine), at_once=at_once, wal_shards=shards)
        settle(engine)
        assert everything(engine) == before
    engine.close()
    engine = opened(disk_of(engine).copy(), at_once=at_once, wal_shards=shards)
    assert not engine.state.loading and everything(engine) == before


def test_f0b_ready_without_them_and_refused_until_they_are_back() -> None:
    """Others are served; these are refused by name, and never look empty."""
    engine = opened(SimDisk())
    busy(engine)
    before = everything(engine)
    engine = opened(dead(engine), at_once=False)
    assert engine.ready and {"cache", "capped", "aged"} <= set(engine.state.loading._names)
    assert not {"ledger", "jobs", "dead", "becomes-disk"} & engine.state.loading._names
    assert engine.append("ledger", [1]).result().first_seq == 11
    calls: list[Callable[[], object]] = [
        lambda: engine.read("cache").result(),
        lambda: engine.append("cache", [1]).result(),
        lambda: engine.delete("cache", before_seq=3).result(),
        lambda: engine.delete_topic("cache").result(),
        lambda: engine.put_topic("cache", MEMORY).result(),
        lambda: engine.topic("cache"),
        lambda: engine.routers.put("r", RouterOptions(source="cache", dest="ledger")).result(),
    ]
    engine = opened(dead(engine), at_once=False)
    for call in calls:
        with pytest.raises(NotReady) as caught:
            call()
        assert caught.value.detail["topic"] == "cache"
        assert caught.value.detail["reason"] == "recovering"
        assert 0 <= float(str(caught.value.detail["replay_progress"])) < 1
        engine = opened(dead(engine), at_once=False)
    with pytest.raises(NotReady, match="topics of class memory"):
        engine.topics()
    settle(engine)
    assert not engine.state.loading and engine.state.loading.part == 1.0
    after = everything(engine)
    assert {k: v for k, v in after.items() if k != "ledger"} == {
        k: v for k, v in before.items() if k != "ledger"
    }
    head = engine.topic("cache").head_seq
    assert engine.append("cache", [1]).result().first_seq == head + 1


@pytest.mark.parametrize("mode", ["none", "prefix", "subset", "all"])
def test_f0b_no_seq_is_used_twice_after_a_power_loss(mode: str) -> None:
    """The gap of a topic that is not back yet is durable before the engine is ready."""
    engine = opened(SimDisk())
    engine.put_topic("cache", MEMORY).result()
    engine.append("cache", [b"x"]).result()
    settle(engine)
    for n in range(300):
        engine.append("cache", [b"%d" % n]).result()
    head = engine.topic("cache").head_seq
    image = dead(engine, mode, power_loss=True)
    late = opened(image, at_once=False)
    # A process death before they are back, then a start that waits for them.
    again = opened(dead(late))
    assert again.topic("cache").head_seq >= head
    settled = opened(dead(again), at_once=False)
    settle(settled)
    assert everything(settled) == everything(opened(dead(settled)))


def test_f0b_a_crash_in_the_middle_of_the_second_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far it came: the next start has everything, with checkpoints only after it."""
    monkeypatch.setattr(second_reading, "READ_BYTES", 1)  # a batch at a time
    engine = opened(SimDisk(), checkpoint_wal_bytes=64 << 10)
    busy(engine)
    before = everything(engine)
    image = dead(engine)
    for steps in range(0, 100, 7):
        late = opened(image.copy(), at_once=False)
        asked = late.checkpoint()
        for _ in range(steps):
            late.runtime.step()  # type: ignore[attr-defined]
        assert not asked.done or not late.state.loading
        assert everything(opened(dead(late))) == before


def test_f0b_closing_before_they_are_back() -> None:
    """No snapshot without them: the next start reads the log again."""
    engine = opened(SimDisk())
    busy(engine)
    before = everything(engine)
    late = opened(dead(engine), at_once=False)
    late.close()
    assert everything(opened(disk_of(late).copy())) == before


def test_f0b_routers_do_not_wait_for_what_they_connect() -> None:
    """A topic that a router connects counts as durable, also from the middle of the log on."""
    engine = opened(SimDisk(), wal_shards=2)
    for n in range(5):
        engine.append("from", [n], config=MEMORY).result()
        engine.append("to", [n], config=MEMORY).result()
        engine.append("apart", [n], config=MEMORY).result()
    engine.routers.put("r", RouterOptions(source="from", dest="to")).result()
    for n in range(5):
        engine.append("from", [n]).result()
        engine.append("to", [n]).result()
    settle(engine)
    before = everything(engine)
    engine = opened(dead(engine), at_once=False, wal_shards=2)
    assert engine.state.loading._names == {"apart"}
    settle(engine)
    assert everything(engine) == before


def test_f0b_memory_is_bounded_and_sealed_on_the_way() -> None:
    """Beyond its bound, what comes back is written to files."""
    engine = opened(SimDisk(), wal_file_bytes=1 << 20)
    for n in range(60):
        engine.append(f"t{n % 3}", [b"%02d" % n * 50_000], config=MEMORY).result()
    before = everything(engine)
    late = opened(dead(engine), at_once=False)
    settle(late)
    assert late.state.fs.listdir("segments") and everything(late) == before
    assert everything(opened(dead(late))) == before


def test_f0b_a_reading_that_fails_is_not_taken_for_an_empty_topic() -> None:
    """Named until a restart; the rest is served."""
    engine = opened(SimDisk())
    busy(engine)
    before = everything(engine)
    faulty = FaultFilesystem(dead(engine), FaultPlan())
    late = opened(faulty, at_once=False)
    faulty.plan = FaultPlan(Fault("open", 1, "eio", forever=True, path="wal/*"))
    settle(late)
    with pytest.raises(NotReady) as caught:
        late.topic("cache")
    assert caught.value.detail["reason"] == "recovery_failed"
    assert late.append("ledger", [1]).result().first_seq == 11
    with pytest.raises(HeadraceError):
        late.topics()
    inner = faulty.inner
    assert isinstance(inner, SimDisk)
    late.abandon()
    after = everything(opened(inner.image(inner.position, "all", 0, power_loss=False)))
    assert after["cache"] == before["cache"]
