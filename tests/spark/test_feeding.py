"""Rows brought into topics by real Spark: a condition of SQL, and parts as tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from headrace.cli.main import main
from headrace.client import Client
from headrace.lake.loading import replay as replaying
from headrace.lake.loading.replay import Wanted, replay
from headrace.lake.loading.replay_filter import filtered_on
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.tasks import run_on
from headrace.testing.process import ServerProcess
from tests.support.lakes import Bench, Died, rows_in
from tests.support.sealed_topics import fill


@pytest.fixture
def bench(sealing: ServerProcess, tmp_path: Path) -> Iterator[Bench]:
    with Client(sealing.url) as client:
        yield Bench(sealing, client, Lake(str(tmp_path / "lake")))


def stored(client: Client, topic: str) -> list[tuple[Any, ...]]:
    rows = client.diff_arrow(topic, limit=10_000).table.to_pylist()
    return [(row["data"], row["tag"], row["kind"]) for row in rows]


def test_replay_with_a_condition(
    spark: SparkSession, bench: Bench, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = bench.client
    client.append(topic, [{"id": n, "price": n / 2} for n in range(1, 101)])
    fill(client, topic, 100, 101)
    assert bench.sync(topic).error is None
    table, to = bench.table(topic), f"{topic}-again"
    day = rows_in(table)[0]["day"]
    words = ["lake", "replay", topic, "--to", to, "--lake", bench.lake.root, "--json"]
    words += ["--url", bench.server.url]
    condition = f"day = '{day}' and (data:price::double > 40 or tag = 't1')"
    assert main([*words, "--where", condition]) == 0
    done = json.loads(capsys.readouterr().out)
    wanted = [
        row
        for row in rows_in(table)
        if row["tag"] == "t1" or (row["kind"] == "json" and json.loads(row["data"])["price"] > 40)
    ]
    assert done["rows"] == len(wanted) > 20
    assert stored(client, to) == [
        (row["data"], row["tag"], ("json", "bytes").index(row["kind"])) for row in wanted
    ]
    assert main([*words, "--where", "no_such_column = 1"]) == 1
    assert "no_such_column" in capsys.readouterr().err
    assert not list(Path(bench.lake.root).rglob("_replays/*")), "nothing is under way"


def test_a_condition_that_was_cut_off(
    spark: SparkSession, bench: Bench, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent of a part is known by its number, and other rows under it are found out."""
    monkeypatch.setattr(replaying, "PART_BYTES", 1)
    client, to = bench.client, f"{topic}-again"
    for start in (1, 301):
        fill(client, topic, 300, start)
        assert bench.sync(topic).error is None
    table = bench.table(topic)
    fitting = filtered_on(spark, topic)

    class Dies:
        check = fitting.check

        def __call__(self, target: Any, parts: Any, where: str) -> Any:
            fitting(target, parts[:1], where)
            raise Died

    def go(where: str, filtered: Any) -> Any:
        return replay(table, Wanted(to, where=where), bench.connection, filtered=filtered)

    with pytest.raises(Died):
        go("seq % 2 = 0", Dies())
    assert client.topic(to).count == 150
    done = go("seq % 2 = 0", fitting)
    assert (done.rows, done.rows_before, done.resumed) == (150, 150, True)
    wanted = [row["data"] for row in rows_in(table) if row["seq"] % 2 == 0]
    assert [row[0] for row in stored(client, to)] == wanted
    to = f"{topic}-changing"
    with pytest.raises(Died):
        go("rand() < 0.5", Dies())
    with pytest.raises(PySparkException, match="not what they were when"):
        go("rand() < 0.5", fitting)
    with pytest.raises(AnalysisException, match="nonsense"):
        fitting.check("nonsense(seq)")


def test_parts_as_tasks(
    spark: SparkSession,
    bench: Bench,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("a", "b"):
        lines = (f'{{"file":"{name}","n":{n}}}\n' for n in range(3_000))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    words = ["import", *files, "--to", topic, "--url", bench.server.url, "--conf", "spark.x=1"]
    for said in ("6,000 rows of 2 files", "6,000 were there before"):
        assert main(words) == 0
        assert said in capsys.readouterr().out
    assert bench.client.topic(topic).count == 6_000
    assert bench.sync(topic).error is None
    table, to = bench.table(topic), f"{topic}-again"
    done = replay(table, Wanted(to), bench.connection, run_on(spark), in_order=True)
    assert (done.rows, len(stored(bench.client, to))) == (6_000, 6_000)
    assert stored(bench.client, to) == stored(bench.client, topic)


@pytest.mark.usefixtures("spark")
def test_a_refusal_in_a_task_is_named(
    bench: Bench, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a":1}\n{"a":\n')
    words = ["import", str(path), "--to", topic, "--url", bench.server.url, "--conf", "spark.x=1"]
    assert main(words) == 1
    assert f"{path}:2: data is not JSON" in capsys.readouterr().err
