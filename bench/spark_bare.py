"""Data sources that do nothing but hand Arrow batches over: the least that Spark's API costs.

The reader opens the same sealed files with pyarrow, maps them, and verifies nothing; the writer
takes batches and drops them.  What ours costs beyond them is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

SCHEMA = pa.schema([pa.field("seq", pa.int64()), pa.field("data", pa.binary())])
SEPARATOR = "\n"


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
    """A task for each file."""

    def __init__(self, files: list[str]) -> None:
        self._files = files

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(file) for file in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        source = pa.memory_map(partition.value)
        names = pa.ipc.open_file(source).schema.names
        only = pa.ipc.IpcReadOptions(included_fields=[names.index(name) for name in SCHEMA.names])
        reader = pa.ipc.open_file(source, options=only)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            columns = [batch.column("seq").view(pa.int64()), batch.column("data").cast(pa.binary())]
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
