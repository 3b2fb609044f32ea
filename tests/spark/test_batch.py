"""Batch queries in Spark: every record, from files and from the tail, in every way to ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.client import Client
from headrace.testing.process import ServerProcess
from tests.support.sealed_topics import fill, rows_of, seal


@pytest.fixture
def client(sealing: ServerProcess) -> Iterator[Client]:
    with Client(sealing.url) as found:
        yield found


@pytest.fixture
def load(spark: SparkSession, sealing: ServerProcess) -> Callable[..., DataFrame]:
    def load(topic: str, **options: object) -> DataFrame:
        reader = spark.read.format("headrace").option("url", sealing.url)
        reader = reader.option("subscribe", topic)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    return load


def test_records_come_back(
    client: Client, topic: str, load: Callable[..., DataFrame], sealing: ServerProcess
) -> None:
    fill(client, topic, 3_000)
    seal(client, topic)
    client.delete_records(topic, match="t4")
    fill(client, topic, 200, 3_001)
    written = {n + 1: row for n, row in enumerate(rows_of(1, 3_200).to_pylist())}
    alive = {n: row for n, row in written.items() if n > 3_000 or row["tag"] != "t4"}
    df = load(topic)
    assert df.columns == ["topic", "seq", "ts", "node", "tag", "meta", "data"]
    found = {row.seq: row for row in df.collect()}
    assert sorted(found) == sorted(alive)
    for seq, row in found.items():
        assert bytes(row.data) == alive[seq]["data"]
        assert (row.tag, row.node, row.meta, row.topic) == (
            alive[seq]["tag"], alive[seq]["node"], alive[seq]["meta"], topic
        )  # fmt: skip
    # The same in parts, over HTTP, by a pattern, and of a range.
    parted = load(topic, minPartitions=5)
    assert parted.rdd.getNumPartitions() == 5
    expected = df.selectExpr("count(*)", "sum(seq)", "sum(length(data))").collect()
    for other in (parted, load(topic, direct="false"), load(topic, direct="true")):
        assert other.selectExpr("count(*)", "sum(seq)", "sum(length(data))").collect() == expected
    some = load(
        topic, startingSeqs=f'{{"{topic}": 100}}', endingSeqs=f'{{"{topic}": 3100}}', columns="seq"
    )
    assert [r.seq for r in some.sort("seq").collect()] == [
        s for s in sorted(alive) if 100 <= s < 3100
    ]
    assert some.columns == ["seq"]
    assert load(topic, columns="topic").distinct().collect() == [(topic,)]
    assert load(topic, startingSeqs=f'{{"{topic}": 3201}}').count() == 0


def test_push_down_gives_the_same_rows(
    client: Client, topic: str, load: Callable[..., DataFrame]
) -> None:
    for first in (1, 1_001):
        fill(client, topic, 1_000, first)
        seal(client, topic)
    fill(client, topic, 100, 2_001)
    (middle,) = load(topic, columns="seq,ts").where("seq = 1001").collect()
    then = f"timestamp '{middle.ts.isoformat()}'"
    conditions = [
        "seq between 990 and 1010",
        "seq in (5, 1500, 2050) and tag is not null",
        "seq > 2090 or tag = 't8'",
        "tag = 't8' and data is not null",
        "tag in ('t1', 't2') and seq < 50",
        "tag like 't7%'",
        "tag is null",
        f"ts >= {then}",
        f"ts < {then} and tag = 't1'",
        f"ts = {then}",
        "node = 'n1'",
        "seq < 0",
    ]
    # All at once, where nothing is handed over.
    marks = [f"({condition}) as c{at}" for at, condition in enumerate(conditions)]
    plain = load(topic).selectExpr("*", *marks).sort("seq").collect()
    frames = [
        load(topic, pushFilters="true")  # one for each query, see pushdown.py
        .where(condition)
        .selectExpr(f"{at} as c", "*")
        for at, condition in enumerate(conditions)
    ]
    pushed = reduce(DataFrame.unionAll, frames).sort("seq").collect()
    width = len(plain[0]) - len(conditions)
    for at, condition in enumerate(conditions):
        rows = [row[:width] for row in plain if row[f"c{at}"]]
        assert [row[1:] for row in pushed if row.c == at] == rows, condition
        assert bool(rows) == (condition != "seq < 0"), condition


def test_losses_are_told(client: Client, topic: str, load: Callable[..., DataFrame]) -> None:
    client.append(topic, list(range(100)))
    client.put_topic(topic, {"cap_records": 40})
    client.append(topic, [1])
    start = f'{{"{topic}": 1}}'
    with pytest.raises(Exception, match=r"seqs 1 to 61 of topic .* are lost.*failOnDataLoss"):
        load(topic, startingSeqs=start).count()
    assert load(topic).count() == 40  # earliest is what is left
    lenient = load(topic, startingSeqs=start, failOnDataLoss="false")
    rows = lenient.collect()
    assert sorted(row.seq for row in rows if row.seq) == list(range(62, 102))
    (gap,) = [row for row in rows if row.gap is not None]
    assert (gap.topic, tuple(gap.gap), gap.seq, gap.data) == (topic, (1, 61, "cap"), None, None)
    # Spark's own filter on seq drops gap rows, handed over or not, unless they are asked for.
    for push in ("true", "false"):
        for condition, count in (("seq > 50", 40), ("gap is not null or seq > 60", 41)):
            asked = load(topic, startingSeqs=start, failOnDataLoss="false", pushFilters=push)
            assert asked.where(condition).count() == count


def test_a_task_that_cannot_open_a_file_says_so(
    client: Client, topic: str, load: Callable[..., DataFrame], tmp_path: Path
) -> None:
    fill(client, topic, 2_000)
    seal(client, topic)
    location = Path(client.segments(topic).files[0].location)
    hidden = location.with_name("hidden")
    location.rename(hidden)
    try:
        assert load(topic).count() == 2_000  # over HTTP, as the server has it open
        with pytest.raises(Exception, match="direct=false"):
            load(topic, direct="true").count()
    finally:
        hidden.rename(location)
    with pytest.raises(Exception, match="did you mean"):
        load(topic + "x").count()
