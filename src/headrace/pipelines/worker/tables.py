"""Rows of a pipeline as a Delta table: each batch one commit, once.

Spark writes the files of a batch into a directory of their own, and the commit makes them visible;
it carries the pipeline's app id and the number of the batch, so that a batch that runs again is
found to be there.  Output mode `complete` replaces the rows of the batch before in the same commit.
The table is read through its log, never by listing the directory: files of a batch that failed may
lie there until they are removed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from headrace.core.clock import SystemClock, SystemRandom
from headrace.core.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BATCH_BYTES: Final = 8
# Delta knows times in microseconds, Spark's Parquet by default in a form of its own.
WRITE_SETTINGS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


class TableWriter:
    """Adds batches to the table of one pipeline."""

    def __init__(self, root: str, table: str, app_id: str, *, replaces: bool) -> None:
        self._path = f"{root.rstrip('/')}/{table.replace(':', '~')}"
        self._name = table
        self._app_id = app_id
        self._replaces = replaces
        _check_installed()

    def write(self, batch: DataFrame, number: int) -> None:
        """Called by Spark for each batch."""
        from pyspark.sql import Observation, functions

        table = self._open()
        if table is not None and _last(table, self._app_id) >= number:
            # The rows are there; what Spark is to remember of them comes of computing them.
            batch.write.format("noop").mode("overwrite").save()
            return
        rows = plain(batch)
        for name, value in WRITE_SETTINGS.items():
            batch.sparkSession.conf.set(name, value)
        counted = Observation()
        directory = SystemRandom().bytes(BATCH_BYTES).hex()
        place = f"{self._path}/{directory}"
        try:
            watched = rows.observe(counted, functions.count(functions.lit(1)).alias("rows"))
            watched.write.option("compression", "zstd").parquet(place)
            count = counted.get["rows"]
            if count or self._replaces:
                self._commit(table, rows.schema, _files(batch, place), directory, number)
            else:
                _remove(batch, place)
        except BaseException:
            with contextlib.suppress(Exception):
                _remove(batch, place)
            raise

    def _open(self) -> DeltaTable | None:
        from deltalake import DeltaTable

        return DeltaTable(self._path) if DeltaTable.is_deltatable(self._path) else None

    def _commit(
        self,
        table: DeltaTable | None,
        schema: StructType,
        files: list[tuple[str, int]],
        directory: str,
        number: int,
    ) -> None:
        from deltalake import DeltaTable, Schema
        from deltalake.transaction import AddAction, CommitProperties, Transaction
        from pyspark.sql.pandas.types import to_arrow_schema

        wanted = Schema.from_arrow(to_arrow_schema(schema, timezone="UTC"))
        if table is None:
            # Somebody else may have made it meanwhile: then it is that one.
            table = DeltaTable.create(self._path, wanted, mode="ignore", name=self._name)
        if [(f.name, f.type) for f in table.schema().fields] != [
            (f.name, f.type) for f in wanted.fields
        ]:
            raise InvalidRequest(
                f"the table {self._name!r} has other columns than the result now has",
                fix="name another table as the destination",
            )
        now_ms = SystemClock().wall_ms()
        actions: list[Any] = [
            AddAction(f"{directory}/{name}", size, {}, now_ms, True, "{}") for name, size in files
        ]
        table.create_write_transaction(
            actions,
            "overwrite" if self._replaces else "append",
            table.schema(),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(self._app_id, number)]
            ),
        )


def plain(frame: DataFrame) -> DataFrame:
    """The same rows with types that every reader of Delta tables has: a VARIANT as its JSON."""
    from pyspark.sql import functions

    columns = [
        functions.to_json(frame[f"`{field.name}`"]).alias(field.name)
        if field.dataType.typeName() == "variant"
        else frame[f"`{field.name}`"]
        for field in frame.schema.fields
    ]
    return frame.select(*columns)


def _last(table: DeltaTable, app_id: str) -> int:
    found = table.transaction_version(app_id)
    return -1 if found is None else found


def _files(batch: DataFrame, place: str) -> list[tuple[str, int]]:
    """The data files that Spark wrote, by name and size."""
    path, files = _hadoop(batch, place)
    return sorted(
        (status.getPath().getName(), status.getLen())
        for status in files.listStatus(path)
        if status.getPath().getName().endswith(".parquet")
    )


def _remove(batch: DataFrame, place: str) -> None:
    path, files = _hadoop(batch, place)
    files.delete(path, True)


def _hadoop(batch: DataFrame, place: str) -> tuple[Any, Any]:
    session = batch.sparkSession
    java: Any = session._jvm
    path = java.org.apache.hadoop.fs.Path(place)
    return path, path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())


def _check_installed() -> None:
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise ConfigError(
            "this worker cannot write tables", fix="pip install 'headrace[lake]'"
        ) from None
