"""The typed aggregate: `headrace sql` beside Spark alone over the same files, turn and turn about.

Both get the same statement, and Spark alone is given the files and their schema, so that it need
not look for either.  What `headrace sql` adds is in its time: asking the server and Delta's log,
choosing columns and files, looking at the end whether the topic is still the same.  A copy with the
fields as columns of their own, written by Spark, shows what the layout of the files costs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bench.measure import Measured
from bench.spark_run import Took, took

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.lake.tables.table import Table
    from headrace.spark.options import Connection

ROUNDS = 9
ROUNDS_WARM = 3
STATEMENT = (
    "SELECT count(*), sum(total) FROM"
    " (SELECT {prefix}customer AS who, sum({prefix}amount) AS total FROM {table} GROUP BY 1)"
)


def typed_aggregate(
    session: SparkSession, connection: Connection, table: Table, copy: str, rows: int, quick: bool
) -> dict[str, Measured]:
    """Figures of a table with four declared fields; `copy` is where the plain one goes."""
    from headrace.lake.sql.frames import LakeArchiveTables
    from headrace.spark.sql.tables import Tables

    topic, fields = table.identity.topic, table.value_ddl
    root = table.lake.uri(table.name)
    paths = [f"{root}/{file.path}" for file in table.files()]
    schema = f"seq BIGINT, value STRUCT<{fields}>"
    tables = Tables(session, connection, LakeArchiveTables(session, table.lake))

    def ours() -> list[object]:
        with tables.query(STATEMENT.format(prefix="value.", table=f"`{topic}`")) as answer:
            return [*answer.frame.collect()]

    def alone(paths: list[str], schema: str, prefix: str) -> list[object]:
        session.read.schema(schema).parquet(*paths).createOrReplaceTempView("alone")
        return [*session.sql(STATEMENT.format(prefix=prefix, table="alone")).collect()]

    plain = session.read.schema(schema).parquet(*paths).selectExpr("seq", "value.*")
    plain.write.option("compression", "zstd").parquet(copy)
    ways: dict[str, Callable[[], list[object]]] = {
        "ours": ours,
        "alone": partial(alone, paths, schema, "value."),
        "flat": partial(alone, [copy], f"seq BIGINT, {fields}", ""),
    }
    found = _rounds(ways, 1 if quick else ROUNDS, 0 if quick else ROUNDS_WARM)
    return {
        "spark_lake_typed": [rows / one.wall for one in found["ours"]],
        "spark_lake_typed_alone": [rows / one.wall for one in found["alone"]],
        "spark_lake_typed_ratio": _ratio(found["alone"], found["ours"], min),
        "spark_lake_typed_ratio_median": _ratio(found["alone"], found["ours"], statistics.median),
        # Not the best: a process that ends unseen takes its CPU out of a round.
        "spark_lake_typed_cpu_ratio": statistics.median(one.cpu for one in found["alone"])
        / max(1e-9, statistics.median(one.cpu for one in found["ours"])),
        "spark_lake_typed_layout": _ratio(found["flat"], found["alone"], min),
    }


def _rounds(
    ways: dict[str, Callable[[], list[object]]], rounds: int, warm: int
) -> dict[str, list[Took]]:
    """What each way took in each round; the order changes, and the first rounds do not count."""
    answers = {str(way()) for way in ways.values()}
    assert len({answer[:24] for answer in answers}) == 1, answers
    found: dict[str, list[Took]] = {name: [] for name in ways}
    for number in range(warm + rounds):
        order = list(ways)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            one = took(ways[name])
            if number >= warm:
                found[name].append(one)
    return found


def _ratio(above: list[Took], below: list[Took], chosen: Callable[[list[float]], float]) -> float:
    return chosen([one.wall for one in above]) / chosen([one.wall for one in below])
