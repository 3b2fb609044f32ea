"""The same rows whichever way they go: written, read as a batch, as a stream, by SQL, filtered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from headrace.client import Client
from headrace.core.limits import MIB
from headrace.spark.options import Connection
from headrace.spark.sql.tables import Tables
from headrace.testing.process import ServerProcess
from tests.support.sealed_topics import fill, rows_of, seal

# Read from Spark; `meta` as text, because SQL has it as a variant.
COLUMNS = ("topic", "seq", "unix_millis(ts) AS ms", "node", "tag", "meta", "data")
SQL = "SELECT topic, seq, unix_millis(ts) AS ms, node, tag, to_json(meta) AS meta, raw AS data FROM"


class Told(NamedTuple):
    """A record, as every way tells it."""

    topic: str
    seq: int
    ms: int
    node: str | None
    tag: str | None
    meta: object
    data: bytes


def told(rows: Iterable[Row]) -> list[Told]:
    found = []
    for row in rows:
        meta = None if row.meta is None else json.loads(row.meta)
        data = bytes(row.data)
        found.append(Told(row.topic, row.seq, row.ms, row.node, row.tag, meta, data))
    return sorted(found, key=lambda one: one[:2])


def told_by_server(client: Client, *topics: str) -> list[Told]:
    found = []
    for topic in topics:
        page = client.diff_arrow(topic)
        while page.table.num_rows:
            rows = page.table.set_column(
                page.table.schema.get_field_index("ts"), "ms", page.table["ts"].cast(pa.int64())
            )
            found += [Row(topic=topic, **row) for row in rows.to_pylist()]
            page = client.diff_arrow(topic, page.next_from_seq)
    return told(found)


class Ways:
    """A topic, or several by commas, read in every way."""

    def __init__(self, spark: SparkSession, url: str, scratch: Path) -> None:
        self.spark = spark
        self.url = url
        self._scratch = scratch
        self._streams = 0

    def load(self, topics: str, **options: object) -> DataFrame:
        reader = self.spark.read.format("headrace").options(url=self.url, **options)
        return reader.load(topics)

    def batch(self, topics: str, **options: object) -> list[Told]:
        return told(self.load(topics, **options).selectExpr(*COLUMNS).collect())

    def stream(self, topics: str, **options: object) -> list[Told]:
        self._streams += 1
        name = f"stream_{self._streams}"
        rows = self.spark.readStream.format("headrace").options(url=self.url, **options)
        writing = rows.load(topics).writeStream.format("memory").queryName(name)
        writing = writing.option("checkpointLocation", str(self._scratch / name))
        writing.trigger(availableNow=True).start().awaitTermination()
        found = told(self.spark.table(name).selectExpr(*COLUMNS).collect())
        self.spark.catalog.dropTempView(name)
        return found

    def sql(self, topics: str) -> list[Told]:
        statement = " UNION ALL ".join(f"{SQL} `{name}`" for name in topics.split(","))
        with self.query(statement) as (frame, _):
            return told(frame.collect())

    def query(self, statement: str) -> Any:
        return Tables(self.spark, Connection(self.url)).query(statement)


@pytest.fixture
def client(sealing: ServerProcess) -> Iterator[Client]:
    with Client(sealing.url) as found:
        yield found


@pytest.fixture
def ways(spark: SparkSession, sealing: ServerProcess, tmp_path: Path) -> Ways:
    return Ways(spark, sealing.url, tmp_path)


BYTES = [
    *(bytes([value]) for value in range(256)),
    b"",
    b"\x00" * 1_000,
    b"\r\n\n\r\x0b\x0c\x85",
    b"\xc3\x28",  # not UTF-8: a start without its rest,
    b"\xed\xa0\x80",  # half of a pair,
    b"\xc0\xaf",  # longer than it need be,
    b"\xf4\x90\x80\x80",  # beyond the last character,
    b"\xe2\x82",  # cut off,
    b"\xef\xbb\xbf{}",  # and a mark of byte order.
    b'{"spaced" :  1.50}',
    "ü 🚀 \u2028 \ufeff \u200f".encode(),
    bytes(range(256)) * (MIB // 256),
]
TEXTS = [
    "null", "true", "0", "-0", "-0.0", "1.50", "1E5", "1e-400", "123456789012345678901234567890",
    '""', '" "', "[]", "{}", '{ "spaced" :  [ 1 ,\t2 ] , "b":\n{} }', '{"a":1,"a":2}',
    '"\\u00fc\\ud83d\\ude80\\u2028\\/\\b\\f\\n\\r\\t\\"\\\\"', '"ü🚀\u2028\u007f"',
    '{"":{"":[[[]]]}}',
    '{"\\u0061": "\\u0000"}', json.dumps("ü" * 1_000), json.dumps({"long": "x" * (MIB - 20)}),
]  # fmt: skip
TAGS = ["plain", "ü/日本/🚀", " spaced ", "a:b|c,d*", "x" * 256, "\u2028", "e\u0301", None]
NODES = ["n", "kanten-ü", "🚀" * 32, None, "a b"]
METAS = ['{"a":1}', None, '{"ü":"🚀\\u0000","n":[1,2.5,null,{"b":true}]}', "{}", '{ "s" :  "x" }']


def cycled(values: list[Any], count: int) -> list[Any]:
    return [values[at % len(values)] for at in range(count)]


@pytest.mark.parametrize("kind", ["bytes", "json"])
def test_whatever_a_record_holds_comes_back(
    ways: Ways, client: Client, topic: str, kind: str
) -> None:
    data: list[Any] = BYTES if kind == "bytes" else TEXTS
    count = len(data)
    rows = pa.table(
        {
            "data": pa.array(data, pa.binary() if kind == "bytes" else pa.string()),
            "tag": cycled(TAGS, count),
            "node": cycled(NODES, count),
            # The record that is as large as may be has no room for it.
            "meta": [*cycled(METAS, count - 1), None],
        }
    )
    frame = ways.spark.createDataFrame(rows).coalesce(1)
    frame.write.format("headrace").mode("append").options(url=ways.url, topic=topic).save()
    written = [
        (value if kind == "bytes" else value.encode(), *rest, meta and json.loads(meta))
        for value, *rest, meta in zip(*rows.to_pydict().values(), strict=True)
    ]

    def read(found: list[Told]) -> list[Any]:
        assert [one.seq for one in found] == list(range(1, count + 1))
        return [(one.data, one.tag, one.node, one.meta) for one in found]

    assert read(ways.batch(topic)) == written  # of memory
    seal(client, topic)
    assert read(ways.batch(topic, direct="true")) == written
    assert read(ways.stream(topic)) == written
    assert read(ways.sql(topic)) == written
    if kind == "json":
        texts = ways.load(topic, dataFormat="json").collect()
        assert sorted((row.seq, row.data) for row in texts) == list(enumerate(data, start=1))


@pytest.fixture
def grown(client: Client, topic: str) -> str:
    """Two topics, of files and a tail; of one records are deleted, of the other a cap took some."""
    deleted, capped = f"{topic}-deleted", f"{topic}-capped"
    for first in (1, 1_501):
        for name in (deleted, capped):
            fill(client, name, 1_500, first)
            seal(client, name)
    client.delete_records(deleted, match="t4")
    client.delete_records(deleted, before_seq=50)
    client.put_topic(capped, {"cap_records": 2_000})
    for name in (deleted, capped):
        fill(client, name, 200, 3_001)
    client.delete_records(deleted, match="t7")
    return f"{deleted},{capped}"


def test_batch_and_stream_and_sql_give_the_same(ways: Ways, client: Client, grown: str) -> None:
    deleted, capped = grown.split(",")
    expected = told_by_server(client, *sorted((deleted, capped)))
    written = rows_of(1, 3_200).to_pylist()
    seqs = [one.seq for one in expected if one.topic == deleted]
    tags = {n: row["tag"] for n, row in enumerate(written, start=1)}
    # Those with the first of the tags were deleted before the last records came.
    assert seqs == [
        n for n in range(50, 3_201) if tags[n] != "t7" and (tags[n] != "t4" or n > 3_000)
    ]
    assert len(expected) - len(seqs) == 2_000
    for one in expected:
        row = written[one.seq - 1]
        assert (one.data, one.tag, one.node) == (row["data"], row["tag"], row["node"])
    assert ways.batch(grown) == expected
    assert ways.batch(grown, direct="false", minPartitions=3) == expected
    assert ways.stream(grown) == expected
    assert ways.stream(grown, maxRecordsPerTrigger=2_000, minPartitions=3) == expected
    assert ways.stream(grown, direct="false") == expected
    assert ways.sql(grown) == expected
    # One topic twice in a statement, each time with conditions of its own.
    with ways.query(
        f"SELECT seq FROM `{deleted}` WHERE seq < 60 UNION ALL SELECT a.seq FROM `{deleted}` a"
        f" JOIN `{capped}` b USING (seq) JOIN `{deleted}` c USING (seq)"
        " WHERE a.seq > 3100 AND b.tag = 't1' AND c.seq < 3150"
    ) as (frame, _):
        found = sorted(row.seq for row in frame.collect())
    ends = [n for n in seqs if 3_100 < n < 3_150 and tags[n] == "t1"]
    assert found == [n for n in seqs if n < 60] + ends


# `{ts}` is the time of a record in the middle, as the first of its append.
CONDITIONS = [
    "seq <=> 1500",
    "NOT (seq BETWEEN 1300 AND 3100)",
    "seq <> 1501 AND seq >= 1495 AND seq <= 1505",
    "seq < 60 OR seq > 3190",
    "(seq < 60 OR tag = 't8') AND (seq > 20 OR tag = 't1')",
    "seq IN (1, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 3000, 3001, 9000)",
    "seq > 3190.5 AND seq <= 3195.0",
    "seq >= 9223372036854775807 OR seq = 100",
    "CAST(seq AS STRING) LIKE '20%'",
    "seq = 1600 AND topic LIKE '%capped'",
    "tag <=> 't8' AND seq < 1300",
    "tag <=> NULL AND seq < 1300",
    "tag IN ('t1', NULL) AND seq < 1300",
    "tag NOT IN ('t1', 't2') AND seq < 1300",
    "NOT (tag = 't1') AND seq < 1300",
    "tag <> 't1' OR seq < 1210",
    "tag LIKE 't1%' AND tag LIKE '%1' AND seq < 1300",
    "tag LIKE 't%' AND NOT (tag LIKE 't1%') AND seq < 1300",
    "tag >= 't2' AND tag < 't3' AND seq < 1300",
    "tag = 't2' AND tag = 't5'",
    "tag = '' OR tag IS NULL AND seq > 3190",
    "ts = {ts}",
    "ts <=> {ts} AND tag = 't8'",
    "ts > {ts}",
    "ts < {ts}",
    "ts <= {ts} AND seq > 1400",
    "ts >= {ts} - INTERVAL 1 MICROSECOND AND seq < 1600",
    "ts > {ts} - INTERVAL 1 MICROSECOND AND ts < {ts} + INTERVAL 1 MICROSECOND",
    "ts >= {ts} + INTERVAL 1 MICROSECOND AND seq < 3050",
    "ts IN ({ts}, {ts} + INTERVAL 1 MICROSECOND)",
    "NOT (ts < {ts}) AND seq < 1600",
    "CAST(ts AS DATE) >= DATE '2000-01-01' AND seq = 1501",
    "length(data) = 0 AND seq < 1300 AND node IS NULL",
]
UNIONS_OF = 11  # data frames of one query


def test_filters_that_are_handed_over_change_no_answer(
    ways: Ways, client: Client, grown: str
) -> None:
    rows = told_by_server(client, *grown.split(","))
    middle = next(row.ms for row in rows if row.seq == 1_501)
    conditions = [text.format(ts=f"timestamp_millis({middle})") for text in CONDITIONS]
    # All at once, where nothing is handed over.
    marks = [f"({text}) AS c{at}" for at, text in enumerate(conditions)]
    plain = ways.load(grown).selectExpr("topic", "seq", *marks).collect()
    expected = {
        (at, row.topic, row.seq) for row in plain for at in range(len(conditions)) if row[f"c{at}"]
    }
    found = set()
    for start in range(0, len(conditions), UNIONS_OF):
        # A data frame for each: one that takes filters is for one query.
        frames = [
            ways.load(grown, pushFilters="true")
            .where(text)
            .selectExpr(f"{at} AS c", "topic", "seq")
            for at, text in enumerate(conditions[start : start + UNIONS_OF], start=start)
        ]
        answer = reduce(DataFrame.unionAll, frames).collect()
        assert len(answer) == len(set(answer))
        found |= {(row.c, row.topic, row.seq) for row in answer}
    for at, text in enumerate(conditions):
        assert {row for row in found if row[0] == at} == {
            row for row in expected if row[0] == at
        }, text
    # They were conditions: each lets something through, but one, and none everything.
    some = {at for at, _, _ in expected}
    assert len(plain) not in [sum(1 for row in expected if row[0] == at) for at in some]
    assert [CONDITIONS[at] for at in range(len(conditions)) if at not in some] == [
        "tag = 't2' AND tag = 't5'"
    ]
