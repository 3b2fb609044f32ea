"""Chunks follow from the rows alone, never from how Spark has cut them into batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.core.settings import Settings
from headrace.spark.writing import chunks as module
from headrace.spark.writing.chunks import CHUNK_BYTES_MAX, CHUNK_ROWS_MAX, ROW_BYTES, Cutter, chunks
from headrace.wire.native.arrow import OFF_LOOP_BYTES_MIN

TEXT = st.text("ab", max_size=9)
ROWS = st.lists(
    st.tuples(st.sampled_from("xyz"), TEXT, st.none() | TEXT, st.none() | TEXT), max_size=60
)
CUTS = st.lists(st.integers(0, 60), max_size=8)


def table_of(rows: Sequence[tuple[Any, ...]], names: str = "topic data tag meta") -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(names.split())
    named = zip(names.split(), columns, strict=True)
    return pa.table({name: pa.array(list(values), pa.utf8()) for name, values in named})


def batches_of(table: pa.Table, cuts: Sequence[int]) -> list[pa.RecordBatch]:
    """The same rows cut here and there, with empty batches among them."""
    edges = sorted(min(cut, table.num_rows) for cut in [0, *cuts, table.num_rows])
    parts = [table.slice(start, stop - start).combine_chunks() for start, stop in pairwise(edges)]
    empty = pa.RecordBatch.from_pylist([], schema=table.schema)
    return [batch for part in parts for batch in (part.to_batches() or [empty])]


def size_of(row: dict[str, str | None]) -> int:
    return ROW_BYTES + sum(len(value) for value in row.values() if value is not None)


def cut_slowly(rows: list[Any], rows_max: int, bytes_max: int) -> list[list[Any]]:
    """What the cutter does, a row at a time."""
    parts: list[list[Any]] = []
    size = 0
    for row in rows:
        if not parts or len(parts[-1]) == rows_max or size + size_of(row) > bytes_max:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += size_of(row)
    return parts


@given(ROWS, CUTS, st.integers(1, 9), st.integers(1, 120))
def test_a_cut_is_where_a_slow_cutter_cuts(
    rows: list[Any], cuts: list[int], rows_max: int, bytes_max: int
) -> None:
    table = table_of(rows)
    cutter = Cutter(rows_max, bytes_max)
    found = [part.to_pylist() for part in cutter.cut(batches_of(table, cuts))]
    assert found == cut_slowly(table.to_pylist(), rows_max, bytes_max)


@pytest.fixture(scope="module", autouse=True)
def small_bounds() -> Any:
    """So that a few rows are many chunks and many windows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_ROWS_MAX", 4)
        patch.setattr(module, "CHUNK_BYTES_MAX", 90)
        patch.setattr(module, "WINDOW_ROWS_MAX", 20)
        patch.setattr(module, "WINDOW_BYTES_MAX", 500)
        yield


@given(ROWS, CUTS, CUTS, st.booleans())
def test_other_batches_of_the_same_rows_are_the_same_chunks(
    rows: list[Any], some: list[int], others: list[int], by_column: bool
) -> None:
    table = table_of(rows) if by_column else table_of(rows).drop_columns(["topic"])
    topic = None if by_column else "orders"
    first, second = (
        [(name, part.to_pylist()) for name, part in chunks(batches_of(table, cuts), topic)]
        for cuts in (some, others)
    )
    assert first == second
    assert all(1 <= len(part) <= 4 for _, part in first)
    # Each topic has exactly its rows, in their order.
    for wanted in "xyz" if by_column else ["orders"]:
        got = [row for name, part in first if name == wanted for row in part]
        kept = [row for row in table.to_pylist() if row.pop("topic", "orders") == wanted]
        assert got == kept


@given(ROWS)
def test_topics_come_by_their_first_row(rows: list[Any]) -> None:
    found = [name for name, _ in module.by_topic(table_of(rows))] if rows else []
    assert found == list(dict.fromkeys(row[0] for row in rows))


def test_long_offsets_and_bytes_are_cut_as_well() -> None:
    rows = [b"%03d" % number for number in range(9)]
    for kind in (pa.binary(), pa.large_binary(), pa.large_utf8()):
        values: Any = rows if kind != pa.large_utf8() else [row.decode() for row in rows]
        batch = pa.record_batch({"data": pa.array(values, kind)})
        found = list(chunks([batch], "t"))
        assert [value for chunk in found for value in chunk.rows["data"].to_pylist()] == values
        assert [chunk.rows.num_rows for chunk in found] == [4, 4, 1]


def test_a_row_without_data_or_topic_is_named_by_its_place() -> None:
    good = table_of([("x", "1", None, None)] * 7).to_batches()
    for column, bad in (("data", ("x", None, None, None)), ("topic", (None, "1", None, None))):
        batches = [*good, *table_of([("x", "1", None, None), bad]).to_batches()]
        with pytest.raises(InvalidRequest, match=f"row 8 of the partition.* has no {column}"):
            list(chunks(batches, None))


def test_a_server_takes_the_largest_chunk_by_default() -> None:
    settings = Settings()
    assert settings.arrow_rows_max >= CHUNK_ROWS_MAX
    # With offsets and validity of four columns, the frame of the stream, and one row too many.
    body = CHUNK_BYTES_MAX + CHUNK_ROWS_MAX * 4 * 9 + settings.record_bytes_max
    assert body < min(settings.body_bytes_max, OFF_LOOP_BYTES_MIN)
