"""A Spark session of a case, and what a query of it took: wall clock, and CPU of all its processes.

Spark is this process, a Java process and Python workers that come and go, so CPU is that of the
whole tree: a worker that has ended is counted by the process that waited for it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.load import TICKS_PER_SECOND
from bench.measure import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Took(NamedTuple):
    """Seconds of one query."""

    wall: float
    cpu: float


@contextlib.contextmanager
def spark(directory: str) -> Iterator[SparkSession]:
    """The session that `headrace.spark` makes by default, its scratch files in `directory`."""
    # Workers are to find our code, and the bare source.
    path = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    from bench.spark_bare import BareSource
    from headrace.spark import spark_session

    session = spark_session({"spark.local.dir": directory})
    session.dataSource.register(BareSource)
    try:
        yield session
    finally:
        session.stop()


def took(work: Callable[[], object]) -> Took:
    """Do it, and say what it took."""
    cpu, started = tree_cpu_seconds(os.getpid()), time.perf_counter()
    work()
    wall = time.perf_counter() - started
    return Took(wall, tree_cpu_seconds(os.getpid()) - cpu)


def tree_cpu_seconds(root: int) -> float:
    """User and system time of a process and all below it, those that have ended included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The name in parentheses may hold spaces.
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            children.setdefault(int(fields[1]), []).append(pid)
            ticks[pid] = sum(map(int, fields[11:15]))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children.get(pid, [])
    return total / TICKS_PER_SECOND
