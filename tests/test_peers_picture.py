"""The picture of the peers' table: it has every row, to scale, and the goals where they are."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.checkout import ROOT

sys.path.insert(0, str(ROOT))
from bench import peer_goals, peer_loads, peers

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("peers_picture")


def report_of() -> dict[str, Any]:
    """A report as `./run bench --peers --json` prints it: figures made up, one peer missing."""
    rows: list[dict[str, Any]] = []
    for number, load in enumerate(peer_loads.LOADS):
        row: dict[str, Any] = {
            "name": load.name,
            "case": load.case,
            "what": load.what,
            "promise": load.promise,
        }
        figures = {"rate": 1_000.0 + 7 * number, "cpu": 20.0 + number, "p50": 900.0 + number}
        row |= figures | {"p99": 1.0, "generator_cpu": 1.0}
        row["rounds"] = {name: [value] for name, value in figures.items()}
        if load.kind == "s2-lite":
            row = {name: row[name] for name in ("name", "case", "what", "promise")}
            row["missing"] = "no <cargo>"
        rows.append(row)
    peers.add_ratios(peer_loads.LOADS, rows)
    machine = {"cores": 2, "cpu": "a & b", "kernel": "6", "python": "3"}
    goals = peer_goals.judged(rows)
    return {"machine": machine, "quick": False, "peers": rows, "goals": goals}


def test_every_row_is_drawn_within_the_picture(tool: Any) -> None:
    report = report_of()
    root = ElementTree.fromstring(tool.picture(tool.kept_of(report)))
    words = [text.text or "" for text in root.iter(f"{SVG}text")]
    for row in report["peers"]:
        assert sum(word.strip() == row["name"] for word in words) == ("missing" not in row)
    assert any("s2-lite memory (no <cargo>)" in word for word in words)
    height = float(root.attrib["height"])
    bars = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") in ("ours", "peer")]
    assert len(bars) == 2 + 2 * sum("missing" not in row for row in report["peers"])
    for bar in bars:
        assert float(bar.attrib["y"]) + tool.BAR < height
        assert 0 < float(bar.attrib["width"]) <= tool.LONGEST
        right = float(bar.attrib["x"]) + float(bar.attrib["width"])
        assert right < tool.WIDTH - tool.MARGIN - 6 * tool.FIGURE_WIDTH, "with room for the figure"
    described = root.find(f"{SVG}desc")
    assert described is not None and "redis xread 10" in (described.text or "")


def test_bars_and_goals_are_to_scale(tool: Any) -> None:
    kept = tool.kept_of(report_of())
    (group,) = [one for one in tool.groups_of(kept["rows"]) if one.case == "http_h2"]
    ours, theirs = group.rows
    assert [row["name"] for row in group.rows] == [peer_loads.HTTP1, peer_loads.HTTP2]
    at = tool.at_of(kept["goals"], peer_loads.HTTP2, "cpu")
    assert at == [pytest.approx(1.8 * ours["cpu"])]
    assert tool.longest(group, "cpu", kept["goals"]) == max(at[0], theirs["cpu"])
    assert tool.longest(group, "rate", kept["goals"]) == max(ours["rate"], theirs["rate"])


def test_goals_without_a_peer_are_figures_themselves(tool: Any) -> None:
    kept = tool.kept_of(report_of())
    thousand = peer_loads.watch_names(1_000)[0]
    assert 25_000.0 in tool.at_of(kept["goals"], thousand, "p50")
    assert tool.at_of(kept["goals"], peer_loads.JSON_BATCH, "rate") == [1_000_000.0]


def test_goals_beside_a_peer_that_is_missing_are_left_out(tool: Any) -> None:
    report = report_of()
    for row in report["peers"]:
        if row["name"] == peer_loads.HTTP1:
            row["missing"] = "gone"
    report["goals"] = peer_goals.judged(report["peers"])
    for goal in report["goals"]:
        if goal["peer"] == peer_loads.HTTP1:
            goal["peer_value"] = None
    assert tool.at_of(tool.kept_of(report)["goals"], peer_loads.HTTP2, "cpu") == []


def test_a_quick_run_is_not_drawn(tool: Any) -> None:
    with pytest.raises(SystemExit, match="quick"):
        tool.kept_of({**report_of(), "quick": True})


def test_it_keeps_what_it_draws_and_notices_what_is_old(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "PICTURE", tmp_path / "peers.svg")
    monkeypatch.setattr(tool, "FIGURES", tmp_path / "peers.json")
    report = tmp_path / "report.json"
    report.write_text(json.dumps(report_of()))
    assert tool.main([str(report)]) == 0
    assert tool.main(["--check"]) == 0
    drawn = (tmp_path / "peers.svg").read_text()
    (tmp_path / "peers.svg").write_text(drawn.replace("Beside", "Near"))
    assert tool.main(["--check"]) == 1
    assert "python tools/peers_picture.py" in capsys.readouterr().out
    assert tool.main([]) == 0
    assert (tmp_path / "peers.svg").read_text() == drawn


def test_the_picture_of_the_documentation_is_up_to_date(tool: Any) -> None:
    if not tool.FIGURES.exists():
        assert not tool.PICTURE.exists(), "a picture of which nobody knows the figures"
        pytest.skip("nothing has been measured yet")
    assert tool.main(["--check"]) == 0
