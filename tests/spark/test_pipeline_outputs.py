"""Where results go: a table, a topic of dead letters, and what a function of the worker gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from headrace.client import Client, Draft, Record
from headrace.pipelines.worker.building import WorkerSetup
from headrace.pipelines.worker.tables import TableWriter
from headrace.spark.options import Connection
from headrace.testing.process import ServerProcess
from tests.support.pipeline_workers import all_records, rows_of_table, until, working

GOOD = [{"n": n, "who": f"w{n % 2}"} for n in range(10)]
SCHEMA = "n BIGINT, who STRING"


@pytest.fixture
def names(client: Client, topic: str) -> Iterator[tuple[str, ...]]:
    found = tuple(f"{topic}.{what}" for what in ("table", "letters", "function"))
    yield found
    for name in found:
        client.delete_pipeline(name)


def cheap(spark: SparkSession, sources: dict[str, DataFrame], below: int = 5) -> DataFrame:
    """An entry point."""
    assert spark.version
    return sources["t"].where(f"data.n < {int(below)}").selectExpr("data.n", "data.who as tag")


def test_everything_that_can_be_written_to(
    spark: SparkSession,
    server: ServerProcess,
    client: Client,
    topic: str,
    names: tuple[str, ...],
    tmp_path: Path,
) -> None:
    table, letters, function = names
    client.append(topic, GOOD)
    client.append(topic, [Draft({"n": "bad"}, tag="x", node="me", meta={"via": "web"}), Draft([1])])
    source = {"topic": topic, "alias": "t", "schema": SCHEMA}
    once = {"sources": [source], "trigger": "available_now", "on_error": "skip"}
    select = "select data.n, data.who, ts from t"
    client.put_pipeline(table, {**once, "sql": select, "dest": {"table": "flat"}})
    client.put_pipeline(
        letters,
        {
            **once,
            "sql": "select data.n from t",
            "dest": {"topic": f"{letters}.out"},
            "on_error": "dead_letter",
            "dead_letter": f"{letters}.bad",
        },
    )
    entry = {"entry": "cheap", "args": {"below": 3}}
    client.put_pipeline(function, {**once, "python": entry, "dest": {"topic": f"{function}.out"}})

    def done() -> bool:
        return all(client.pipeline(name).state == "done" for name in names)

    place = WorkerSetup(
        Connection(server.url), str(tmp_path / "checkpoints"), {"cheap": cheap}, str(tmp_path)
    )
    with working(spark, place):
        until(done, "all are done")
        flat = rows_of_table(tmp_path / "flat")
        assert sorted((row["n"], row["who"]) for row in flat) == [(g["n"], g["who"]) for g in GOOD]
        assert flat[0]["ts"].tzinfo is not None
        assert sorted(one["n"] for one in all_records(client, f"{letters}.out")) == list(range(10))
        found = list(client.follow(f"{letters}.bad", to_head=True))
        assert all(isinstance(one, Record) for one in found)
        came = {"pipeline": letters, "topic": topic}
        assert [(one.data, one.tag, one.node, one.meta) for one in found] == [
            ({"n": "bad"}, "x", "me", {**came, "seq": 11, "meta": {"via": "web"}}),
            ([1], None, None, {**came, "seq": 12}),
        ]
        given = [(one.data, one.tag) for one in client.follow(f"{function}.out", to_head=True)]
        assert sorted(given, key=str) == [({"n": n}, f"w{n % 2}") for n in range(3)]
        # Once more, with more.
        client.append(topic, [{"n": 10, "who": "w0"}])
        client.restart_pipeline(table)
        until(lambda: len(rows_of_table(tmp_path / "flat")) == 11, "the new row")


def test_a_batch_is_in_a_table_once(spark: SparkSession, tmp_path: Path) -> None:
    """By its number, whoever writes it; other columns are refused, files that failed removed."""
    writer = TableWriter(str(tmp_path), "t:1", "app", replaces=False)
    path = tmp_path / "t~1"
    rows = spark.range(3).selectExpr("id", "cast(id as string) as name")
    for number in (0, 0, 1, 0, 1):
        writer.write(rows, number)
    assert len(rows_of_table(path)) == 6
    writer.write(rows.where("id > 5"), 2)
    assert len(rows_of_table(path)) == 6
    TableWriter(str(tmp_path), "t:1", "other", replaces=False).write(rows, 0)
    assert len(rows_of_table(path)) == 9
    before = sorted(os.listdir(path))
    with pytest.raises(Exception, match="other columns"):
        writer.write(spark.range(2), 3)
    assert sorted(os.listdir(path)) == before
    assert DeltaTable(str(path)).transaction_version("app") == 1


def test_of_two_workers_with_one_batch_one_commits_it(spark: SparkSession, tmp_path: Path) -> None:
    """The other one looked at the table before, and slept until then."""
    rows = spark.range(3).selectExpr("id")
    for replaces in (False, True):
        name = f"t{replaces}"
        awake = TableWriter(str(tmp_path), name, "app", replaces=replaces)

        class Asleep(TableWriter):
            """Somebody else commits the batch after this one has looked for it."""

            def _open(self, awake: TableWriter = awake) -> DeltaTable | None:
                table = super()._open()
                awake.write(rows, 1)
                return table

        awake.write(rows, 0)
        asleep = Asleep(str(tmp_path), name, "app", replaces=replaces)
        with pytest.raises(Exception, match=r"(?i)transaction|commit|conflict"):
            asleep.write(rows, 1)
        asleep.write(rows, 1)
        assert len(rows_of_table(tmp_path / name)) == (3 if replaces else 6)
