"""Rows of a replay that fit a condition of Spark SQL, over the columns that `headrace sql` has."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa

from headrace.lake.loading.producers import Fed, LoadTarget, Reading, feed_part
from headrace.lake.loading.replay import TablePart
from headrace.lake.tables.columns import NAMES, file_schema
from headrace.lake.tables.files import as_stored
from headrace.lake.tables.tasks import number_of_task, rows_of_jobs
from headrace.spark.connection import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Those of a file under names that no condition has, then those of a table of `headrace sql`.
_STORED = {name: f"_{name}" for name in NAMES}
_READ = (
    "_seq BIGINT, _ts TIMESTAMP, _node STRING, _tag STRING, _meta STRING, _kind STRING, "
    "_data BINARY, _day STRING"
)
_DAY = "_day"
_SHOWN = {
    "topic": "'{topic}'",
    "seq": "_seq",
    "ts": "_ts",
    "day": "cast(_day AS DATE)",
    "node": "_node",
    "tag": "_tag",
    "meta": "try_parse_json(_meta)",
    "data": "try_parse_json(cast(_data as string))",
    "raw": "_data",
}


class _Fitting:
    """What is left of a part, as it comes out of Spark."""

    size = 0

    def __init__(self, part: TablePart, rows: Iterator[pa.RecordBatch]) -> None:
        self.run, self.number = part.run, part.number
        self._rows = rows

    def rows(self, reading: Reading) -> Iterator[pa.RecordBatch]:
        return self._rows

    def place(self, row: int) -> str:
        return f"the fitting row {row} (counted from 0) of part {self.number}"


class Filter:
    """Sends what fits, a task for each part; `start` calls what it is given with a session."""

    def __init__(self, start: Callable[[Callable[[SparkSession], Any]], Any], topic: str) -> None:
        self._start = start
        name = topic.replace("\\", "\\\\").replace("'", "\\'")
        self._shown = [f"{what.format(topic=name)} AS {shown}" for shown, what in _SHOWN.items()]

    def check(self, where: str) -> None:
        """Refuse a condition that is none, before anything is sent."""
        self._start(lambda spark: self._kept(spark.createDataFrame([], _READ), where).schema)

    def __call__(self, target: LoadTarget, parts: Sequence[TablePart], where: str) -> Fed:
        total = Fed()
        for fed in self._start(lambda spark: self._fed(spark, target, parts, where)):
            total.add(fed)
        return total

    def _kept(self, stored: DataFrame, where: str) -> DataFrame:
        return stored.selectExpr("*", *self._shown).where(where).select(*_STORED.values())

    def _fed(
        self, spark: SparkSession, target: LoadTarget, parts: Sequence[TablePart], where: str
    ) -> list[Fed]:
        if not parts:
            return []
        packed = tuple(pickle.dumps(part) for part in parts)
        read = rows_of_jobs(packed, _stored)

        def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from headrace.spark.writing.whole_input import whole

            part: TablePart = pickle.loads(packed[number_of_task()])
            rows = (batch.rename_columns(list(NAMES)) for batch in whole(batches))
            fed = Fed()
            with connect(target.connection) as client:
                feed_part(client, target, _Fitting(part, rows), fed)
            yield pa.record_batch({"fed": pa.array([msgspec.msgpack.encode(fed)], pa.binary())})

        numbers = spark.range(0, len(parts), 1, len(parts))
        kept = self._kept(numbers.mapInArrow(cast(Any, read), _READ), where)
        answers = kept.mapInArrow(cast(Any, send), "fed BINARY").collect()
        return [msgspec.msgpack.decode(bytes(row.fed), type=Fed) for row in answers]


def _stored(part: TablePart) -> Iterator[pa.RecordBatch]:
    """The rows of a part as `_READ` says, with the day that its file is of."""
    names = [*_STORED.values(), _DAY]
    for file, rows in part.columns(NAMES):
        stored = as_stored(rows, file_schema(None))
        day: Any = pa.repeat(pa.scalar(file.day, pa.utf8()), rows.num_rows)
        yield pa.RecordBatch.from_arrays([*stored.columns, day], names=names)


def filtered_on(spark: SparkSession, topic: str) -> Filter:
    """A filter in a session that is there."""
    return Filter(lambda work: work(spark), topic)
