"""The benchmarks run, and every figure they name is in what they print.  Nothing about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pytest

from tests.support.checkout import ROOT

sys.path.insert(0, str(ROOT))
from bench import command, figures


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


# Those of the server each for itself, since each starts servers; the others in one go.  Those of
# Spark are in tests/spark.
SERVED = [case for case in figures.CASES if case.startswith("http_")]
EMBEDDED = [case for case in figures.CASES if not case.startswith(("http_", "spark_"))]
# Those that are done in seconds, one of each kind at least.  The others take minutes together.
ALWAYS = {"append", "single", "fsync", "read", "wal_files", "checkpoint"}
ALWAYS |= {"http_budget"}
# Each takes some seconds.
SLOW = {"http_append", "http_diff", "http_h2", "http_queue"}
TOGETHER = [[case for case in EMBEDDED if (case in ALWAYS) is always] for always in (True, False)]


def case_of(cases: list[str]) -> object:
    if ALWAYS.issuperset(cases):
        return pytest.param(cases)
    mark = pytest.mark.slow if SLOW.issuperset(cases) else pytest.mark.long
    return pytest.param(cases, marks=[mark])


@pytest.mark.parametrize(
    "cases",
    [case_of(cases) for cases in (*TOGETHER, *([case] for case in SERVED))],
    ids=lambda cases: cases[-1],
)
def test_every_figure_is_measured(cases: list[str]) -> None:
    # Not `tmp_path`: that may be in memory, where the page cache cannot be dropped.
    with tempfile.TemporaryDirectory(dir=command.default_parent()) as directory:
        done = bench("--quick", "--json", "--dir", directory, *cases)
        assert done.returncode == 0, done.stderr
        assert os.listdir(directory) == []
    report = json.loads(done.stdout)
    expected = [figure for figure in figures.FIGURES if figure.case in cases]
    assert [row["name"] for row in report["figures"]] == [figure.name for figure in expected]
    assert all(row["value"] >= 0 for row in report["figures"])
    assert {"cores", "kernel", "python", "filesystem"} <= report["machine"].keys()
    for figure, row in zip(expected, report["figures"], strict=True):
        assert (row["met"] is None) == (figure.goal is None), row


def test_one_case_as_a_table() -> None:
    done = bench("--quick", "checkpoint")
    assert done.returncode == 0, done.stderr
    assert "checkpoint_batched" in done.stdout
    assert "append_batched" not in done.stdout


def test_an_unknown_case_is_refused_by_name() -> None:
    done = bench("apend")
    assert done.returncode == 2
    assert "apend" in done.stderr
    assert "append" in done.stderr


def test_a_case_of_spark_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "has_spark", lambda: False)
    assert "requirements/spark.txt" in command.trouble_of(["append", "spark_scan"])
    assert command.trouble_of(["append"]) == ""
    assert command.runnable() == [*EMBEDDED, *SERVED]


@pytest.mark.parametrize(("p50", "met"), [(150.0, True), (151.0, False)])
def test_a_goal_is_computed_from_the_run(p50: float, met: bool) -> None:
    measured = {"fsync_bare_p50": 100.0, "fsync_one_writer_p50": p50}
    rows = {row["name"]: row for row in command.rows_of("fsync", dict(measured))}
    assert rows["fsync_one_writer_p50"]["bound"] == 150.0
    assert rows["fsync_one_writer_p50"]["met"] is met
    assert rows["fsync_bare_p50"]["met"] is None


def test_the_best_round_is_the_figure() -> None:
    measured = {"append_batched": [3.0, 5.0, 4.0], "append_batched_cpu": [3.0, 5.0, 4.0]}
    rows = {row["name"]: row for row in command.rows_of("append", dict(measured))}
    assert (rows["append_batched"]["value"], rows["append_batched"]["median"]) == (5.0, 4.0)
    assert rows["append_batched_cpu"]["value"] == 3.0
