"""Rules F: a class of durability that changes in place."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from tests.support.durability import CLASSES, disk_of, filled, log_calls, settle, told
from tests.support.engine_reads import all_records
from tests.support.engines import Start


@pytest.mark.parametrize("before", CLASSES)
@pytest.mark.parametrize("after", CLASSES)
def test_f8_a_class_change_takes_nothing_that_was_promised(
    start: Start, kill: Start, restart: Start, before: str, after: str
) -> None:
    engine = filled(start, before)
    old = all_records(engine)
    engine.put_topic("t", {"durability": after}).result()
    engine.append("t", [b"after"]).result()
    engine = kill(engine)
    engine.checkpoint().result()
    engine = restart(engine)
    found = all_records(engine)
    if before != "ephemeral":
        assert found[:5] == old
    if after != "ephemeral":
        assert found[-1].data == b"after"
    lost = {seq for first, last, _ in told(engine) for seq in range(first, last + 1)}
    assert lost | {r.seq for r in found} == set(range(1, engine.topic("t").head_seq + 1))


def test_f8_control_entries_are_always_synced(start: Start) -> None:
    engine = start()
    disk = disk_of(engine)
    for call in (
        lambda: engine.put_topic("t", {"durability": "ephemeral"}),
        lambda: engine.put_topic("t", {"durability": "memory"}),
        lambda: engine.delete_topic("t"),
    ):
        since = disk.position
        call().result()
        assert "sync_data" in log_calls(engine, since)


@pytest.mark.parametrize("before", CLASSES[1:])
def test_f3_an_append_behind_a_change_to_fsync_waits_for_a_sync_that_has_it(
    start: Start, power_loss: Start, clock: ManualClock, before: str
) -> None:
    """However far the change has come: the sync that is under way may be that of the config."""
    done = 0
    for steps in range(40):
        engine = filled(start, before)
        settle(engine, clock)
        runtime = engine.runtime
        assert isinstance(runtime, StepRuntime)
        put = engine.put_topic("t", {"durability": "fsync"})
        for _ in range(steps):
            runtime.step()
        appended = engine.append("t", [b"behind the change"])
        while not appended.done and runtime.step():
            pass
        if put.done and engine.topic("t").config.durability == "fsync":
            done += 1
            found = all_records(power_loss(engine, "none"))
            assert [record.seq for record in found] == [1, 2, 3, 4, 5, 6], steps
    assert done > 1
