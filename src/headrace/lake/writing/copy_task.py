"""What a task of a sync does: read a part of a topic, write it as files, and account for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headrace.core.clock import SystemRandom
from headrace.lake.tables.columns import SOURCE, VARIANT, Values, file_schema, names_of
from headrace.lake.tables.files import DataFile, DayFiles, as_stored
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.seq_sets import Gap, add_rows
from headrace.spark.options import SourceOptions
from headrace.spark.reading.columns import shape_of
from headrace.spark.reading.parts import ReadPart
from headrace.spark.reading.slices import read_part


class CopyJob(msgspec.Struct, frozen=True):
    """A part of a topic, and where its rows go."""

    lake: Lake
    table: str
    batch: str
    topic: str
    options: SourceOptions
    part: ReadPart
    value_ddl: str | None = None
    stream: bool = False  # the table has the columns of one


class Copied(msgspec.Struct, frozen=True):
    """What became of a part: files, the seqs that are rows, and what the source says is lost."""

    files: list[DataFile]
    rows: bytes  # a 64-bit Roaring bitmap
    told: list[Gap]

    @property
    def present(self) -> BitMap64:
        return BitMap64.deserialize(self.rows)


def source_options(options: SourceOptions) -> SourceOptions:
    """The same, for all that a lake keeps; losses come as rows."""
    return msgspec.structs.replace(
        options, columns=SOURCE, fail_on_data_loss=False, data_format="binary"
    )


def copy_part(job: CopyJob) -> Copied:
    """Read and write one part."""
    assert job.value_ddl != VARIANT, "Java makes those: variants.py"
    schema = file_schema(job.value_ddl, job.stream)
    values = Values(job.value_ddl) if job.value_ddl is not None else None
    files = DayFiles(job.lake.store(), job.table, job.batch, schema, SystemRandom())
    present = BitMap64()
    told: list[Gap] = []
    for batch in source_rows(job.options, job.part, told, job.stream):
        add_rows(present, batch.column("seq"))
        rows = values.added(job.topic, batch) if values is not None else batch
        files.write(as_stored(rows, schema))
    return Copied(files.close(), present.serialize(), told)


def source_rows(
    options: SourceOptions, part: ReadPart, told: list[Gap], stream: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a part, with the columns of a file; what is lost is added to `told`."""
    shape = shape_of(options, None)
    for batch in read_part(options, shape, part):
        gaps: Any = batch.column("gap")
        if gaps.null_count < batch.num_rows:
            lost = gaps.filter(pc.is_valid(gaps)).to_pylist()
            told += [Gap(gap["first"], gap["last"], gap["reason"]) for gap in lost]
            batch = batch.filter(pc.is_null(gaps))
        if batch.num_rows:
            yield batch.select(list(names_of(stream)))
