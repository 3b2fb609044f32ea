"""How long a record takes through a streaming query: appended to one topic, readable in another.

The query copies; both topics are of class disk.  A record is appended when the query is at rest, a
little later each time, so that Spark's own rhythm is met everywhere; then some as soon as the one
before is there, while Spark still writes its logs.
"""

from __future__ import annotations

import itertools
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.measure import Measured, percentile, step
from bench.served import serving
from bench.spark_run import spark
from bench.wires import HOST
from headrace.client import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SOURCE, TARGET = "orders", "copies"
BATCHES = 60
WARM_UP = 10
REST_SECONDS = 0.3
REST_STEPS = 7
STEP_SECONDS = 0.013
WAIT_MS = 20_000  # of one long poll
POLLS_MAX = 9

# Which parts of Spark's own report of a batch make up each figure.
PARTS = {
    "add": ("addBatch",),
    "offset": ("latestOffset",),
    "plan": ("queryPlanning", "getBatch"),
    "log": ("walCommit", "commitOffsets"),
}


def run(directory: str, quick: bool) -> dict[str, Measured]:
    with serving(f"{directory}/server") as server:
        found: dict[str, Measured] = step(
            "case_spark_batch_latency:copy",
            directory=directory,
            url=f"http://{HOST}:{server.port}",
            batches=2 if quick else BATCHES,
            warm_up=1 if quick else WARM_UP,
        )
    return found


def copy(directory: str, url: str, batches: int, warm_up: int) -> dict[str, Measured]:
    """A step: the query, and the records that go through it."""
    with spark(f"{directory}/scratch") as session, Client(url) as client:
        for topic in (SOURCE, TARGET):
            client.put_topic(topic)
        query = started(session, url, f"{directory}/checkpoint")
        through(client, 1)
        numbers = itertools.count(2)
        rested = []
        for number in itertools.islice(numbers, warm_up + batches):
            time.sleep(REST_SECONDS + number % REST_STEPS * STEP_SECONDS)
            rested.append(through(client, number))
        parts = [progress.durationMs for progress in query.recentProgress if progress.numInputRows]
        following = [through(client, number) for number in itertools.islice(numbers, batches)]
        query.processAllAvailable()  # a batch that is stopped half-way is logged as an error
        query.stop()
    rested, parts = rested[warm_up:], parts[-batches:]
    found: dict[str, Measured] = {
        f"spark_batch_latency_{name}": middle(parts, fields) for name, fields in PARTS.items()
    }
    return found | {
        "spark_batch_latency": median(rested) * 1e3,
        "spark_batch_latency_p99": percentile(rested, 0.99) * 1e3,
        "spark_batch_latency_next": median(following) * 1e3,
    }


def started(session: SparkSession, url: str, checkpoint: str) -> StreamingQuery:
    reader = session.readStream.format("headrace").option("url", url)
    rows = reader.option("columns", "data").option("dataFormat", "json").load(SOURCE)
    writer = rows.writeStream.format("headrace").option("url", url).option("topic", TARGET)
    return writer.option("checkpointLocation", checkpoint).start()


def through(client: Client, number: int) -> float:
    """Append the record with this seq; seconds until it is in the other topic."""
    start = time.perf_counter()
    client.append(SOURCE, [{"number": number}])
    for _ in range(POLLS_MAX):
        page = client.diff(TARGET, number - 1, wait_ms=WAIT_MS)
        if page.records:
            break
    seconds = time.perf_counter() - start
    assert [record.seq for record in page.records] == [number], (number, page)
    return seconds


def middle(parts: list[dict[str, Any]], fields: tuple[str, ...]) -> float:
    """The median of what these fields of a report add up to, in milliseconds."""
    found: float = median(sum(one.get(field, 0) for field in fields) for one in parts)
    return found
