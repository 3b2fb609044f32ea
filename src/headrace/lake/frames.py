"""A topic's past in SQL: rows of the lake for what is sealed, without what was deleted since.

The rule it owns: rows of the lake stand for records up to a seq, and the server has all after it.
What retention took from the server is shown; what somebody deleted is not, as far as the server
still knows of it, which is above the last seq that retention took.
"""

from __future__ import annotations

import pickle
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast

from headrace.client.models import Manifest
from headrace.core.errors import ConfigError
from headrace.lake.accounts import ranges_of, whole
from headrace.lake.columns import file_schema
from headrace.lake.files import DataFile, read_rows
from headrace.lake.layout import Identity, Lake
from headrace.lake.table import Table, open_table
from headrace.spark.connection import connect, give_back
from headrace.spark.options import Connection
from headrace.spark.reading.topics import TopicHead
from headrace.spark.sql.tables import Past

# More ranges than this are left out by a join instead of a condition.
CONDITIONS_MAX: Final = 64

_TYPES: Final = {
    "seq": "BIGINT",
    "ts": "TIMESTAMP",
    "node": "STRING",
    "tag": "STRING",
    "meta": "STRING",
    "data": "BINARY",
}


class LakeHistory:
    """Answers SQL from a lake as far as that goes."""

    def __init__(self, spark: SparkSession, lake: Lake, connection: Connection) -> None:
        self._spark = spark
        self._lake = lake
        self._connection = connection

    def __call__(self, cut: TopicHead, columns: Sequence[str]) -> Past:
        """The rows of a topic that the lake has, with these columns of a source."""
        with connect(self._connection) as client:
            manifest = client.segments(cut.topic)
            give_back(client, [(manifest.topic, manifest.pin)])
        identity = Identity(manifest.topic, manifest.topic_id, manifest.epoch)
        table = open_table(self._lake, identity) if manifest.epoch == cut.epoch else None
        if table is None:
            return Past(None, 0, manifest.tail_from_seq)
        mark = table.place.watermark
        if mark > manifest.head_seq:
            raise ConfigError(
                f"{table.name} has seqs to {mark}, and the topic ends at {manifest.head_seq}",
                fix="name the lake of this server",
                detail={"table": table.name},
            )
        # Deletes of what is not sealed yet are not in a manifest: that comes from the server.
        last = min(mark, manifest.tail_from_seq - 1, cut.head)
        if last < 1:
            return Past(None, 0, manifest.tail_from_seq)
        frame = self._rows(table, last, columns, _deleted(manifest, last))
        return Past(frame, last, manifest.tail_from_seq)

    def _rows(
        self, table: Table, last: int, columns: Sequence[str], deleted: BitMap64
    ) -> DataFrame:
        files = [file for file in table.files() if file.first_seq <= last]
        names = [name for name in _TYPES if name in {*columns, "seq"}]
        frame = self._scan(table, files, names).where(f"seq <= {last}")
        frame = self._without(frame, deleted)
        topic = table.identity.topic.replace("\\", "\\\\").replace("'", "\\'")
        return frame.selectExpr(*(f"'{topic}' AS topic" if c == "topic" else c for c in columns))

    def _scan(self, table: Table, files: list[DataFile], names: list[str]) -> DataFrame:
        ddl = ", ".join(f"{name} {_TYPES[name]}" for name in names)
        if not files:
            return self._spark.createDataFrame([], ddl)
        if self._lake.is_remote:
            return self._read_by_tasks(table, files, names, ddl)
        root = self._lake.uri(table.name)
        paths = [f"{root}/{file.path}" for file in files]
        return self._spark.read.schema(ddl).parquet(*paths)

    def _read_by_tasks(
        self, table: Table, files: list[DataFile], names: list[str], ddl: str
    ) -> DataFrame:
        """Spark itself has no client of object stores; tasks read files as the lake does."""
        packed, lake, table_name = pickle.dumps(files), self._lake, table.name
        schema = file_schema(None)
        fields = [schema.field(name) for name in names]

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found, store = pickle.loads(packed), lake.store()
            for batch in batches:
                numbers: Any = batch.column(0)
                for at in numbers.to_pylist():
                    for rows in read_rows(store, table_name, found[at].path, names):
                        arrays = [rows.column(field.name).cast(field.type) for field in fields]
                        yield pa.RecordBatch.from_arrays(arrays, names=names)

        frame = self._spark.range(0, len(files), 1, len(files))
        return frame.mapInArrow(cast(Any, read), ddl)

    def _without(self, frame: DataFrame, deleted: BitMap64) -> DataFrame:
        ranges = ranges_of(deleted)
        if not ranges:
            return frame
        if len(ranges) <= CONDITIONS_MAX:
            gone = " OR ".join(f"seq BETWEEN {first} AND {last}" for first, last in ranges)
            return frame.where(f"NOT ({gone})")
        # As columns, so that Java makes rows of them and no Python process has to start.
        columns: Any = [pa.array(ends, pa.int64()) for ends in zip(*ranges, strict=True)]
        table = self._spark.createDataFrame(pa.Table.from_arrays(columns, names=["first", "last"]))
        seqs = table.selectExpr("explode(sequence(first, last)) AS seq")
        return frame.join(broadcast(seqs), "seq", "anti")


def _deleted(manifest: Manifest, last: int) -> BitMap64:
    """The seqs to `last` that somebody deleted and the server knows of."""
    floors = manifest.floors
    lost = max(floors.cap, floors.ttl, floors.crash, floors.source_trim)
    found = whole(lost + 1, min(floors.delete, last))
    for first, end in manifest.deletes or ():
        found |= whole(first, min(end, last))
    if manifest.deletes_bitmap is not None:
        found |= BitMap64.deserialize(b64decode(manifest.deletes_bitmap))
    return found & whole(1, last)
