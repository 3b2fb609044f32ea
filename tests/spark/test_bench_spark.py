"""The benchmarks of Spark run, and every figure they name is in what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

sys.path.insert(0, str(ROOT))
from bench import figures, spark_data

CASES = (
    "spark_scan",
    "spark_sink",
    "spark_batch_latency",
    "spark_lake",
    "spark_serving",
    "spark_pipeline",
)


@pytest.mark.long  # each starts a session of its own
@pytest.mark.parametrize("case", CASES)
def test_every_figure_is_measured(case: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--json", "--dir", str(tmp_path), case],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path) == []
    rows = json.loads(done.stdout)["figures"]
    expected = [figure.name for figure in figures.FIGURES if figure.case == case]
    assert [row["name"] for row in rows] == expected
    assert all(row["value"] >= 0 for row in rows)


def test_records_are_as_large_as_they_say() -> None:
    column = spark_data.records(999_990, 20).to_pylist()
    assert {len(document) for document in column} == {spark_data.RECORD_BYTES}
    assert [json.loads(document)["order"] for document in column] == list(range(999_990, 1_000_010))
