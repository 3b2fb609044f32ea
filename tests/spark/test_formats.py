"""Through Spark itself: columns, formats and errors as a user of `format("headrace")` sees them."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from headrace.client import Client, Draft
from headrace.testing.process import ServerProcess

RECORDS = [
    {"id": 1, "price": 12.5, "at": "2026-01-31T12:00:00Z", "items": [{"n": 1}, {"n": 2}]},
    {"id": 2, "m": {"a": 1}, "note": "é"},
    None,
]


def in_order(frame: DataFrame) -> list[Row]:
    """The rows by seq; sorted here, because a sort in Spark costs two jobs more."""
    return sorted(frame.collect(), key=lambda row: row.seq)


def test_every_format(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str
) -> None:
    drafts = [Draft(record, tag=f"tag-{at}", meta={"m": at}) for at, record in enumerate(RECORDS)]
    client.append(topic, drafts, node="n1")
    client.append_arrow(topic, pa.table({"data": [b"\xff\x00not JSON"]}))

    def load(schema: str | None = None, /, **options: str) -> DataFrame:
        reader = spark.read.format("headrace").option("url", server.url).options(**options)
        return (reader if schema is None else reader.schema(schema)).load(topic)

    plain = load()
    assert plain.schema.simpleString() == (
        "struct<topic:string,seq:bigint,ts:timestamp,node:string,tag:string,meta:string,"
        "data:binary>"
    )
    rows = in_order(plain.selectExpr("*", "unix_millis(ts) ms"))
    assert [(r.topic, r.seq, r.node, r.tag, r.meta) for r in rows[:3]] == [
        (topic, at + 1, "n1", f"tag-{at}", json.dumps({"m": at}, separators=(",", ":")))
        for at in range(3)
    ]
    assert [json.loads(bytes(r.data)) for r in rows[:3]] == RECORDS
    assert bytes(rows[3].data) == b"\xff\x00not JSON"
    assert (rows[3].node, rows[3].tag, rows[3].meta) == (None, None, None)
    assert [r.ms for r in rows] == [record.ts for record in client.diff(topic).records]

    texts = in_order(load(columns="data,seq,kind", dataFormat="json", badRecords="null"))
    assert [(None if r.data is None else json.loads(r.data), r.kind) for r in texts] == [
        *((record, "json") for record in RECORDS),
        (None, "bytes"),
    ]

    variants = load(columns="seq,data", dataFormat="variant", badRecords="null")
    found = in_order(variants.selectExpr("*", "variant_get(data, '$.id', 'int') id"))
    assert [r.id for r in found] == [1, 2, None, None]
    assert [r.data.toPython() for r in found[:3]] == RECORDS
    assert found[3].data is None

    fields = "id INT, price DECIMAL(6, 2), at TIMESTAMP, items ARRAY<STRUCT<n: BIGINT>>"
    typed = load(schema=fields, columns="seq,data", badRecords="null")
    first, second, third, fourth = (row.data for row in in_order(typed))
    assert (first.id, first.price, [item.n for item in first["items"]]) == (
        1,
        Decimal("12.50"),
        [1, 2],
    )
    noon = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    assert first.at.astimezone(datetime.UTC) == noon
    assert (second.id, second.price, third, fourth) == (2, None, None, None)

    declared = load("seq BIGINT, data STRUCT<m: MAP<STRING, INT>, note: STRING>", badRecords="null")
    maps = [row.data and (row.data.m, row.data.note) for row in in_order(declared)]
    assert maps == [(None, None), ({"a": 1}, "é"), None, None]


def test_variants_are_those_that_spark_makes(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str
) -> None:
    """Numbers that are on the edge of a type, and what else there are two opinions about."""
    numbers = ["0", "-0", "-0.0", "1.50", "1E5", "-1e-7", "0.00", "1e400", "1e-400", "127", "128"]
    numbers += ["9223372036854775807", "9223372036854775808", "-9223372036854775809"]
    numbers += ["9" * 38, "9" * 39, "0." + "1" * 38, "0." + "1" * 39, "12345678901234567890.5"]
    texts = ['"\\ud83d\\ude00é"', f'"{"y" * 70}"', "null", "true", "[]", "{}"]
    texts += ['{"z":1,"a":{"é":[1,"x",null]},"":2}', f'{{"a":[{",".join(numbers)}]}}']
    client.append_arrow(topic, pa.table({"data": pa.array(numbers + texts, pa.utf8())}))
    shown = ("seq", "to_json(data) text", "schema_of_variant(data) type")

    def load(data_format: str) -> DataFrame:
        reader = spark.read.format("headrace").option("url", server.url)
        return reader.options(dataFormat=data_format, columns="seq,data").load(topic)

    ours = in_order(load("variant").selectExpr(*shown))
    sparks = load("json").selectExpr("seq", "parse_json(data) data").selectExpr(*shown)
    assert ours == in_order(sparks) and len(ours) == len(numbers + texts)


def test_errors_say_what_would_be_right(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str
) -> None:
    client.append_arrow(topic, pa.table({"data": [b"{}", b"no JSON"]}))
    reader = spark.read.format("headrace").option("url", server.url)
    with pytest.raises(PySparkException, match=f"record 2 of topic '{topic}' .*badRecords"):
        reader.schema("seq BIGINT, data VARIANT").load(topic).collect()
    with pytest.raises(PySparkException, match="with these options it is BIGINT"):
        spark.read.format("headrace").schema("seq INT").load(topic).collect()
    with pytest.raises(PySparkException, match="did you mean BIGINT"):
        spark.read.format("headrace").option("schema", "id BIGNIT").load(topic)
    with pytest.raises(PySparkException, match="did you mean columns"):
        spark.read.format("headrace").load(topic, colums="seq")
