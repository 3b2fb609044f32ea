"""The command: what it prints, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.cli.main import VERBS, build_parser, main
from headrace.core import config
from headrace.core.settings import Settings


def test_config_show_prints_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["setting", "value"]
    assert [line.split()[0] for line in lines[1:]] == list(config.RULES)


def test_config_show_says_where_values_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "h.toml"
    file.write_text('log = "debug"\n')
    monkeypatch.setenv("HEADRACE_WAL_SHARDS", "2")
    flags = ["--config", str(file), "--data-dir", "elsewhere"]
    assert main(["config", "show", "--json", "--origin", *flags]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["data_dir"] == {"value": "elsewhere", "origin": "flag --data-dir"}
    assert document["wal_shards"] == {"value": 2, "origin": "environment HEADRACE_WAL_SHARDS"}
    assert document["log"] == {"value": "debug", "origin": f"file {file}"}
    assert document["port"] == {"value": Settings().port, "origin": "default"}
    assert document.keys() == config.RULES.keys()


@pytest.mark.parametrize(
    "arguments", [["--port", "x"], ["--config", "no/such/file.toml"], ["--read-limit-max", "1"]]
)
def test_a_wrong_setting_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["config", "show", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headrace: ")
    assert err.count("\n") == 1
    assert "; " in err


def test_a_wrong_argument_is_exit_2() -> None:
    for arguments in (["nonsense"], ["config"], ["config", "show", "--prot", "1"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2


def test_every_verb_takes_json() -> None:
    parser = build_parser()
    for verb in VERBS:
        assert "--json" in help_of(parser.prog, verb.words)


def help_of(program: str, words: tuple[str, ...]) -> str:
    command = [sys.executable, "-m", program, *words, "--help"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_version() -> None:
    command = [sys.executable, "-m", "headrace", "--version"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"headrace {headrace.__version__}\n")


def test_a_reader_that_goes_away_is_not_an_error() -> None:
    command = f"{sys.executable} -m headrace config show; echo $? >&2"
    done = subprocess.run(
        ["sh", "-c", f"({command}) | true"], check=True, capture_output=True, text=True
    )
    assert done.stderr == "0\n"
