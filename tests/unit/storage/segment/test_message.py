"""The parts of an Arrow message: the same bytes as Arrow's own, and no copy of a column."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.storage.segment.format import HEADER_TYPE
from headrace.storage.segment.message import MessageParts

ROWS = 40
BATCH = pa.record_batch(
    {
        "seq": pa.array(range(ROWS), pa.uint64()),
        "data": pa.array([b"x" * (row % 7) for row in range(ROWS)], pa.large_binary()),
        "tag": pa.array([None if row % 3 else "t" for row in range(ROWS)], pa.utf8()),
        "headers": pa.array([None if row % 2 else [] for row in range(ROWS)], HEADER_TYPE),
    }
)


@pytest.mark.parametrize(
    "batch", [BATCH, BATCH.slice(3, 5), BATCH.slice(0, 0)], ids=["whole", "slice", "empty"]
)
def test_the_parts_are_the_bytes_of_the_message(batch: pa.RecordBatch) -> None:
    messages = MessageParts(batch.schema)
    for _ in range(2):
        head, buffers = messages.of(batch)
        assert b"".join([head, *buffers]) == batch.serialize().to_pybytes()


def test_a_column_is_handed_out_where_it_lies() -> None:
    data = pa.array([b"x" * 1_000] * 10, pa.large_binary())
    batch = pa.record_batch({"data": data})
    _, buffers = MessageParts(batch.schema).of(batch)
    values = data.buffers()[2]
    assert values is not None
    assert values.address in {pa.py_buffer(part).address for part in buffers}
