"""`headrace pipelines` as far as it needs no server and no Spark."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.pipelines import examples

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max", "0"], "--max 0 runs nothing"),
        (["--lease", "soon"], "--lease 'soon' does not parse"),
        (["--lease", "1s"], "--lease 1s is out of bounds"),
        (["--entry", "x"], "names no function"),
        (["--entry", "x=json:nothing"], "has no attribute 'nothing'"),
    ],
)
def test_a_worker_that_cannot_start_says_why(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["pipelines", "run", "--url", NOBODY, *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.startswith("headrace: ") and err.count("\n") == 1


def test_a_worker_looks_for_its_server_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Spark takes seconds to start, and would be in vain."""
    assert main(["pipelines", "run", "--url", NOBODY]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_examples_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipelines", "example"]) == 0
    assert capsys.readouterr().out.split() == list(examples.NAMES)
    assert main(["pipelines", "example", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"examples": list(examples.NAMES)}
    for name in examples.NAMES:
        assert main(["pipelines", "example", name, "--print"]) == 0
        assert tomllib.loads(capsys.readouterr().out) == examples.declaration(name)
    assert main(["pipelines", "example", "nothing"]) == 2
    assert "there is no example 'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "text"), [("a.json", "{"), ("a.toml", "a ="), ("a.json", "3")])
def test_a_declaration_that_is_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert main(["pipelines", "put", "p", str(file), "--url", NOBODY]) == 2
    assert str(file) in capsys.readouterr().err
    assert main(["pipelines", "put", "p", str(tmp_path / "none"), "--url", NOBODY]) == 2
