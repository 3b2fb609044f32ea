"""What the memory budget counts, and what leaves memory to keep to it."""

from __future__ import annotations

import sys

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import Throttled
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.topics.block_list import BlockList
from headrace.storage.block import BLOCK_OBJECTS_BYTES, Batch
from headrace.storage.block_encoding import encode_single
from tests.support.engines import Start

MIB = 1 << 20
LITTLE = {"memory_budget_bytes": MIB, "read_cache_bytes": 0, "tag_index_bytes_max": 0}


def counted(engine: Engine, topic: str) -> int:
    """What the blocks of a topic take, by the rule."""
    return sum(len(block.raw) + BLOCK_OBJECTS_BYTES for block in engine.state.topic(topic).blocks)


def test_the_budget_counts_the_objects_around_small_records(start: Start) -> None:
    engine = start()
    for _ in range(50):
        engine.append("t", Batch([b"x"])).result()
    totals = engine.state.totals
    assert totals.unsealed_bytes == totals.resident_bytes == counted(engine, "t")
    assert totals.resident_bytes > 50 * BLOCK_OBJECTS_BYTES
    engine.checkpoint().result()
    assert (totals.unsealed_bytes, totals.resident_bytes) == (0, counted(engine, "t"))
    engine.delete_topic("t").result()
    assert totals.resident_bytes == 0


def test_what_is_counted_is_what_a_block_takes() -> None:
    """Neither a part of it, nor much more: as the interpreter says of each object."""
    block = encode_single(b"x" * 256, 1, 7, 1 << 20, 1 << 40, 1 << 41)
    objects = (block, block.raw, block.first_seq, block.ts, block.arrived_ms)
    taken = sum(map(sys.getsizeof, objects)) + 8  # its place in a list
    assert 0.9 * taken <= len(block.raw) + BLOCK_OBJECTS_BYTES <= 1.3 * taken


def test_a_checkpoint_starts_at_half_the_budget(start: Start) -> None:
    """Of what is counted: payloads alone are far below it."""
    engine = start(checkpoint_wal_bytes=1 << 40, **LITTLE)
    size = 0
    while engine.state.totals.unsealed_bytes < MIB // 2 - 400:
        engine.append("t", Batch([b"x"])).result()
        engine.runtime.run()  # type: ignore[attr-defined]
        size += 1
    assert engine.checkpointer.checkpoints_total == 0 and size < MIB // 4
    for _ in range(3):
        engine.append("t", Batch([b"x"])).result()
        engine.runtime.run()  # type: ignore[attr-defined]
    assert engine.checkpointer.checkpoints_total == 1
    assert engine.state.totals.unsealed_bytes < MIB // 4


def test_sealed_records_leave_memory_for_new_ones_while_a_checkpoint_runs(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is refused before what waits to be sealed has used up the budget by itself."""
    engine = start(checkpoint_wal_bytes=1 << 40, **LITTLE)
    record = Batch([b"x" * 1_000])
    totals = engine.state.totals
    while totals.unsealed_bytes < MIB // 2 - 2_000:
        engine.append("old", record).result()
    engine.checkpoint().result()
    assert totals.unsealed_bytes == 0 and totals.resident_bytes > MIB // 3
    with monkeypatch.context() as patch:
        patch.setattr(engine.checkpointer, "run", lambda: None)  # it is on its way, and takes long
        appended = 0
        while totals.unsealed_bytes < MIB:
            engine.append("new", record).result()
            appended += 1
            assert totals.resident_bytes < MIB + 2_000
        with pytest.raises(Throttled):
            engine.append("new", record).result()
    engine.checkpoint().result()
    assert engine.append("new", record).result().first_seq == appended + 1


def test_the_next_checkpoint_starts_although_every_append_is_refused(start: Start) -> None:
    """What came while the last one ran used up the budget, so that nothing is settled any more."""
    engine = start(checkpoint_wal_bytes=1 << 40, **LITTLE)
    engine.append("t", Batch([b"x"])).result()
    ticket = engine.checkpoint()
    while not engine.state.topic("t").sealing_to:
        engine.runtime.step()  # type: ignore[attr-defined]
    waiting = [engine.append("t", Batch([b"x" * 100_000])) for _ in range(8)]
    while not waiting[-1].done:
        engine.runtime.step()  # type: ignore[attr-defined]
    assert not ticket.done, "they came too late"
    for shard in engine.state.shards:
        shard.after_settling = lambda: None
    engine.runtime.run()  # type: ignore[attr-defined]
    assert engine.checkpointer.checkpoints_total == 2 and not engine.state.totals.unsealed_bytes


def test_a_block_that_was_dropped_is_let_go_at_once() -> None:
    blocks = BlockList()
    made = [encode_single(b"x", 1, 7, seq, 1, 1) for seq in range(1, 101)]
    for block in made:
        blocks.stored.append(block)
    held = sys.getrefcount(made[1])
    assert blocks.up_to(0, 10) == []
    assert [block.first_seq for block in blocks.up_to(10, 3)] == [1, 2, 3]
    assert [block.first_seq for block in blocks.up_to(2, 10)] == [1, 2]
    assert blocks.pop_first() is made[0]
    blocks.drop_first(9)
    del block
    assert [sys.getrefcount(made[n]) for n in range(12)] == [held - 1] * 10 + [held] * 2
    assert blocks.first is made[10] and len(blocks) == 90
    assert [block.first_seq for block in blocks.from_seq(5)][:2] == [11, 12]
    blocks.drop_first(60)
    blocks.stored.append(encode_single(b"x", 1, 7, 101, 1, 1))
    assert [block.first_seq for block in blocks] == list(range(71, 102))
    blocks.drop_first(31)
    assert blocks.first is None and len(blocks) == 0


def test_no_more_leaves_memory_than_has_to(start: Start, clock: ManualClock) -> None:
    engine = start(**LITTLE)
    for _ in range(300):
        engine.append("t", Batch([b"x" * 1_000])).result()
    engine.checkpoint().result()
    topic, totals = engine.state.topic("t"), engine.state.totals
    before, blocks = totals.resident_bytes, len(topic.blocks)
    each = before // blocks
    assert topic.drop_sealed_blocks(2 * each + 1, 100) == 3
    assert topic.drop_sealed_blocks(1, 100) == 1
    assert topic.drop_sealed_blocks(before, 5) == 5
    assert totals.resident_bytes == before - 9 * each == counted(engine, "t")
    assert topic.drop_sealed_blocks(before, 1_000) == blocks - 9
    assert topic.drop_sealed_blocks(before, 1_000) == 0 == totals.resident_bytes


def test_the_default_leaves_room_for_what_a_process_takes_beside_it() -> None:
    """An idle server takes 100 MB, sealing and merging 80: all of it is at most 350 MB."""
    settings = Settings()
    assert settings.memory_budget_bytes + 180_000_000 <= 350_000_000
    assert settings.checkpoint_wal_bytes <= settings.memory_budget_bytes // 2
