"""Streams in Spark and SQL: bytes and content types as they are, forks whole, long names."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.client import Client
from headrace.lake.sql.frames import LakeArchiveTables
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.sync import Sync
from headrace.spark.options import Connection
from headrace.spark.sql.tables import Tables
from headrace.testing.process import ServerProcess
from tests.support.http_streams import delete_stream, make_s2_stream, make_stream
from tests.support.sealed_topics import seal

COLUMNS = "seq,kind,content_type,headers,data"


@pytest.fixture
def client(sealing: ServerProcess) -> Any:
    with Client(sealing.url) as found:
        yield found


def read(spark: SparkSession, server: ServerProcess, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("headrace").options(
        url=server.url, **{"columns": COLUMNS, **options}
    )
    return reader.load(topic)


@pytest.mark.parametrize("direct", ["true", "false"])
def test_a_fork_is_read_whole(
    spark: SparkSession, sealing: ServerProcess, client: Client, topic: str, direct: str
) -> None:
    """From files, of which some are its source's, and over HTTP; the source is gone."""
    source = make_stream(sealing, topic, "image/png", (b"\xff\x00", b"x"))
    seal(client, source)
    fork = make_stream(
        sealing, f"{topic}/f", "", (b"own",), stream_forked_from=f"/v1/stream/{topic}"
    )
    seal(client, fork)
    client.append_arrow(fork, pa.table({"data": [b"tail"]}))
    delete_stream(sealing, topic)
    rows = read(spark, sealing, fork, direct=direct).orderBy("seq").collect()
    assert [
        (row.seq, row.kind, row.content_type, row.headers, bytes(row.data)) for row in rows
    ] == [
        (at, "bytes", "image/png", None, data)
        for at, data in enumerate((b"\xff\x00", b"x", b"own", b"tail"), start=1)
    ]


def test_a_topic_is_of_no_type(
    spark: SparkSession, sealing: ServerProcess, client: Client, topic: str
) -> None:
    client.append(topic, [1])
    (row,) = read(spark, sealing, topic).collect()
    assert (row.kind, row.content_type, row.headers) == ("json", None, None)


def test_sql_over_streams(
    spark: SparkSession, sealing: ServerProcess, client: Client, topic: str, tmp_path: Any
) -> None:
    """A long name with a comma; from the server, and from a lake and the server."""
    path = f"{topic}, " + "é" * 250
    name = make_stream(sealing, path, "application/json", (b'[{"n":1},{"n":2}]',))
    client.append(topic, [{"n": 7}])
    statement = f"select seq, data:n::int as n, content_type, headers from `{name}` order by seq"
    lake = Lake(str(tmp_path / "lake"))
    connection = Connection(sealing.url)
    Sync(client, connection, lake, run_inline).run([name])
    client.append(name, [{"n": 3}])
    wanted = [(n, n, "application/json", None) for n in (1, 2, 3)]
    for archive in (None, LakeArchiveTables(spark, lake)):
        tables = Tables(spark, connection, archive)
        with tables.query(statement) as answer:
            assert [tuple(row) for row in answer.frame.collect()] == wanted
        with tables.query(f"select * from `{topic}`") as answer:
            assert "content_type" not in answer.frame.columns


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_streams_as_sinks(
    spark: SparkSession, sealing: ServerProcess, client: Client, topic: str, mode: str
) -> None:
    """JSON into an open JSON stream; else the server's refusal, in one line."""
    json = make_stream(sealing, f"{topic}/json", "application/json")
    text = make_stream(sealing, f"{topic}/text", "text/plain")
    shut = make_stream(sealing, f"{topic}/shut", "application/json", stream_closed="true")
    rows = spark.range(0, 3, 1, 1).selectExpr("CAST(id AS STRING) AS data")

    def write(to: str) -> None:
        options = {"url": sealing.url, "topic": to, "mode": mode}
        rows.write.format("headrace").mode("append").options(**options).save()

    write(json)
    assert [record.data for record in client.diff(json).records] == [0, 1, 2]
    for to, said in ((text, "record of another kind"), (shut, "closed")):
        with pytest.raises(PySparkException) as raised:
            write(to)
        lines = [line for line in str(raised.value).splitlines() if said in line]
        assert lines and repr(to) in lines[0], str(raised.value)
        assert client.topic(to).head_seq == 0


def test_streams_of_s2(
    spark: SparkSession, sealing: ServerProcess, client: Client, topic: str, tmp_path: Any
) -> None:
    """Headers, commands, times and bytes, of the longest name: from files, HTTP and a lake."""
    stream = f"{topic}/" + "é" * ((512 - len(topic) - 1) // 2)
    record = {"timestamp": 7, "headers": [["aA==", "/w=="], ["aA==", ""]], "body": "/wA="}
    late = {"timestamp": 2**63 - 1, "body": "eA=="}
    fence = {"timestamp": 2**63 - 1, "headers": [["", "ZmVuY2U="]], "body": "dA=="}
    name = make_s2_stream(sealing, stream, [record, late], [fence])
    seal(client, name)
    pairs = [(b"h", b"\xff"), (b"h", b"")]
    wanted = [
        (1, "bytes", pairs, b"\xff\x00", 7_000),
        (2, "bytes", None, b"x", 253_402_300_799_999_000),
        (3, "command", [(b"", b"fence")], b"t", 253_402_300_799_999_000),
    ]
    columns = ("seq", "kind", "headers", "data", "unix_micros(ts)")

    def seen(frame: DataFrame) -> list[tuple[object, ...]]:
        return [
            (row[0], row[1], _pairs(row[2]), bytes(row[3]), row[4])
            for row in frame.selectExpr(*columns).orderBy("seq").collect()
        ]

    for direct in ("true", "false"):
        asked = {"columns": "seq,kind,headers,data,ts", "direct": direct}
        assert seen(read(spark, sealing, name, **asked)) == wanted
    lake = Lake(str(tmp_path / "lake"))
    connection = Connection(sealing.url)
    Sync(client, connection, lake, run_inline).run([name])
    tables = Tables(spark, connection, LakeArchiveTables(spark, lake))
    columns = ("seq", "content_type", "headers", "raw", "unix_micros(ts)")
    with tables.query(f"select * from `{name}`") as answer:
        assert seen(answer.frame) == [
            (seq, "application/octet-stream", *rest) for seq, _, *rest in wanted
        ]
    (first, _, last) = client.diff(name, include_meta=True).records
    assert first.data == b"\xff\x00" and first.meta["$headers"] == [["aA==", "/w=="], ["aA==", ""]]
    assert last.meta["$kind"] == "command" and last.ts == 2**63 - 1


def _pairs(headers: Any) -> list[tuple[bytes, bytes]] | None:
    if headers is None:
        return None
    return [(bytes(one["name"]), bytes(one["value"])) for one in headers]
