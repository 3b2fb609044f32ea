"""What the tests of pipelines share: workers that are turned by hand, and models of the answers."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headrace.api.pipelines import Declaration
from headrace.client import Client, Record
from headrace.pipelines.registry.declaration import AVAILABLE_NOW
from headrace.pipelines.worker.building import WorkerSetup, build
from headrace.pipelines.worker.worker import Limits, Worker
from headrace.spark.options import Connection
from headrace.testing.process import ServerProcess

WAIT_SECONDS = 300.0
LOOK_SECONDS = 0.4  # between two looks, which read whole topics
TRIES = 5


def place_of(url: str, checkpoints: Path) -> WorkerSetup:
    return WorkerSetup(Connection(url), str(checkpoints), {})


@contextmanager
def working(
    spark: SparkSession, place: WorkerSetup, *, node: str = "w1", limits: Limits | None = None
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
        time.sleep(LOOK_SECONDS)
    raise AssertionError(f"not within {WAIT_SECONDS} seconds: {what}")


def run_all(spark: SparkSession, place: WorkerSetup, declared: Mapping[str, Declaration]) -> None:
    """Run pipelines over what there is, two at a time; raises what one raises."""

    def run(name: str) -> None:
        once = msgspec.structs.replace(declared[name], trigger=AVAILABLE_NOW)
        built = build(spark, name, once, place)
        if built.finish_first is not None:
            assert built.finish_first().awaitTermination(int(WAIT_SECONDS))
        queries = built.start()
        try:
            for query in queries:
                assert query.awaitTermination(int(WAIT_SECONDS))
        finally:
            for query in queries:
                query.stop()

    def try_again(name: str) -> None:
        """As a worker does: Spark gives a process ten seconds to begin, however busy it is."""
        for _ in range(TRIES):
            try:
                return run(name)
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error):
                    raise
        return run(name)

    # Each in a thread of its own, because a pipeline's session becomes that of its thread.
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(try_again, name) for name in declared]:
            done.result()


def rows_of_table(path: Path) -> list[dict[str, Any]]:
    """What any reader of Delta tables finds."""
    if not DeltaTable.is_deltatable(str(path)):
        return []
    return pa.table(DeltaTable(str(path)).to_pyarrow_table()).to_pylist()


class Watched:
    """What comes to a topic, by server-sent events, from now on."""

    def __init__(self, server: ServerProcess, topic: str) -> None:
        self.seen: list[Any] = []
        connection = http.client.HTTPConnection(server.host, server.port, timeout=WAIT_SECONDS)
        body, json_type = json.dumps({"topics": {topic: {}}}), {"Content-Type": "application/json"}
        connection.request("POST", "/v0/watch", body, json_type)
        connection.request("GET", json.loads(connection.getresponse().read())["stream_url"])
        self._connection, self._answer = connection, connection.getresponse()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            for line in self._answer:
                if line.startswith(b"data: ") and b'"records"' in line:
                    found = json.loads(line[len(b"data: ") :])
                    self.seen += [record["data"] for record in found["records"]]

    def close(self) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_SECONDS)
        self._connection.close()
        self._answer.close()


def all_records(client: Client, topic: str) -> list[Any]:
    """The data of every record, or none where there is no topic yet."""
    if not any(found.topic == topic for found in client.topics(topic)):
        return []
    found = []
    for record in client.follow(topic, to_head=True):
        assert isinstance(record, Record), record
        found.append(record.data)
    return found


def reports(client: Client, pipeline: str) -> list[dict[str, Any]]:
    """Everything that workers have said of a pipeline."""
    return [
        record
        for record in all_records(client, "_pipelines.progress")
        if record["pipeline"] == pipeline
    ]
