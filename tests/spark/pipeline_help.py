"""What the tests of pipelines share: workers that are turned by hand, and models of the answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace.client import Client
from headrace.pipelines.building import Place
from headrace.pipelines.worker import Limits, Worker
from headrace.spark.options import Connection

WAIT_SECONDS = 180.0


def place_of(url: str, checkpoints: Path) -> Place:
    return Place(Connection(url), str(checkpoints), {})


@contextmanager
def working(
    spark: SparkSession, place: Place, *, node: str = "w1", limits: Limits | None = None
) -> Iterator[Worker]:
    """A worker in a thread of its own; at the end it has stopped and given everything back."""
    stop = threading.Event()
    with Client(place.connection.url, deadline_ms=0) as client:
        worker = Worker(spark, client, node, place, limits)
        thread = threading.Thread(target=worker.run, args=(stop,), daemon=True)
        thread.start()
        try:
            yield worker
        finally:
            stop.set()
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive(), "the worker does not stop"


def until(ready: Callable[[], Any], what: str) -> Any:
    """What `ready` answers, once that is something."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        found = ready()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {WAIT_SECONDS} seconds: {what}")


def all_records(client: Client, topic: str) -> list[Any]:
    """The data of every record, or none where there is no topic yet."""
    if not any(found.topic == topic for found in client.topics(topic)):
        return []
    return [record.data for record in client.follow(topic, to_head=True)]


def reports(client: Client, pipeline: str) -> list[dict[str, Any]]:
    """Everything that workers have said of a pipeline."""
    return [
        record
        for record in all_records(client, "_pipelines.progress")
        if record["pipeline"] == pipeline
    ]
