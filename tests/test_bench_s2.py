"""The plan of S2: which rows it has, what `s2 bench` tells, and what is said of who is missing.

No peer is needed for any of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.node_programs import SKIP_VARIABLE

sys.path.insert(0, str(ROOT))
from bench import command, peer_builds, peer_goals, peer_servers, peers, s2_loads, s2_sdk
from bench.load import Window

TOLD = """
Write: 84.17 MiB/s, 10773 records/s (264765440 bytes, 32320 records in 3.00s)
Read: 83.90 MiB/s, 10739 records/s (264765440 bytes, 32320 records in 3.01s)

Catchup: 412.50 MiB/s, 52800 records/s (264765440 bytes, 32320 records in 0.61s)
"""


def test_goals_are_about_rows_of_one_case() -> None:
    by_name = {load.name: load for load in s2_loads.LOADS}
    assert len(by_name) == len(s2_loads.LOADS), "two rows of one name"
    for goal in s2_loads.GOALS:
        assert goal.figure in peer_goals.FIGURES
        if goal.peer:
            assert by_name[goal.peer].case == by_name[goal.ours].case, goal
    for load in s2_loads.LOADS:
        ours = by_name[load.versus]
        assert (ours.kind, ours.case) == ("headrace", load.case)
    assert {load.kind for load in s2_loads.LOADS} == {"headrace", "s2-lite"}


def test_the_plan_runs_only_where_it_is_named() -> None:
    assert peers.chosen(["s2"]) == list(s2_loads.CASES)
    assert not set(peers.chosen([])) & set(s2_loads.CASES)
    assert command.trouble_of(["s2", "s2_bench"], peers.CHOICES) == ""
    assert all(case in peers.ROUNDS_OF for case in s2_loads.CASES)


def test_what_the_command_tells_is_read() -> None:
    told = s2_sdk.rates_told(TOLD)
    assert told.pop("mib") == pytest.approx(252.5)
    assert told == {"rate": 84.17, "live": 83.9, "catch_up": 412.5}


def test_costs_are_of_what_is_counted() -> None:
    window = Window(1, 2.0, 1.0, 0.5, array("d", [0.001, 0.002]))
    report = s2_sdk.per_unit(window, 100.0)
    found = [report[name] for name in ("rate", "cpu", "generator_cpu", "p50")]
    assert found == pytest.approx([50.0, 10_000.0, 5_000.0, 2_000.0])


def test_rates_of_the_command_are_judged_beside_each_other() -> None:
    zero = dict.fromkeys(peers.COSTS, 0.0)
    rows = [
        {"name": s2_loads.row_name(kind, "s2_bench"), "what": "", **peers.best([{**told, **zero}])}
        for kind, told in (
            ("headrace", {"rate": 80.0, "live": 79.0, "catch_up": 300.0}),
            ("s2-lite", {"rate": 40.0, "live": 40.0, "catch_up": 600.0}),
        )
    ]
    found = peer_goals.judged(rows, s2_loads.GOALS)
    assert [(one["figure"], one["met"]) for one in found] == [
        ("rate", True),
        ("live", True),
        ("catch_up", False),
    ]
    assert "300.0/s" in peers.goals_table(found, markdown=True)


def test_without_the_command_its_row_is_skipped_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_builds, "cache", lambda: tmp_path)
    (load,) = [load for load in s2_loads.LOADS if load.name == "headrace s2 bench"]
    with (
        pytest.raises(peer_servers.NotOffered, match="s2-cli is not built"),
        load.start(str(tmp_path)),
    ):
        pass


@pytest.mark.skipif(SKIP_VARIABLE in os.environ, reason=f"{SKIP_VARIABLE} is set")
def test_sessions_of_the_sdk_are_measured_as_json() -> None:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    asked = ["--peers", "--quick", "--json", "--no-install", "s2_append_session", "s2_unary"]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *asked],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = {one["name"]: one for one in json.loads(done.stdout)["peers"]}
    assert rows["headrace s2 append session"]["rate"] > 0
    assert rows["headrace s2 unary"]["p50"] > 0
