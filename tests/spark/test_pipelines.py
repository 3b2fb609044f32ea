"""Declared pipelines on real Spark, each against a model's answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.client import Client
from headrace.core.errors import SqlRefused
from headrace.pipelines.worker.plan_check import check_leaves, check_plan, is_stateful, new_session
from headrace.testing.process import ServerProcess
from tests.support.pipeline_workers import all_records, place_of, reports, until, working

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def pipeline(client: Client, topic: str) -> Iterator[str]:
    yield topic
    client.delete_pipeline(topic)


def at(seconds: int) -> str:
    return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def clicks(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Every seven seconds a click, of three users; some come late."""
    return [
        {"user": f"u{n % 3}", "at": at(7 * n - (20 if n % 5 == 0 else 0)), "id": n // 2}
        for n in range(first, first + count)
    ]


@pytest.mark.long
def test_per_minute_counts(
    spark: SparkSession, server: ServerProcess, client: Client, pipeline: str, tmp_path: Path
) -> None:
    """Each minute once, when it is over, whatever the batches; a worker goes on where one was."""
    declaration = {
        "sources": [
            {
                "topic": pipeline,
                "alias": "clicks",
                "schema": "user STRING, at TIMESTAMP",
                "watermark": {"delay": "1m", "column": "data.at"},
                "max_records": 40,
            }
        ],
        "sql": "select date_format(window.start, 'HH:mm') as minute, count(*) as clicks\n"
        "from clicks group by window(event_time, '1 minute')",
        "dest": {"topic": f"{pipeline}.out"},
    }
    events = clicks(200)
    client.append(pipeline, events[:100])
    client.put_pipeline(pipeline, declaration)

    def expected(of: list[dict[str, Any]], above: int) -> dict[str, int]:
        """Minutes that are over a minute before the newest event of `of[:above]`."""
        times = [datetime.fromisoformat(event["at"]) for event in of]
        over = max(times[:above]) - timedelta(minutes=1)
        counted = Counter(time.replace(second=0) for time in times)
        return {
            minute.strftime("%H:%M"): count
            for minute, count in sorted(counted.items())
            if minute + timedelta(minutes=1) <= over
        }

    def counts() -> dict[str, int]:
        found = all_records(client, f"{pipeline}.out")
        assert len({row["minute"] for row in found}) == len(found), "a minute came twice"
        return {row["minute"]: row["clicks"] for row in found}

    first = expected(events[:100], 100)
    with working(spark, place_of(server.url, tmp_path)):
        until(lambda: len(counts()) == len(first), "the first counts")
        assert counts() == first
    client.append(pipeline, events[100:])
    with working(spark, place_of(server.url, tmp_path), node="w2"):
        whole = expected(events, 200)
        until(lambda: len(counts()) >= len(whole), "the rest")
        assert counts() == whole
        state = client.pipeline(pipeline)
        assert (state.state, state.worker) == ("running", "w2")
    said = reports(client, pipeline)
    assert [one["state"] for one in said[:2]] == ["starting", "running"]
    batches = [one for one in said if one["batch"] is not None]
    assert sum(one["rows"] for one in batches) >= 200
    assert batches[-1]["lag"] == 0 and batches[-1]["state_rows"] >= 1
    assert {one["node"] for one in said} == {"w1", "w2"}
    assert client.pipeline(pipeline).worker is None, "it was given back"


@pytest.mark.long
def test_dedup_and_a_changed_query(
    spark: SparkSession, server: ServerProcess, client: Client, pipeline: str, tmp_path: Path
) -> None:
    """Each id once; another query needs another checkpoint, and then begins anew."""
    source = {
        "topic": pipeline,
        "alias": "clicks",
        "watermark": {"delay": "1d"},
        "unique_by": ["data.id", "data.user"],
    }
    declaration = {
        "sources": [source],
        "sql": "select data:id::bigint as id, data:user::string as tag from clicks",
        "dest": {"topic": f"{pipeline}.out"},
    }
    events = clicks(30)
    client.append(pipeline, events)
    client.put_pipeline(pipeline, declaration)
    pairs = {(event["id"], event["user"]) for event in events}

    def found(topic: str) -> list[tuple[int, str | None]]:
        if not any(one.topic == topic for one in client.topics(topic)):
            return []
        records = client.follow(topic, to_head=True)
        return [(record.data["id"], record.tag) for record in records]

    with working(spark, place_of(server.url, tmp_path)):
        until(lambda: len(found(f"{pipeline}.out")) >= len(pairs), "all ids")
        client.append(pipeline, events)
        until(
            lambda: sum(one["rows"] or 0 for one in reports(client, pipeline)) >= 2 * len(events),
            "the second batch",
        )
        assert sorted(found(f"{pipeline}.out")) == sorted(pairs)
        # Another computation: refused under this checkpoint, and it runs under another.
        other = {**declaration, "sql": declaration["sql"].replace("data:id", "10 * data:id")}
        with pytest.raises(Exception, match="another name as `checkpoint`"):
            client.put_pipeline(pipeline, other)
        moved = {**other, "checkpoint": "2", "dest": {"topic": f"{pipeline}.ten"}}
        client.put_pipeline(pipeline, moved)
        until(lambda: len(found(f"{pipeline}.ten")) >= len(pairs), "all ids, times ten")
        assert sorted(found(f"{pipeline}.ten")) == sorted((10 * n, tag) for n, tag in pairs)
        # Deleted and declared anew with the old checkpoint's name: the worker says it.
        client.delete_pipeline(pipeline)
        client.put_pipeline(pipeline, other)
        said = until(
            lambda: [one for one in reports(client, pipeline) if one["error"]], "the refusal"
        )
        assert said[0]["state"] == "failed"
        assert "the checkpoint '1'" in said[0]["error"]
        assert "another name as `checkpoint`" in said[0]["error"]


def test_bad_records(
    spark: SparkSession, server: ServerProcess, client: Client, pipeline: str, tmp_path: Path
) -> None:
    """A record that does not fit: the pipeline says which, stops there, or goes on without it."""
    client.append(pipeline, [{"n": 1}, {"n": "two"}, {"n": 3}])
    declaration = {
        "sources": [{"topic": pipeline, "alias": "t", "schema": "n BIGINT"}],
        "sql": "select data.n * 2 as doubled from t",
        "dest": {"topic": f"{pipeline}.out"},
    }
    client.put_pipeline(pipeline, declaration)
    with working(spark, place_of(server.url, tmp_path)):
        failed = until(
            lambda: [one for one in reports(client, pipeline) if one["error"]], "the failure"
        )[0]
        assert (failed["state"], failed["bad_topic"], failed["bad_seq"]) == ("failed", pipeline, 2)
        assert f"record 2 of topic '{pipeline}'" in failed["error"]
        assert failed["failures"] == 1 and failed["retry_ms"] > 0
        assert all_records(client, f"{pipeline}.out") == []
        # Without state, the same checkpoint goes on with another policy.
        client.put_pipeline(pipeline, {**declaration, "on_error": "skip"})
        until(lambda: len(all_records(client, f"{pipeline}.out")) == 2, "the good ones")
        assert all_records(client, f"{pipeline}.out") == [{"doubled": 2}, {"doubled": 6}]
        skipped = until(
            lambda: [one for one in reports(client, pipeline) if one["bad_records"]], "its report"
        )[0]
        assert (skipped["state"], skipped["bad_records"]) == ("running", 1)
        assert (skipped["bad_topic"], skipped["bad_seq"]) == (pipeline, 2)


def within(spark: SparkSession, work: Callable[[SparkSession], None]) -> None:
    """In the session of a pipeline, which is that of its thread only."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: work(new_session(spark))).result()


def test_what_spark_takes_for_something_else_is_refused(spark: SparkSession) -> None:
    """The second look, with Spark's own parser."""
    script = "select transform(id) using 'sh' as (x) from o"
    refused = [
        "create table x as select * from o",
        "set spark.sql.ansi.enabled = false",
        "add jar 'x.jar'",
        "with c as (select 1) insert into x select * from c",
        "from o insert into a select 1 insert into b select 2",
        "begin select 1; end",
        "execute immediate 'select 1'",
        script,
        f"with c as ({script}) select * from c",
        f"select ({script}) from o",
        f"select * from o where exists ({script})",
        f"select * from o where id in ({script})",
        f"select * from o, lateral ({script})",
        f"select * from (select * from (select 1) union all ({script}))",
    ]

    def look(session: SparkSession) -> None:
        session.range(3).createOrReplaceTempView("o")
        query = "with c as (select id from o) select count(*) from c where id in (1, 2)"
        check_plan(session, query)
        for sql in refused:
            with pytest.raises(SqlRefused, match="is not part of a query"):
                check_plan(session, sql)
        with pytest.raises(SqlRefused, match="is no table"):
            check_plan(session, "select * from python_worker_logs()")
        for sql in [
            "select reflect('java.lang.Math', 'abs', 1) from o",
            "select java_method('java.lang.Math', 'abs', 1) from o",
            "select system.builtin.try_reflect('java.lang.Math', 'abs', 1) from o",
            "select identifier('reflect')('java.lang.Math', 'abs', 1) from o",
            "select from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/etc/passwd')) from o",
            "select from_protobuf(cast('' as binary), 'm', '/etc/passwd') from o",
            "select * from text.`/etc/hostname`",
        ]:
            with pytest.raises(Exception, match=r"UNRESOLVED_ROUTINE|NOT_FOUND|NAMESPACE"):
                session.sql(sql)
        # Nothing of the worker's environment or settings becomes part of a text.
        (row,) = session.sql("select '${env:PATH}' a, '${spark.app.name}' b").collect()
        assert tuple(row) == ("${env:PATH}", "${spark.app.name}")

    within(spark, look)
    assert json.loads(spark.sql("select reflect('java.lang.Math', 'abs', 1)").first()[0]) == 1


def test_only_sources_are_read_whatever_the_text_is(spark: SparkSession) -> None:
    """A table of the worker's catalog, which no text should name, is not read if one does."""

    def look(session: SparkSession) -> None:
        stream = session.readStream.format("rate").load()
        stream.selectExpr("value as id", "timestamp as ts").createOrReplaceTempView("o")
        with pytest.raises(SqlRefused, match="not a declared source"):
            check_leaves(session.sql("select * from o where id in (select id from pipe_secret)"))
        for sql, kept in [
            ("select id + 1 from o where id > 3", False),
            ("with a as (select * from o) select explode(array(id, 1)) from a", False),
            ("select * from o union all select * from o", False),
            ("select /*+ repartition(3) */ id from o", True),
            ("select listagg(cast(id as string)) from o", True),
            ("select bitmap_construct_agg(id) from o", True),
            ("select distinct id from o", True),
            ("select a.id from o a join o b on a.id = b.id", True),
        ]:
            frame = session.sql(sql)
            check_leaves(frame)
            assert is_stateful(frame) is kept, sql

    spark.range(3).write.saveAsTable("pipe_secret")
    try:
        within(spark, look)
    finally:
        spark.sql("drop table pipe_secret")
