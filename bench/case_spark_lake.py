"""The lake by Spark: sync, verification, compaction, typed reads, replay and import.

A sync goes into a new lake each round, and its time is all of it: planning, tasks, the commit.
What is compacted are files as a sync every few seconds would leave them.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import spark_data
from bench.load import cpu_seconds
from bench.measure import Measured, step
from bench.served import serving
from bench.spark_run import Took, spark, took
from bench.spark_typed import typed_aggregate
from bench.wires import HOST
from headrace.client import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.lake.tables.table import Table
    from headrace.lake.writing.sync import Sync

TOPIC = "orders"
ROWS = 3_000_000
ROWS_QUICK = 20_000
ROUNDS = 3
SMALL_FILES = 1_000
SMALL_ROWS = 10_000
SMALL_FILES_QUICK = 20
SMALL_ROWS_QUICK = 500
DDL = "order BIGINT, customer STRING, amount DOUBLE, note STRING"


def run(directory: str, quick: bool) -> dict[str, Measured]:
    rows = ROWS_QUICK if quick else ROWS
    with serving(f"{directory}/server", **spark_data.settings(quick)) as server:
        url = f"http://{HOST}:{server.port}"
        spark_data.fill(url, TOPIC, rows, others=f"{directory}/others")
        found: dict[str, Measured] = step(
            "case_spark_lake:lake",
            directory=directory,
            url=url,
            pid=server.pid,
            rows=rows,
            rounds=1 if quick else ROUNDS,
            small=[SMALL_FILES_QUICK, SMALL_ROWS_QUICK] if quick else [SMALL_FILES, SMALL_ROWS],
        )
    return found


def lake(
    directory: str, url: str, pid: int, rows: int, rounds: int, small: list[int]
) -> dict[str, Measured]:
    """A step: everything in one session."""
    with spark(f"{directory}/scratch") as session, Client(url) as client:
        bench = _Bench(directory, url, client, session, rows)
        found = bench.syncs(rounds)
        found |= bench.verified(rounds)
        found |= bench.typed(quick=rounds == 1)
        found |= bench.brought_back(rounds, pid)
        found |= bench.compacted(*small)
    return found


class _Bench:
    """One session and its lakes."""

    def __init__(
        self, directory: str, url: str, client: Client, session: SparkSession, rows: int
    ) -> None:
        from headrace.lake.tables.tasks import run_on
        from headrace.lake.writing.variants import copy_on
        from headrace.spark.options import Connection

        self._directory = directory
        self._client = client
        self._session = session
        self._rows = rows
        self._connection = Connection(url)
        self._runner = run_on(session)
        self._copier = copy_on(session)

    def _sync(self, name: str, **how: Any) -> Sync:
        from headrace.lake.tables.layout import Lake
        from headrace.lake.writing.sync import Sync

        lake = Lake(f"{self._directory}/{name}")
        return Sync(self._client, self._connection, lake, self._runner, **how)

    def _table(self, name: str) -> Table:
        from headrace.lake.tables.layout import Lake
        from headrace.lake.tables.table import Table

        lake = Lake(f"{self._directory}/{name}")
        (table,) = lake.tables()
        return Table(lake, table)

    def _synced(self, name: str, **how: Any) -> None:
        shutil.rmtree(f"{self._directory}/{name}", ignore_errors=True)
        (result,) = self._sync(name, **how).run([TOPIC])
        assert (result.error, result.rows) == (None, self._rows), result

    def syncs(self, rounds: int) -> dict[str, Measured]:
        """The first of each is not counted."""
        plain = [took(partial(self._synced, "lake")) for _ in range(rounds + 1)][1:]
        typed = [took(partial(self._synced, "typed", value_ddl=DDL)) for _ in range(rounds)]
        java = partial(self._synced, "variant", value_ddl="VARIANT", copier=self._copier)
        variant = [took(java) for _ in range(rounds)]
        size = sum(file.size for file in self._table("lake").files())
        return {
            "spark_lake_sync": self._rates(plain),
            "spark_lake_sync_cpu": [self._rows / one.cpu for one in plain],
            "spark_lake_sync_typed": self._rates(typed),
            "spark_lake_sync_variant": self._rates(variant),
            "spark_lake_bytes": size / self._rows,
        }

    def _rates(self, rounds: list[Took]) -> list[float]:
        return [self._rows / one.wall for one in rounds]

    def verified(self, rounds: int) -> dict[str, Measured]:
        from headrace.lake.writing.verify import verify

        def work() -> None:
            found = verify(self._table("lake"), self._runner, self._client, self._connection)
            assert (found.ok, found.compared) == (True, self._rows), found.findings

        return {"spark_lake_verify": self._rates([took(work) for _ in range(rounds)])}

    def typed(self, quick: bool) -> dict[str, Measured]:
        """An aggregate over typed columns, beside Spark's own over the same files."""
        copy = f"{self._directory}/plain"
        return typed_aggregate(
            self._session, self._connection, self._table("typed"), copy, self._rows, quick
        )

    def brought_back(self, rounds: int, pid: int) -> dict[str, Measured]:
        """From here, as the commands do it; what the server still seals is part of what it took."""
        from headrace.lake.loading.importing import import_files
        from headrace.lake.loading.replay import Wanted, replay

        lines = sorted(map(str, Path(f"{self._directory}/others/lines").iterdir()))
        how: dict[str, Any] = {"workers": os.cpu_count()}
        found: dict[str, Measured] = {}
        for name, work in {
            "replay": lambda to: replay(self._table("lake"), Wanted(to), self._connection, **how),
            "import": lambda to: import_files(lines, to, self._connection, format="jsonl", **how),
        }.items():
            taken, server = [], []
            for number in range(rounds):
                to, before = f"{name}-{number}", cpu_seconds([pid])
                taken.append(took(partial(work, to)))
                assert self._client.topic(to).head_seq == self._rows
                spark_data.sealed(self._client, to)
                server.append((cpu_seconds([pid]) - before) / self._rows * 1e6)
                self._client.delete_topic(to)
            found[f"spark_lake_{name}"] = self._rates(taken)
            found[f"spark_lake_{name}_cpu"] = [one.cpu / self._rows * 1e6 for one in taken]
            found[f"spark_lake_{name}_server_cpu"] = server
        return found

    def compacted(self, files: int, rows: int) -> dict[str, Measured]:
        """Many small files, made by cutting the rows of the lake."""
        from headrace.lake.writing.compact import compact

        table = self._small(files, rows)
        done = took(partial(compact, table, self._runner))
        assert sum(file.rows for file in table.fresh().files()) == files * rows
        assert len(table.fresh().files()) < files
        return {"spark_lake_compact": done.wall}

    def _small(self, count: int, rows: int) -> Table:
        import pyarrow as pa

        from headrace.core.clock import SystemRandom
        from headrace.lake.tables.columns import TS, file_schema
        from headrace.lake.tables.files import DayFiles, as_stored
        from headrace.lake.tables.layout import Identity, Lake
        from headrace.lake.tables.table import create_table

        lake = Lake(f"{self._directory}/small")
        identity = Identity("small", 1, 1)
        table = create_table(lake, identity, None)
        schema, store, found = file_schema(None), lake.store(), []
        data = spark_data.records(0, rows).cast(pa.binary())
        empty = pa.nulls(rows, pa.utf8())
        for number in range(count):
            columns: dict[str, Any] = {
                "seq": pa.array(range(number * rows + 1, (number + 1) * rows + 1), pa.int64()),
                "ts": pa.repeat(pa.scalar(1_767_225_600_000_000, pa.int64()), rows).cast(TS),
                "kind": pa.repeat("json", rows),
                "data": data,
            }
            batch = pa.record_batch({name: columns.get(name, empty) for name in schema.names})
            writer = DayFiles(store, table.name, "small", schema, SystemRandom())
            writer.write(as_stored(batch, schema))
            found += writer.close()
        table.commit(add=found, marks={identity.app_id: count * rows}, note={})
        return table.fresh()
