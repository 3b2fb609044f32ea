"""How far Spark is, on stderr, for statements that take longer than a moment."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from headrace.cli.progress import ProgressBar
from headrace.core.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Work that is done sooner shows nothing.
QUIET_SECONDS = 2.0
LOOK_SECONDS = 0.2


@contextlib.contextmanager
def spark_progress(spark: SparkSession, stream: TextIO | None = None) -> Iterator[None]:
    """Draw a bar while the block takes longer than two seconds, if a person is watching."""
    stream = stream or sys.stderr
    counts = task_counts(spark) if stream.isatty() else None
    if counts is None:
        yield
        return
    done = threading.Event()
    bar = ProgressBar(stream, SystemClock(), shown=True)
    thread = threading.Thread(target=watch, args=(counts, bar, done.wait), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        bar.clear()


def watch(
    counts: Callable[[], tuple[int, int]],
    bar: ProgressBar,
    wait: Callable[[float], bool],
) -> None:
    """Draw what `counts` says until `wait` says that it is over."""
    over = wait(QUIET_SECONDS)
    while not over:
        finished, tasks = counts()
        if tasks:
            bar(f"{finished} of {tasks} tasks", finished, tasks)
        over = wait(LOOK_SECONDS)


def task_counts(spark: SparkSession) -> Callable[[], tuple[int, int]] | None:
    """How to ask for the finished tasks and all tasks of what runs now; None: it is not known."""
    from py4j.protocol import Py4JError

    from headrace.spark.session import is_in_process

    if not is_in_process(spark):
        return None
    tracker = spark.sparkContext.statusTracker()

    def counts() -> tuple[int, int]:
        try:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except (Py4JError, OSError):  # Spark ended; the thread that waits for it is told
            return 0, 0
        known = [stage for stage in stages if stage is not None]
        return (
            sum(stage.numCompletedTasks for stage in known),
            sum(stage.numTasks for stage in known),
        )

    return counts
