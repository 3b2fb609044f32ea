"""Captures become files: which rows, in which order, in which portions."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from headrace.engine.engine import Engine
from headrace.engine.sealing import seal
from headrace.engine.sealing.seal import Capture, capture, run_of, unsealed, write_captures
from headrace.storage.block import Batch
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.segment.reader import open_segment
from tests.support.engines import Start

Row = tuple[int, int, bytes]


def captured(engine: Engine) -> list[Capture]:
    """All topics, as a checkpoint might come upon them."""
    found = [capture(engine.state, topic) for topic in engine.state.by_id.values()]
    random.Random(7).shuffle(found)
    return found


def write(
    engine: Engine,
    captures: Sequence[Capture],
    policy: MergePolicy | None = None,
    big: int = 1 << 40,
) -> list[SegmentMeta]:
    """Write captures to files, of which the engine hears nothing."""
    take_id = engine.state.take_file_id
    metas = write_captures(engine.state.fs, captures, take_id, 5, policy or MergePolicy(), big)
    for one in captures:
        unsealed(one)
    return metas


def rows_of(engine: Engine, meta: SegmentMeta) -> list[list[Row]]:
    """The rows of a file, by row group."""
    segment = open_segment(engine.state.fs, meta, BlockCache(0))
    try:
        return [
            [(row["topic_id"], row["seq"], row["data"]) for row in batch.to_pylist()]
            for batch in segment.batches()
        ]
    finally:
        segment.close()


def expected(engine: Engine) -> list[Row]:
    return [
        (topic.id, record.seq, record.data)
        for topic in sorted(engine.state.by_id.values(), key=lambda topic: topic.id)
        for block in topic.blocks
        for record in block.rows(0, block.count).records()
        if record.seq > topic.base
    ]


def fill(engine: Engine) -> None:
    """Many topics: some with one record, some with blocks of several, one with a dead start."""
    for n in range(40):
        for m in range(1 + n % 4):
            records = [b"%d-%d-%d" % (n, m, k) for k in range(1 + (n + m) % 3)]
            engine.append(f"t{n}", Batch(records)).result()
    engine.append("trimmed", Batch([b"a", b"b", b"c"])).result()
    engine.append("trimmed", Batch([b"d", b"e", b"f"])).result()
    engine.append("gone", Batch([b"x"])).result()


@pytest.mark.parametrize("blocks_max", [1, 3, 8_192])
@pytest.mark.parametrize("bytes_max", [1, 300, 2 << 20])
def test_every_row_once_and_in_order_whatever_the_portions(
    start: Start, monkeypatch: pytest.MonkeyPatch, blocks_max: int, bytes_max: int
) -> None:
    monkeypatch.setattr(seal, "PORTION_BLOCKS_MAX", blocks_max)
    monkeypatch.setattr(seal, "PORTION_BYTES", bytes_max)
    monkeypatch.setattr(seal, "NEIGHBOUR_BITS", 2)
    engine = start()
    fill(engine)
    (meta,) = write(engine, captured(engine))
    groups = rows_of(engine, meta)
    assert [row for group in groups for row in group] == expected(engine)
    assert len(groups) == 1 if (blocks_max, bytes_max) == (8_192, 2 << 20) else len(groups) > 10
    assert meta.rows == len(expected(engine)) and meta.owner == 0


def test_the_dead_start_of_a_topic_is_left_out(start: Start) -> None:
    engine = start()
    fill(engine)
    before = len(expected(engine))
    captures = captured(engine)
    (trimmed,) = (one for one in captures if one.topic.name == "trimmed")
    (gone,) = (one for one in captures if one.topic.name == "gone")
    for dead, blocks, skipped in ((2, 2, 2), (3, 1, 0), (4, 1, 1)):
        run = run_of(Capture(trimmed.topic, trimmed.state, trimmed.blocks, dead, 1 << 20))
        assert run is not None and (len(run.blocks), run.skipped) == (blocks, skipped)
        assert run.rows_max == 6 - dead
    assert run_of(Capture(gone.topic, gone.state, gone.blocks, 1, 1 << 20)) is None
    captures.remove(trimmed)
    captures.remove(gone)
    captures.append(Capture(trimmed.topic, trimmed.state, trimmed.blocks, 4, 1 << 20))
    captures.append(Capture(gone.topic, gone.state, gone.blocks, 1, 1 << 20))
    (meta,) = write(engine, captures)
    rows = [row for group in rows_of(engine, meta) for row in group]
    assert [row[2] for row in rows if row[0] == trimmed.topic.id] == [b"e", b"f"]
    assert len(rows) == before - 5


def test_a_file_has_at_most_so_many_payload_bytes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seal, "PORTION_BYTES", 500)
    engine = start()
    for n in range(30):
        engine.append(f"t{n % 3}", Batch([b"%02d" % n * 50])).result()
    metas = write(engine, captured(engine), MergePolicy(own_bytes_max=1_000))
    assert len(metas) == 4 and all(meta.payload_bytes <= 1_000 for meta in metas)
    rows = [row for meta in metas for group in rows_of(engine, meta) for row in group]
    assert rows == expected(engine)


def test_a_topic_with_enough_gets_a_file_of_its_own(start: Start) -> None:
    engine = start()
    for n in range(20):
        engine.append("big", Batch([b"x" * 1_000])).result()
        engine.append("rows", Batch([b"x"])).result()
        engine.append(f"small-{n}", Batch([b"x"])).result()
    ids = {name: engine.state.topic(name).id for name in ("big", "rows")}
    by_bytes = MergePolicy(own_rows_min=1_000, own_bytes_min=20_000)
    assert sorted(m.owner for m in write(engine, captured(engine), by_bytes, 0)) == [0, ids["big"]]
    by_rows = MergePolicy(own_rows_min=20, own_bytes_min=1 << 30)
    owners = sorted(meta.owner for meta in write(engine, captured(engine), by_rows, 0))
    assert owners == [0, *sorted(ids.values())]
    owners = sorted(meta.owner for meta in write(engine, captured(engine), by_rows, 20_000))
    assert owners == [0, ids["big"]], "the other has too small a part of all"
    assert [m.owner for m in write(engine, captured(engine), by_rows, 20_001)] == [0]
