"""`headrace sql`: what is printed for rows of every kind, what is read, and how it fails."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.cli import sql
from headrace.cli.main import main
from headrace.cli.shell import Shell
from headrace.client import Client, Draft
from headrace.core.errors import DataLost
from headrace.spark.options import Connection
from headrace.spark.sql.tables import Tables
from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT

Capture = pytest.CaptureFixture[str]
Ask = Callable[..., tuple[int, str, str]]

ORDERS = 10


@pytest.fixture
def ask(spark: SparkSession, server: ServerProcess, capsys: Capture) -> Ask:
    """The command with the shared session: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["sql", "--url", server.url, *arguments])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def orders(server: ServerProcess) -> str:
    """A topic of ten records, with tags and meta."""
    with Client(server.url) as client:
        drafts = [
            Draft({"id": n, "price": n * 1.5, "name": "ü"}, tag=f"t{n % 2}", meta={"k": n})
            for n in range(1, ORDERS + 1)
        ]
        client.append("sql-orders", drafts, node="web-1")
        client.append("sql-payments:eu", [{"order": n} for n in (2, 3)])
    return "`sql-orders`"


def document(answer: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = answer
    assert code == 0, err
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_table_for_people(ask: Ask, orders: str) -> None:
    query = f"select tag, count(*) as n, sum(data:price::double) p from {orders} group by tag"
    code, out, err = ask(f"{query} order by tag; select max(seq), null as nothing from {orders}")
    assert (code, err) == (0, "")
    assert out == (
        "tag  n     p\n---  -  ----\nt0   5  45.0\nt1   5  37.5\n"
        "max(seq)  nothing\n--------  -------\n      10  NULL\n"
    )
    code, out, err = ask("--limit", "3", "--verbose", f"select seq from {orders} order by seq")
    assert out.split() == ["seq", "---", "1", "2", "3"]
    assert "sql-orders: up to seq 10 of epoch" in err
    assert "only the first 3 rows are shown" in err


def test_every_column_and_what_is_in_it(ask: Ask, orders: str) -> None:
    found = document(ask("--json", f"select * from {orders} where seq = 2"))
    assert [column["name"] for column in found["columns"]] == [
        "topic", "seq", "ts", "node", "tag", "meta", "data", "raw",
    ]  # fmt: skip
    ((topic, seq, ts, node, tag, meta, data, raw),) = found["rows"]
    assert (topic, seq, node, tag, meta) == ("sql-orders", 2, "web-1", "t0", {"k": 2})
    assert data == {"id": 2, "price": 3, "name": "ü"}
    assert raw == '{"id":2,"price":3.0,"name":"ü"}'
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", ts)
    cut = found["cut"]["sql-orders"]
    assert cut["head_seq"] == ORDERS and cut["epoch"] >= 1


def test_values_of_every_kind(ask: Ask, client: Client, topic: str) -> None:
    payloads = [b"\xff\x00", b"plain", b'{"a":[1,2.50]}', b"", b"\x1b[2J" + b"x" * 200]
    client.append_arrow(topic, pa.table({"data": payloads}))
    query = f"select seq, data, raw from `{topic}` order by seq"
    rows = document(ask("--json", query))["rows"]
    assert [row[2] for row in rows] == ["0xFF00", "plain", '{"a":[1,2.50]}', "", rows[4][2]]
    assert rows[4][2].startswith("\x1b[2Jxxx") and len(rows[4][2]) == 204
    assert [row[1] for row in rows] == [None, None, {"a": [1, 2.5]}, None, None]

    code, out, err = ask(query)
    assert "\x1b" not in out and "\\x1b[2Jxxx" in out, "a terminal is not made to obey"
    assert out.rstrip().endswith("x…") and "--format csv" in err
    code, out, err = ask("--format", "csv", f"select 1.10 as d, s, '' e, n, b from {VALUES}")
    assert (code, err) == (0, "")
    assert out == 'd,s,e,n,b\n1.10,"{""x"":1,""y"":[true]}","",,2026-01-31 12:00:00\n'
    found = document(ask("--json", f"select d, s, n, b, b from {VALUES}"))
    noon = "2026-01-31T12:00:00.000000Z"
    assert found["rows"] == [[10**37, {"x": 1, "y": [True]}, None, noon, noon]]
    local = "timestamp_ntz'2026-01-31"
    others = f"{local} 12:00:00.123456', double('nan'), map(1, {local}')"
    found = document(ask("--json", f"select {others}"))
    midnight = {"1": "2026-01-31T00:00:00.000000"}
    assert found["rows"] == [["2026-01-31T12:00:00.123456", "NaN", midnight]]
    assert document(ask("--json", "--limit", "2", "select id from range(9)"))["rows"] == [[0], [1]]
    assert document(ask("--json", "select 1 where false"))["rows"] == []


VALUES = (
    "(select struct(1 as x, array(true) as y) s, null as n, timestamp'2026-01-31 12:00:00Z' b,"
    " cast('10000000000000000000000000000000000000' as decimal(38, 0)) d)"
)


def test_a_statement_sees_what_came_before_it_and_joins_topics(
    ask: Ask, client: Client, topic: str, orders: str
) -> None:
    client.append(topic, [{"id": 1}])
    count = f"select count(*) from `{topic}`"
    assert document(ask("--json", count))["rows"] == [[1]]
    client.append(topic, [{"id": 2}])
    assert document(ask("--json", count))["rows"] == [[2]], "the view of before is gone"
    joined = document(
        ask(
            "--json",
            f"with o as (select * from {orders}) select o.seq, p.data:order::int, o.tag from o join"
            " `sql-payments:eu` p on o.data:id::int = p.data:order::int"
            f" where o.seq > (select min(seq) from `{topic}`) order by 1",
        )
    )
    assert joined["rows"] == [[2, 2, "t0"], [3, 3, "t1"]]
    assert joined["cut"].keys() == {"sql-orders", "sql-payments:eu", topic}


def test_the_source_is_asked_only_for_what_is_used(
    spark: SparkSession, server: ServerProcess, orders: str
) -> None:
    def scanned(statement: str) -> list[str]:
        with Tables(spark, Connection(server.url)).query(statement) as (frame, _):
            plan = frame._jdf.queryExecution().executedPlan().toString()
        return re.findall(r"BatchScan headrace\[([^\]]*)\]", re.sub(r"#\d+L?", "", plan))

    assert scanned(f"select count(*) from {orders}") == ["seq"]
    assert scanned(f"select data:id from {orders} where tag = 't0'") == ["tag, data"]
    assert scanned(f"select raw from {orders} order by ts") == ["ts, data"]
    assert scanned(f"select * from {orders}") == ["topic, seq, ts, node, tag, meta, data"]
    assert scanned(f"select a.seq, b.tag from {orders} a join {orders} b using (seq)") == [
        "seq, tag", "seq, tag",
    ]  # fmt: skip
    nested = f"select seq from {orders} where seq = (select max(data:id::int) from {orders})"
    assert "seq, data" in scanned(nested)


def test_pruning_changes_no_answer(
    spark: SparkSession, server: ServerProcess, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows as when the source is asked for everything."""
    statements = [
        f"select tag, max_by(data:name::string, seq) m from {orders} group by all order by tag",
        f"select * except (ts) from {orders} where meta:k::int % 3 = 0 order by seq",
        f"select * from (select *, lag(raw) over (order by seq) l from {orders}) where tag = 't1'"
        " order by seq",
        f"select distinct node, tag from {orders} union all select tag, node from {orders}"
        " order by 1, 2",
        f"select seq from {orders} o where exists (select 1 from `sql-payments:eu` p"
        " where p.data:order::int = o.data:id::int) order by seq",
        f"from {orders} |> where seq > 8 |> select data:id::int, raw |> order by 1",
        # Other conditions in other places: Spark keeps only one set of them for a view.
        f"select (select count(*) from {orders} where seq < 2), (select count(*) from {orders})",
        f"select seq from {orders} where seq < 3 union all select seq from {orders} where seq > 6"
        " order by 1",
    ]

    def answers() -> list[list[str]]:
        tables, found = Tables(spark, Connection(server.url)), []
        for statement in statements:
            with tables.query(statement) as (frame, _):
                found.append([str(row) for row in frame.collect()])
        return found

    pruned = answers()
    assert all(pruned)
    monkeypatch.setattr("headrace.spark.sql.tables.uses_of", lambda frame: {})
    assert answers() == pruned


def test_statements_that_are_not_queries(ask: Ask, orders: str) -> None:
    view = f"create temp view evens as select seq from {orders} where seq % 2 = 0"
    code, out, err = ask(f"{view}; select sum(seq) as s from evens; drop view evens")
    assert (code, out, err) == (0, " s\n--\n30\n", "")
    code, out, err = ask(f"describe {orders}")
    assert code == 0 and re.search(r"^data +variant", out, re.MULTILINE), err
    code, out, err = ask(f"explain select seq from {orders}")
    assert out.startswith("== Physical Plan ==\n") and "BatchScan headrace" in out


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("select * from `sql-order`", r"topic 'sql-order' does not exist; did you mean 'sql-order"),
        ("select *\nfro x", r"line 2, column \d+: .*[Ss]yntax error at or near 'x'"),
        ("select nope from {}", r"line 1, column 8: .*`nope` cannot be resolved\. Did you mean"),
        ("select a.b.c from a.b", r"there is no table 'a\.b'; if that is a topic, write `a\.b`"),
        ("select 1 / 0", "Division by zero"),
        ("select raise_error('as asked') from {} where seq = 1", "as asked"),
    ],
)
def test_an_error_is_one_line(ask: Ask, orders: str, statement: str, message: str) -> None:
    code, out, err = ask(statement.format(orders))
    assert (code, out) == (1, "")
    assert re.match(f"headrace: .*{message}", err), err
    assert err.count("\n") == 1 and "java" not in err.lower() and "Traceback" not in err


def test_wrong_use_is_said_before_spark_starts(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, server: ServerProcess, tmp_path: Path
) -> None:
    monkeypatch.setattr(sql, "start_spark", lambda *_: pytest.fail("Spark was started"))
    monkeypatch.setenv("HEADRACE_URL", server.url)
    for arguments, code, message in (
        (["--conf", "spark.x", "select 1"], 2, "--conf spark.x has no value"),
        (["--limit", "0", "select 1"], 2, "--limit 0 shows nothing"),
        (["-- only a comment"], 2, "there is no statement"),
        (["--url", "http://127.0.0.1:1", "select 1"], 1, "127.0.0.1:1 cannot be reached"),
        (["--token-file", str(tmp_path / "absent"), "select 1"], 2, "cannot read"),
    ):
        assert main(["sql", *arguments]) == code
        assert message in capsys.readouterr().err


def test_a_topic_made_anew_meanwhile_is_an_error(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str
) -> None:
    client.append(topic, [1, 2, 3])

    def interrupted() -> None:
        with Tables(spark, Connection(server.url)).query(f"select * from `{topic}`") as (frame, _):
            assert frame.count() == 3
            client.delete_topic(topic)
            client.append(topic, [4, 5, 6])

    with pytest.raises(DataLost, match="created again"):
        interrupted()


def test_two_topics_that_differ_in_case_are_not_mixed_up(
    ask: Ask, client: Client, topic: str
) -> None:
    client.append(topic, [1])
    client.append(topic.upper(), [1, 2])
    upper = f"select count(*) from `{topic.upper()}`"
    assert document(ask("--json", upper))["rows"] == [[2]]
    code, _, err = ask(f"{upper} where (select count(*) from `{topic}`) = 1")
    assert code == 1 and "are one name to SQL" in err


def test_statements_of_a_pipe(ask: Ask, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"-- two\nselect 1 as a;\nselect count(*) as b -- ;\nfrom {orders};\nselect 'x;y' as c"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    code, out, err = ask("--format", "csv")
    assert (code, out, err) == (0, "a\n1\nb\n10\nc\nx;y\n", "")


def test_the_shell(
    spark: SparkSession,
    server: ServerProcess,
    orders: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    lines = iter(
        [
            "\\?", "\\topics", "\\d sql-orders", "\\d sql-ordres", "select nope;", "",
            "select count(*)", f"  from {orders}; select 2 as two;", "\\q", "never read",
        ]
    )  # fmt: skip
    prompts = []

    def read_line(prompt: str) -> str:
        prompts.append(prompt)
        return next(lines)

    options = sql_options(server)
    connection = Connection(server.url)
    assert Shell(sql.Runner(options, {}, connection).run, connection, read_line).run() == 0
    assert next(lines) == "never read"
    assert prompts.count("headrace> ") == 8 and prompts.count("       -> ") == 1
    out, err = capsys.readouterr()
    assert re.search(r"^sql-orders +10 +10$", out, re.MULTILINE)
    assert "sql-orders: 10 records" in out and "data VARIANT" in out
    assert out.endswith("count(1)\n--------\n      10\ntwo\n---\n  2\n")
    assert "topic 'sql-ordres' does not exist" in err and "`nope` cannot be resolved" in err
    assert (tmp_path / "headrace" / "sql_history").exists()


def sql_options(server: ServerProcess) -> Any:
    from headrace.cli.main import build_parser

    return build_parser().parse_args(["sql", "--url", server.url])


@pytest.mark.slow
def test_a_process_of_its_own_on_a_terminal(
    server: ServerProcess, orders: str, tmp_path: Path
) -> None:
    """From nothing to rows: Spark starts quietly, says so while it does, and leaves no litter."""
    ours, theirs = pty.openpty()
    statement = f"select sum(seq) as s from {orders} where data:name::string = 'ü'"
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "sql", "--conf", "spark.ui.enabled=false", statement],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "HEADRACE_URL": server.url,
            "HEADRACE_SPARK_MASTER": "local[1]",
        },
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    out = process.communicate()[0].decode()
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert (process.returncode, out) == (0, " s\n--\n55\n"), said
    assert said.startswith("starting Spark ...\r")
    left = re.sub(r"\[[# ]*\] +\d+% \d+ of \d+ tasks", "", said.removeprefix("starting Spark ..."))
    assert left.strip() == "", said
    assert list(tmp_path.iterdir()) == []
