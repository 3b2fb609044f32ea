"""A topic's past in SQL: rows of the lake, without what was deleted since.

The rules it owns: Spark is given exactly the files of one version that can have rows a statement
wants, by the statistics in Delta's log.  What retention took from the server is shown.  What
somebody deleted is not, as far as the server still knows of it: above the last seq that retention
took.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from headrace.api.segments import Manifest
from headrace.core.errors import ConfigError, NotFound
from headrace.core.lru import LruMap
from headrace.lake.sql.deleted_rows import Deleted, deleted_in, nothing_deleted, without
from headrace.lake.tables.columns import CONTENT_TYPE, HEADERS, VALUE, VARIANT, Values, file_schema
from headrace.lake.tables.files import DataFile, read_rows, shared_out
from headrace.lake.tables.gaps import read_gaps
from headrace.lake.tables.layout import Identity, Lake, is_table, slug_of
from headrace.lake.tables.seq_sets import DELETED
from headrace.lake.tables.table import Table, delta_errors
from headrace.lake.writing.variants import VALUE_OF_JSON
from headrace.spark.ddl import fields_of
from headrace.spark.reading.columns import HEADERS as HEADERS_TYPE
from headrace.spark.sql.archive import Loss
from headrace.spark.sql.failures import file_gone
from headrace.spark.sql.used_columns import Bounds
from headrace.storage.files.store import Store

# Tables that a session keeps open: to look again is then to read what was committed since.
TABLES_MAX: Final = 64
# Up to this many files are opened whatever a statement asks for: choosing takes longer.
FILES_LIGHT_MAX: Final = 16
# What a task that reads objects is given, about.
TASK_BYTES_MAX: Final = 64 << 20
_US_PER_MS: Final = 1_000
_PATTERN: Final = re.compile(r"[{}\[\]*?\\]")

_TYPES: Final[dict[str, DataType]] = {
    "seq": LongType(),
    "ts": TimestampType(),
    "node": StringType(),
    "tag": StringType(),
    "meta": StringType(),
    "kind": StringType(),
    "data": BinaryType(),
    CONTENT_TYPE: StringType(),
    HEADERS: HEADERS_TYPE,
}
# A file that is gone or damaged is an error, whatever the session says.
_READING: Final = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
}


class LakeArchiveTables:
    """Answers SQL from a lake as far as that goes."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._open: LruMap[str, LakeTopicLife] = LruMap(TABLES_MAX)

    def look(self, topic: str, epoch: int) -> LakeTopicLife | None:
        """The table of a topic in one of its lives, as it is now."""
        found = self.table(f"{epoch}-{slug_of(topic)}")
        if found is not None and found.topic != topic:
            raise _another(found.name, found.topic, topic)
        return found

    def table(self, name: str) -> LakeTopicLife | None:
        """A table by its name, as it is now."""
        if not is_table(name):
            return None
        known = self._open.pop(name)
        try:
            life = (
                LakeTopicLife(self._spark, Table(self._lake, name))
                if known is None
                else known.now()
            )
        except NotFound:
            return None
        return self._open.put(name, life)

    def names_of(self, topic: str) -> list[str]:
        """The tables of a topic, the latest of its lives first."""
        ending = f"-{slug_of(topic)}"
        found = [self.table(name) for name in self._lake.tables() if name.endswith(ending)]
        lives = [life for life in found if life is not None and life.topic == topic]
        return [life.name for life in sorted(lives, key=lambda life: -life.epoch)]


