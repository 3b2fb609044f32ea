"""`headrace sql` without Spark: where statements end, how rows look, which server, the bar."""

from __future__ import annotations

import argparse
import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.options import add_server, server_of
from headrace.cli.progress import ProgressBar
from headrace.cli.rows import CELL_COLUMNS_MAX, csv_line, print_cells, shown, width
from headrace.cli.shell import STATEMENT_CHARACTERS_MAX, Shell
from headrace.cli.spark_progress import LOOK_SECONDS, QUIET_SECONDS, watch
from headrace.cli.sql import spark_errors, write_out
from headrace.cli.statements import all_statements, split_statements
from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError, Internal
from headrace.spark.options import Connection


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("", [], ""),
        (" ; ;; -- nothing\n;", [], ""),
        ("select 1", [], "select 1"),
        ("select 1;", ["select 1"], ""),
        ("a; b; c", ["a", "b"], "c"),
        ("select ';', \";\", `;`;", ["select ';', \";\", `;`"], ""),
        (r"select 'it\';s' ; x", [r"select 'it\';s'"], "x"),
        ("select 'it''s;' ; x", ["select 'it''s;'"], "x"),
        ("select 1 -- ; no\n + 2; x", ["select 1 -- ; no\n + 2"], "x"),
        ("select /* ; */ 1 - 2 / 3; x", ["select /* ; */ 1 - 2 / 3"], "x"),
        ("select 'open; x", [], "select 'open; x"),
        ("select 1 /* open; x", [], "select 1 /* open; x"),
        ("select `open; x", [], "select `open; x"),
        ("select 1 /* a /* b */ ; */; x", ["select 1 /* a /* b */ ; */"], "x"),
        ("/* a /* ; */ */ ; x", [], "x"),
        ("select 1 /* a /* b */ ; x", [], "select 1 /* a /* b */ ; x"),
        (r"select r'\'; x", [r"select r'\'"], "x"),
        (r"select R'\d;', R'\'; x", [r"select R'\d;', R'\'"], "x"),
        (r"select bar'\'; x' ; y", [r"select bar'\'; x'"], "y"),
    ],
)
def test_where_statements_end(text: str, statements: list[str], rest: str) -> None:
    assert split_statements(text) == (statements, rest)
    assert all_statements(text) == [*statements, *filter(None, [rest])]


def test_a_long_text_is_split_in_one_pass() -> None:
    text = "select '" + "x" * 1_000_000 + "'; " + "(" * 100_000
    statements, rest = split_statements(text)
    assert (len(statements), len(rest)) == (1, 100_000)


def test_a_statement_that_never_ends_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["select 1; select 'open", "x" * STATEMENT_CHARACTERS_MAX, "\\q"])
    ran: list[str] = []
    shell = Shell(ran.append, Connection("http://127.0.0.1:1"), lambda prompt: next(lines))
    while shell._turn():
        pass
    assert ran == []
    assert "longer than 1048576 characters" in capsys.readouterr().err


def test_a_reader_of_our_output_that_leaves_is_told_from_spark_that_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pyspark")
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb", buffering=0) as raw:
        output = io.TextIOWrapper(raw, write_through=True)
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(BrokenPipeError), spark_errors():
            write_out("row\n")
        monkeypatch.undo()
        output.detach()  # what it could not write is not tried again
    with pytest.raises(Internal, match="Spark ended by itself"), spark_errors():
        raise BrokenPipeError(32, "Broken pipe")


def test_a_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [("name", "string"), ("n", "bigint"), ("price", "decimal(10,2)")]
    rows = [("日本", "5", "1.50"), (None, "1000", None), ("a\tb", None, "20.00")]
    assert print_cells(columns, rows) is False
    assert capsys.readouterr().out == (
        "name     n  price\n"
        "----  ----  -----\n"
        "日本     5   1.50\n"
        "NULL  1000   NULL\n"
        "a\\tb  NULL  20.00\n"
    )
    assert print_cells([("x", "string")], [("y" * 500,)]) is True


@pytest.mark.parametrize("cell", ["x" * 81, "日" * 41, "\x1b" * 80, "e\u0301" * 300])
def test_a_long_cell_is_cut(cell: str) -> None:
    text, cut = shown(cell)
    assert cut and text.endswith("…") and width(text) <= CELL_COLUMNS_MAX


def test_csv_is_read_back(tmp_path: Path) -> None:
    cells = ["plain", "", 'say "x"', "a,b", "two\nlines", " kept "]
    assert next(csv.reader(io.StringIO(csv_line(cells)), strict=True)) == cells
    assert csv_line(["", None]) == '"",\n'


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_server(parser)
    return parser.parse_args(arguments)


def test_which_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HEADRACE_URL", "HEADRACE_TOKEN"):
        monkeypatch.setenv(name, "")
    assert server_of(parse()) == ("http://127.0.0.1:4000", None, None)
    monkeypatch.setenv("HEADRACE_URL", "http://a:1")
    monkeypatch.setenv("HEADRACE_TOKEN", "from-the-variable")
    assert server_of(parse()) == ("http://a:1", "from-the-variable", None)
    (tmp_path / "key").write_text("from-the-file\n", encoding="utf-8")
    given = server_of(parse("--url", "https://b", "--token-file", str(tmp_path / "key")))
    assert given == ("https://b", "from-the-file", None)
    assert "from-the-file" not in repr(given)
    with pytest.raises(ConfigError, match="name a file that holds an API key"):
        server_of(parse("--token-file", str(tmp_path / "absent")))


def test_the_bar_waits_two_seconds_and_then_follows() -> None:
    clock, stream = ManualClock(), io.StringIO()
    bar = ProgressBar(stream, clock, shown=True)
    counts = iter([(0, 0), (1, 4), (4, 4)])
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        clock.advance(1000)
        return len(waited) > 3

    watch(lambda: next(counts), bar, wait)
    assert waited == [QUIET_SECONDS, LOOK_SECONDS, LOOK_SECONDS, LOOK_SECONDS]
    drawn = stream.getvalue().split("\r")[1:]
    assert [line.partition("% ")[2].strip() for line in drawn] == ["1 of 4 tasks", "4 of 4 tasks"]
    watch(lambda: pytest.fail("work that is over is not asked about"), bar, lambda seconds: True)


def test_help_does_not_wait_for_spark() -> None:
    program = (
        "import sys; from headrace.cli.main import build_parser; build_parser();"
        "print(', '.join({'pyspark', 'pyarrow', 'msgspec'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
