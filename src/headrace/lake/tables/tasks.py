"""Work of the lake as tasks of Spark: each takes one job, and answers with a small report.

A task reads and writes columns itself (Arrow in, Parquet out), so that no row goes through Java.
The rule it owns: each job is answered exactly once, by the attempt that Spark counts; an error that
belongs to one job is its answer, and does not end the others.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import pyarrow as pa

from headrace.core.errors import HeadraceError, Internal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Job = TypeVar("Job")
Answer = TypeVar("Answer")

ANSWERS = "at BIGINT, answer BINARY"


class Failed(Generic[Job]):
    """What a task answers when a job cannot be done: the error, as it is."""

    def __init__(self, error: HeadraceError) -> None:
        self.kind = type(error)
        self.message = error.message
        self.fix = error.fix
        self.detail = error.detail

    @property
    def error(self) -> HeadraceError:
        return self.kind(self.message, fix=self.fix, detail=self.detail)


# Does all jobs, in whatever order, and answers in the order of the jobs.
Runner = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


def run_inline(work: Callable[[Job], Answer], jobs: Sequence[Job]) -> list[Answer | Failed[Job]]:
    """Here, one after the other: for a handful of jobs, and for tests."""
    return [_done(work, job) for job in jobs]


def run_on(spark: SparkSession) -> Runner:
    """On the executors of a session, a task for each job."""

    def run(work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        if not jobs:
            return []
        packed = tuple(pickle.dumps(job) for job in jobs)

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                numbers: Any = batch.column(0)
                for at in numbers.to_pylist():
                    yield answer_rows(at, _done(work, pickle.loads(packed[at])))

        rows = spark.range(0, len(jobs), 1, len(jobs))
        return answers_of(rows.mapInArrow(cast(Any, task), ANSWERS).collect(), len(jobs))

    return run


def rows_of_jobs(
    packed: Sequence[bytes], rows_of: Callable[[Any], Iterator[pa.RecordBatch]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow` over the numbers of pickled jobs: the rows of each."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers: Any = batch.column(0)
            for at in numbers.to_pylist():
                yield from rows_of(pickle.loads(packed[at]))

    return read


def number_of_task() -> int:
    """Of the task that calls this: its job, where each job is a partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    return context.partitionId()


def answers_of(rows: Sequence[Any], jobs: int) -> list[Any]:
    """The answers in the order of their jobs, once each has been answered once."""
    found: dict[int, Any] = {}
    for row in rows:
        if row.at in found:
            raise _miscounted(jobs)
        found[row.at] = pickle.loads(bytes(row.answer))
    if len(found) != jobs:
        raise _miscounted(jobs)
    return [found[at] for at in range(jobs)]


def _done(work: Callable[[Job], Answer], job: Job) -> Answer | Failed[Job]:
    try:
        return work(job)
    except HeadraceError as error:
        return Failed(error)


def answer_rows(at: int, answer: object) -> pa.RecordBatch:
    """What a task of Spark gives for a job."""
    columns: list[Any] = [pa.array([at], pa.int64()), pa.array([pickle.dumps(answer)], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["at", "answer"])


def _miscounted(jobs: int) -> HeadraceError:
    return Internal(
        f"Spark did not answer each of {jobs} jobs once", fix="run the same command again"
    )
