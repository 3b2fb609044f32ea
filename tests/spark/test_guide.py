"""The guide to Spark is a notebook that works: every block runs, and prints what the page says.

Blocks run in their order, the Python ones in one namespace, in the session of all these tests and
against a server of their own.  A block without an answer behind it prints nothing.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.cli.main import main
from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT
from tests.support.documented_examples import BLOCK, PUBLIC_ADDRESS, documents, examples_of, run

GUIDE = ROOT / "docs" / "guides" / "spark.md"
TEXT = GUIDE.read_text(encoding="utf-8")
ANSWERS = ("text", "json")
RUNS = ("sh run", "sh run spark", "python run spark")
# What Spark says, and not we: it is on the page because everybody meets it.
NOT_OURS = {"ErrorIfExists"}


def blocks() -> Iterator[tuple[str, str, str, str]]:
    """Each block that runs: its kind, its text, and form and text of its answer."""
    found = BLOCK.findall(TEXT)
    for at, (kind, content) in enumerate(found):
        if kind in ANSWERS:
            continue
        form, printed = found[at + 1] if at + 1 < len(found) else ("", "")
        yield kind, content, *((form, printed) if form in ANSWERS else ("", ""))


def test_the_blocks_of_the_guide(
    users_spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, Any] = {}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ServerProcess(tmp_path / "data") as server:
        monkeypatch.setenv("HEADRACE_URL", server.url)
        for kind, content, form, printed in blocks():
            if kind == "python run spark":
                exec(compile(PUBLIC_ADDRESS.sub(server.address, content), GUIDE, "exec"), names)
                out = capsys.readouterr().out
            elif kind == "sh run spark":
                command, *arguments = shlex.split(content)
                assert (command, main(arguments)) == ("headrace", 0)
                out = capsys.readouterr().out
            else:
                (out,) = run(examples_of(f"```{kind}\n{content}```\n"), server.address, tmp_path)
            if form == "json":
                assert documents(out) == documents(printed), content
            else:
                assert out.rstrip() == printed.rstrip(), content  # `show` ends with an empty line
        names["client"].close()


def test_every_block_of_the_guide_runs() -> None:
    kinds = [kind for kind, *_ in blocks()]
    assert set(kinds) == set(RUNS)
    assert kinds.count("python run spark") >= 20
    for kind, content, form, printed in blocks():
        if kind == "python run spark" and any(
            isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
            for node in ast.walk(ast.parse(content))
        ):
            assert form == "text" and printed, content
        if form == "json":
            assert json.loads(printed)


def test_the_messages_of_the_guide_are_in_the_code() -> None:
    section = TEXT.partition("## When something is wrong")[2]
    said = set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))
    assert len(said) >= 12
    source = "".join(
        # A message may be written in pieces: `"… lines" f" of source"`.
        re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "src" / "headrace").rglob("*.py"))
    )
    missing = [message for message in said - NOT_OURS if message not in source]
    assert not missing, missing
