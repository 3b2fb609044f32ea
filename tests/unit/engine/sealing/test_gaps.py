"""What a checkpoint leaves to the loop: little at a time, however much there is to do."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.core.settings import Settings
from headrace.engine import sealed_blocks
from headrace.engine.engine import Engine
from headrace.engine.sealing import checkpoint, checkpointer
from headrace.storage.block import Batch
from tests.support.engines import Start


def test_captures_are_freed_in_the_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of many topics take tens of milliseconds, in which the loop would do nothing else."""
    freed: list[tuple[str, int]] = []

    def noted(objects: list[Any]) -> None:
        freed.append((threading.current_thread().name, len(objects)))
        objects.clear()

    monkeypatch.setattr(checkpoint, "let_go", noted)
    with Engine.open(str(tmp_path), Settings(data_dir=str(tmp_path))) as engine:
        for n in range(20):
            engine.append(f"t{n}", [1]).result()
        engine.checkpoint().result()
        assert freed == [("headrace-work", 20)]


def test_blocks_leave_memory_in_steps(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has a turn between them, and none of them drops more than a few."""
    monkeypatch.setattr(checkpointer, "SLICE_NS", -1)  # a turn after every step
    monkeypatch.setattr(sealed_blocks, "BLOCKS_PER_STEP", blocks_per_step := 64)
    engine = start(memory_budget_bytes=6 << 20, read_cache_bytes=0, tag_index_bytes_max=0)
    block_bytes = 3_000
    for _ in range(2):  # a little less than half of the budget each time
        for n in range(900):
            engine.append(f"t{n % 3}", [b"x" * block_bytes]).result()
        ticket = engine.checkpoint()
        if not engine.state.catalog.metas():
            ticket.result()
    dropped, before = [], engine.state.totals.resident_bytes
    while not ticket.done:
        assert engine.runtime.step()  # type: ignore[attr-defined]
        now = engine.state.totals.resident_bytes
        dropped.append((before - now) // block_bytes)
        before = now
    assert before <= 3 << 20
    assert sum(dropped) > 5 * blocks_per_step and max(dropped) < 2 * blocks_per_step


def test_topics_may_go_while_their_blocks_leave_memory(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "SLICE_NS", -1)
    engine = start(memory_budget_bytes=1 << 20, read_cache_bytes=0, tag_index_bytes_max=0)
    for n in range(300):
        engine.append(f"t{n % 100}", Batch([b"x" * 2_000])).result()
    ticket = engine.checkpoint()
    gone = 0
    while not ticket.done:
        engine.runtime.step()  # type: ignore[attr-defined]
        if not engine.state.totals.unsealed_bytes and gone < 100:
            engine.delete_topic(f"t{gone}")
            gone += 1
    ticket.result()
    engine.runtime.run()  # type: ignore[attr-defined]
    assert gone > 0 and engine.state.totals.resident_bytes <= 1 << 19
