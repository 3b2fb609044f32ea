"""Blocks as columns: the batch says what the blocks said, whatever columns they have."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.block import KIND_MIXED, Batch, Block
from headrace.storage.block_encoding import encode_block, share
from headrace.storage.segment.format import OPTIONAL_COLUMNS
from headrace.storage.segment.from_blocks import (
    BlockRows,
    BlockRun,
    Piece,
    batch_of_blocks,
    optional_columns,
)

NAMES = st.text(max_size=4)
BYTES = st.binary(max_size=12)
PAIRS = st.lists(st.tuples(BYTES, BYTES), max_size=2)


def maybe(draw: st.DrawFn, values: st.SearchStrategy[Any], count: int) -> list[Any] | None:
    """A column of `count` values, some null, or no column."""
    if not draw(st.booleans()):
        return None
    return draw(st.lists(st.none() | values, min_size=count, max_size=count))


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    count = draw(st.integers(1, 5))
    data = draw(st.lists(BYTES, min_size=count, max_size=count))
    if draw(st.booleans()):
        return Batch(data, kind=draw(st.integers(0, 2)))
    mixed = draw(st.booleans())
    stamped = draw(st.booleans())
    return Batch(
        data,
        kind=KIND_MIXED if mixed else 1,
        tags=maybe(draw, NAMES, count),
        nodes=draw(NAMES) if draw(st.booleans()) else maybe(draw, NAMES, count),
        metas=maybe(draw, BYTES, count),
        headers=maybe(draw, PAIRS, count),
        kinds=bytes(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
        if mixed
        else None,
        timestamps=sorted(draw(st.lists(st.integers(0, 99), min_size=count, max_size=count)))
        if stamped
        else None,
    )


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece]:
    found: list[Piece] = []
    first_seq = draw(st.integers(1, 2**63))
    for batch in draw(st.lists(batches(), min_size=1, max_size=8)):
        topic_id = draw(st.integers(1, 2**64 - 1))
        block = encode_block(batch, 1, first_seq, draw(st.integers(0, 99)), 7)
        start = draw(st.integers(0, block.count - 1))
        found.append((topic_id, block, start, draw(st.integers(start + 1, block.count))))
        first_seq += block.count
    return found


def expected(given_pieces: list[Piece]) -> list[dict[str, Any]]:
    rows = []
    for topic_id, block, start, stop in given_pieces:
        for record in block.rows(start, stop).records():
            headers = record.headers
            rows.append(
                {
                    "topic_id": topic_id,
                    "seq": record.seq,
                    "ts": record.ts,
                    "arrived_ms": block.arrived_ms,
                    "append_first_seq": block.first_seq,
                    "kind": record.kind,
                    "data": record.data,
                    "node": record.node,
                    "tag": record.tag,
                    "meta": record.meta,
                    "headers": None
                    if headers is None
                    else [{"name": name, "value": value} for name, value in headers],
                }
            )
    return rows


@given(pieces())
def test_a_batch_has_the_rows_of_its_pieces(given_pieces: list[Piece]) -> None:
    batch = batch_of_blocks(given_pieces)
    batch.validate(full=True)
    rows = expected(given_pieces)
    absent = OPTIONAL_COLUMNS - set(batch.schema.names)
    assert batch.to_pylist() == [
        {name: value for name, value in row.items() if name not in absent} for row in rows
    ]
    assert all(row[name] is None for row in rows for name in absent)
    assert all(batch.column(name).null_count < len(rows) for name in set(batch.schema.names))
    blocks = [block for _, block, _, _ in given_pieces]
    assert set(batch.schema.names) & OPTIONAL_COLUMNS <= optional_columns(blocks)


@st.composite
def runs(draw: st.DrawFn) -> list[BlockRun]:
    found: list[BlockRun] = []
    for topic_id in range(1, draw(st.integers(1, 4)) + 1):
        first_seq = draw(st.integers(1, 2**40))
        blocks: list[Block] = []
        for batch in draw(st.lists(batches(), min_size=1, max_size=4)):
            block = encode_block(batch, topic_id, first_seq, draw(st.integers(0, 99)), 7)
            if draw(st.booleans()):  # as in the destination of a router
                block = Block(
                    share(block.raw),
                    first_seq,
                    block.count,
                    block.ts,
                    block.arrived_ms,
                    block.bytes,
                )
            blocks.append(block)
            first_seq += block.count + draw(st.integers(0, 3))
        found.append(BlockRun(topic_id, blocks, draw(st.integers(0, blocks[0].count - 1))))
    return found


@given(runs())
def test_runs_of_whole_blocks_are_what_their_pieces_are(given_runs: list[BlockRun]) -> None:
    """A checkpoint has runs, a reader has pieces; the rows are the same."""
    pieces = [
        (run.topic_id, block, run.skipped if block is run.blocks[0] else 0, block.count)
        for run in given_runs
        for block in run.blocks
    ]
    rows = BlockRows.of_runs(given_runs)
    batch = rows.batch()
    batch.validate(full=True)
    assert batch.equals(batch_of_blocks(pieces))
    assert rows.count == batch.num_rows <= sum(run.rows_max for run in given_runs)
    assert rows.optional == optional_columns([block for _, block, _, _ in pieces])


def test_many_single_records_of_many_topics() -> None:
    blocks: list[Block] = [
        encode_block(Batch([b"%d" % i * (i % 3)]), i, 10 + i, 100 + i, 200 + i)
        for i in range(1, 300)
    ]
    batch = batch_of_blocks([(i, block, 0, 1) for i, block in enumerate(blocks, 1)])
    assert batch.column("topic_id").to_pylist() == list(range(1, 300))
    assert batch.column("seq").to_pylist() == list(range(11, 310))
    assert batch.column("append_first_seq").to_pylist() == list(range(11, 310))
    assert batch.column("ts").to_pylist() == list(range(101, 400))
    assert batch.column("arrived_ms").to_pylist() == list(range(201, 500))
    assert batch.column("data").to_pylist() == [b"%d" % i * (i % 3) for i in range(1, 300)]
    assert batch.schema.field("data").type == pa.large_binary()
