"""Batches that run again, queries that change in the middle of one, and sources that go away.

A query is run as a worker does it, up to what there is.  A worker that was killed after a batch was
written, and before Spark noted it as done, is played by taking Spark's note away.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from headrace.api.pipelines import Declaration, PipelineDest, PipelineSource, Watermark
from headrace.client import Client, Draft
from headrace.core.errors import CheckpointIncompatible, DataLost, TopicNotFound
from headrace.pipelines.worker.building import WorkerSetup, starts_of, topic_batches
from headrace.pipelines.worker.runs import in_words
from headrace.spark.options import Connection
from headrace.testing.process import ServerProcess
from tests.support.pipeline_workers import all_records, rows_of_table, run_all

replace = msgspec.structs.replace
TAGS = ("t0", "t1", "t2")


@pytest.fixture
def place(server: ServerProcess, tmp_path: Path) -> WorkerSetup:
    return WorkerSetup(Connection(server.url), str(tmp_path / "checkpoints"), {}, str(tmp_path))


def append(client: Client, topic: str, first: int, count: int) -> None:
    numbers = range(first, first + count)
    client.append(topic, [Draft({"n": n}, tag=TAGS[n % 3]) for n in numbers])


def forget_the_last_batch(place: WorkerSetup, name: str, checkpoint: str = "1") -> None:
    """As if the worker had been killed after the batch was written."""
    commits = Path(place.checkpoints) / name / checkpoint / "commits"
    newest = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "modes",
    [
        pytest.param({"update": "update", "complete-table": "complete"}, id="with state"),
        pytest.param(
            {"each": "append", "once": "append", "complete": "complete", "each-table": "append"},
            id="all others",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_batch_that_runs_again_is_there_once(
    spark: SparkSession,
    client: Client,
    topic: str,
    place: WorkerSetup,
    tmp_path: Path,
    modes: dict[str, Any],
) -> None:
    """For each output mode and each kind of destination, with rows that differ from run to run."""
    append(client, topic, 0, 30)
    late = PipelineSource(topic, alias="t", watermark=Watermark("1s"), unique_by=["data.n"])
    totals = "select tag, count(*) as n, sum(data:n::double) as sum, rand() as r from t group by 1"
    each = "select seq as source_seq, data:n::bigint as n, rand() as r from t"
    declared = {
        what: Declaration(
            [late if what == "once" else PipelineSource(topic, alias="t")],
            PipelineDest(table=what) if "table" in what else PipelineDest(f"{topic}.{what}"),
            sql=each if "each" in what or what == "once" else totals,
            output_mode=mode,
        )
        for what, mode in modes.items()
    }

    def written() -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for what, one in declared.items():
            if one.dest.topic is not None:
                found[what] = all_records(client, one.dest.topic)
            else:
                found[what] = rows_of_table(tmp_path / what)
        return found

    run_all(spark, place, declared)
    first = written()
    for what, rows in first.items():
        assert len(rows) == (30 if modes[what] == "append" else 3), what
    for what in declared:
        forget_the_last_batch(place, what)
    append(client, topic, 30, 30)
    run_all(spark, place, declared)
    second = written()
    for what, rows in second.items():
        if declared[what].dest.topic is not None:
            assert rows[: len(first[what])] == first[what], what
        if modes[what] == "append":
            found = sorted((row["source_seq"], row["n"]) for row in rows)
            assert found == [(n + 1, n) for n in range(60)], what
            continue
        assert len(rows) == (3 if what == "complete-table" else 6), what
        assert sorted((row["n"], row["sum"]) for row in rows[-3:]) == [
            (20, sum(range(least, 60, 3))) for least in range(3)
        ], what


def test_one_attempt_of_a_batch_is_what_stands(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str
) -> None:
    write = topic_batches({"url": server.url, "topic": topic}, "an-id")
    for number, value in [(0, "a"), (0, "b"), (1, "c"), (1, "d")]:
        write(spark.range(3).selectExpr(f"'\"{value}\"' as data"), number)
    assert all_records(client, topic) == ["a"] * 3 + ["c"] * 3
    with pytest.raises(Exception, match=r"comes after batch 1"):
        write(spark.range(3).selectExpr("'\"e\"' as data"), 0)
    assert len(all_records(client, topic)) == 6


@pytest.mark.long
def test_a_query_that_changes_in_the_middle_of_a_batch(
    spark: SparkSession, client: Client, topic: str, place: WorkerSetup
) -> None:
    """Without state it goes on: what was begun is there once, and the rest by the new query."""
    append(client, topic, 0, 4)
    dest = f"{topic}.out"
    source = PipelineSource(topic, alias="t")
    one = Declaration([source], PipelineDest(dest), sql="select data:n::bigint as n from t")
    run_all(spark, place, {"a": one})
    forget_the_last_batch(place, "a")
    append(client, topic, 4, 2)
    ten = replace(one, sql="select 10 * data:n::bigint as n from t")
    run_all(spark, place, {"a": ten})
    assert [row["n"] for row in all_records(client, dest)] == [0, 1, 2, 3, 40, 50]
    # Another destination: the batch that was begun stays with the one that it had.
    forget_the_last_batch(place, "a")
    append(client, topic, 6, 2)
    run_all(spark, place, {"a": replace(ten, dest=PipelineDest(f"{dest}.2"))})
    assert len(all_records(client, dest)) == 6
    assert [row["n"] for row in all_records(client, f"{dest}.2")] == [60, 70]
    # A record on which the SQL fails, and SQL that does not.
    client.append(topic, [{"n": "eight"}, {"n": 9}])
    last = replace(ten, dest=PipelineDest(f"{dest}.2"))
    with pytest.raises(Exception, match="INVALID_VARIANT_CAST"):
        run_all(spark, place, {"a": last})
    run_all(
        spark,
        place,
        {"a": replace(last, sql="select try_variant_get(data, '$.n', 'int') n from t")},
    )
    assert [row["n"] for row in all_records(client, f"{dest}.2")] == [60, 70, None, 9]
    with pytest.raises(CheckpointIncompatible, match="another name as `checkpoint`"):
        run_all(spark, place, {"a": replace(last, sql="select count(*) from t")})


@pytest.mark.long
def test_sources_and_destinations_that_go_away(
    spark: SparkSession, client: Client, topic: str, place: WorkerSetup
) -> None:
    def declared(name: str) -> Declaration:
        source = PipelineSource(f"{topic}.{name}", alias="t")
        return Declaration([source], PipelineDest(f"{topic}.{name}.out"), sql="select seq s from t")

    def refused(name: str) -> str:
        with pytest.raises(Exception) as raised:  # noqa: PT011 - looked at below
            run_all(spark, place, {name: declared(name)})
        return str(in_words(raised.value))

    names = "capped", "deleted", "anew"
    with pytest.raises(TopicNotFound, match=r"capped' does not exist; append to it"):
        run_all(spark, place, {"capped": declared("capped")})
    client.put_topic(f"{topic}.capped", {"cap_records": 5})
    for name in names:
        append(client, f"{topic}.{name}", 0, 3)
    run_all(spark, place, {name: declared(name) for name in names})
    append(client, f"{topic}.capped", 3, 20)
    for name in ("deleted", "anew"):
        client.delete_topic(f"{topic}.{name}")
    append(client, f"{topic}.anew", 0, 9)
    expected = {
        "capped": "are lost: the topic's cap removed them",
        "deleted": "was deleted; what came after seq 3 is lost",
        "anew": "is another one now",
    }
    for name, what in expected.items():
        said = refused(name)
        assert what in said and said.endswith("with what its sources still hold"), said
        assert "failOnDataLoss" not in said
        assert len(all_records(client, f"{topic}.{name}.out")) == 3
    # A new checkpoint begins with what is left; a topic that was written to may be deleted.
    client.delete_topic(f"{topic}.capped.out")
    run_all(spark, place, {"capped": replace(declared("capped"), checkpoint="2")})
    assert [row["s"] for row in all_records(client, f"{topic}.capped.out")] == list(range(19, 24))


def test_where_queries_begin(client: Client, topic: str, place: WorkerSetup) -> None:
    """All of a pipeline at one place; what is not there is told before Spark is asked."""
    early, late = f"{topic}.early", f"{topic}.late"
    sources = [PipelineSource(early, alias="a"), PipelineSource(late, alias="b", start="latest")]
    declared = Declaration(sources, PipelineDest(f"{topic}.out"), sql="select 1 from a, b")
    append(client, early, 0, 3)
    with pytest.raises(TopicNotFound, match=r"late' does not exist; append to it"):
        starts_of(declared, {}, place.connection)
    append(client, late, 0, 5)
    assert starts_of(declared, {}, place.connection) == {late: 6}
    assert starts_of(declared, {early: 2, late: 4}, place.connection) == {early: 3, late: 5}
    client.delete_topic(late)
    with pytest.raises(DataLost, match="was deleted; what came after seq 4 is lost"):
        starts_of(declared, {early: 2, late: 4}, place.connection)


@pytest.mark.long
def test_bad_records_are_copied_from_where_the_pipeline_begins(
    spark: SparkSession, client: Client, topic: str, place: WorkerSetup
) -> None:
    """Those before it are none of its business, and of those behind it none is left out."""
    client.append(topic, [{"n": "old"}, {"n": 1}])
    source = PipelineSource(topic, alias="t", schema="n BIGINT", start="latest")
    dest, bad = f"{topic}.out", f"{topic}.bad"
    one = Declaration([source], PipelineDest(dest), sql="select data.n as n from t")
    run_all(spark, place, {"a": one})
    client.append(topic, [{"n": 2}, {"n": "new"}, {"n": 3}])
    with pytest.raises(Exception, match=f"record 4 of topic '{topic}'"):
        run_all(spark, place, {"a": one})
    letters = replace(one, on_error="dead_letter", dead_letter=bad)
    run_all(spark, place, {"a": letters})
    assert all_records(client, dest) == [{"n": 2}, {"n": 3}]
    assert all_records(client, bad) == [{"n": "new"}]
