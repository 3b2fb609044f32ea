"""Lakes for tests: what is in a table by another reader than ours, and a writer that can die."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from headrace.client import Client
from headrace.lake.loading.importing import import_files
from headrace.lake.tables.gaps import gaps_name
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.sync import Sync
from headrace.lake.writing.sync_result import Result
from headrace.spark.options import Connection
from headrace.testing.process import ServerProcess

# What a server takes as JSON and a typed column, or Java, may not.
ODD_JSON = [
    b'{"n": 99999999999999999999999999}',
    b'{"n": 1e400}',
    b'{"n": 1.0}',
    b'{"n": -0}',
    b'{"n": 1, "n": 2}',
    b'{"a": "\\u0000"}',
    b'{"at": "2026-02-30T00:00:00Z"}',
    b'{"at": "+292278994-08-17T07:12:55.807Z"}',
    b'{"d": 1e-400}',
    b'{"d": 12345678901234567890.123456789}',
    b'{"l": {"not": "a list"}}',
    b'{"l": [1, "x", null]}',
    b'{"m": {"": 1, "k": "x"}}',
    b" \t{}\r\n",
    b"null",
    b'"{}"',
    b"[" * 500 + b"]" * 500,
    b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}",
]


class Died(BaseException):
    """A writer ended here, and nothing of it ran any more."""


def dies_at(step: str, count: int = 1) -> Callable[[str], None]:
    """Ends a sync when it has done this step for the `count`th time."""
    seen = 0

    def at(done: str) -> None:
        nonlocal seen
        seen += done == step
        if done == step and seen == count:
            raise Died(step)

    return at


class Bench:
    """A server, a client and a lake of one test."""

    def __init__(
        self, server: ServerProcess, client: Client, lake: Lake, token: str | None = None
    ) -> None:
        self.server = server
        self.client = client
        self.lake = lake
        self._token = token

    @property
    def connection(self) -> Connection:
        return Connection(self.server.url, self._token)

    def writer(self, **how: Any) -> Sync:
        return Sync(self.client, self.connection, self.lake, how.pop("runner", run_inline), **how)

    def sync(self, topic: str, **how: Any) -> Result:
        (result,) = self.writer(**how).run([topic])
        return result

    def table(self, topic: str) -> Table:
        epoch = self.client.topic(topic).epoch
        (name,) = [name for name in self.lake.tables() if name.startswith(f"{epoch}-")]
        return Table(self.lake, name)


def rows_in(table: Table) -> list[dict[str, Any]]:
    """Every row, by Delta's own reader, in the order of seqs."""
    found = table.fresh().delta.to_pyarrow_table()
    return found.sort_by("seq").to_pylist()


def gaps_in(table: Table) -> list[tuple[int, int, str]]:
    """The gaps that the table names, by Delta's own reader."""
    table = table.fresh()
    version = table.place.gaps_version
    if version is None:
        return []
    found: pa.Table = DeltaTable(
        table.lake.uri(gaps_name(table.identity)), version
    ).to_pyarrow_table()
    return [
        (row["first"], row["last"], row["reason"]) for row in found.sort_by("first").to_pylist()
    ]


def accounted(table: Table) -> int:
    """Every seq from 1 to the watermark is a row once or in one gap; returns the watermark."""
    seqs = [row["seq"] for row in rows_in(table)]
    for first, last, _ in gaps_in(table):
        seqs += range(first, last + 1)
    mark = table.fresh().place.watermark
    assert sorted(seqs) == list(range(1, mark + 1))
    return mark


def bring(bench: Bench, to: str, *paths: Path, **how: Any) -> Any:
    runner = how.pop("runner", None)
    return import_files([str(path) for path in paths], to, bench.connection, runner, **how)


def data(bench: Bench, topic: str) -> list[str]:
    return [record[1].decode() for record in records(bench.client, topic)]


Record = tuple[Any, ...]


def records(client: Client, topic: str) -> list[Record]:
    """Kind, data, tag, node and meta of each record, in order."""
    found: list[Record] = []
    seq = 0
    while True:
        page = client.diff_arrow(topic, seq)
        for row in page.table.to_pylist():
            found.append((row["kind"], row["data"], row["tag"], row["node"], row["meta"]))
        if page.caught_up:
            return found
        seq = page.next_from_seq
