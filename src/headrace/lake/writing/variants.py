"""Tables with a VARIANT beside the bytes: Java parses the JSON, between reading and writing.

The rule it owns: a part is written whole or not at all.  What a task reads goes through Java to the
writer behind it, and an end that comes too soon would look like records that are not there; so the
reader's last row says that it was the last.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headrace.core.clock import SystemRandom
from headrace.core.errors import HeadraceError, Internal
from headrace.lake.tables.columns import SOURCE, VALUE, VARIANT, file_schema, names_of
from headrace.lake.tables.files import DayFiles, as_stored
from headrace.lake.tables.seq_sets import Gap, add_rows
from headrace.lake.tables.tasks import (
    ANSWERS,
    Failed,
    answer_rows,
    answers_of,
    number_of_task,
    rows_of_jobs,
    run_on,
)
from headrace.lake.writing.copy_task import Copied, CopyJob, copy_part
from headrace.spark.reading.columns import shape_of
from headrace.spark.reading.slices import read_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Copier = Callable[[Sequence[CopyJob]], list[Copied | Failed[CopyJob]]]

_READ: Final = (
    "seq BIGINT, ts TIMESTAMP, node STRING, tag STRING, meta STRING, kind STRING, data BINARY, "
    "content_type STRING, headers ARRAY<STRUCT<name: BINARY, value: BINARY>>, "
    "gap STRUCT<first: BIGINT, last: BIGINT, reason: STRING>"
)
# The column `value` of rows with `kind` and `data`.
VALUE_OF_JSON: Final = (
    f"CASE WHEN kind = 'json' THEN try_parse_json(cast(data AS STRING)) END AS {VALUE}"
)
# Reasons that are none: the reader is done, or cannot go on and says why in `data`.
_END: Final = "*end*"
_FAILED: Final = "*failed*"


def copy_on(spark: SparkSession) -> Copier:
    """Copies parts on the executors of a session; those of tables with a VARIANT through Java."""

    def copy(jobs: Sequence[CopyJob]) -> list[Copied | Failed[CopyJob]]:
        parsed = [at for at, job in enumerate(jobs) if job.value_ddl == VARIANT]
        plain = [at for at, job in enumerate(jobs) if job.value_ddl != VARIANT]
        found: dict[int, Copied | Failed[CopyJob]] = {}
        found |= zip(plain, run_on(spark)(copy_part, [jobs[at] for at in plain]), strict=True)
        found |= zip(parsed, _copied(spark, [jobs[at] for at in parsed]), strict=True)
        return [found[at] for at in range(len(jobs))]

    return copy


def _copied(spark: SparkSession, jobs: list[CopyJob]) -> list[Copied | Failed[CopyJob]]:
    if not jobs:
        return []
    packed = tuple(pickle.dumps(job) for job in jobs)
    read = rows_of_jobs(packed, rows_of)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        at = number_of_task()
        yield answer_rows(at, written(pickle.loads(packed[at]), batches))

    frame = spark.range(0, len(jobs), 1, len(jobs)).mapInArrow(cast(Any, read), _READ)
    done = frame.selectExpr("*", VALUE_OF_JSON).mapInArrow(cast(Any, write), ANSWERS)
    return answers_of(done.collect(), len(jobs))


def rows_of(job: CopyJob) -> Iterator[pa.RecordBatch]:
    """All rows of a part, those that say what is lost too, and the last one."""
    shape = shape_of(job.options, None)
    try:
        for batch in read_part(job.options, shape, job.part):
            yield batch.select(list(SOURCE))
    except HeadraceError as error:
        yield _note(shape.arrow, _FAILED, pickle.dumps(Failed(error)))
        return
    yield _note(shape.arrow, _END, b"")


def _note(schema: pa.Schema, reason: str, data: bytes) -> pa.RecordBatch:
    values: dict[str, Any] = {"gap": {"first": 0, "last": 0, "reason": reason}, "data": data}
    arrays = [pa.array([values.get(name)], schema.field(name).type) for name in SOURCE]
    return pa.RecordBatch.from_arrays(arrays, names=list(SOURCE))


def written(job: CopyJob, batches: Iterator[pa.RecordBatch]) -> Copied | Failed[CopyJob]:
    """Write the rows of a part that have their value."""
    schema = file_schema(job.value_ddl, job.stream)
    files = DayFiles(job.lake.store(), job.table, job.batch, schema, SystemRandom())
    present = BitMap64()
    told: list[Gap] = []
    ended = False
    for batch in batches:
        gaps: Any = batch.column("gap")
        if gaps.null_count < batch.num_rows:
            lost = batch.filter(pc.is_valid(gaps)).select(["gap", "data"]).to_pylist()
            for row in lost:
                if row["gap"]["reason"] == _FAILED:
                    failed: Failed[CopyJob] = pickle.loads(row["data"])
                    return failed
                ended = ended or row["gap"]["reason"] == _END
                told.append(Gap(row["gap"]["first"], row["gap"]["last"], row["gap"]["reason"]))
            batch = batch.filter(pc.is_null(gaps))
        if batch.num_rows:
            add_rows(present, batch.column("seq"))
            files.write(as_stored(_with_value(batch, schema, names_of(job.stream)), schema))
    if not ended:
        raise Internal("Spark stopped in the middle of a part", fix="the task runs again")
    return Copied(files.close(), present.serialize(), [gap for gap in told if gap.reason != _END])


def _with_value(batch: pa.RecordBatch, schema: pa.Schema, names: Sequence[str]) -> pa.RecordBatch:
    """The rows with their value as a struct of its two parts."""
    given: Any = batch.column(VALUE)
    given = getattr(given, "storage", given)
    fields = list(schema.field(VALUE).type)
    # Under a null there is nothing, and neither part may be null by itself.
    parts = [pc.fill_null(given.field(field.name).cast(pa.binary()), b"") for field in fields]
    mask = given.is_null() if given.null_count else None
    values = pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    columns = [*(batch.column(name) for name in names), values]
    return pa.RecordBatch.from_arrays(columns, names=[*names, VALUE])
