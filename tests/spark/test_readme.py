"""The blocks of the README that need Spark do what it says, in the session of all these tests.

They are marked `sh run spark` and `python run spark`; what they stand on, the blocks marked
`sh run`, runs before them.  The command is called here and not started: a start takes seconds.
"""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.cli.main import main
from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT
from tests.support.documented_examples import BLOCK, PUBLIC_ADDRESS, examples_of, run

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_blocks_of_the_readme(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = BLOCK.findall(README)
    ran = []
    with ServerProcess(tmp_path / "data") as server:
        run(examples_of(README), server.address, tmp_path)
        monkeypatch.setenv("HEADRACE_URL", server.url)
        for (kind, content), (form, printed) in pairwise(blocks):
            if kind == "sh run spark":
                command, *arguments = shlex.split(content)
                assert (command, main(arguments)) == ("headrace", 0)
            elif kind == "python run spark":
                content = PUBLIC_ADDRESS.sub(server.address, content)
                exec(compile(content, "README.md", "exec"), {})
            else:
                continue
            ran.append(kind)
            out = capsys.readouterr().out
            assert form in ("json", "text")
            if form == "json":
                assert json.loads(out) == json.loads(printed)
            else:
                assert out == printed
    assert ran == ["sh run spark", "sh run spark", "python run spark"]
