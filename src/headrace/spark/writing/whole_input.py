"""Whether the rows a task was given are all there are: Spark does not say it when they are not.

When what feeds a writer fails, Spark hangs up, and the writer sees its input end as if that were
all: it would write half a chunk, and the next attempt, which has the whole of it, would be taken
for another plan.  The difference is only in the bytes behind the last batch.  After all rows Spark
sends a mark; after a failure there is nothing more.  So this looks at what comes next, without
taking it, in the stream that Spark's own worker reads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from headrace.core.errors import Unreachable

# What the function of Spark's worker that calls us, however far up, names its input.
_INPUT: Final = "infile"


def whole(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches as they are; an error instead of an end that is none."""
    yield from batches
    stream = worker_input()
    # In a worker of another make nothing is known.  A half chunk is then stored, and found when the
    # whole one is sent for it: the batch fails, and goes on failing, but no row is lost or doubled.
    if stream is not None and not stream.peek(1):
        raise Unreachable(
            "Spark stopped in the middle of the rows of this task",
            fix="see why what feeds it failed; the task runs again",
            detail={"outcome": "nothing"},
        )


def worker_input() -> Any:
    """The stream that the rows came through; None if this does not run in a worker of Spark."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        # Not its name: that is `__main__` where Spark starts each worker as a program.
        package = frame.f_globals.get("__package__") or ""
        stream = frame.f_locals.get(_INPUT)
        if package == "pyspark" and hasattr(stream, "peek"):
            return stream
    return None
