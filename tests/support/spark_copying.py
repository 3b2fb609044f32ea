"""A program that copies topics into one by a streaming query; a test kills it, again and again.

The rows it writes say where they came from: `["topic", seq, task]`.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.spark import spark_session

# More than a micro-batch reads without a manifest, and two tasks for each.
BATCH_SEQS = 10_000
TASKS = 2
COPY = "concat('[\"', topic, '\",', seq, ',', spark_partition_id(), ']') AS data"


def copy(
    spark: SparkSession, url: str, topics: str, target: str, checkpoint: str, *, to_the_end: bool
) -> StreamingQuery:
    """Start the query; it ends when all there is now is copied, or never."""
    reading = spark.readStream.format("headrace").options(
        url=url, maxRecordsPerTrigger=BATCH_SEQS, minPartitions=TASKS, columns="topic,seq"
    )
    rows = reading.load(topics).selectExpr(COPY)
    writing = rows.writeStream.format("headrace").options(url=url, topic=target)
    writing = writing.option("checkpointLocation", checkpoint)
    return (writing.trigger(availableNow=True) if to_the_end else writing).start()


def main() -> None:
    url, topics, target, checkpoint = sys.argv[1:]
    spark = spark_session(master="local[2,4]")
    copy(spark, url, topics, target, checkpoint, to_the_end=False).awaitTermination()


if __name__ == "__main__":
    main()
