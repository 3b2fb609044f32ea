"""Appends that come faster than they are sealed wait for the log, rather than being refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.core.clock import ManualClock
from headrace.core.runtime import Done, StepRuntime
from headrace.engine.engine import Engine
from headrace.engine.scheduling import governor as ladder
from headrace.engine.scheduling.throttle import SEALED_BYTES_MIN
from headrace.engine.sealing import checkpoint
from tests.support.engines import Start

SMALL_MEMORY = {"memory_budget_bytes": 1 << 20, "read_cache_bytes": 0, "tag_index_bytes_max": 0}


def run(engine: Engine, ms: int = 0) -> None:
    assert isinstance(engine.runtime, StepRuntime)
    assert isinstance(engine.runtime.clock, ManualClock)
    engine.runtime.clock.advance(ms)
    engine.runtime.run()


def held_sealing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Let no file be written; return what would do it, once somebody calls it."""
    held: list[Callable[[], None]] = []
    submit = engine.runtime.submit

    def hold(lane: str, work: Callable[[], object], done: Done) -> None:
        if lane == checkpoint.LANE:
            held.append(lambda: submit(lane, work, done))
        else:
            submit(lane, work, done)

    monkeypatch.setattr(engine.runtime, "submit", hold)
    return held


def take_memory(engine: Engine) -> None:
    """Append until appends have to wait, on an engine that has sealed very slowly so far."""
    for _ in range(40):
        engine.state.throttle.sealed(SEALED_BYTES_MIN, 10**15)
    totals, budget = engine.state.totals, engine.settings.memory_budget_bytes
    while totals.unsealed_bytes <= ladder.WAIT_ABOVE_MEMORY * budget:
        engine.append("t", [b"x" * (budget // 100)]).result()


def test_g7_appends_wait_where_sealing_does_not_keep_up(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(**SMALL_MEMORY)
    engine.govern()
    held = held_sealing(engine, monkeypatch)
    take_memory(engine)
    assert held, "a checkpoint waits for its files"
    first, second = engine.append("t", [1]), engine.append("t", [2])
    run(engine)
    assert not first.done and not second.done
    run(engine, ladder.WRITE_WAIT_MS_MAX)
    assert second.result().first_seq == first.result().first_seq + 1


def test_g7_appends_wait_the_longer_the_less_memory_is_left(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(**SMALL_MEMORY)
    engine.govern()
    held_sealing(engine, monkeypatch)
    engine.append("t", [0]).result()
    waits = []
    for unsealed in (0.5, 0.7, 0.8, 0.9):
        monkeypatch.setattr(engine.state.totals, "unsealed_bytes", int(unsealed * (1 << 20)))
        waits.append(engine.state.throttle.write_wait_ms(10_000))
    assert waits == sorted(waits) and waits[0] == 0 < waits[-1] <= ladder.WRITE_WAIT_MS_MAX


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_g7_a_sync_does_not_end_the_wait(
    start: Start, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """Or else appends would come as fast as syncs do, whatever sealing does."""
    engine = start(**SMALL_MEMORY)
    engine.govern()
    engine.put_topic("waits", {"durability": durability}).result()
    held_sealing(engine, monkeypatch)
    take_memory(engine)
    shard = engine.state.shards[0]
    assert shard.durable < shard.written
    syncs = shard.syncs_total
    waiting = engine.append("waits", [b"x" * (engine.settings.memory_budget_bytes // 20)])
    shard.hasten()
    run(engine)
    run(engine, engine.settings.sync_interval_ms + 1)
    assert shard.syncs_total > syncs and not waiting.done
    run(engine, ladder.WRITE_WAIT_MS_MAX)
    assert waiting.done and waiting.error is None


def test_g7_who_waits_for_a_sync_beside_those_who_wait_for_room_is_written_after_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(**SMALL_MEMORY)
    engine.govern()
    engine.put_topic("t", {"durability": "fsync"}).result()
    held_sealing(engine, monkeypatch)
    take_memory(engine)
    waiting = engine.append("t", [1])
    shard, runtime = engine.state.shards[0], engine.runtime
    engine.append("u", [1], config={"durability": "fsync"})  # it is created, and so written at once
    assert isinstance(runtime, StepRuntime)
    while not shard.syncs.running:
        assert runtime.step()
    changed = engine.put_topic("v", {"durability": "fsync"})
    run(engine)
    assert changed.done and waiting.done


def test_g7_what_waits_goes_on_as_soon_as_there_is_room(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(**SMALL_MEMORY)
    engine.govern()
    held = held_sealing(engine, monkeypatch)
    take_memory(engine)
    waiting = engine.append("t", [1])
    run(engine)
    assert not waiting.done
    held.pop(0)()
    run(engine)
    assert waiting.done and waiting.error is None
    assert held, "the rest of the checkpoint is still to come"


def test_g7_a_flush_that_is_asked_for_writes_what_waits(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(**SMALL_MEMORY)
    engine.govern()
    held_sealing(engine, monkeypatch)
    take_memory(engine)
    waiting = engine.append("t", [1])
    engine.put_topic("other", {}).result()
    assert waiting.done
    waiting = engine.append("t", [2])
    run(engine)
    assert not waiting.done
    engine.flush()
    assert waiting.done
