"""What may be the SQL of a pipeline, and where a refusal points."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.core.errors import Internal, SqlRefused
from headrace.core.limits import pipeline_sql_bytes_max, pipeline_sql_depth_max
from headrace.pipelines.registry.sql_check import check_sql

SOURCES = ["orders", "Users"]
MINUTE = "window(ts, '1 minute')"
SESSION = "session_window(ts, '5 minutes')"
DEPTH = pipeline_sql_depth_max


@pytest.mark.parametrize(
    ("sql", "tables", "stateful"),
    [
        ("select * from orders", "orders", False),
        ("SELECT o.data.id FROM ORDERS o WHERE tag IN ('a', 'b')", "orders", False),
        ("from orders select seq", "orders", False),
        ("select data:items[0].name::string n, o.data:id::bigint from orders o", "orders", False),
        ("select seq, i from orders lateral view explode(data.items) t as i", "orders", False),
        ("select count(*) from orders", "orders", True),
        ("select distinct tag from orders", "orders", True),
        (f"select {MINUTE} w, count(*) n from orders group by {MINUTE}", "orders", True),
        (f"select {SESSION}.start, max(seq) from orders group by {SESSION}", "orders", True),
        ("select a.seq from orders a join users b on a.tag = b.tag", "orders users", True),
        ("select seq from orders where tag in (select tag from users)", "orders users", True),
        ("select tag from orders union all select tag from users", "orders users", True),
        ("with big as (select * from orders where seq > 9) select * from big", "orders", False),
        ("with orders as (select * from orders where seq > 9) select * from orders", "orders",
         False),
        ("with a as (select * from orders), b as (select * from a) select * from b", "orders",
         False),
        ("with a as (select * from orders) select * from a where seq in (select seq from a)",
         "orders", True),
        ("select /*+ broadcast(users) */ seq from orders", "orders", False),
        ("select seq from orders |> where seq > 3", "orders", False),
        ("select data.order, data.user, o.data.select, data.end from orders o", "orders", False),
        ("select `data`.`the key`, data.`a` from `orders`", "orders", False),
        ("select '; drop table x' from orders -- ; delete", "orders", False),
        ("select " + "(" * DEPTH + "1" + ")" * DEPTH + " from orders", "orders", False),
        ("select " + "case when a then " * DEPTH + "1" + " end" * DEPTH + " from orders", "orders",
         False),
        ("select * from " + "(select * from " * DEPTH + "orders" + ") x" * DEPTH, "orders", False),
        ("select 1 from orders where " + " or ".join(["seq = 1"] * 500), "orders", False),
    ],
)  # fmt: skip
def test_what_is_taken(sql: str, tables: str, stateful: bool) -> None:
    facts = check_sql(sql, SOURCES)
    assert facts.tables == set(tables.split())
    assert facts.stateful is stateful


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("insert into orders select 1", "INSERT is not a query"),
        ("create table x as select * from orders", "CREATE is not a query"),
        ("drop table orders", "DROP is not a query"),
        ("set spark.x = 1", "SET is not a query"),
        ("add jar 'x.jar'", "is not a query"),
        ("explain select * from orders", "COMMAND is not a query"),
        ("values (1)", "VALUES is not a query"),
        ("select 1 from orders; select 2 from orders", "2 statements"),
        ("-- nothing", "0 statements"),
        ("select 1", "reads no source"),
        ("select * from range(9)", "reads no source"),
        ("select transform(data) using 'sh' as (x) from orders", "TRANSFORM runs a script"),
        ("select reflect('java.lang.System', 'exit', 1) from orders", r"reflect\(\) is not for"),
        ("select `Java_Method`('a', 'b') from orders", r"Java_Method\(\) is not for"),
        ("select system.builtin.try_reflect('a', 'b') from orders", "is not for pipelines"),
        ("select * from identifier('orders')", r"identifier\(\) is not for"),
        ("select * from parquet.`/etc/passwd`", "column 15: parquet.`/etc/passwd` is not a source"),
        ("select * from default.orders", "is not a source"),
        ("select * from read_files('/x')", r"read_files\(\) is no table"),
        ("with a as (select * from b), b as (select * from orders) select * from a",
         "'b' is not a declared"),
        ("with a as (select * from secret) select * from a, "
         "(with secret as (select * from orders) select * from secret) x", "'secret' is not"),
        ("with recursive a as (select 1 n from orders union all select n + 1 from a) "
         "select * from a", "'a' is not a declared"),
        ("select * from orders where seq in (with t as (select 1 x) select x from t) "
         "union all select * from t", "'t' is not a declared"),
        ("select from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/x')) from orders",
         r"from_xml\(\) is not for"),
        ("select from_protobuf(raw, 'm', '/x') from orders", r"from_protobuf\(\) is not for"),
        ("select from_avro(raw, '{}', map('avroSchemaUrl', '/x')) from orders", "is not for"),
        ("select * from python_worker_logs()", "is no table"),
        ("select :x from orders", "has a parameter"),
        ("select ${x} from orders", "has a parameter"),
        ("select " + "(" * (DEPTH + 1) + "1" + ")" * (DEPTH + 1) + " from orders", "too deeply"),
        ("select " + "- " * 900 + "1 from orders", "too deeply"),
        ("select " + "not " * 900 + "a from orders", "too deeply"),
        ("select " + "~ " * 4_000 + "a from orders", "too deeply"),
        ("select 1 from orders" + " " * pipeline_sql_bytes_max, "bytes"),
    ],
)  # fmt: skip
def test_what_is_refused(sql: str, said: str) -> None:
    with pytest.raises(SqlRefused, match=said) as raised:
        check_sql(sql, SOURCES)
    assert raised.value.fix


@pytest.mark.parametrize(
    ("sql", "line", "column"),
    [
        ("select seq\nfrom orders\nwhere", 3, 1),
        ("select seq +\n  ) from orders", 2, 3),
        ("select *\nfrom   other", 2, 8),
        ("select *\nfrom orders join\n    tables t", 3, 5),
        ("select 'abc\nfrom orders", 1, 8),
        ("select 1 /* no end\n", 1, 10),
        ("select `a\n from orders", 1, 8),
        ("select (1 + 2 from orders", 1, 15),
    ],
)
def test_where_it_is_wrong(sql: str, line: int, column: int) -> None:
    with pytest.raises(SqlRefused) as raised:
        check_sql(sql, SOURCES)
    assert raised.value.detail == {"line": line, "column": column}
    assert str(raised.value).startswith(f"line {line}, column {column}: ")


def test_a_server_starts_without_the_parser_and_without_spark() -> None:
    program = (
        "import sys, headrace.cli.compose\n"
        "loaded = [m for m in ('sqlglot', 'pyspark', 'headrace.client', 'headrace.spark')"
        " if m in sys.modules]\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_server_without_the_parser_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    with pytest.raises(Internal, match=r"cannot check SQL; pip install 'headrace\[pipelines\]'"):
        check_sql("select 1 from orders", SOURCES)
