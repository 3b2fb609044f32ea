"""The lake with real Spark: the commands, tasks that fail and are tried again, a writer killed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.api.records import Draft
from headrace.cli import lake
from headrace.cli.main import main
from headrace.client import Client
from headrace.core.errors import DataLost, HeadraceError
from headrace.lake.tables.columns import VARIANT
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.tasks import Failed, run_inline, run_on
from headrace.lake.writing.compact import compact
from headrace.lake.writing.variants import copy_on
from headrace.lake.writing.verify import verify
from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT
from tests.support.documented_examples import BLOCK
from tests.support.lakes import ODD_JSON, Bench, Died, accounted, dies_at, gaps_in, rows_in
from tests.support.sealed_topics import fill, rows_of, seal

Command = Callable[..., Any]


@pytest.fixture
def bench(sealing: ServerProcess, tmp_path: Path) -> Iterator[Bench]:
    with Client(sealing.url) as client:
        yield Bench(sealing, client, Lake(str(tmp_path / "lake")))


@pytest.fixture
def command(
    spark: SparkSession, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Runs `headrace lake`: returns what it prints, and its exit code."""

    def run(*words: str, json_too: bool = True, code: int = 0) -> Any:
        place = ["--lake", bench.lake.root]
        if words[0] in ("sync", "verify", "replay"):
            place += ["--url", bench.server.url]
        given = ["lake", *words, *place, *(["--json"] if json_too else [])]
        assert main(given) == code, capsys.readouterr().err
        out = capsys.readouterr().out
        return json.loads(out) if json_too else out

    return run


def test_the_commands(bench: Bench, topic: str, command: Command) -> None:
    client = bench.client
    fill(client, topic, 2_000)
    seal(client, topic)
    client.delete_records(topic, match="t4")
    fill(client, topic, 100, 2_001)
    (synced,) = command("sync", "--topics", topic)["topics"]
    assert (synced["watermark"], synced["rows"] + synced["gap_seqs"]) == (2_100, 2_100)
    table = bench.table(topic)
    assert accounted(table) == 2_100
    fill(client, topic, 100, 2_101)
    said = command("sync", "--topics", topic, json_too=False)
    assert f"{topic}: seqs 2101 to 2200, 100 rows, 1 files" in said
    assert "1 of 1 topics are in the lake; 100 new rows" in said
    before = rows_in(table)
    (compacted,) = command("compact")["tables"]
    assert (compacted["files_before"], compacted["files_after"]) == (2, 1)
    assert rows_in(table) == before
    assert "nothing to put together" in command("compact", json_too=False)
    (verified,) = command("verify")["tables"]
    assert (verified["ok"], verified["findings"], verified["compared"]) == (True, [], len(before))
    assert "ok: " in command("verify", "--no-source", json_too=False)
    (history,) = command("history", "--topics", topic)["tables"]
    assert [one["what"] for one in history["commits"]] == [
        "compact",
        "sync",
        "sync",
        "create table",
    ]
    (vacuumed,) = command("vacuum", "--keep", "0s", "--nobody-writes", "--dry-run")["tables"]
    assert (len(vacuumed["files"]), vacuumed["removed"]) == (2, False)
    (Path(bench.lake.root) / table.name / table.fresh().files()[0].path).unlink()
    (verified,) = command("verify", code=1)["tables"]
    assert verified["findings"][0]["what"] == "file missing"


