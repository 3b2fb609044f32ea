"""What the pages say is what happens: commands are run, answers compared, series exist.

A fenced block marked `sh run` is run, in the order of its page and in one shell, against a fresh
server; the block behind it, if it is `json` or `text`, is what the commands print.  Times,
durations and ids are not compared.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

import headrace
from headrace.testing.process import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    page.relative_to(ROOT).as_posix()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "\n```sh run\n" in page.read_text(encoding="utf-8")
]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Between what two blocks print; nothing that a server sends holds it.
MARK = "\x1e"
SECONDS_MAX = 120
# What differs from run to run, by its JSON key.
VARIES = {
    "performance", "$ts", "last_write_ts", "last_read_ts", "uptime_ms", "wid", "stream_url",
    "lease_id", "deadline", "deadlines",
}  # fmt: skip
# Of `performance`, and only there when the machine has much to do.
BUSY = {"throttle_wait_ms"}
PUBLIC_ADDRESS = re.compile(r"(?:localhost|127\.0\.0\.1):4000")


class Example(NamedTuple):
    """A block of commands, and what it says it prints."""

    commands: str
    form: str  # "json", "text", or "" when nothing is said
    printed: str


def examples_of(text: str) -> list[Example]:
    blocks = BLOCK.findall(text)
    found = []
    for at, (kind, content) in enumerate(blocks):
        if kind.strip() != "sh run":
            continue
        form, printed = blocks[at + 1] if at + 1 < len(blocks) else ("", "")
        found.append(Example(content, *((form, printed) if form in ("json", "text") else ("", ""))))
    return found


def run(examples: list[Example], address: str, directory: Path) -> list[str]:
    """What each example prints."""
    script = "set -eu -o pipefail\n" + "".join(
        PUBLIC_ADDRESS.sub(address, example.commands) + f"printf '{MARK}'\n" for example in examples
    )
    # A command that gets no answer ends, and says so.
    (directory / ".curlrc").write_text("max-time = 20\nshow-error\n", encoding="utf-8")
    # `python3` of the examples is the one that has our packages.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        env={**os.environ, "PATH": path, "CURL_HOME": str(directory)},
        capture_output=True,
        timeout=SECONDS_MAX,
    )
    printed = done.stdout.decode().split(MARK)
    assert done.returncode == 0, (printed[-1], done.stderr.decode())
    return printed[:-1]


def steady(value: Any) -> Any:
    """A JSON value without what differs from run to run; its keys stay."""
    if isinstance(value, dict):
        return {
            key: sorted(item.keys() - BUSY) if isinstance(item, dict) and key == "performance" else
            None if key in VARIES else steady(item)
            for key, item in value.items()
        }  # fmt: skip
    return [steady(item) for item in value] if isinstance(value, list) else value


def documents(text: str) -> list[Any]:
    decoder, found, at = json.JSONDecoder(), [], 0
    text = text.strip()
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        found.append(steady(document))
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


def settled(text: str) -> str:
    text = re.sub(r"^id: .+$", "id: …", text, flags=re.MULTILINE)
    text = re.sub(r'"(\$ts|uptime_ms)":\d+', r'"\1":0', text)
    text = text.replace(f'"version":"{headrace.__version__}"', '"version":"0.1.0"')
    # Each call prints one document, without an end of line.
    return re.sub(r"\}\s*(?=\{|headrace_)", "}\n", text).strip()


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


def test_the_metrics_page_is_what_the_code_registers() -> None:
    command = [sys.executable, str(ROOT / "tools" / "metrics_page.py"), "--check"]
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
