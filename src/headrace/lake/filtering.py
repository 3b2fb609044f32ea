"""Rows of a replay that fit a condition of Spark SQL, over the columns that `headrace sql` has."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from headrace.lake.columns import NAMES, file_schema
from headrace.lake.feeding import send_rows
from headrace.lake.files import as_stored
from headrace.lake.replay import ReplayJob, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Those of a file under names that no condition has, then those of a table of `headrace sql`.
_STORED = {name: f"_{name}" for name in NAMES}
_READ = (
    "_seq BIGINT, _ts TIMESTAMP, _node STRING, _tag STRING, _meta STRING, _kind STRING, "
    "_data BINARY"
)
_SHOWN = {
    "topic": "'{topic}'",
    "seq": "_seq",
    "ts": "_ts",
    "day": "to_date(_ts)",
    "node": "_node",
    "tag": "_tag",
    "meta": "try_parse_json(_meta)",
    "data": "try_parse_json(cast(_data as string))",
    "raw": "_data",
}
COLUMNS_SHOWN = tuple(_SHOWN)


def filtered_on(spark: SparkSession, topic: str) -> Callable[[list[ReplayJob], str], int]:
    """Sends what fits, a task for each job; how many rows that were."""

    def run(jobs: list[ReplayJob], where: str) -> int:
        if not jobs:
            return 0
        packed = tuple(pickle.dumps(job) for job in jobs)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                numbers: Any = batch.column(0)
                for at in numbers.to_pylist():
                    job: ReplayJob = pickle.loads(packed[at])
                    for rows in rows_of(job, NAMES):
                        stored = as_stored(rows, file_schema(None))
                        yield stored.rename_columns([_STORED[name] for name in NAMES])

        def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            from headrace.spark.writing.whole_input import whole

            context = TaskContext.get()
            assert context is not None, "Spark calls this in a task"
            job: ReplayJob = pickle.loads(packed[context.partitionId()])
            rows = (batch.rename_columns(list(NAMES)) for batch in whole(batches))
            count = send_rows(job.connection, job.wanted.to, job.write_id, job.part, rows)
            yield pa.record_batch({"rows": pa.array([count], pa.int64())})

        frame = spark.range(0, len(jobs), 1, len(jobs)).mapInArrow(cast(Any, read), _READ)
        name = topic.replace("\\", "\\\\").replace("'", "\\'")
        shown = [f"{what.format(topic=name)} AS {column}" for column, what in _SHOWN.items()]
        kept = frame.selectExpr("*", *shown).where(where).select(*_STORED.values())
        done = kept.mapInArrow(cast(Any, send), "rows BIGINT").collect()
        return sum(row.rows for row in done)

    return run
