"""Spark writes topics: every byte, exactly once, whatever fails on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from headrace.client import Client
from headrace.spark.options import sink_options
from headrace.spark.writing.sink import StreamWriter
from headrace.spark.writing.staging import Staging
from headrace.testing.process import ServerProcess

ROWS = 100_000  # several chunks, and one that is not full


def stored(client: Client, topic: str) -> list[Any]:
    """Every record's data, as it was appended."""
    found: list[Any] = []
    page = client.diff_arrow(topic)
    while page.table.num_rows:
        found += page.table["data"].to_pylist()
        page = client.diff_arrow(topic, page.next_from_seq)
    return found


def numbers(rows: int = ROWS) -> list[bytes]:
    return [b"%d" % number for number in range(rows)]


def write(rows: DataFrame, server: ServerProcess, topic: str, **options: Any) -> None:
    rows.write.format("headrace").mode("append").options(
        url=server.url, topic=topic, **options
    ).save()


def number_rows(spark: SparkSession, rows: int = ROWS, partitions: int = 2) -> DataFrame:
    return spark.range(0, rows, 1, partitions).selectExpr("CAST(id AS STRING) AS data")


def failing_once(
    marker: Path, url: str, topic: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Pass on batches; the first attempt fails once some of its rows are stored."""
    name = str(marker)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        with Client(url) as client:
            before = client.topic(topic).head_seq
            yield from batches
            if context.attemptNumber() == 0:
                # All rows are on their way, and the writer has not heard yet that it is all.
                client.diff(topic, before, wait_ms=30_000, limit=1)
                with open(name, "w") as file:
                    file.write(str(client.topic(topic).head_seq))
                raise RuntimeError("injected")

    return run


def test_a_round_trip_of_bytes_json_and_all_columns(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str
) -> None:
    every = [bytes([value]) for value in range(256)] + [b"", bytes(range(256)) * 50]
    rows = spark.createDataFrame(
        [(bytearray(value), f"tag-{at % 3}" if at % 2 else None, None if at % 3 else "node", None)
         for at, value in enumerate(every)],
        "data BINARY, tag STRING, node STRING, meta STRING",
    ).coalesce(1)  # fmt: skip
    write(rows, server, topic)
    page = client.diff_arrow(topic).table
    assert page["data"].to_pylist() == every
    assert set(page["kind"].to_pylist()) == {1}
    assert page["tag"].to_pylist() == [f"tag-{at % 3}" if at % 2 else None for at in range(258)]
    assert page["node"].to_pylist() == [None if at % 3 else "node" for at in range(258)]
    assert page["meta"].null_count == 258

    # JSON as it is spelt, to several topics by a column, one of which is a queue.
    client.put_topic(f"{topic}-2", {"type": "queue"})
    mixed = spark.range(0, 30, 1, 1).selectExpr(
        f"concat('{topic}-', id % 3) AS topic",
        "concat('{ \"n\":  ', id, '}') AS data",
        "IF(id % 2 = 0, '{\"even\": true}', NULL) AS meta",
    )
    mixed.write.format("headrace").mode("append").option("url", server.url).save()
    for part in range(3):
        records = client.diff(f"{topic}-{part}").records
        assert [bytes(r.raw) for r in records] == [b'{ "n":  %d}' % n for n in range(part, 30, 3)]
        assert [r.meta for r in records] == [
            None if n % 2 else {"even": True} for n in range(part, 30, 3)
        ]
    assert client.topic(f"{topic}-2").type == "queue"


def test_what_cannot_be_written_is_refused_before_anything_runs(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str
) -> None:
    one = spark.range(1)
    refused = {
        "named_struct('n', id) AS data": r"data is STRUCT<N:BIGINT>.*to_json\(data\) AS data",
        "parse_json('1') AS data": r"data is VARIANT.*to_json\(data\) AS data",
        "id AS seq, '1' AS data": r"column seq means nothing here.*drop\(.?.?seq",
        "'1' AS Date": r"did you mean data\?",
        "'1' AS tag": "there is no column data",
        "'1' AS data, id AS tag": r"tag is BIGINT.*CAST\(tag AS STRING\)",
        "'1' AS data, 'x' AS topic": "a column topic, and the option topic",
    }
    for columns, message in refused.items():
        with pytest.raises(PySparkException, match=f"(?s){message}"):
            write(one.selectExpr(*split(columns)), server, topic)
    with pytest.raises(PySparkException, match="nothing says which topic"):
        one.selectExpr("'1' AS data").write.format("headrace").mode("append").option(
            "url", server.url
        ).save()
    with pytest.raises(PySparkException, match="only ever appended to"):
        one.selectExpr("'1' AS data").write.format("headrace").mode("overwrite").options(
            url=server.url, topic=topic
        ).save()
    gone = spark.range(0, 9, 1, 1).selectExpr("IF(id = 5, NULL, '1') AS data")
    with pytest.raises(PySparkException, match=r"row 5 of the partition .* has no data"):
        write(gone, server, topic)
    assert topic not in [found.topic for found in client.topics(topic)]


def split(columns: str) -> list[str]:
    """Expressions by comma, those within brackets left alone."""
    parts, depth = [""], 0
    for letter in columns:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def test_a_task_that_fails_and_runs_again_writes_once(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
) -> None:
    for name, options in ((topic, {}), (f"{topic}-id", {"writeId": "nightly"})):
        client.put_topic(name, {"idempotency_window_ms": 3_600_000})  # a busy machine is slow
        failing = failing_once(tmp_path / name, server.url, name)
        rows = number_rows(spark, partitions=1).mapInArrow(failing, "data STRING")
        write(rows, server, name, **options)
        # The first attempt had got somewhere, or this proves nothing.
        assert 0 < int((tmp_path / name).read_text()) < ROWS
        assert stored(client, name) == numbers()


def test_a_write_with_an_id_is_done_once(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str
) -> None:
    rows = number_rows(spark, 50)
    for _ in range(2):
        write(rows, server, topic, writeId="load", writeVersion=4)
    assert sorted(stored(client, topic)) == sorted(numbers(50))
    write(rows, server, topic, writeId="load", writeVersion=5)
    write(rows, server, topic, writeId="other", writeVersion=1)
    assert len(stored(client, topic)) == 150
    with pytest.raises(PySparkException, match="batch 4 comes after batch 5"):
        write(rows, server, topic, writeId="load", writeVersion=4)
    with pytest.raises(PySparkException, match=r"(?s)mode=staged"):
        write(number_rows(spark, 40), server, topic, writeId="load", writeVersion=5)
    assert len(stored(client, topic)) == 150
    write(rows, server, f"{topic}-staged", mode="staged")
    assert sorted(stored(client, f"{topic}-staged")) == sorted(numbers(50))
    assert [found.topic for found in client.topics(f"{topic}-staged")] == [f"{topic}-staged"]


def test_a_server_that_is_killed_during_a_write_gets_every_row_once(
    spark: SparkSession, start_server: Callable[..., ServerProcess], topic: str
) -> None:
    server = start_server()

    def kill_when_some_are_there() -> None:
        with Client(server.url) as client:
            client.diff(topic, wait_ms=30_000)
        server.kill()
        start_server(port=server.port)

    with Client(server.url) as client:
        client.put_topic(topic, {"durability": "disk"})
        killer = threading.Thread(target=kill_when_some_are_there)
        killer.start()
        write(number_rows(spark, 600_000), server, topic)
        killer.join()
        assert sorted(stored(client, topic)) == sorted(numbers(600_000))


# Streams


class Failures:
    """Names of steps, one file each: a step fails once for each time its file is written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()

    def expect(self, step: str) -> None:
        (self._directory / step.replace(" ", "_")).write_text("")

    def pending(self) -> list[str]:
        return [path.name for path in self._directory.iterdir()]


def source_that_fails(directory: Path) -> type[DataSource]:
    """The sink as it is, but a step of a commit that has a file in `directory` fails once."""
    place = str(directory)

    def fail(step: str) -> None:
        import os

        name = os.path.join(place, step.replace(" ", "_"))
        if os.path.exists(name):
            os.remove(name)
            raise RuntimeError(f"injected: {step}")

    class FailingStaging(Staging):
        def step(self, name: str) -> None:
            fail(name)

    class FailingWriter(StreamWriter):
        staging_type = FailingStaging

        def commit(self, messages: Any, batchId: int) -> None:
            fail("before commit")
            super().commit(messages, batchId)
            fail("after commit")

    class FailingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "failing_headrace"

        def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
            return FailingWriter(sink_options(self.options, streaming=True), schema, overwrite)

    return FailingSource


def run_stream(rows: DataFrame, checkpoint: Path, sink: str = "headrace", **options: Any) -> None:
    """Write all there is, and wait for it."""
    query = (
        rows.writeStream.format(sink)
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def failing_source(spark: SparkSession, tmp_path: Path) -> tuple[Failures, Path]:
    """Register `failing_headrace`: where to say when it fails, and a directory of files to read."""
    spark.dataSource.register(source_that_fails(tmp_path / "steps"))
    failures = Failures(tmp_path / "steps")
    files = tmp_path / "files"
    files.mkdir()
    return failures, files


def put_file(directory: Path, first: int, rows: int) -> None:
    lines = "\n".join(str(number) for number in range(first, first + rows))
    (directory / f"{first}.txt").write_text(lines + "\n")


def test_a_stream_writes_once_over_failed_tasks_and_commits(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
) -> None:
    failures, files = failing_source(spark, tmp_path)
    options = {"url": server.url, "topic": topic}
    lines = spark.readStream.schema("data STRING").text(str(files))
    failing = failing_once(tmp_path / "marker", server.url, topic)
    client.put_topic(topic)

    put_file(files, 0, ROWS)
    failures.expect("before commit")
    with pytest.raises(PySparkException, match="injected: before commit"):
        run_stream(lines, tmp_path / "c", "failing_headrace", **options)
    assert len(stored(client, topic)) == ROWS  # and not committed
    run_stream(lines, tmp_path / "c", **options)
    assert stored(client, topic) == numbers()

    put_file(files, ROWS, ROWS)
    run_stream(lines.mapInArrow(failing, "data STRING"), tmp_path / "c", **options)
    assert ROWS < int((tmp_path / "marker").read_text()) < 2 * ROWS
    assert stored(client, topic) == numbers(2 * ROWS)

    # The driver died before it noted that the batch is done; then the plan is another one.
    (tmp_path / "c" / "commits" / "1").unlink()
    (tmp_path / "c" / "commits" / ".1.crc").unlink(missing_ok=True)
    with pytest.raises(PySparkException, match="mode=staged"):
        run_stream(lines.where("data <> '100001'"), tmp_path / "c", **options)
    counts = lines.groupBy().count().selectExpr("CAST(count AS STRING) AS data")
    complete = counts.writeStream.format("headrace").options(**options).outputMode("complete")
    with pytest.raises(PySparkException, match="only ever appended to"):
        complete.option("checkpointLocation", str(tmp_path / "d")).start().awaitTermination()
    assert stored(client, topic) == numbers(2 * ROWS)


STEPS = ("decide", "publish", "published a chunk", "note", "clean", "done", "after commit")


@pytest.mark.slow
def test_a_staged_stream_writes_one_attempt_wherever_it_fails(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, tmp_path: Path
) -> None:
    failures, files = failing_source(spark, tmp_path)
    lines = spark.readStream.schema("line STRING").text(str(files))

    def other_each_time(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from headrace.core.clock import SystemRandom

        attempt = SystemRandom().bytes(4).hex()
        for batch in batches:
            found = [f'["{attempt}", {line}]' for line in batch.column(0).to_pylist()]
            # Some row is there in one attempt only.
            yield pa.record_batch({"data": [*found, f'["{attempt}", -1]'][: len(found) + 1]})

    rows = lines.mapInArrow(other_each_time, "data STRING")
    options = {"url": server.url, "topic": topic, "mode": "staged"}
    for number, step in enumerate(STEPS):
        put_file(files, number * 1_000, 100)
        failures.expect(step)
        with pytest.raises(PySparkException, match=f"injected: {step}"):
            run_stream(rows, tmp_path / "c", "failing_headrace", **options)
        assert not failures.pending()
        run_stream(rows, tmp_path / "c", "failing_headrace", **options)
        found = [record.data for record in client.diff(topic, limit=1_000).records]
        mine = [value for value in found if number * 1_000 <= value[1]]
        assert [value[1] for value in mine] == [number * 1_000 + row for row in range(100)]
        assert len({attempt for attempt, _ in found}) == number + 1
        assert len(found) == 101 * (number + 1)
    staged = [name.topic for name in client.topics(f"{topic}.staged-")]
    assert len(staged) == 1
    assert client.topic(staged[0]).count < 3 * 101
