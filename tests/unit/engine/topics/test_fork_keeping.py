"""Who keeps what: a source keeps what forks inherit, and either loses what it loses alone."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import TopicInUse
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.block import Batch
from headrace.storage.files.merge_policy import MergePolicy
from headrace.testing.simdisk import SimDisk
from tests.support.engines import SMALL, Start
from tests.support.forks import delete, fork

MERGING = MergePolicy(fan_in=2, own_rows_min=1, own_bytes_min=1, own_topics_max=1_000)
LOSSES = ("cap", "ttl", "before", "match")


def append(engine: Engine, name: str, *tags: str) -> None:
    for tag in tags:
        engine.append(name, Batch([b"1"], tags=[tag])).result()


def seqs(engine: Engine, name: str) -> list[int]:
    return [record.seq for record in engine.read(name, limit=1_000).result().records]


def forget(engine: Engine) -> None:
    engine.checkpoint().result()
    for topic in engine.state.by_id.values():
        engine.state.forget_blocks(topic)


def lose(engine: Engine, name: str, how: str) -> list[int]:
    """Have a topic of ten records lose some, all but the last at most; return what is left."""
    if how == "cap":
        engine.put_topic(name, {"cap_records": 2}).result()
    elif how == "ttl":
        engine.put_topic(name, {"ttl_ms": 10}).result()
        clock = engine.runtime.clock
        assert isinstance(clock, ManualClock)
        clock.advance(50)
        append(engine, name, "late")
    elif how == "before":
        engine.delete(name, before_seq=9).result()
    else:
        engine.delete(name, match="x*").result()
    return seqs(engine, name)


def filled(engine: Engine, name: str = "source") -> None:
    append(engine, name, *[f"x{i}" for i in range(1, 9)], "y9", "y10")


LEFT = {"cap": [9, 10], "ttl": [11], "before": [9, 10], "match": [9, 10]}


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("how", LOSSES)
def test_a_fork_keeps_what_its_source_loses(
    start: Start, again: Start, how: str, sealed: bool
) -> None:
    engine = start(policy=MERGING)
    filled(engine)
    if sealed:
        forget(engine)
    fork(engine, "source", 8, "fork")
    left = lose(engine, "source", how)
    assert left == LEFT[how]
    kept = list(range(1, 9))
    assert seqs(engine, "fork") == kept
    for _ in range(2):
        append(engine, "source", "z")
        engine.checkpoint().result()  # merges, too
    if sealed:
        forget(engine)
    assert seqs(engine, "fork") == kept
    engine = again(engine, policy=MERGING)
    assert seqs(engine, "fork") == kept
    assert seqs(engine, "source")[: len(left)] in (left, [11, 12])
    for _ in range(2):
        append(engine, "source", "z")
        forget(engine)
    assert seqs(engine, "fork") == kept


@pytest.mark.parametrize("how", LOSSES)
def test_a_source_keeps_what_its_fork_loses(start: Start, again: Start, how: str) -> None:
    engine = start(policy=MERGING)
    filled(engine)
    fork(engine, "source", 10, "fork")
    assert lose(engine, "fork", how) == LEFT[how]
    forget(engine)
    assert seqs(engine, "source") == list(range(1, 11))
    engine = again(engine, policy=MERGING)
    assert seqs(engine, "source") == list(range(1, 11))
    assert seqs(engine, "fork") == LEFT[how]


def test_what_was_dead_at_the_fork_is_dead_in_it(start: Start, again: Start) -> None:
    engine = start()
    filled(engine)
    engine.delete("source", before_seq=3).result()
    engine.delete("source", match="x5").result()
    engine.delete("source", match="y10").result()
    fork(engine, "source", 9, "fork")
    for _ in range(2):
        assert seqs(engine, "fork") == [3, 4, 6, 7, 8, 9]
        assert engine.read("fork").result().tombstone is None  # deletes are silent
        engine = again(engine)
    append(engine, "fork", "own")
    assert seqs(engine, "fork") == [3, 4, 6, 7, 8, 9, 10]


def test_what_caps_took_before_the_fork_is_announced_by_it(start: Start, again: Start) -> None:
    engine = start()
    engine.put_topic("source", {"cap_records": 3}).result()
    filled(engine)
    fork(engine, "source", 9, "fork")
    for _ in range(2):
        page = engine.read("fork").result()
        assert page.tombstone is not None
        assert page.tombstone[:4] == (1, 7, "cap", 8)
        assert [record.seq for record in page.records] == [8, 9]
        engine = again(engine)


def rows_of(engine: Engine, name: str) -> int:
    return sum(run.count for run in engine.state.catalog.runs(engine.state.topic(name).id))


def test_rows_that_nobody_needs_leave_the_files(start: Start) -> None:
    engine = start(policy=MERGING)
    filled(engine)
    fork(engine, "source", 8, "a")
    fork(engine, "a", 6, "b")
    engine.delete("source", match="x*").result()

    def settled() -> int:
        for _ in range(6):
            append(engine, "source", "z")
            forget(engine)
        return rows_of(engine, "source") - engine.state.topic("source").count

    def noted() -> tuple[int, list[int]]:
        """From which row on merges keep the rows of the source, and without which."""
        engine.checkpoint().result()
        live = engine.checkpointer.files._liveness[engine.state.topic("source").id]
        return live.earliest_seq, list(live.holes or ())

    assert settled() == 8
    delete(engine, "a")  # what is behind 6 was kept for it alone
    assert settled() == 6 and seqs(engine, "b") == [1, 2, 3, 4, 5, 6]
    engine.delete("b", match="x2").result()
    assert noted() == (1, [2, 7, 8])
    delete(engine, "b")
    engine.runtime.drain()
    assert engine.state.find("a") is None
    assert noted() == (9, [])


def test_merges_after_a_start_know_of_forks(start: Start, kill: Start) -> None:
    engine = start()
    filled(engine)
    fork(engine, "source", 8, "fork")
    engine.delete("source", before_seq=9).result()
    engine.checkpoint().result()
    engine = kill(engine)
    live = engine.checkpointer.files._liveness[engine.state.topic("source").id]
    assert live.earliest_seq == 1 and not live.holes


def test_memory_is_freed_when_the_last_fork_lets_go(start: Start) -> None:
    engine = start()
    filled(engine)
    fork(engine, "source", 8, "fork")
    source = engine.state.topic("source")
    engine.delete("source", before_seq=9).result()
    assert source.blocks.first is not None and source.blocks.first.first_seq == 1
    engine.delete("fork", before_seq=5).result()
    assert source.blocks.first.first_seq == 5
    delete(engine, "fork")
    assert source.blocks.first is not None and source.blocks.first.first_seq == 9


def test_a_topic_with_forks_is_not_deleted(start: Start) -> None:
    engine = start()
    filled(engine)
    fork(engine, "source", 8, "fork")
    refused = engine.delete_topic("source")
    assert isinstance(refused.error, TopicInUse) and refused.error.detail["forks"] == 1
    delete(engine, "fork")
    assert engine.delete_topic("source").result().deleted


def test_a_source_that_is_kept_for_forks_goes_with_the_last(start: Start, again: Start) -> None:
    engine = start()
    filled(engine)
    fork(engine, "source", 8, "a")
    fork(engine, "source", 4, "b")
    delete(engine, "source")
    for _ in range(2):
        assert seqs(engine, "a") == list(range(1, 9)) and seqs(engine, "b") == [1, 2, 3, 4]
        engine = again(engine)
    delete(engine, "a")
    assert engine.state.find("source") is not None and seqs(engine, "b") == [1, 2, 3, 4]
    delete(engine, "b")
    engine.runtime.drain()
    assert not engine.state.by_id


def test_what_a_crash_takes_from_a_source_its_forks_announce(start: Start, kill: Start) -> None:
    engine = start()
    engine.put_topic("source", {"durability": "ephemeral"}).result()
    filled(engine)
    fork(engine, "source", 8, "a")
    fork(engine, "a", 5, "b")
    append(engine, "b", "own")
    assert seqs(engine, "b") == [1, 2, 3, 4, 5, 6]
    for _ in range(2):
        engine = kill(engine)
        page = engine.read("b").result()
        assert page.tombstone is not None and page.tombstone[:3] == (1, 5, "crash")
        assert [record.seq for record in page.records] == [6]
        assert engine.read("a").result().tombstone is not None
        engine.checkpoint().result()


def test_a_source_of_class_memory_is_there_when_its_fork_is(start: Start) -> None:
    engine = start()
    for name in ("source", "other"):
        engine.put_topic(name, {"durability": "memory"}).result()
        filled(engine, name)
    fork(engine, "source", 8, "fork", durability="fsync")
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    engine.abandon()
    image = disk.image(disk.position, "all", 0, power_loss=False)
    settings = Settings(**SMALL)  # type: ignore[arg-type]
    engine = Engine(image, StepRuntime(ManualClock()), settings, random=SeededRandom(1))
    engine.recover(all_at_once=False)
    assert "other" in engine.loading and "source" not in engine.loading
    assert seqs(engine, "fork") == list(range(1, 9))
    engine.abandon()
