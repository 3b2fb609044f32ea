"""Spark reads (seq, data) of sealed records: ours, a bare Arrow source, and Spark's own sources.

All take turns in one session, so that what the machine does meanwhile meets all of them.  Each
query counts the rows and adds up seqs and lengths: both columns are looked at, and the answer is
checked.  Its time is all of it, from `load` to the answer, planning included.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bench import spark_data
from bench.measure import Measured, step
from bench.served import serving
from bench.spark_run import Took, spark, took
from bench.wires import HOST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders"
ROWS = 3_000_000
ROWS_QUICK = 20_000
ROUNDS = 4
RANGE_PART = 100  # a range has one of this many rows

Query = Callable[[], "DataFrame"]


def run(directory: str, quick: bool) -> dict[str, Measured]:
    rows = ROWS_QUICK if quick else ROWS
    with serving(f"{directory}/server", **spark_data.settings(quick)) as server:
        url = f"http://{HOST}:{server.port}"
        files = spark_data.fill(url, TOPIC, rows, others=f"{directory}/others")
        found: dict[str, Measured] = step(
            "case_spark_scan:scan",
            directory=directory,
            url=url,
            files=files,
            rows=rows,
            rounds=1 if quick else ROUNDS,
        )
    return found


def scan(directory: str, url: str, files: list[str], rows: int, rounds: int) -> dict[str, Measured]:
    """A step: every query once to warm up, then some rounds of all of them."""
    with spark(f"{directory}/scratch") as session:
        queries: dict[str, Query] = {
            "spark_scan": lambda: ours(session, url),
            "spark_scan_bare": lambda: bare(session, files),
            "spark_scan_lines": lambda: lines(session, f"{directory}/others/lines"),
            "spark_scan_parquet": lambda: session.read.parquet(f"{directory}/others/parquet"),
        }
        middle = (rows // 2, rows // 2 + rows // RANGE_PART - 1)
        ranges: dict[str, Query] = {
            "spark_scan_range": lambda: in_range(session, url, *middle),
            "spark_scan_range_filter": lambda: filtered(session, url, *middle),
        }
        taken: dict[str, list[Took]] = {name: [] for name in [*queries, *ranges]}
        for _ in range(rounds + 1):
            for name, query in queries.items():
                taken[name].append(took(partial(check, query, 1, rows)))
            for name, query in ranges.items():
                taken[name].append(took(partial(check, query, *middle)))
    found: dict[str, Measured] = {}
    for name, (_warm_up, *all_of) in taken.items():
        if name in ranges:
            found[name] = [one.wall for one in all_of]
            continue
        found[name] = [rows / one.wall for one in all_of]
        found[f"{name}_cpu"] = [rows / one.cpu for one in all_of]
    best = [min(one.wall for one in taken[name][1:]) for name in ("spark_scan_bare", "spark_scan")]
    found["spark_scan_ratio"] = best[0] / best[1]
    return found


def ours(session: SparkSession, url: str, **options: str) -> DataFrame:
    reader = session.read.format("headrace").option("url", url).option("columns", "seq,data")
    return reader.options(**options).load(TOPIC)


def bare(session: SparkSession, files: list[str]) -> DataFrame:
    from bench.spark_bare import SEPARATOR

    return session.read.format("bare").option("files", SEPARATOR.join(files)).load()


def lines(session: SparkSession, directory: str) -> DataFrame:
    """Parsed as JSON; the number in each record makes up for the seq."""
    made = session.read.schema(spark_data.FIELDS).json(directory)
    # As long as the document, so that all of it is looked at and the same check holds.
    size = spark_data.RECORD_BYTES
    return made.selectExpr("order + 1 AS seq", f"rpad(note, {size}, customer) AS data")


def in_range(session: SparkSession, url: str, first: int, last: int) -> DataFrame:
    starting, ending = json.dumps({TOPIC: first}), json.dumps({TOPIC: last + 1})
    return ours(session, url, startingSeqs=starting, endingSeqs=ending)


def filtered(session: SparkSession, url: str, first: int, last: int) -> DataFrame:
    return ours(session, url, pushFilters="true").where(f"seq BETWEEN {first} AND {last}")


def check(query: Query, first: int, last: int) -> None:
    """Every row from `first` to `last` is there once, in full."""
    found = query().selectExpr("count(*)", "sum(seq)", "sum(length(data))").first()
    assert found is not None
    count = last - first + 1
    expected = (count, (first + last) * count // 2, count * spark_data.RECORD_BYTES)
    assert tuple(found) == expected, (tuple(found), expected)
