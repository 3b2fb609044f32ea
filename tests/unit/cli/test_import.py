"""`headrace import` and `lake replay` as people and programs see them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.cli import loading as feeding
from headrace.cli.main import main
from headrace.client import Client
from headrace.core.errors import Unreachable
from headrace.lake.loading.producers import Fed
from headrace.lake.tables.layout import Lake
from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT
from tests.support.documented_examples import BLOCK
from tests.support.lakes import Bench

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


def test_what_an_import_says(server: ServerProcess, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id":1}\nx\n{"id":2}\n')
    words = ["import", str(path), "--to", "orders", "--url", server.url]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"headrace: {path}:2: data is not JSON")
    assert "--bad-rows skip" in err
    words += ["--bad-rows", "skip"]
    assert main(words) == 1, "not all of it is there"
    out, err = capsys.readouterr()
    assert out == "2 rows of 1 file are in orders\n"
    assert err.splitlines()[0] == "headrace: 1 rows were left out:"
    assert err.splitlines()[1].startswith(f"  {path}:2: data is not JSON")
    path.write_text("3\n")
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "to": "orders", "files": 1, "parts": 1, "rows": 1, "rows_before": 0,
        "bad_rows": 0, "bad_rows_named": [],
    }  # fmt: skip
    assert main([*words, "--id", "again"]) == 0
    assert capsys.readouterr().out == "1 rows of 1 file are in orders\n"


def test_the_page_is_true(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Its first block is the file, and the commands print what it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_URL", server.url)
    blocks = BLOCK.findall((ROOT / "docs" / "operate" / "import.md").read_text(encoding="utf-8"))
    Path("orders.jsonl").write_text(blocks[0][1])
    ran = 0
    for (kind, content), (_, printed) in pairwise(blocks):
        if kind == "sh run import":
            ran += 1
            assert main(content.replace("--to orders", "--to page").split()[1:]) == 0
            assert capsys.readouterr().out == printed.replace("orders", "page")
    assert ran == 2


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--workers", "0"], "give 1 to 16"),
        (["--delimiter", "ab", "--format", "csv"], "give one character"),
        (["--format", "jsonl"], "name files that are there"),
    ],
)
def test_what_cannot_be(
    server: ServerProcess, tmp_path: Path, capsys: Capture, words: list[str], match: str
) -> None:
    given = ["import", str(tmp_path / "x.csv"), "--to", "x", "--url", server.url, *words]
    assert main(given) == 2
    assert match in capsys.readouterr().err


def test_a_server_that_is_not_there(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.jsonl").write_text("1")
    words = ["import", str(tmp_path / "a.jsonl"), "--to", "x", "--url", "http://127.0.0.1:1"]
    assert main(words) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_what_a_replay_says(server: ServerProcess, tmp_path: Path, capsys: Capture) -> None:
    lake = Lake(str(tmp_path / "lake"))
    with Client(server.url) as client:
        client.append("history", [1, 2, 3])
        assert Bench(server, client, lake).sync("history").error is None
    words = ["lake", "replay", "history", "--to", "again", "--lake", lake.root]
    words += ["--url", server.url, "--in-order"]
    assert main([*words, "--seqs", "2-"]) == 0
    assert capsys.readouterr().out == "history to again: 2 rows of version 1\n"
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["rows_before"], found["resumed"]) == (3, 0, False)
    assert main(["lake", "replay", "h*", *words[3:]]) == 2
    assert "one topic at a time" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_who_watches_sees_a_bar_and_the_way_on(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with feeding.watching() as watch:
        watch(Fed(rows=1_000, rows_before=234), 0.5)
    assert " 50% 1,234 rows" in screen.getvalue()
    assert screen.getvalue().endswith("\r")
    with pytest.raises(KeyboardInterrupt), feeding.watching():
        raise KeyboardInterrupt
    assert "stopped; the same command goes on" in screen.getvalue()
    with pytest.raises(Unreachable, match="run the same command again"), feeding.watching():
        raise Unreachable("it is away", fix="start it")
