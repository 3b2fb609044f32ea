"""Declared pipelines as a project of `spark-pipelines`: written by the command, and really run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from headrace.cli.main import main
from headrace.client import Client, Draft
from headrace.testing.process import ServerProcess
from tests.support.pipeline_workers import all_records

Project = Callable[..., dict[str, Any]]

COUNTS_SQL = """
select date_format(window.start, 'HH:mm') as minute, count(*) as clicks
from clicks group by window(event_time, '1 minute')  -- each minute
"""


def declare(client: Client, topic: str) -> dict[str, str]:
    """Three pipelines over one topic, by what they are."""
    typed = {"topic": topic, "alias": "clicks", "schema": "id BIGINT, at TIMESTAMP"}
    marked = {**typed, "watermark": {"delay": "1m", "column": "data.at"}}
    pipelines: dict[str, dict[str, Any]] = {
        "counts": {
            "sources": [marked],
            "sql": COUNTS_SQL,
            "dest": {"topic": f"{topic}.counts"},
        },
        "once": {
            "sources": [{**marked, "unique_by": ["data.id"]}],
            "sql": "select data.id, tag from clicks;",
            "dest": {"topic": f"{topic}.once"},
        },
        "totals": {
            "sources": [{"topic": topic, "alias": "clicks"}],
            "sql": "with c as (select tag, data:id::bigint as id from clicks)"
            " select tag, count(*) as n, max(id) as newest from c group by tag",
            "dest": {"table": f"{topic}.totals"},
            "output_mode": "complete",
        },
    }
    names = {kind: f"{topic}.{kind}" for kind in pipelines}
    for kind, declaration in pipelines.items():
        client.put_pipeline(names[kind], declaration)
    return names


@pytest.fixture
def project(capfd: pytest.CaptureFixture[str]) -> Project:
    """Run `headrace pipelines project WORDS --json` and return what it says."""

    def run(*words: str) -> dict[str, Any]:
        assert main(["pipelines", "project", *words, "--json"]) == 0, capfd.readouterr().err
        found: dict[str, Any] = json.loads(capfd.readouterr().out)
        return found

    return run


def test_the_command_writes_what_fits(
    server: ServerProcess,
    client: Client,
    topic: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    project: Project,
) -> None:
    client.put_topic(topic)
    names = declare(client, topic)
    updates = {"sources": [{"topic": topic, "alias": "c"}], "sql": "select tag from c"}
    updates |= {"dest": {"topic": f"{topic}.tags"}, "output_mode": "update"}
    client.put_pipeline(f"{topic}.tags", updates)
    where = ["--to", str(tmp_path / "p"), "--url", server.url]
    assert main(["pipelines", "project", f"{topic}.tags", *where]) == 1
    assert "output_mode is update" in capfd.readouterr().err
    assert not (tmp_path / "p").exists()
    found = project(*names.values(), f"--to={tmp_path / 'p'}", "--url", server.url)
    kinds = {one["pipeline"]: one["kind"] for one in found["pipelines"]}
    assert kinds == {
        names["counts"]: "streaming_table",
        names["once"]: "streaming_table",
        names["totals"]: "materialized_view",
    }
    written = {str(path.relative_to(tmp_path / "p")) for path in (tmp_path / "p").rglob("*.*")}
    assert written == set(found["files"]) and found["ran"] is False
    left_out = project("--all", "--replace", *where)["left_out"]
    assert f"{topic}.tags" in {one["pipeline"] for one in left_out}
    for name in (*names.values(), f"{topic}.tags"):
        client.delete_pipeline(name)


def click(number: int, seconds: int) -> Draft:
    at = f"2026-03-01T12:{seconds // 60:02}:{seconds % 60:02}Z"
    return Draft({"id": number, "at": at}, tag=f"t{number % 2}")


@pytest.mark.long  # a run of spark-pipelines takes most of a minute
@pytest.mark.timeout(900)
def test_spark_pipelines_runs_it(
    server: ServerProcess,
    client: Client,
    topic: str,
    tmp_path: Path,
    project: Project,
) -> None:
    client.append(topic, [click(number, number * 10) for number in range(18)])
    client.append(topic, [click(3, 30)])
    names = declare(client, topic)
    words = [*names.values(), "--to", str(tmp_path / "p"), "--sinks", "--url", server.url]
    found = project(*words, "--run")
    tables = {one["pipeline"]: one["table"] for one in found["pipelines"]}

    def rows(kind: str) -> list[dict[str, Any]]:
        place = tmp_path / "p" / "warehouse" / tables[names[kind]]
        found: list[dict[str, Any]] = ds.dataset(place, format="parquet").to_table().to_pylist()
        return found

    # The last event is at 12:02:50: a minute less a minute is over.
    assert all_records(client, f"{topic}.counts") == [{"minute": "12:00", "clicks": 7}]
    assert rows("counts") == [{"minute": "12:00", "clicks": 7}]
    assert sorted(row["id"] for row in rows("once")) == list(range(18)), "each once"
    totals = {row["tag"]: (row["n"], row["newest"]) for row in rows("totals")}
    assert totals == {"t0": (9, 16), "t1": (10, 17)}

    client.append(topic, [click(number, number * 10) for number in range(18, 36)])
    project(*words, "--run")
    minutes = [("12:00", 7), ("12:01", 6), ("12:02", 6), ("12:03", 6)]
    counts = all_records(client, f"{topic}.counts")
    assert sorted((row["minute"], row["clicks"]) for row in counts) == minutes
    seen = [record["id"] for record in all_records(client, f"{topic}.once")]
    assert sorted(seen) == list(range(36)), "a second run goes on where the first was"
    totals = {row["tag"]: (row["n"], row["newest"]) for row in rows("totals")}
    assert totals == {"t0": (18, 34), "t1": (19, 35)}
    for name in names.values():
        client.delete_pipeline(name)
