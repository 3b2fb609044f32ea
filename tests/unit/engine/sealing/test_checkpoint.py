"""Checkpoints: the log becomes files, nothing changes for anybody, failures cost nothing."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import SegmentCorrupt
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.engine_reads import all_records
from tests.support.engines import Start
from tests.support.seqs import seqs_of, seqs_read


def log_bytes(engine: Engine) -> int:
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    return sum(len(data) for path, data in disk.contents().items() if path.startswith("wal/"))


def test_a_checkpoint_changes_nothing_that_can_be_read(engine: Engine) -> None:
    for n in range(50):
        engine.append("t", Batch([b"%d" % n] * 3, tags=["a", "b", None])).result()
    engine.delete("t", match="b").result()
    before, state = all_records(engine), engine.topic("t")
    engine.checkpoint().result()
    assert all_records(engine) == before and engine.topic("t") == state
    engine.state.forget_blocks(engine.state.topic("t"))
    assert all_records(engine) == before and engine.topic("t") == state


def test_appends_go_on_while_a_checkpoint_runs(engine: Engine, kill: Start) -> None:
    """One append in each step, and all of them are there afterwards, once."""
    engine.append("t", [b"first"]).result()
    checkpoint = engine.checkpoint()
    tickets = []
    while not checkpoint.done:
        tickets.append(engine.append("t", [b"%d" % len(tickets)]))
        tickets.append(engine.append(f"new{len(tickets)}", [1]))
        engine.runtime.step()  # type: ignore[attr-defined]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert all(ticket.error is None for ticket in tickets)
    before, names = all_records(engine), [info.topic for info in engine.topics()]
    assert seqs_of(before) == list(range(1, len(before) + 1))
    for _ in range(2):
        engine = kill(engine)
        assert all_records(engine) == before
        assert [info.topic for info in engine.topics()] == names
        engine.checkpoint().result()


def test_topics_deleted_while_a_checkpoint_runs_stay_deleted(start: Start, kill: Start) -> None:
    for steps in range(40):
        engine = start()
        engine.append("t", [1]).result()
        engine.append("keep", [1]).result()
        checkpoint = engine.checkpoint()
        for _ in range(steps):
            engine.runtime.step()  # type: ignore[attr-defined]
        finished = checkpoint.done
        engine.delete_topic("t").result()
        checkpoint.result()
        for _ in range(2):
            engine = kill(engine)
            assert [info.topic for info in engine.topics()] == ["keep"]
            assert engine.state.totals.bytes == 1
            engine.checkpoint().result()
        if finished:
            return
    pytest.fail("the checkpoint never finished")


def test_the_log_is_cut(engine: Engine) -> None:
    for _ in range(200):
        engine.append("t", [b"x" * 1_000]).result()
    for _ in range(3):
        engine.append("t", [1]).result()
        engine.checkpoint().result()
    assert log_bytes(engine) <= 4 * engine.settings.wal_file_bytes


def test_a_checkpoint_starts_by_itself_when_the_log_has_grown(start: Start) -> None:
    """L14: `checkpoint_wal_bytes`."""
    engine = start(checkpoint_wal_bytes=100_000)
    for _ in range(150):
        engine.append("t", [b"x" * 1_000]).result()
        engine.runtime.run()  # type: ignore[attr-defined]
    assert engine.checkpointer.checkpoints_total >= 1
    assert engine.state.catalog.metas()


def test_a_checkpoint_starts_by_itself_when_it_is_old(start: Start, clock: ManualClock) -> None:
    """L14: `checkpoint_age_ms`."""
    engine = start(checkpoint_age_ms=60_000)
    engine.append("t", [1]).result()
    clock.advance(60_000)
    engine.runtime.run()  # type: ignore[attr-defined]
    assert engine.checkpointer.checkpoints_total == 1
    clock.advance(120_000)
    engine.runtime.run()  # type: ignore[attr-defined]
    assert engine.checkpointer.checkpoints_total == 1, "nothing has changed since"


def test_memory_is_bounded_by_its_budget(start: Start) -> None:
    engine = start(memory_budget_bytes=1 << 20, read_cache_bytes=0, tag_index_bytes_max=0)
    for n in range(100):
        engine.append(f"t{n % 5}", [b"%02d" % n * 20_000]).result()
        engine.runtime.run()  # type: ignore[attr-defined]
        assert engine.state.totals.resident_bytes <= 1 << 20
    engine.runtime.run()  # type: ignore[attr-defined]
    for n in range(5):
        assert [r.data[:2] for r in all_records(engine, f"t{n}")] == [
            b"%02d" % m for m in range(n, 100, 5)
        ]


@pytest.mark.parametrize("operation", ["create", "pwritev", "sync", "sync_dir", "rename"])
def test_a_checkpoint_that_failed_is_made_up_for(
    start: Start, clock: ManualClock, operation: str
) -> None:
    """At each call of its own files: the records stay, keys and producers too, the next works."""
    failures = 0
    for n in range(1, 60):
        disk = SimDisk()
        fs = FaultFilesystem(disk)
        engine = start(fs)
        fs.plan = FaultPlan(
            Fault(operation, n, "eio", path="segments*"),
            Fault(operation, n, "eio", path="meta*"),
        )
        engine.append("t", [1, 2], idempotency_key="k").result()
        engine.append("t", [3], producer=ProducerClaim("p", 0, 0)).result()
        engine.append("gone", [1]).result()
        engine.delete_topic("gone").result()
        failed = engine.checkpoint()
        engine.runtime.run()  # type: ignore[attr-defined]
        failures += failed.error is not None
        assert [r.data for r in all_records(engine)] == [b"1", b"2", b"3"]
        engine.append("t", [4]).result()
        fired, fs.plan = fs.plan.fired, FaultPlan()
        engine.checkpoint().result()
        engine.abandon()
        image = disk.image(disk.position, "all", 0, power_loss=False)
        engine = start(image)
        assert [r.data for r in all_records(engine)] == [b"1", b"2", b"3", b"4"]
        assert engine.append("t", [9], idempotency_key="k").result().deduped
        assert engine.append("t", [9], producer=ProducerClaim("p", 0, 0)).result().deduped
        assert [info.topic for info in engine.topics()] == ["t"]
        if not fired:
            assert failures
            return
    pytest.fail("a checkpoint makes calls for ever")


def test_a_failed_checkpoint_is_tried_again_by_itself(start: Start, clock: ManualClock) -> None:
    fs = FaultFilesystem(SimDisk())
    fs.plan = FaultPlan(Fault("create", 1, "eio", path="segments*"))
    engine = start(fs, checkpoint_wal_bytes=20_000)
    for _ in range(40):
        engine.append("t", [b"x" * 1_000]).result()
        engine.runtime.run()  # type: ignore[attr-defined]
    assert engine.checkpointer.failures_total == 1
    for _ in range(40):
        engine.append("t", [b"x" * 1_000]).result()
        clock.advance(1_000)
        engine.runtime.run()  # type: ignore[attr-defined]
    assert engine.checkpointer.checkpoints_total >= 1


def test_a_second_request_waits_for_the_next_checkpoint(engine: Engine) -> None:
    engine.append("t", [1]).result()
    first, second, third = (engine.checkpoint() for _ in range(3))
    third.result()
    assert first.done and second.done
    assert engine.checkpointer.checkpoints_total >= 2


# Tiers


def cold_engine(start: Start, **settings: int) -> tuple[Engine, SimDisk]:
    cold = SimDisk()
    policy = MergePolicy(own_rows_min=1, own_bytes_min=1, own_topics_max=1_000)
    engine = start(
        cold=DirectoryStore(cold),
        policy=policy,
        hot_retain_segments=1,
        read_cache_bytes=0,
        **settings,
    )
    return engine, cold


def fill_cold(engine: Engine, parts: int = 5) -> None:
    for part in range(parts):
        engine.append("t", [b"%d" % part * 50] * 20).result()
        engine.checkpoint().result()


def test_m1_rows_are_sealed_when_they_are_old(start: Start, clock: ManualClock) -> None:
    engine = start(checkpoint_age_ms=600_000, segment_max_age_ms=60_000)
    engine.append("t", [1]).result()
    clock.advance(59_999)
    engine.runtime.run()  # type: ignore[attr-defined]
    assert not engine.state.catalog.metas()
    clock.advance(1)
    engine.runtime.run()  # type: ignore[attr-defined]
    assert [meta.rows for meta in engine.state.catalog.metas()] == [1]


def test_m2_segments_beyond_the_hot_bound_move(start: Start) -> None:
    engine, cold = cold_engine(start)
    fill_cold(engine)
    tiers = [meta.tier for meta in engine.state.catalog.metas()]
    assert 1 in tiers and 0 in tiers
    assert cold.listdir("segments") or cold.listdir("")
    assert len(engine.state.fs.listdir("segments")) < 5


def test_m2_without_a_cold_tier_nothing_moves(start: Start) -> None:
    engine = start(
        policy=MergePolicy(own_rows_min=1, own_bytes_min=1, own_topics_max=1_000),
        hot_retain_segments=1,
    )
    fill_cold(engine)
    assert {meta.tier for meta in engine.state.catalog.metas()} == {0}


def test_m4_relocation_changes_no_number(start: Start) -> None:
    engine, _ = cold_engine(start)
    hot = start()
    for one in (engine, hot):
        fill_cold(one)
    assert engine.topic("t") == hot.topic("t")
    assert [r[:3] for r in all_records(engine)] == [r[:3] for r in all_records(hot)]


def test_m5_a_slow_cold_read_delays_no_write(start: Start) -> None:
    """While a cold read is pending, appends and live reads are answered."""
    engine, cold = cold_engine(start)
    fill_cold(engine)
    engine.state.forget_blocks(engine.state.topic("t"))
    cold.cached = False
    reading = engine.read("t")
    assert not reading.done, "it needs the cold tier"
    appended = engine.append("t", [b"live"])
    engine.flush()
    assert appended.done and not reading.done
    assert [r.data for r in engine.read("t", 100).result().records] == [b"live"]
    assert reading.result().count == 101


def test_m6_a_page_counts_what_it_read_from_the_cold_tier(start: Start) -> None:
    engine, _ = cold_engine(start)
    fill_cold(engine)
    engine.state.forget_blocks(engine.state.topic("t"))
    engine.append("t", [b"live"]).result()
    page = engine.read("t").result()
    assert page.count == 101 and 0 < page.cold < 100
    assert engine.read("t", 100).result().cold == 0


def test_m7_caps_reach_into_the_cold_tier(start: Start) -> None:
    engine, cold = cold_engine(start)
    fill_cold(engine)
    engine.put_topic("t", {"cap_records": 5}).result()
    assert len(all_records(engine)) == 5 and engine.topic("t").bytes == 250
    for _ in range(4):
        engine.append("other", [1]).result()
        engine.checkpoint().result()
    held = b"".join(cold.contents().values())
    assert not any(b"%d" % part * 50 in held for part in range(4))


def test_a_lost_cold_file_is_an_error_for_its_range_only(start: Start) -> None:
    engine, cold = cold_engine(start)
    fill_cold(engine)
    engine.append("fine", [1]).result()
    engine.state.forget_blocks(engine.state.topic("t"))
    for path in list(cold.contents()):
        cold.truncate_to(path, 100)
    with pytest.raises(SegmentCorrupt) as caught:
        engine.read("t").result()
    assert caught.value.fix and "seg-" in str(caught.value)
    assert seqs_read(engine, "t", 90) == list(range(91, 101))
    assert engine.append("t", [1]).result().first_seq == 101
    assert engine.append("fine", [2]).result().first_seq == 2
