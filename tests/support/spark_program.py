"""A program that reads and writes topics with Spark on a cluster, or behind Spark Connect.

It takes the master or the remote from the environment, as a user's program does, and prints one
line of JSON: what it has seen.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.spark import spark_session
from headrace.spark.options import Connection
from headrace.spark.sql.tables import Tables

TASKS = 4
READERS = "task INT, executor INT, rows BIGINT, seqs BIGINT"
COPIES = ("CAST(seq AS STRING) AS data", "concat('t', seq % 3) AS tag")


def readers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For each batch: which executor has read it, how many rows it has, the sum of their seqs."""
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        seqs: list[Any] = batch.column("seq").to_pylist()
        row = (context.partitionId(), executor_of(os.getpid()), len(seqs), sum(seqs))
        yield pa.record_batch(
            [pa.array([value], kind) for value, kind in zip(row, READER_TYPES, strict=True)],
            names=["task", "executor", "rows", "seqs"],
        )


READER_TYPES = (pa.int32(), pa.int32(), pa.int64(), pa.int64())


def executor_of(pid: int) -> int:
    """The Java that a Python works for: each worker is a child of a daemon, which is its child."""
    for _ in range(2):
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return pid


class Program:
    """What a user might do, one after the other."""

    def __init__(self, spark: SparkSession, url: str, source: str, target: str) -> None:
        self.spark = spark
        self.url = url
        self.source = source
        self.target = target

    def load(self, **options: Any) -> DataFrame:
        return self.spark.read.format("headrace").options(url=self.url, **options).load(self.source)

    def read(self) -> list[Any]:
        rows = self.load(direct="true", minPartitions=TASKS, columns="seq,data")
        return [tuple(row) for row in rows.mapInArrow(readers, READERS).collect()]

    def write(self) -> None:
        """Copy, and copy again under the same name."""
        rows = self.load(minPartitions=TASKS).selectExpr(*COPIES)
        for _ in range(2):
            writing = rows.write.format("headrace").mode("append").option("writeId", "copy")
            writing.options(url=self.url, topic=self.target).save()

    def stream(self, checkpoint: str) -> None:
        """Copy by a query, and go on with it when there is nothing new."""
        reading = self.spark.readStream.format("headrace").options(
            url=self.url, minPartitions=TASKS, maxRecordsPerTrigger=30_000
        )
        for _ in range(2):
            rows = reading.load(self.source).selectExpr(*COPIES)
            writing = rows.writeStream.format("headrace").trigger(availableNow=True)
            writing = writing.options(url=self.url, topic=f"{self.target}-streamed")
            writing.option("checkpointLocation", checkpoint).start().awaitTermination()

    def query(self) -> list[Any]:
        statement = (
            "SELECT c.tag, count(*), sum(c.data::bigint), count(s.seq)"
            f" FROM `{self.target}` c LEFT JOIN `{self.source}` s ON c.data::bigint = s.seq"
            " GROUP BY c.tag ORDER BY c.tag"
        )
        with Tables(self.spark, Connection(self.url)).query(statement) as (frame, _):
            return [tuple(row) for row in frame.collect()]

    def mistake(self) -> str:
        try:
            self.load(colums="seq").count()
        except PySparkException as error:
            return str(error)
        return ""


def main() -> None:
    url, source, target, checkpoint = sys.argv[1:]
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = spark_session(settings)
    program = Program(spark, url, source, target)
    said: dict[str, Any] = {"read": program.read()}
    program.write()
    program.stream(checkpoint)
    said["query"] = program.query()
    said["filtered"] = program.load(pushFilters="true").where("seq > 10 AND tag = 't1'").count()
    said["mistake"] = program.mistake()
    spark.stop()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
