"""Spark writes ready JSON strings into a topic of class disk, a new topic each round.

The strings are in Spark's memory before the clock starts.  The same rows into a writer that drops
them show what Spark itself takes for them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench import spark_data
from bench.load import cpu_seconds
from bench.measure import Measured, step
from bench.served import serving
from bench.spark_run import Took, spark, took
from bench.wires import HOST
from headrace.client import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 2_000_000
ROWS_QUICK = 20_000
ROUNDS = 4
PARTITIONS = 8


def run(directory: str, quick: bool) -> dict[str, Measured]:
    rows = ROWS_QUICK if quick else ROWS
    write_strings(f"{directory}/strings", rows)
    with serving(f"{directory}/server", **spark_data.settings(quick)) as server:
        found: dict[str, Measured] = step(
            "case_spark_sink:sink",
            directory=directory,
            url=f"http://{HOST}:{server.port}",
            pid=server.pid,
            rows=rows,
            rounds=1 if quick else ROUNDS,
        )
    return found


def write_strings(directory: str, rows: int) -> None:
    """What the DataFrame is made of."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    Path(directory).mkdir()
    share = rows // PARTITIONS
    for number in range(PARTITIONS):
        column = spark_data.records(number * share, share)
        pq.write_table(pa.table({"data": column}), f"{directory}/part-{number}.parquet")


def sink(directory: str, url: str, pid: int, rows: int, rounds: int) -> dict[str, Measured]:
    """A step: rounds of both writers, the first of each not counted."""
    ours: list[Took] = []
    bare: list[Took] = []
    server: list[float] = []
    with spark(f"{directory}/scratch") as session, Client(url) as client:
        strings = session.read.parquet(f"{directory}/strings").coalesce(PARTITIONS).cache()
        assert strings.count() == rows
        for number in range(rounds + 1):
            bare.append(took(partial(drop, strings)))
            topic, before = f"written-{number}", cpu_seconds([pid])
            ours.append(took(partial(append, strings, url, topic)))
            assert client.topic(topic).head_seq == rows
            # Not while the next round is measured, and part of what these rows cost.
            spark_data.sealed(client, topic)
            server.append((cpu_seconds([pid]) - before) / rows * 1e6)
            client.delete_topic(topic)
    return {
        "spark_sink": [rows / one.wall for one in ours[1:]],
        "spark_sink_cpu": [rows / one.cpu for one in ours[1:]],
        "spark_sink_server_cpu": server[1:],
        "spark_sink_bare": [rows / one.wall for one in bare[1:]],
        "spark_sink_bare_cpu": [rows / one.cpu for one in bare[1:]],
    }


def append(strings: DataFrame, url: str, topic: str) -> None:
    strings.write.format("headrace").option("url", url).mode("append").save(topic)


def drop(strings: DataFrame) -> None:
    strings.write.format("bare").option("files", "").mode("append").save()
