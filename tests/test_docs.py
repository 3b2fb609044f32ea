"""What the pages say is what happens: commands are run, answers compared, series exist.

A fenced block marked `sh run` is run, in the order of its page and in one shell, against a fresh
server; the block behind it, if it is `json` or `text`, is what the commands print.  Times,
durations and ids are not compared.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT
from tests.support.documented_examples import (
    documents,
    examples_of,
    run,
    settled,
)

PAGES = [
    page.relative_to(ROOT).as_posix()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "\n```sh run\n" in page.read_text(encoding="utf-8")
]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples need curl")
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_do_what_it_says(page: str, tmp_path: Path) -> None:
    examples = examples_of((ROOT / page).read_text(encoding="utf-8"))
    assert examples
    with ServerProcess(tmp_path / "data") as server:
        printed = run(examples, server.address, tmp_path)
    assert len(printed) == len(examples)
    for example, answer in zip(examples, printed, strict=True):
        if example.form == "json":
            assert documents(answer) == documents(example.printed), example.commands
        elif example.form == "text":
            assert settled(answer) == settled(example.printed), example.commands


def test_there_are_pages_with_commands() -> None:
    assert "docs/reference/http.md" in PAGES


def test_every_endpoint_is_on_the_page(tmp_path: Path) -> None:
    """The page names each path that the document of the server has."""
    page = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    with ServerProcess(tmp_path / "data") as server:
        paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    assert len(paths) >= 12
    missing = [path for path in paths if path not in page]
    assert not missing, missing


@pytest.mark.parametrize("tool", ["metrics_page.py", "memory_page.py"])
def test_the_pages_of_metrics_and_memory_are_what_the_code_says(tool: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / tool), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def series_named() -> set[str]:
    page = (ROOT / "docs" / "operate" / "metrics.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `(headrace_\w+)` \|", page, re.MULTILINE))


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json"])
def test_alerts_and_dashboard_use_series_that_exist(name: str) -> None:
    text = (ROOT / "ops" / name).read_text(encoding="utf-8")
    if name.endswith(".json"):
        expressions = " ".join(re.findall(r'"(?:expr|query)": "((?:[^"\\]|\\.)*)"', text))
        panels = [panel for panel in json.loads(text)["panels"] if panel["type"] != "row"]
        assert all(panel["targets"] for panel in panels)
        assert len({panel["id"] for panel in panels}) == len(panels)
    else:
        rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
        assert len({rule["alert"] for rule in rules}) == len(rules)
        assert all({"summary", "description"} <= rule["annotations"].keys() for rule in rules)
        expressions = " ".join(rule["expr"] for rule in rules)
        expressions += " ".join(re.findall(r"headrace_\w+", text))
    used = set(re.findall(r"headrace_\w+", expressions))
    assert len(used) >= 10
    known = series_named()
    known |= {f"{base}{part}" for base in known for part in ("_bucket", "_sum", "_count")}
    assert used <= known, used - known


def test_an_example_can_fail() -> None:
    page = '```sh run\necho \'{"a":1}\'\n```\n\n```json\n{"a":2}\n```\n'
    (example,) = examples_of(page)
    assert (example.form, documents(example.printed)) == ("json", [{"a": 2}])
    assert documents('{"a":1,"$ts":5}') == [{"a": 1, "$ts": None}]
    assert settled("id: abc\n") == settled("id: xyz\n")
