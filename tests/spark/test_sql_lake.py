"""SQL over lake, segments and tail: every seq from one of them, whatever happens meanwhile."""

from __future__ import annotations

import json
import random
import re
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyroaring import BitMap64
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.api.segments import Erasures
from headrace.cli import sql
from headrace.cli.main import main
from headrace.client import Client
from headrace.core.errors import ConfigError, DataLost, InvalidRequest, TopicNotFound
from headrace.lake.sql.frames import LakeArchiveTables
from headrace.lake.tables.columns import VARIANT
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.compact import compact
from headrace.lake.writing.vacuum import vacuum
from headrace.lake.writing.variants import copy_on
from headrace.spark.sql.failures import explained
from headrace.spark.sql.tables import Tables
from headrace.spark.sql.used_columns import Bounds
from headrace.testing.process import ServerProcess
from tests.support.lakes import Bench
from tests.support.object_stores import BUCKET
from tests.support.sealed_topics import fill, seal

Ask = Callable[..., list[Any]]


@pytest.fixture
def bench(sealing: ServerProcess, tmp_path: Path) -> Iterator[Bench]:
    with Client(sealing.url) as client:
        yield Bench(sealing, client, Lake(str(tmp_path / "a {lake} [1]")))


def tables(spark: SparkSession, bench: Bench, **how: Any) -> Tables:
    history = LakeArchiveTables(spark, bench.lake)
    return Tables(spark, bench.connection, history, **how)


@pytest.fixture
def ask(spark: SparkSession, bench: Bench, topic: str) -> Ask:
    """The rows of a statement, in which {t} is the topic."""
    asked: dict[bool, Tables] = {}

    def rows(statement: str, origins: bool = False) -> list[Any]:
        found = asked.setdefault(origins, tables(spark, bench, origins=origins))
        with found.query(statement.format(t=f"`{topic}`")) as (frame, _):
            return [tuple(row) for row in frame.collect()]

    return rows


EVERYTHING = "select count(*), sum(seq), min(topic) from {t}"
PARTS = "select origin, min(seq), max(seq), count(*) from {t} group by origin order by origin"


def alive_after_deletes(first: int, last: int) -> list[int]:
    """What is left of `fill` without the tag t4."""
    return [n for n in range(first, last + 1) if n % 10 != 4 or n % 3 == 0]


def test_each_seq_comes_from_one_part(bench: Bench, topic: str, ask: Ask) -> None:
    client = bench.client
    fill(client, topic, 2_000)
    seal(client, topic)
    assert bench.sync(topic).error is None
    fill(client, topic, 1_000, 2_001)
    seal(client, topic)
    client.delete_records(topic, match="t4")  # in the lake they stay, and are not shown
    client.delete_records(topic, before_seq=11)
    alive = alive_after_deletes(11, 3_000)
    assert ask(EVERYTHING) == [(len(alive), sum(alive), topic)]
    client.put_topic(topic, {"cap_records": 1_500})
    client.append(topic, [{"n": 1}] * 5)
    floor = client.segments(topic).floors.cap
    assert floor > 1_000
    # What retention took is in the lake, deleted or not; columns are the same everywhere.
    alive = [*range(1, floor + 1), *(n for n in alive if n > floor), *range(3_001, 3_006)]
    counted = ask(
        "select a.origin, min(a.seq), count(*), sum(a.seq), max(if(b.seq = 13, b.tag, null)),"
        " max(if(b.seq = 2503, b.node, null)) from {t} a join {t} b on a.seq = b.seq"
        " group by a.origin order by a.origin",
        origins=True,
    )
    lake_rows = [n for n in alive if n <= 2_000]
    assert counted[0] == ("lake", 1, len(lake_rows), sum(lake_rows), "t3", None)
    assert [row[0] for row in counted] == ["lake", "segments", "tail"][: len(counted)]
    assert (counted[1][1], counted[1][5]) == (2_001, "n1")
    assert sum(row[2] for row in counted) == len(alive)
    assert sum(row[3] for row in counted) == sum(alive)


