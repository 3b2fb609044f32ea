"""Column batches: the block that Arrow columns make is the block that lists make, byte for byte."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from headrace.storage.block import KIND_BYTES, Batch, Block, ColumnBatch, decode_block
from headrace.storage.block_encoding import BlockPlace, encode_block, encode_columns
from headrace.storage.column_batch import column_batch
from headrace.storage.segment.from_blocks import batch_of_blocks
from headrace.storage.segment.page_columns import PAGE_SCHEMA, columns_of_blocks

PLACE = BlockPlace(7, 5, 100, 101)
SIDECAR = b"beside"
BINARY = [pa.binary(), pa.large_binary()]
TEXT = [pa.utf8(), pa.large_utf8()]


def stored(batch: ColumnBatch) -> Block:
    return encode_columns(batch, PLACE, SIDECAR)


def stored_lists(batch: Batch) -> Block:
    return encode_block(batch, *PLACE, SIDECAR)


@pytest.mark.parametrize("binary", BINARY, ids=str)
@pytest.mark.parametrize("text", TEXT, ids=str)
@pytest.mark.parametrize("part", [slice(None), slice(1, None), slice(2, 4), slice(3, 4)], ids=str)
def test_the_same_block_as_of_lists(binary, text, part) -> None:
    data = pa.array([b"a", b"", b"ccc", b"dd"], binary)[part]
    tags = pa.array(["x", None, "zz\u00e9", "x"], text)[part]
    nodes = pa.array(["n1", "n1", "n2", "n3"], text)[part]
    metas = pa.array([None, b"{}", None, b"1"], binary)[part]
    block = stored(column_batch(data, KIND_BYTES, tags, nodes, metas))
    lists = [column.to_pylist() for column in (data, tags, nodes, metas)]
    if len(data) == 1:
        # What is the same for all is stored once, which lists do for a node only.
        assert block.rows(0, 1).records() == (
            stored_lists(Batch(lists[0], KIND_BYTES, *lists[1:])).rows(0, 1).records()
        )
        return
    assert block.raw == stored_lists(Batch(lists[0], KIND_BYTES, *lists[1:])).raw
    assert decode_block(block.raw).bytes == block.bytes
    assert block.sidecar == b"beside"


@pytest.mark.parametrize("column", ["tags", "nodes"])
def test_one_value_of_all_records_is_stored_once(column) -> None:
    data = pa.array([b"1"] * 100)
    block = stored(column_batch(data, **{column: pa.array(["same"] * 100)}))
    plain = stored(column_batch(data))
    assert len(block.raw) - len(plain.raw) <= 24
    assert getattr(block, column)(0, 100) == ["same"] * 100
    if column == "nodes":
        assert block.raw == stored_lists(Batch([b"1"] * 100, KIND_BYTES, nodes="same")).raw


def test_columns_of_nulls_are_not_stored() -> None:
    nothing = pa.array([None, None], pa.utf8())
    block = stored(column_batch(pa.array([b"1", b"2"]), 1, nothing, nothing, nothing))
    assert block.raw == stored_lists(Batch([b"1", b"2"], KIND_BYTES)).raw


def test_bytes_that_a_null_hides_are_not_stored() -> None:
    bits = pa.py_buffer(bytes([0b101]))
    offsets = pa.array([0, 1, 7, 8], pa.int32()).buffers()[1]
    hiding = pa.Array.from_buffers(pa.utf8(), 3, [bits, offsets, pa.py_buffer(b"asecretb")])
    assert hiding.to_pylist() == ["a", None, "b"]
    block = stored(column_batch(pa.array([b"1", b"2", b"3"]), metas=hiding))
    assert b"secret" not in block.raw
    assert block.metas(0, 3) == [b"a", None, b"b"]
    assert block.bytes == 5


def test_long_values() -> None:
    data = [bytes([n % 256]) * 70_000 for n in range(20)]
    block = stored(column_batch(pa.array(data, pa.large_binary())))
    assert block.data(0, 20) == data


# Blocks as columns


def some_batch(rng: random.Random, count: int) -> Batch:
    def maybe(values: list[object]) -> list[object] | None:
        kept = rng.choice([None, values, [rng.choice([v, None]) for v in values]])
        return kept

    return Batch(
        [rng.randbytes(rng.randrange(6)) for _ in range(count)],
        rng.randrange(3),
        tags=maybe([f"t{rng.randrange(3)}" for _ in range(count)]),  # type: ignore[arg-type]
        nodes=rng.choice(["n", maybe([f"n{n}" for n in range(count)])]),  # type: ignore[arg-type]
        metas=maybe([b'{"n":%d}' % n for n in range(count)]),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("seed", range(30))
def test_blocks_as_columns_have_the_rows_of_blocks(seed) -> None:
    """Short and long blocks, whole and in part, with and without optional columns."""
    rng = random.Random(seed)
    pieces, seq = [], 1
    for _ in range(rng.randrange(1, 8)):
        count = rng.choice([1, 2, 15, 16, 17, 255, 256, 300])
        block = encode_block(some_batch(rng, count), 7, seq, 1000 + seq, 1001 + seq)
        start = rng.choice([0, rng.randrange(count)])
        stop = rng.choice([count, rng.randrange(start, count) + 1])
        pieces.append((7, block, start, stop))
        seq += count
    records = [r for _, block, start, stop in pieces for r in block.rows(start, stop).records()]
    columns = pa.Table.from_batches(columns_of_blocks(pieces), PAGE_SCHEMA)
    columns.validate(full=True)
    assert columns["seq"].to_pylist() == [r.seq for r in records]
    assert columns["ts"].cast(pa.int64()).to_pylist() == [r.ts for r in records]
    sealed = pa.Table.from_batches([batch_of_blocks(pieces)])
    sealed.validate(full=True)
    for name in ("data", "kind", "tag", "node", "meta"):
        wanted = [getattr(r, name) for r in records]
        assert columns[name].to_pylist() == wanted, name
        found = sealed[name].to_pylist() if name in sealed.column_names else [None] * len(records)
        assert found == wanted, name


def test_timestamps_and_mixed_kinds() -> None:
    count = 300
    stamps = [2000 + n // 7 for n in range(count)]
    kinds = bytes(n % 3 for n in range(count))
    batch = Batch([b"x"] * count, 255, kinds=kinds, timestamps=stamps)
    block = encode_block(batch, 7, 1, 1, 1)
    (columns,) = columns_of_blocks([(7, block, 10, 290)])
    assert columns["ts"].cast(pa.int64()).to_pylist() == stamps[10:290]
    assert columns["kind"].to_pylist() == list(kinds[10:290])
