"""Rows that stop in the middle are told from rows that end, by what follows them in the stream."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.core.errors import Unreachable
from headrace.spark.writing.whole_input import whole, worker_input

BATCHES = [pa.record_batch({"data": ["1", "2"]}), pa.record_batch({"data": ["3"]})]


def in_worker(rest: bytes) -> list[pa.RecordBatch]:
    """All rows, where a function of Spark's worker reads a stream of which so much is left."""
    names: dict[str, Any] = {"__package__": "pyspark", "whole": whole, "BATCHES": BATCHES}
    exec("def main(infile): return list(whole(iter(BATCHES)))", names)
    found: list[pa.RecordBatch] = names["main"](io.BufferedReader(io.BytesIO(rest)))
    return found


def test_an_end_without_a_mark_is_none() -> None:
    assert in_worker(b"\xff\xff\xff\xfc") == BATCHES
    with pytest.raises(Unreachable, match="stopped in the middle of the rows"):
        in_worker(b"")


def test_where_nothing_is_known_all_rows_are_passed_on() -> None:
    assert list(whole(iter(BATCHES))) == BATCHES


def test_the_worker_of_this_spark_is_known(spark: SparkSession) -> None:
    def known(batches: Any) -> Any:
        for batch in batches:
            yield pa.record_batch({"known": [worker_input() is not None] * batch.num_rows})

    assert spark.range(1).mapInArrow(known, "known BOOLEAN").collect()[0].known