def test_where_each_row_is(
    spark: SparkSession, server: ServerProcess, bench: Bench, topic: str, tmp_path: Path
) -> None:
    """A server that does not seal by itself: sealed is what it has sealed at its end."""
    data = tmp_path / "data"
    with ServerProcess(data) as first, Client(first.url) as client:
        fill(client, topic, 30)
        there = Bench(first, client, bench.lake)
        assert there.sync(topic).error is None  # none of it is sealed, so all is the server's
        with tables(spark, there, origins=True).query(PARTS.format(t=f"`{topic}`")) as (frame, _):
            assert [tuple(row) for row in frame.collect()] == [("tail", 1, 30, 30)]
        fill(client, topic, 20, 31)
    with ServerProcess(data) as second, Client(second.url) as client:
        fill(client, topic, 10, 51)
        there = Bench(second, client, bench.lake)
        parts = [("lake", 1, 30, 30), ("segments", 31, 50, 20), ("tail", 51, 60, 10)]
        statement = PARTS.format(t=f"`{topic}`")
        with tables(spark, there, origins=True).query(statement) as (frame, cuts):
            assert [tuple(row) for row in frame.collect()] == parts
            assert (cuts[topic].head, cuts[topic].past_to) == (60, 30)
        with Tables(spark, there.connection, origins=True).query(statement) as (frame, _):
            assert [tuple(row) for row in frame.collect()] == [("segments", 1, 50, 50), parts[2]]


def test_a_statement_stays_at_its_cut(spark: SparkSession, bench: Bench, topic: str) -> None:
    """Between the statement and its rows there are appends, seals, syncs and a compaction."""
    client = bench.client
    fill(client, topic, 1_200)
    seal(client, topic)
    assert bench.sync(topic).error is None
    fill(client, topic, 300, 1_201)
    seal(client, topic)
    everything = f"select count(*), count(distinct seq), max(seq) from `{topic}`"
    with tables(spark, bench).query(everything) as (frame, cuts):
        assert (cuts[topic].past_to, cuts[topic].head) == (1_200, 1_500)
        fill(client, topic, 500, 1_501)
        seal(client, topic)
        assert bench.sync(topic).error is None
        assert compact(bench.table(topic), run_inline) is not None
        assert [tuple(row) for row in frame.collect()] == [(1_500, 1_500, 1_500)]
    again = tables(spark, bench)
    with again.query(everything) as (frame, cuts):
        assert cuts[topic].past_to == 2_000
        assert [tuple(row) for row in frame.collect()] == [(2_000, 2_000, 2_000)]
    # What only the server had goes while a statement runs.
    fill(client, topic, 300, 2_001)

    def overtaken() -> None:
        with again.query(everything) as (frame, cuts):
            assert cuts[topic].past_to <= 2_000
            client.put_topic(topic, {"cap_records": 10})
            client.append(topic, [1])
            frame.collect()

    with pytest.raises((PySparkException, Py4JError)) as raised:
        overtaken()
    error = explained(raised.value)
    assert isinstance(error, DataLost) and "the topic's cap removed them" in str(error)


def test_files_that_vacuum_took_are_an_error(spark: SparkSession, bench: Bench, topic: str) -> None:
    client, asked = bench.client, tables(spark, bench)
    for start in (1, 101):
        fill(client, topic, 100, start)
        seal(client, topic)
        assert bench.sync(topic).error is None

    def interrupted() -> None:
        with asked.query(f"select sum(length(raw)) from `{topic}`") as (frame, _):
            assert compact(bench.table(topic), run_inline) is not None
            vacuum(bench.table(topic), 0)
            frame.collect()

    with pytest.raises((PySparkException, Py4JError)) as raised:
        interrupted()
    assert re.search("run the statement again.*vacuum", str(explained(raised.value)))
    with asked.query(f"select count(*) from `{topic}`") as (frame, _):
        assert frame.collect()[0][0] == 200, "the next statement looks again"


