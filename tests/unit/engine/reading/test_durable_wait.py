"""Waiting until visible records are on disk: `Engine.synced`."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import InvalidRequest, NotReady, TopicNotFound
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from tests.support.engines import Start
from tests.support.sim_disks import SyncFailures


def run(engine: Engine) -> None:
    assert isinstance(engine.runtime, StepRuntime)
    engine.runtime.run()


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_visible_records_are_synced_without_waiting_for_the_interval(
    start: Start, power_loss: Start, durability: str
) -> None:
    engine = start()
    engine.put_topic("t", {"durability": durability}).result()
    assert engine.synced("t").done, "nothing waits for the disk"
    engine.append("t", [1, 2]).result()
    ticket = engine.synced("t")
    assert not ticket.done
    ticket.result()
    engine.append("t", [3]).result()
    survivor = power_loss(engine, "none")
    assert [record.data for record in survivor.read("t").result().records] == [b"1", b"2"]


def test_an_fsync_topic_is_synced_at_once(start: Start) -> None:
    engine = start()
    engine.append("t", [1], config={"durability": "fsync"}).result()
    engine.append("other", [1]).result()
    engine.append("other", [1]).result()
    assert engine.state.shards[0].written > engine.state.shards[0].durable
    assert engine.synced("t").done and not engine.synced("other").done


def test_it_waits_for_the_sync_after_the_one_that_runs(start: Start, clock: ManualClock) -> None:
    engine = start()
    engine.append("t", [0]).result()
    engine.append("t", [1]).result()
    first = engine.synced("t")
    engine.append("t", [2]).result()
    second = engine.synced("t")
    run(engine)
    assert first.done and second.done
    assert engine.state.shards[0].durable >= engine.state.shards[0].written


def test_an_ephemeral_topic_is_never_synced(start: Start) -> None:
    engine = start()
    engine.append("t", [1], config={"durability": "ephemeral"}).result()
    with pytest.raises(InvalidRequest, match="ephemeral"):
        engine.synced("t").result()
    with pytest.raises(TopicNotFound):
        engine.synced("absent").result()


def test_it_fails_as_writes_do_once_the_log_is_read_only(start: Start) -> None:
    failures = SyncFailures()
    engine = start(failures.fs)
    engine.put_topic("fsync", {"durability": "fsync"}).result()
    engine.append("t", [0]).result()
    engine.append("t", [1]).result()
    failures.on = True
    waiting = engine.synced("t")
    run(engine)
    for ticket in (waiting, engine.synced("t"), engine.synced("fsync")):
        error = ticket.error
        assert isinstance(error, NotReady) and error.detail["reason"] == "wal_read_only"