def test_again_and_again(
    spark: SparkSession,
    bench: Bench,
    topic: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`--every` rests between two rounds, and Ctrl-C ends it."""
    waits: list[float] = []

    def rest(seconds: float) -> None:
        waits.append(seconds)
        bench.client.append(topic, [1])
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(lake, "rest", rest)
    bench.client.append(topic, [1])
    place = ["--lake", bench.lake.root, "--url", bench.server.url, "--json"]
    assert main(["lake", "sync", "--topics", topic, "--every", "90s", *place]) == 130
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["topics"][0]["watermark"] for one in said] == [1, 2, 3]
    assert waits == [90.0] * 3


PAGE = ROOT / "docs" / "operate" / "lake.md"


def test_the_page_is_true(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its blocks run one after the other; sizes and times are not compared."""

    def steady(text: str) -> str:
        return re.sub(r'[0-9,]+(?= bytes)|(?<="ts": )[0-9]+', "0", text.strip())

    monkeypatch.chdir(tmp_path)
    with ServerProcess(tmp_path / "data") as server, Client(server.url) as client:
        monkeypatch.setenv("HEADRACE_URL", server.url)
        monkeypatch.setenv("HEADRACE_LAKE", "lake")
        tags = (None, None, "us", "eu")
        client.append("orders", [Draft({"id": n}, tag=tag) for n, tag in enumerate(tags)])
        client.delete_records("orders", before_seq=2)
        blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
        ran = 0
        for (kind, content), (_, printed) in pairwise(blocks):
            if kind == "sh run lake":
                assert main(shlex.split(content)[1:]) == 0
            elif kind == "python run lake":
                exec(compile(content, PAGE, "exec"), {})
            else:
                continue
            ran += 1
            assert steady(capsys.readouterr().out) == steady(printed), content
    assert ran == 4


def test_one_job_does_not_end_the_others(spark: SparkSession, tmp_path: Path) -> None:
    """A job that fails by an error of ours is its answer; others are tried again by Spark."""

    def work(job: tuple[str, str]) -> str:
        kind, path = job
        if kind == "ours":
            raise DataLost("it is gone", fix="look elsewhere", detail={"seq": 7})
        if kind == "once" and not Path(path).exists():
            Path(path).touch()
            raise OSError("a machine failed")
        return kind

    jobs = [("fine", ""), ("ours", ""), ("once", str(tmp_path / "tried"))]
    fine, ours, once = run_on(spark)(work, jobs)
    assert (fine, once) == ("fine", "once")
    assert isinstance(ours, Failed)
    error: HeadraceError = ours.error
    assert isinstance(error, DataLost)
    assert (str(error), error.detail) == ("it is gone; look elsewhere", {"seq": 7})
    assert run_on(spark)(work, []) == []


@pytest.mark.parametrize("step", ["files written", "gaps committed", "committed"])
def test_a_writer_dies_between_its_steps(
    spark: SparkSession, bench: Bench, topic: str, step: str
) -> None:
    fill(bench.client, topic, 1_500)
    seal(bench.client, topic)
    bench.client.delete_records(topic, match="t4")
    runner = run_on(spark)
    with pytest.raises(Died):
        bench.sync(topic, at=dies_at(step), runner=runner)
    bench.client.delete_records(topic, match="t7")
    assert bench.sync(topic, runner=runner).error is None
    table = bench.table(topic)
    assert accounted(table) == 1_500
    assert gaps_in(table)


def test_a_variant_beside_the_bytes(spark: SparkSession, bench: Bench, topic: str) -> None:
    client, how = bench.client, {"copier": copy_on(spark), "value_ddl": VARIANT}
    client.append(topic, [{"id": n, "price": n / 2} for n in range(1, 101)])
    client.append_arrow(topic, rows_of(1, 50))  # bytes have no value
    client.delete_records(topic, before_seq=11)
    with pytest.raises(Died):
        bench.sync(topic, at=dies_at("gaps committed"), **how)
    assert bench.sync(topic, **how).error is None
    client.put_topic(topic, {"cap_records": 10})
    client.append(topic, [{"id": 7}] * 30)
    result = bench.sync(topic, copier=copy_on(spark))
    assert (result.error, result.rows, result.gap_seqs) == (None, 10, 20)
    table = bench.table(topic)
    assert accounted(table) == 180
    assert gaps_in(table) == [(1, 10, "delete"), (151, 170, "cap")]
    assert compact(table, run_inline) is not None
    assert verify(table.fresh(), run_inline, client, bench.connection).ok
    paths = table.fresh().delta.file_uris()
    frame = spark.read.schema("seq BIGINT, data BINARY, value VARIANT").parquet(*paths)
    (found,) = frame.selectExpr("sum(value:price::double)", "count(value)", "count(*)").collect()
    assert tuple(found) == (sum(n / 2 for n in range(11, 101)), 100, 150)
    # Others see the two parts of it, and the bytes.
    polars = pl.read_delta(bench.lake.uri(table.name)).sort("seq")
    assert polars["data"][0] == b'{"id":11,"price":5.5}'
    assert set(polars["value"].struct.fields) == {"metadata", "value"}


def test_no_json_stops_a_table_with_a_variant(
    spark: SparkSession, bench: Bench, topic: str
) -> None:
    """What Java cannot take is null, and a row all the same."""
    mixed = [one for bad in [*ODD_JSON, b'"%s"' % (b"x" * 900_000)] for one in (b'{"n":7}', bad)]
    for kind in (pa.utf8(), pa.binary()):
        column = pa.array(mixed, pa.binary()).cast(kind)
        bench.client.append_arrow(topic, pa.table({"data": column}))
    assert bench.sync(topic, copier=copy_on(spark), value_ddl=VARIANT).error is None
    table = bench.table(topic)
    assert [row["data"] for row in rows_in(table)] == mixed * 2
    assert verify(table, run_inline, bench.client, bench.connection).ok
    frame = spark.read.schema("seq BIGINT, value VARIANT").parquet(*table.delta.file_uris())
    (found,) = frame.selectExpr("count_if(value:n::double = 7)", "max(seq)").collect()
    assert found[0] >= len(mixed) // 2


def test_spark_reads_the_files_of_a_version(spark: SparkSession, bench: Bench, topic: str) -> None:
    fill(bench.client, topic, 1_500)
    assert bench.sync(topic, runner=run_on(spark)).error is None
    table = bench.table(topic)
    frame = spark.read.option("basePath", bench.lake.uri(table.name)).parquet(
        *table.delta.file_uris()
    )
    assert dict(frame.dtypes)["day"] == "date"
    rows = frame.where("seq > 1490").orderBy("seq").collect()
    assert [row.seq for row in rows] == list(range(1_491, 1_501))
    assert bytes(rows[0].data) == rows_in(table)[1_490]["data"]