def test_a_damaged_page_is_an_error(spark: SparkSession, bench: Bench, topic: str) -> None:
    """What does not compress is stored as it is, and only a checksum tells that it was changed."""
    noise = random.Random(7).randbytes(20_000)
    bench.client.append_arrow(topic, pa.table({"data": [noise]}))
    seal(bench.client, topic)
    assert bench.sync(topic).error is None
    table = bench.table(topic)
    path = Path(bench.lake.root) / table.name / table.files()[0].path
    content = bytearray(path.read_bytes())
    at = content.index(noise[5_000:5_100])
    content[at] ^= 1
    path.write_bytes(content)
    with (
        pytest.raises((PySparkException, Py4JError), match=r"(?i)checksum"),
        tables(spark, bench).query(f"select max(raw) from `{topic}`") as (frame, _),
    ):
        frame.collect()


def test_what_is_lost_is_said(
    spark: SparkSession, bench: Bench, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = bench.client
    client.put_topic(topic, {"cap_records": 100})
    fill(client, topic, 300, size=100)  # a cap takes the first 200 before the lake has seen them
    seal(client, topic)
    assert bench.sync(topic).error is None
    fill(client, topic, 250, 301, size=50)  # and 301 to 450 after it
    place = ["--url", bench.server.url, "--lake", bench.lake.root]
    statement = f"select count(*), min(seq), max(seq) from `{topic}`"
    assert main(["sql", "--json", *place, statement]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["rows"] == [[200, 201, 550]]
    lost = [
        {"first": 1, "last": 200, "reason": "cap"},
        {"first": 301, "last": 450, "reason": "cap"},
    ]
    epoch = client.topic(topic).epoch
    assert found["cut"][topic] == {
        "epoch": epoch, "head_seq": 550, "lake_to_seq": 300, "lost": lost,
    }  # fmt: skip
    said = "headrace: seqs {} to {} of topic '" + topic + "' are lost: the topic's cap removed them"
    assert said.format(1, 200) in err and said.format(301, 450) in err
    # Those that a statement does not ask for are none of its losses.
    assert main(["sql", "--verbose", *place, f"{statement} where seq between 250 and 300"]) == 0
    out, err = capsys.readouterr()
    assert "50" in out and "are lost" not in err
    assert f"{topic}: up to seq 550 of epoch {epoch}, up to seq 300 from the lake" in err


def test_what_goes_between_the_cut_and_the_reading_is_said(
    spark: SparkSession, bench: Bench, topic: str
) -> None:
    client = bench.client
    client.put_topic(topic, {"cap_records": 100})
    fill(client, topic, 100)
    seal(client, topic)
    assert bench.sync(topic).error is None
    fill(client, topic, 150, 101, size=50)
    with tables(spark, bench).query(f"select count(*) from `{topic}`") as (frame, cuts):
        assert [tuple(loss) for loss in cuts[topic].losses] == [(101, 150, "cap")]
        fill(client, topic, 50, 251)
        assert frame.collect()[0][0] == 150
    assert [tuple(loss) for loss in cuts[topic].losses][1:] == [(151, 200, "meanwhile")]


def test_lives_of_a_topic(spark: SparkSession, bench: Bench, topic: str, ask: Ask) -> None:
    client = bench.client
    fill(client, topic, 30)
    seal(client, topic)
    assert bench.sync(topic).error is None
    old = bench.table(topic).name
    with pytest.raises(InvalidRequest, match=f"{old}' is the past of topic '{topic}', which is th"):
        ask(f"select count(*) from `{old}`")
    client.delete_topic(topic)
    with pytest.raises(TopicNotFound, match=f"the lake has the past of one: select from `{old}`"):
        ask(EVERYTHING)
    # The table has what it had, under its own name.
    assert ask(f"select count(*), sum(seq), min(topic) from `{old}`") == [(30, 465, topic)]
    client.append(topic, [7, 8])
    named = f"with `{topic}` as (select 1 as one) select one from `{topic}`"
    assert ask(named) == [(1,)], "what a statement defines itself is no topic"
    assert ask(EVERYTHING) == [(2, 3, topic)], "a topic without a table has what the server has"
    assert ask(f"select (select count(*) from {{t}}), count(*) from `{old}`") == [(2, 30)]
    seal(client, topic)
    assert bench.sync(topic).error is None
    assert ask(PARTS, origins=True) == [("lake", 1, 2, 2)]

    def made_anew() -> None:
        with tables(spark, bench).query(f"select max(seq) from `{topic}`") as (frame, _):
            client.delete_topic(topic)
            client.append(topic, [1])
            frame.collect()

    with pytest.raises(DataLost, match="created again"):
        made_anew()
    with pytest.raises(TopicNotFound, match="did you mean"):
        ask("select * from `9999-never`")


def test_a_lake_of_another_server(spark: SparkSession, bench: Bench, topic: str) -> None:
    fill(bench.client, topic, 30)
    assert bench.sync(topic).error is None
    life = LakeArchiveTables(spark, bench.lake).table(bench.table(topic).name)
    assert life is not None
    manifest = bench.client.segments(topic)
    life.check(manifest)
    for change in ({"topic_id": 7_777}, {"head_seq": 29}):
        with pytest.raises(ConfigError, match="name the lake of this server"):
            life.check(msgspec.structs.replace(manifest, **change))


def test_deletes_by_tag_of_what_only_the_lake_has(
    spark: SparkSession, bench: Bench, topic: str
) -> None:
    """A topic with `cold_reads` tells of them, though it cannot say which seqs those are."""
    fill(bench.client, topic, 200)
    assert bench.sync(topic).error is None
    life = LakeArchiveTables(spark, bench.lake).table(bench.table(topic).name)
    assert life is not None
    nobody = b64encode(BitMap64().serialize()).decode()
    few = [("t1", False, 50), ("t", True, 9), ("none'", False, 99)]
    for tags in (few, [*few, *((f"x{n}", False, 200) for n in range(40))]):
        manifest = msgspec.structs.replace(
            bench.client.segments(topic), erased=Erasures(1, 2, nobody, tags)
        )
        found = {row.seq for row in life.rows(200, ["seq"], Bounds(), manifest).collect()}
        gone = {n for n in range(1, 51) if n % 3 and (n % 10 == 1 or n <= 9)} | {1, 2}
        assert found == set(range(1, 201)) - gone


FIELDS = "id BIGINT, price DOUBLE, items ARRAY<STRING>"


def odd_records(client: Client, topic: str) -> None:
    """Records that fit the fields, and others."""
    client.append(topic, [{"id": n, "price": n / 2, "items": [f"i{n}"]} for n in range(10)])
    client.append(topic, [{"id": "no number"}, [1], None, {"price": 1.5}, "text", {"id": 2**70}])
    fill(client, topic, 3)
    client.append(topic, [{"id": 5, "more": {"deep": [1, 2]}}])


@pytest.mark.parametrize("ddl", [FIELDS, VARIANT], ids=["typed", "variant"])
def test_values_are_the_same_in_every_part(
    spark: SparkSession, bench: Bench, topic: str, ask: Ask, ddl: str
) -> None:
    """A column that the lake has, and what is made for the rows that it has not yet."""
    client = bench.client
    odd_records(client, topic)
    seal(client, topic)
    how: dict[str, Any] = {"value_ddl": ddl, "copier": copy_on(spark) if ddl == VARIANT else None}
    assert bench.sync(topic, **how).error is None
    odd_records(client, topic)
    statement = "select seq % 20, to_json(value), raw from {t} order by seq"
    mixed = ask(statement)
    assert mixed[:20] == mixed[20:] and len(mixed) == 40
    assert any(row[1] is None for row in mixed) and any(row[1] for row in mixed)
    of = "value.price" if ddl == FIELDS else "value:price::double"
    total = ask(f"select sum({of}), count(value) from {{t}} where seq <> 3")
    seal(client, topic)
    assert bench.sync(topic, **how).error is None
    assert ask(statement) == mixed
    assert ask(f"select sum({of}), count(value) from {{t}} where seq <> 3") == total
    assert [row[0] for row in ask(PARTS, origins=True)] == ["lake"]


def test_files_that_cannot_match_are_not_read(
    spark: SparkSession, bench: Bench, topic: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.lake.sql.frames.FILES_LIGHT_MAX", 0)
    client, counts = bench.client, (100, 50, 200)
    start, ends = 1, []
    for count in counts:
        fill(client, topic, count, start)
        start += count
        seal(client, topic)
        assert bench.sync(topic).error is None
        ends.append(start - 1)
    first, second, third = bench.table(topic).files()

    def read(condition: str) -> tuple[int, set[str]]:
        statement = f"select seq, tag from `{topic}` where {condition}"
        with tables(spark, bench).query(statement) as (frame, _):
            return frame.count(), {path.rpartition("/")[2] for path in frame.inputFiles()}

    def named(*files: Any) -> set[str]:
        return {file.path.rpartition("/")[2] for file in files}

    assert read("seq > 150") == (200, named(third))
    assert read("120 >= seq and tag is not null and seq >= 101") == (13, named(second))
    assert read("seq = 100 or seq = 101") == (2, named(first, second, third)), "only bounds count"
    assert read("seq in (7)") == (1, named(first))
    assert read("seq > 400") == (0, set())
    assert first.max_ts < second.min_ts <= second.max_ts < third.min_ts
    after = f"timestamp_millis({first.max_ts})"
    assert read(f"ts > {after} and ts <= timestamp_millis({second.max_ts})") == (50, named(second))
    assert read(f"cast(ts as date) < date'2020-01-01' and ts < {after}") == (0, set())
    assert read("date(ts) >= date'2020-01-01'")[0] == 350
    # In two places the bounds are around both.
    join = "select count(*) from {t} a join {t} b on a.seq = b.seq + 50 where a.seq < 140"
    assert ask(join) == [(89,)]
    # What is deleted as a whole is not read either.
    client.delete_records(topic, before_seq=151)
    assert read("seq > 0") == (200, named(third))


def test_names_of_any_kind(spark: SparkSession, bench: Bench) -> None:
    topic = "9.Odd:name_with-all.OF_it"
    bench.client.append(topic, [1, 2, 3])
    seal(bench.client, topic)
    assert bench.sync(topic).error is None
    bench.client.append(topic, [4])
    statement = f"select topic, count(*), max(data::int) from `{topic}` group by topic"
    with tables(spark, bench).query(statement) as (frame, cuts):
        assert [tuple(row) for row in frame.collect()] == [(topic, 4, 4)]
    assert cuts[topic].past_to == 3


def test_what_a_lake_needs_is_said_before_spark_starts(
    bench: Bench,
    topic: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(sql, "start_spark", lambda *_: pytest.fail("Spark was started"))
    monkeypatch.setenv("HEADRACE_URL", bench.server.url)
    assert main(["sql", "--lake", str(tmp_path / "nothing"), "select 1"]) == 1
    assert "there is no table in the lake" in capsys.readouterr().err
    assert main(["sql", "--lake", "ftp://x/y", "select 1"]) == 2
    assert "a lake cannot be at" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.setenv("HEADRACE_LAKE", bench.lake.root)
    assert main(["sql", "select 1"]) == 2
    assert "pip install 'headrace[lake]'" in capsys.readouterr().err


@pytest.mark.long
def test_a_lake_of_objects(
    spark: SparkSession, bench: Bench, topic: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks read the files themselves: the same rows, the same values, the same bounds."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    query = f"endpoint_override={endpoint}&scheme=http&region=us-east-1"
    client = bench.client
    for ddl in (FIELDS, VARIANT):
        name = f"{topic}-{ddl[:2]}"
        lake = Lake(f"s3://key:secret@{BUCKET}/{name}?{query}")
        remote = Bench(bench.server, client, lake)
        how: dict[str, Any] = {"value_ddl": ddl, "copier": copy_on(spark)}
        for _ in range(2):
            odd_records(client, name)
            seal(client, name)
            assert remote.sync(name, **how).error is None
        client.delete_records(name, before_seq=3)
        odd_records(client, name)
        statement = (
            f"select seq % 20, to_json(value), raw from `{name}` where seq > 18 order by seq"
        )
        with tables(spark, remote).query(statement) as (frame, cuts):
            found = [tuple(row) for row in frame.collect()]
        assert cuts[name].past_to == 40
        assert found[2:22] == found[22:] and len(found) == 42
        with tables(spark, remote).query(f"select count(*) from `{name}`") as (frame, _):
            assert frame.collect()[0][0] == 58
