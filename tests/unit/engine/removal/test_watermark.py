"""The watermark of a topic, and retention that waits for it."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import (
    EpochMismatch,
    HeadraceError,
    InvalidRequest,
    NotReady,
    ShuttingDown,
    TopicFull,
    TopicNotFound,
)
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.removal.watermark import ArchivedTo
from headrace.engine.topics.config import make_config
from headrace.storage.block import Batch
from headrace.storage.snapshot.state import TopicState
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.harness.model import NewRecord, TopicModel
from tests.support.engines import Start
from tests.support.seqs import seqs_read

SMALL = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10)
KEPT = {"retain_until_archived": True}


def fill(engine: Engine, count: int, size: int = 10, name: str = "t") -> None:
    for _ in range(count):
        engine.append(name, [b"x" * size]).result()


def told(engine: Engine, to_seq: int, name: str = "t") -> ArchivedTo:
    return engine.archives.told(name, engine.topic(name).epoch, to_seq).result()


# The watermark


def test_it_is_shown_and_only_goes_up(engine: Engine) -> None:
    fill(engine, 5)
    epoch = engine.topic("t").epoch
    assert (engine.topic("t").archived_seq, engine.topic("t").overtaken_seq) == (0, 0)
    assert told(engine, 3) == ArchivedTo("t", epoch, 3, 5)
    assert told(engine, 2) == ArchivedTo("t", epoch, 3, 5)
    assert told(engine, 3).archived_seq == 3
    assert told(engine, 0).archived_seq == 3
    assert told(engine, 5).archived_seq == 5
    assert engine.topic("t").archived_seq == 5
    assert seqs_read(engine) == [1, 2, 3, 4, 5], (
        "a topic that does not wait for it loses nothing by it"
    )


def test_a_lower_one_writes_nothing(engine: Engine) -> None:
    fill(engine, 5)
    told(engine, 4)
    frames = engine.state.shards[0].frames_total
    told(engine, 4)
    told(engine, 1)
    assert engine.state.shards[0].frames_total == frames


def test_two_at_once_end_with_the_higher(engine: Engine) -> None:
    fill(engine, 5)
    epoch = engine.topic("t").epoch
    high, low = (engine.archives.told("t", epoch, seq) for seq in (4, 2))
    assert low.result().archived_seq == high.result().archived_seq == 4
    assert engine.topic("t").archived_seq == 4


def test_what_is_refused(engine: Engine) -> None:
    fill(engine, 5)
    epoch = engine.topic("t").epoch
    wrong = engine.archives.told("t", epoch + 1, 1).error
    assert isinstance(wrong, EpochMismatch) and wrong.status == 409
    assert wrong.detail == {"topic": "t", "epoch": epoch}
    beyond = engine.archives.told("t", epoch, 6).error
    assert isinstance(beyond, InvalidRequest) and beyond.detail["head_seq"] == 5
    assert isinstance(engine.archives.told("t", epoch, -1).error, InvalidRequest)
    assert isinstance(engine.archives.told("absent", 1, 0).error, TopicNotFound)
    assert engine.topic("t").archived_seq == 0


def test_it_is_refused_before_the_start_and_while_closing(engine: Engine) -> None:
    fill(engine, 2)
    epoch = engine.topic("t").epoch
    engine.state.closing = True
    assert isinstance(engine.archives.told("t", epoch, 1).error, ShuttingDown)
    engine.state.closing = False
    engine.state.ready = False
    assert isinstance(engine.archives.told("t", epoch, 1).error, NotReady)
    engine.state.ready = True


def test_it_is_synced_before_it_is_answered(engine: Engine, power_loss: Start) -> None:
    fill(engine, 5)
    ticket = engine.archives.told("t", engine.topic("t").epoch, 4)
    assert not ticket.done and engine.topic("t").archived_seq == 0
    assert ticket.result().archived_seq == 4
    engine = power_loss(engine, "none")
    assert (engine.topic("t").archived_seq, engine.topic("t").count) == (4, 5)


def test_an_append_behind_it_is_answered_after_it(engine: Engine, kill: Start) -> None:
    """Otherwise it would count when the cap looks, and not yet when the log is replayed."""
    engine.put_topic("t", {**KEPT, "cap_records": 2, "retain_bytes_max": 20}).result()
    fill(engine, 4)
    ticket = engine.archives.told("t", engine.topic("t").epoch, 1)
    appended = engine.append("t", [b"x" * 10])
    while not ticket.done:
        assert not appended.done
        engine.runtime.step()  # type: ignore[attr-defined]
    appended.result()
    live = seqs_read(engine)
    assert live == [2, 3, 4, 5]
    assert (seqs_read(kill(engine)), engine.topic("t").overtaken_seq) == (live, 0)


def test_a_delete_behind_it_finds_what_it_left(engine: Engine, kill: Start) -> None:
    """A kill before the floor is logged: the replay takes what the cap took, before the delete."""
    engine.put_topic("t", {**KEPT, "durability": "fsync", "cap_records": 2}).result()
    fill(engine, 5)
    engine.append("t", Batch([b"x"], tags=["done"])).result()
    engine.archives.told("t", engine.topic("t").epoch, 5)
    gone = engine.delete("t", match="done")
    while not gone.done:
        engine.runtime.step()  # type: ignore[attr-defined]
    assert (gone.result().deleted, gone.result().count) == (1, 1)
    assert seqs_read(kill(engine)) == [5]


@pytest.mark.parametrize("sealed", [False, True])
def test_it_survives_every_end(
    engine: Engine, kill: Start, restart: Start, power_loss: Start, sealed: bool
) -> None:
    fill(engine, 5)
    told(engine, 4)
    if sealed:
        engine.checkpoint().result()
    for again in (kill, restart, power_loss, restart):
        engine = again(engine)
        assert engine.topic("t").archived_seq == 4
        assert told(engine, 3).archived_seq == 4


def test_it_fails_with_the_log(start: Start) -> None:
    calm = FaultPlan()
    fill(start(FaultFilesystem(SimDisk(), calm)), 5)
    plan = FaultPlan(Fault("sync_data", calm.calls["sync_data"] + 1, "eio", forever=True))
    engine = start(FaultFilesystem(SimDisk(), plan))
    fill(engine, 5)
    assert not plan.fired
    ticket = engine.archives.told("t", engine.topic("t").epoch, 4)
    with pytest.raises(HeadraceError):
        ticket.result()
    assert plan.fired and engine.topic("t").archived_seq == 0


def test_a_topic_made_anew_starts_anew(engine: Engine, kill: Start) -> None:
    fill(engine, 5)
    epoch = engine.topic("t").epoch
    told(engine, 5)
    engine.delete_topic("t").result()
    fill(engine, 3)
    assert engine.topic("t").archived_seq == 0
    assert isinstance(engine.archives.told("t", epoch, 1).error, EpochMismatch)
    assert kill(engine).topic("t").archived_seq == 0


def test_one_of_another_epoch_in_the_log_does_not_count(engine: Engine, kill: Start) -> None:
    """A restored log holds the entries of the directory it was made from."""
    fill(engine, 5)
    told(engine, 4)
    engine.state.topic("t").epoch += 1
    engine.checkpoint().result()
    engine.state.topic("t").archived_seq = 0
    engine.state.topic("t").mark_changed()
    engine.checkpoint().result()
    engine.state.topic("t").epoch -= 1
    told(engine, 3)
    assert kill(engine).topic("t").archived_seq == 0


def test_a_snapshot_without_it_is_one_that_was_never_told() -> None:
    fields = [1, "t", 1, b"{}", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b"", [], {}, b""]
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=TopicState)
    assert (state.archived_seq, state.overtaken_seq) == (0, 0)


# Waiting for it


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("cap", [{"cap_records": 2}, {"cap_bytes": 20}], ids=str)
def test_a_cap_waits(
    engine: Engine, restart: Start, kill: Start, cap: dict[str, int], sealed: bool
) -> None:
    engine.put_topic("t", {**KEPT, **cap}).result()
    fill(engine, 6)
    if sealed:
        engine = restart(engine)
    assert (seqs_read(engine), engine.topic("t").bytes) == ([1, 2, 3, 4, 5, 6], 60)
    told(engine, 3)
    assert seqs_read(engine) == [4, 5, 6]
    page = engine.read("t").result()
    assert page.tombstone is not None
    assert (page.tombstone.gap_to, page.tombstone.reason) == (3, "cap")
    told(engine, 6)
    assert seqs_read(engine) == [5, 6], "no more than the cap asks for"
    fill(engine, 4)
    assert seqs_read(engine) == [7, 8, 9, 10], "what comes later waits for the next watermark"
    assert engine.topic("t").overtaken_seq == 0
    assert seqs_read(kill(engine)) == [7, 8, 9, 10]


@pytest.mark.parametrize("sealed", [False, True])
def test_the_ttl_waits(engine: Engine, clock: ManualClock, restart: Start, sealed: bool) -> None:
    engine.put_topic("t", {**KEPT, "ttl_ms": 100}).result()
    fill(engine, 4)
    if sealed:
        engine = restart(engine)
    clock.advance(101)
    assert seqs_read(engine) == [1, 2, 3, 4]
    told(engine, 3)
    assert (seqs_read(engine), engine.topic("t").earliest_seq) == ([4], 4)
    told(engine, 4)
    assert (seqs_read(engine), engine.topic("t").count) == ([], 0)


def test_a_delete_does_not_wait(engine: Engine) -> None:
    engine.put_topic("t", {**KEPT, "cap_records": 2}).result()
    fill(engine, 6)
    assert engine.delete("t", before_seq=4).result().deleted == 3
    assert seqs_read(engine) == [4, 5, 6]
    page = engine.read("t").result()
    assert page.tombstone is None, "nobody lost anything that was not asked for"


def test_deleting_the_topic_does_not_wait(engine: Engine) -> None:
    engine.put_topic("t", {**KEPT, "cap_records": 2}).result()
    fill(engine, 6)
    assert engine.delete_topic("t").result().deleted


def test_a_topic_that_rejects_is_full_all_the_same(engine: Engine) -> None:
    engine.put_topic("t", {**KEPT, "cap_records": 2, "discard": "reject"}).result()
    fill(engine, 2)
    assert isinstance(engine.append("t", [b"x"]).error, TopicFull)


def test_a_config_that_stops_waiting_lets_go_at_once(engine: Engine, kill: Start) -> None:
    engine.put_topic("t", {**KEPT, "cap_records": 2}).result()
    fill(engine, 6)
    engine.put_topic("t", {"cap_records": 2}).result()
    assert seqs_read(engine) == [5, 6]
    assert engine.topic("t").overtaken_seq == 0, "it was asked for"
    engine.put_topic("t", {**KEPT, "cap_records": 2}).result()
    fill(engine, 2)
    assert seqs_read(engine) == [5, 6, 7, 8]
    assert seqs_read(kill(engine)) == [5, 6, 7, 8]


def test_replay_lets_go_where_the_log_says_so(engine: Engine, kill: Start) -> None:
    """A watermark that is replayed later, or earlier, than it was told would take other records."""
    engine.put_topic("t", {**KEPT, "cap_records": 2, "retain_bytes_max": 30}).result()
    fill(engine, 5)
    told(engine, 2)
    fill(engine, 2)
    engine.delete("t", before_seq=1).result()
    assert seqs_read(engine) == [3, 4, 5, 6, 7]
    engine = kill(engine)
    assert seqs_read(engine) == [3, 4, 5, 6, 7]
    assert engine.topic("t").overtaken_seq == 0


def test_a_config_older_than_the_snapshot_takes_nothing_of_what_came_since(
    engine: Engine, kill: Start
) -> None:
    """Both configs are logged behind the rotation, and the checkpoint captures the topic later."""
    engine.put_topic("t", {"cap_records": 9}).result()
    fill(engine, 3)
    checkpoint = engine.checkpoint()
    engine.put_topic("t", {"cap_records": 2})
    engine.put_topic("t", {**KEPT, "cap_records": 2})
    engine.append("t", [b"x" * 10] * 5)
    checkpoint.result()
    live = seqs_read(engine)
    assert live == [2, 3, 4, 5, 6, 7, 8]
    assert seqs_read(kill(engine)) == live


def test_a_config_older_than_the_watermark_takes_nothing_on_account_of_it(
    engine: Engine, kill: Start
) -> None:
    """A cap came and went before the watermark did, all between a rotation and its capture."""
    engine.put_topic("t", KEPT).result()
    fill(engine, 6)
    checkpoint = engine.checkpoint()
    engine.put_topic("t", {**KEPT, "cap_records": 2})
    engine.put_topic("t", {**KEPT, "cap_records": 9})
    engine.archives.told("t", engine.topic("t").epoch, 6)
    checkpoint.result()
    assert (seqs_read(engine), engine.topic("t").archived_seq) == ([1, 2, 3, 4, 5, 6], 6)
    assert seqs_read(kill(engine)) == [1, 2, 3, 4, 5, 6]


def test_a_config_behind_a_watermark_in_flight_goes_by_it(engine: Engine, kill: Start) -> None:
    """A kill before the floor is logged: the replay takes what the cap took, before the delete."""
    engine.put_topic("t", {**KEPT, "durability": "fsync"}).result()
    fill(engine, 5)
    engine.append("t", Batch([b"x"], tags=["done"])).result()
    engine.archives.told("t", engine.topic("t").epoch, 5)
    engine.put_topic("t", {**KEPT, "durability": "fsync", "cap_records": 2})
    gone = engine.delete("t", match="done")
    while not gone.done:
        engine.runtime.step()  # type: ignore[attr-defined]
    assert (gone.result().deleted, gone.result().count) == (1, 1)
    assert seqs_read(kill(engine)) == [5]


# Too much to wait for


@pytest.mark.parametrize("cap", [{"cap_records": 2}, {"cap_bytes": 20}], ids=str)
@pytest.mark.parametrize("sealed", [False, True])
def test_more_than_the_bound_goes_all_the_same(
    engine: Engine,
    restart: Start,
    kill: Start,
    cap: dict[str, int],
    sealed: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "headrace.retention")
    engine.put_topic("t", {**KEPT, **cap, "retain_bytes_max": 30}).result()
    fill(engine, 5)
    if sealed:
        engine = restart(engine)
    assert (len(seqs_read(engine)), engine.state.overtaken) == (5, set())
    fill(engine, 1)
    assert seqs_read(engine) == [2, 3, 4, 5, 6]
    fill(engine, 3)
    info = engine.topic("t")
    assert (seqs_read(engine), info.bytes, info.overtaken_seq) == ([5, 6, 7, 8, 9], 50, 4)
    assert (len(engine.state.overtaken), engine.state.overtaken_records_total) == (1, 4)
    assert [r.message for r in caplog.records if "not archived" in r.message] == [
        "'t' loses records that are not archived: it held back more than retain_bytes_max (30); "
        "bring its archive up to date, or raise that"
    ], "once, however many follow"
    engine = kill(engine)
    assert (seqs_read(engine), engine.topic("t").overtaken_seq) == ([5, 6, 7, 8, 9], 4)
    assert len(engine.state.overtaken) == 1
    told(engine, 5)
    assert (engine.state.overtaken, engine.topic("t").overtaken_seq) == (set(), 4)
    engine = restart(engine)
    assert (engine.state.overtaken, engine.topic("t").overtaken_seq) == (set(), 4)


@pytest.mark.parametrize("sealed", [False, True])
def test_age_beyond_the_bound(
    engine: Engine, clock: ManualClock, restart: Start, kill: Start, sealed: bool
) -> None:
    engine.put_topic("t", {**KEPT, "ttl_ms": 100, "retain_bytes_max": 25}).result()
    fill(engine, 4)
    if sealed:
        engine = restart(engine)
    assert len(seqs_read(engine)) == 4, "none is old yet, so nothing is held back"
    clock.advance(101)
    fill(engine, 1)
    assert (seqs_read(engine), engine.topic("t").overtaken_seq) == ([3, 4, 5], 2)
    clock.advance(101)
    assert (seqs_read(engine), engine.topic("t").overtaken_seq) == ([4, 5], 3)
    engine = kill(engine, clock=ManualClock(clock.wall_ms() - 10_000))
    assert (seqs_read(engine), engine.topic("t").overtaken_seq) == ([4, 5], 3)


def test_a_topic_that_waits_no_more_is_not_counted(engine: Engine, kill: Start) -> None:
    """Nobody would bring an archive past what it lost; it waits again, and it counts again."""
    bounded = {**KEPT, "cap_records": 1, "retain_bytes_max": 5}
    engine.put_topic("t", bounded).result()
    fill(engine, 3)
    assert len(engine.state.overtaken) == 1
    engine.put_topic("t", {"cap_records": 1}).result()
    assert engine.state.overtaken == set()
    engine = kill(engine)
    assert (engine.state.overtaken, engine.topic("t").overtaken_seq) == (set(), 2)
    engine.put_topic("t", bounded).result()
    assert len(engine.state.overtaken) == 1
    assert len(kill(engine).state.overtaken) == 1


def test_a_deleted_topic_is_not_counted(engine: Engine) -> None:
    engine.put_topic("t", {**KEPT, "cap_records": 1, "retain_bytes_max": 5}).result()
    fill(engine, 3)
    assert len(engine.state.overtaken) == 1
    engine.delete_topic("t").result()
    assert engine.state.overtaken == set()


STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.integers(1, 30), min_size=1, max_size=4)),
    st.tuples(st.just("archived"), st.integers(0, 5)),
    st.tuples(st.just("delete"), st.integers(0, 40)),
    st.tuples(st.just("wait"), st.integers(0, 60)),
    st.tuples(st.just("checkpoint"), st.just(0)),
)


@settings(max_examples=60)
@given(
    st.lists(STEPS, min_size=4, max_size=40),
    st.sampled_from([0, 3]),
    st.sampled_from([0, 40]),
    st.sampled_from([0, 100]),
    st.sampled_from([0, 1, 60]),
)
def test_the_model_agrees(
    steps: list[tuple[str, object]], records: int, size: int, ttl_ms: int, most: int
) -> None:
    """Step by step and after a crash: the sums that are kept between looks never go wrong."""
    clock, disk = ManualClock(0), SimDisk()
    config = make_config(
        {**KEPT, "cap_records": records, "cap_bytes": size, "ttl_ms": ttl_ms,
         "retain_bytes_max": most, "durability": "fsync"}
    )  # fmt: skip
    engine = Engine(disk, StepRuntime(clock), SMALL, random=SeededRandom(1))
    engine.recover()
    engine.put_topic("t", config).result()
    model = TopicModel(config)
    for what, value in steps:
        model.expire(engine.state.clock.now_ms())
        if what == "append":
            assert isinstance(value, list)
            engine.append("t", [b"x" * n for n in value]).result()
            model.append([NewRecord(b"x" * n) for n in value], engine.state.clock.now_ms())
        elif what == "checkpoint":
            engine.checkpoint().result()
        else:
            assert isinstance(value, int)
            if what == "archived":
                told(engine, max(0, model.head - value))
                model.archive(max(0, model.head - value))
            elif what == "delete":
                engine.delete("t", before_seq=value).result()
                model.delete(model.resolve(before_seq=value))
            else:
                clock.advance(value)
        model.expire(engine.state.clock.now_ms())
        info = engine.topic("t")
        assert (info.count, info.bytes, info.overtaken_seq, seqs_read(engine)) == (
            model.count, model.bytes, model.overtaken, sorted(model.live),
        )  # fmt: skip
    before = engine.topic("t")
    engine.abandon()
    image = disk.image(disk.position, "all", 0, power_loss=False)
    again = Engine(image, StepRuntime(clock), SMALL, random=SeededRandom(2))
    again.recover()
    after = again.topic("t")
    assert (after.archived_seq, after.overtaken_seq) == (before.archived_seq, before.overtaken_seq)
    assert (seqs_read(again), after.bytes) == (sorted(model.live), model.bytes)
    again.abandon()
