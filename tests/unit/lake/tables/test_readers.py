"""A lake is for everybody: delta-rs, Polars and DuckDB open its tables as they are."""

from __future__ import annotations

import datetime

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from headrace.lake.tables.gaps import gaps_name
from headrace.lake.tables.table import Table
from tests.support.lakes import Bench

ORDERS = [{"id": n, "price": n / 2, "items": ["tea"] * (n % 3)} for n in range(1, 101)]
DDL = "id BIGINT, price DOUBLE, items ARRAY<STRING>"


@pytest.fixture
def table(bench: Bench, topic: str) -> Table:
    bench.client.append(topic, ORDERS)
    bench.client.delete_records(topic, before_seq=11)
    assert bench.sync(topic, value_ddl=DDL).error is None
    return bench.table(topic)


def test_delta_rs(table: Table) -> None:
    rows = DeltaTable(table.lake.uri(table.name)).to_pyarrow_table().sort_by("seq").to_pylist()
    assert [row["value"] for row in rows] == ORDERS[10:]
    assert {row["day"] for row in rows} == {row["ts"].date() for row in rows}


def test_polars(table: Table) -> None:
    frame = pl.scan_delta(table.lake.uri(table.name)).filter(pl.col("seq") > 90)
    found = frame.select("seq", "day", "ts", pl.col("value").struct.field("price")).collect()
    assert found.sort("seq")["price"].to_list() == [n / 2 for n in range(91, 101)]
    assert isinstance(found["day"][0], datetime.date)
    assert found["ts"].dtype == pl.Datetime("us", "UTC")
    gaps = pl.read_delta(table.lake.uri(gaps_name(table.identity)))
    assert gaps.select("first", "last", "reason").rows() == [(1, 10, "delete")]


def test_duckdb(table: Table) -> None:
    orders = DeltaTable(table.lake.uri(table.name)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("orders", orders)
        (found,) = connection.execute(
            "select count(*), sum(value.price), max(seq), count(distinct day) from orders"
        ).fetchall()
        (last,) = connection.execute("select data from orders where seq = 100").fetchall()
    assert found == (90, sum(order["price"] for order in ORDERS[10:]), 100, 1)
    assert last == (b'{"id":100,"price":50.0,"items":["tea"]}',)