class LakeTopicLife:
    """One table at one version."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._spark = spark
        self._table = table
        self._lake = table.lake
        self._version = table.version
        self._files = table.files()
        self._place = table.place
        self._losses: list[Loss] | None = None

    def now(self) -> LakeTopicLife:
        """The same table as it is now; itself if nothing was committed since."""
        with delta_errors(self.name):
            self._table.delta.update_incremental()
        if self._table.version == self._version:
            return self
        return LakeTopicLife(self._spark, self._table)

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def topic(self) -> str:
        return self._table.identity.topic

    @property
    def epoch(self) -> int:
        return self._table.identity.epoch

    @property
    def to_seq(self) -> int:
        return self._place.watermark

    @property
    def value_type(self) -> str | None:
        ddl = self._table.value_ddl
        return f"STRUCT<{ddl}>" if ddl not in (None, VARIANT) else ddl

    @property
    def is_stream(self) -> bool:
        return self._table.is_stream

    @property
    def is_light(self) -> bool:
        return not self._lake.is_remote and len(self._files) <= FILES_LIGHT_MAX

    def check(self, manifest: Manifest) -> None:
        """An error, where this is the table of another server's topic."""
        if not self._table.identity.agrees(Identity.of(manifest)):
            raise _another(self.name, self.topic, manifest.topic)
        if self.to_seq > manifest.head_seq:
            raise ConfigError(
                f"{self.name} has seqs to {self.to_seq}, and the topic ends at {manifest.head_seq}",
                fix="name the lake of this server",
                detail={"table": self.name},
            )

    def losses(self, bounds: Bounds) -> list[Loss]:
        """What was lost before a sync saw it."""
        if self._losses is None:
            gaps = read_gaps(self._lake, self._table.identity, self._place.gaps_version)
            rows = gaps.select(["first", "last", "reason"]).to_pylist()
            self._losses = [Loss(**row) for row in rows if row["reason"] != DELETED]
        return [
            Loss(max(first, bounds.seq_first), min(last, bounds.seq_last), reason)
            for first, last, reason in self._losses
            if first <= bounds.seq_last and bounds.seq_first <= last
        ]

    def rows(
        self, last: int, columns: Sequence[str], bounds: Bounds, manifest: Manifest | None
    ) -> DataFrame:
        """Rows up to a seq, those that somebody deleted left out."""
        deleted = nothing_deleted() if manifest is None else deleted_in(manifest, last)
        files = [file for file in self._files if _can_matter(file, last, bounds, deleted)]
        made = VALUE in columns and self._lake.is_remote and self._table.value_ddl == VARIANT
        deleted = deleted.of(files)
        beyond = any(file.last_seq > last for file in files)
        wanted = {*columns} - {"topic"} | ({"kind", "data"} if made else set())
        wanted |= {"seq", "tag"} if deleted.tags else set()
        wanted |= {"seq"} if beyond or deleted.seqs or not wanted else set()
        names = [name for name in _TYPES if name in wanted]
        if VALUE in columns and not made:
            names.append(VALUE)
        frame = self._scan(files, names)
        if beyond:
            frame = frame.where(f"seq <= {last}")
        frame = without(self._spark, frame, deleted)
        if made:
            frame = self.valued(frame)
            names.append(VALUE)
        if "topic" in columns:
            frame = frame.withColumn("topic", lit(self.topic))
            names.append("topic")
        return frame if names == list(columns) else frame.select(*columns)

    def valued(self, frame: DataFrame) -> DataFrame:
        """Rows with `seq`, `kind` and `data`, and `value` as a sync would have made it."""
        ddl, topic = self._table.value_ddl, self.topic
        assert ddl is not None, "there is a column `value`"
        if ddl == VARIANT:
            return frame.selectExpr("*", VALUE_OF_JSON)

        def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            values = Values(ddl)
            for batch in batches:
                if batch.num_rows:
                    yield values.added(topic, batch)

        schema = StructType(list(frame.schema)).add(VALUE, fields_of(ddl))
        return frame.mapInArrow(cast(Any, add), schema)

    def _schema(self, names: Sequence[str]) -> StructType:
        schema = StructType()
        for name in names:
            schema.add(name, self._value() if name == VALUE else _TYPES[name])
        return schema

    def _value(self) -> DataType:
        ddl = self._table.value_ddl
        assert ddl is not None, "there is a column `value`"
        return VariantType() if ddl == VARIANT else fields_of(ddl)

    def _scan(self, files: list[DataFile], names: list[str]) -> DataFrame:
        schema = self._schema(names)
        if not files:
            # Not an empty list: this is left out of a plan.
            nothing = [lit(None).cast(field.dataType).alias(field.name) for field in schema]
            return self._spark.range(0).where("false").select(*nothing)
        if self._lake.is_remote:
            return self._read_by_tasks(files, schema)
        root = self._lake.uri(self.name)
        reader = self._spark.read.schema(schema).options(**_READING)
        return reader.parquet(*(_literal(f"{root}/{file.path}") for file in files))

    def _read_by_tasks(self, files: list[DataFile], schema: StructType) -> DataFrame:
        """Spark itself has no client of object stores; tasks read files as the lake does."""
        tasks = [[file.path for file in group] for group in shared_out(files, TASK_BYTES_MAX)]
        packed, lake, table_name = pickle.dumps(tasks), self._lake, self.name
        whole_file = file_schema(self._table.value_ddl, self.is_stream)
        names = schema.names
        types: list[Any] = [whole_file.field(name) for name in names]
        arrow = pa.schema(types)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found, store = pickle.loads(packed), lake.store()
            for batch in batches:
                numbers: Any = batch.column(0)
                for path in (path for at in numbers.to_pylist() for path in found[at]):
                    for rows in _rows_of(store, table_name, path, names):
                        arrays = [rows.column(field.name).cast(field.type) for field in arrow]
                        yield pa.RecordBatch.from_arrays(arrays, names=names)

        frame = self._spark.range(0, len(tasks), 1, len(tasks))
        return frame.mapInArrow(cast(Any, read), schema)


def _can_matter(file: DataFile, last: int, bounds: Bounds, deleted: Deleted) -> bool:
    """Whether a file can have a row that is wanted, by its statistics."""
    if not file.overlaps(bounds.seq_first, min(last, bounds.seq_last)):
        return False
    if file.min_ts * _US_PER_MS > bounds.ts_last or file.max_ts * _US_PER_MS < bounds.ts_first:
        return False
    return not deleted.covers(file)


def _literal(path: str) -> str:
    """A path as Spark takes it where it would take a pattern.

    >>> print(_literal("/data/{old} lake/1-a"))
    /data/\\{old\\} lake/1-a
    """
    return _PATTERN.sub(r"\\\g<0>", path)


def _rows_of(store: Store, table: str, path: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        yield from read_rows(store, table, path, names)
    except FileNotFoundError:
        raise file_gone(f"{store.describe(f'{table}/{path}')} is not there any more") from None


def _another(table: str, holds: str, topic: str) -> ConfigError:
    return ConfigError(
        f"{table} is the past of another topic than {topic!r} of this server: {holds!r}",
        fix="name the lake of this server",
        detail={"table": table},
    )
