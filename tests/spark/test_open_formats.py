"""A sealed file is an Arrow file: other programs open it as it is, and see the records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import Client
from headrace.testing.process import ServerProcess
from tests.support.sealed_topics import SETTINGS, fill, rows_of, seal

ROWS = 3_000
COLUMNS = ["data", "tag", "node", "meta"]


def test_polars_pandas_and_duckdb_see_the_records(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server(**SETTINGS)
    with Client(server.url) as client:
        fill(client, "a", ROWS)
        seal(client, "a")
        found = client.segments("a")
        times = client.diff_arrow("a", limit=ROWS).table["ts"].cast(pa.int64()).to_pylist()
    paths = [file.location for file in found.files]
    assert all(file.tier == "hot" and Path(file.location).is_file() for file in found.files)
    written = rows_of(1, ROWS).to_pylist()

    # Arrow, mapped into memory; a file may hold rows of other topics.
    tables = []
    for path in paths:
        with pa.memory_map(path) as file:
            tables.append(pa.ipc.open_file(file).read_all())
    whole = pa.concat_tables(tables, promote_options="permissive")
    mine = whole.filter(pc.equal(whole["topic_id"], pa.scalar(found.topic_id, pa.uint64())))
    assert mine["seq"].to_pylist() == list(range(1, ROWS + 1))

    # In the file it is the bytes of the JSON.
    written = [{**row, "meta": row["meta"] and row["meta"].encode()} for row in written]
    condition = pl.col("topic_id") == found.topic_id
    frame = pl.concat([pl.read_ipc(path) for path in paths], how="diagonal")
    ours = frame.filter(condition).sort("seq")
    assert ours["ts"].to_list() == times
    assert ours.select(COLUMNS).to_dicts() == written
    lazy = pl.concat([pl.scan_ipc(path) for path in paths], how="diagonal")
    assert lazy.filter(condition).select(pl.len()).collect().item() == ROWS

    parts = [pd.read_feather(path, columns=["topic_id", "seq", *COLUMNS]) for path in paths]
    frames = pd.concat(parts, ignore_index=True)
    rows = frames[frames["topic_id"] == found.topic_id].sort_values("seq")
    assert rows["seq"].tolist() == list(range(1, ROWS + 1))
    for name in COLUMNS:
        values = [None if pd.isna(value) else value for value in rows[name]]
        assert values == [row[name] for row in written], name

    with duckdb.connect() as database:
        database.register("sealed", whole)
        tagged = database.execute(
            "SELECT tag, count(*), sum(seq) FROM sealed WHERE topic_id = ? GROUP BY tag ORDER BY 1",
            [found.topic_id],
        ).fetchall()
    expected: dict[str | None, tuple[int, int]] = {}
    for seq, row in enumerate(written, start=1):
        count, total = expected.get(row["tag"], (0, 0))
        expected[row["tag"]] = (count + 1, total + seq)
    assert {tag: (count, total) for tag, count, total in tagged} == expected
