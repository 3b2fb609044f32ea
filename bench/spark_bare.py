"""Data sources that do nothing but hand Arrow batches over: the least that Spark's API costs.

The reader opens the same sealed files with pyarrow, maps them, and verifies nothing; the writer
takes batches and drops them.  What ours costs beyond them is ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

_FIELDS: list[pa.Field[Any]] = [pa.field("seq", pa.int64()), pa.field("data", pa.binary())]
SCHEMA = pa.schema(_FIELDS)
SEPARATOR = "\n"
PART_BYTES = 64 << 20  # what a task of ours reads


class BareSource(DataSource):
    """`format("bare")`: option `files` has the names of sealed files, one a line."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return "seq BIGINT, data BINARY"

    def reader(self, schema: StructType) -> DataSourceReader:
        return BareReader(self.options["files"].split(SEPARATOR))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BareWriter()


class BareReader(DataSourceReader):
    """As many tasks as ours has, each with as many row groups as the others."""

    def __init__(self, files: list[str]) -> None:
        self._files = files

    def partitions(self) -> list[InputPartition]:
        size = sum(os.path.getsize(file) for file in self._files)
        tasks = max(os.cpu_count() or 1, -(-size // PART_BYTES))
        groups = []
        for file in self._files:
            with pa.memory_map(file) as source:
                count = pa.ipc.open_file(source).num_record_batches
            groups += [(file, number) for number in range(count)]
        ends = [len(groups) * number // tasks for number in range(tasks + 1)]
        return [InputPartition(groups[a:b]) for a, b in pairwise(ends) if b > a]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for file, groups in groupby(partition.value, key=itemgetter(0)):
            source = pa.memory_map(file)
            names = pa.ipc.open_file(source).schema.names
            only = [names.index(name) for name in SCHEMA.names]
            options = pa.ipc.IpcReadOptions(included_fields=only)
            reader = pa.ipc.open_file(source, options=options)
            for _, number in groups:
                batch = reader.get_batch(number)
                columns: list[pa.Array[Any]] = [
                    batch.column("seq").view(pa.int64()),
                    batch.column("data").cast(pa.binary()),
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@dataclass
class Dropped(WriterCommitMessage):
    """How many rows a task has dropped."""

    rows: int


class BareWriter(DataSourceArrowWriter):
    """Takes every batch, and keeps none."""

    def write(  # type: ignore[override]  # pyspark's own base says rows
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        return Dropped(sum(batch.num_rows for batch in iterator))
