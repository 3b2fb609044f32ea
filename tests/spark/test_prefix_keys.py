"""A key that is limited to prefixes never sees another tenant's rows, though files hold both's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.client import Client
from headrace.core.errors import Forbidden
from headrace.lake.sql.frames import LakeArchiveTables
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.sync import Sync
from headrace.spark.options import Connection
from headrace.spark.sql.tables import Tables
from headrace.testing.process import ServerProcess

KEYS = "root,blue-key::blue.,reader-of-blue:read:blue."
SEALED, TAIL = 40, 5
TOPICS = ("blue.orders", "blue.bills", "red.orders", "redder")


def rows_of(topic: str, count: int) -> pa.Table:
    return pa.table({"data": [topic.encode()] * count, "tag": [topic] * count})


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Records of two tenants, in shared files and in the tail."""
    directory = tmp_path_factory.mktemp("tenants")
    with (
        ServerProcess(directory, api_keys=KEYS) as server,
        Client(server.url, token="root") as root,
    ):
        for topic in TOPICS:
            root.append_arrow(topic, rows_of(topic, SEALED))
    # It has sealed everything at its end, all in one go.
    with ServerProcess(directory, api_keys=KEYS) as server:
        with Client(server.url, token="root") as root:
            owners = [root.segments(topic).files for topic in TOPICS]
            assert {(file.file_id, file.owner) for files in owners for file in files} == {
                (owners[0][0].file_id, 0)
            }
            for topic in TOPICS:
                root.append_arrow(topic, rows_of(topic, TAIL))
        yield server


@pytest.fixture
def reads(tenants: ServerProcess, spark: SparkSession) -> Callable[..., Any]:
    """A reader of either kind with the key of one tenant."""

    def make(reader: Any = None, token: str = "blue-key", **options: str) -> Any:
        reader = (reader or spark.read).format("headrace")
        return reader.options(url=tenants.url, token=token, **options)

    return make


BLUE = {"blue.orders": SEALED + TAIL, "blue.bills": SEALED + TAIL}


def seen(frame: DataFrame) -> dict[str, int]:
    """How many rows of each topic; all three columns have to agree on whose a row is."""
    counts: dict[str, int] = {}
    for row in frame.select("topic", "tag", "data").collect():
        assert row.topic == row.tag == bytes(row.data).decode()
        counts[row.topic] = counts.get(row.topic, 0) + 1
    return counts


def test_batches(reads: Callable[..., Any], tenants: ServerProcess) -> None:
    assert seen(reads(subscribePattern=".*").load()) == BLUE
    assert seen(reads(token="reader-of-blue").load("blue.orders,blue.bills")) == BLUE
    # The key of all sees all: the others were there to be seen.
    everything = seen(reads(token="root", subscribePattern="blue.*|red.*").load())
    assert everything == dict.fromkeys(TOPICS, SEALED + TAIL)
    for refused in (
        reads().load("red.orders"),
        reads().load("blue.orders,red.orders"),
        reads(direct="false").load("red.orders"),
        reads(direct="true").load("blue.orders"),
    ):
        with pytest.raises(PySparkException, match=r"(?i)prefix"):
            refused.collect()
    # A name that is not there is not compared with names of others.
    with pytest.raises(PySparkException) as caught:
        reads().load("blue.order").collect()
    assert "did you mean 'blue.orders'?" in str(caught.value)
    with pytest.raises(PySparkException) as caught:
        reads().load("red.order").collect()
    assert "red.orders" not in str(caught.value)
    assert "blue-key" not in str(caught.value)


def test_streams(reads: Callable[..., Any], spark: SparkSession, tmp_path: Path) -> None:
    def run(name: str, rows: DataFrame) -> None:
        writing = rows.writeStream.format("memory").queryName(name)
        writing = writing.option("checkpointLocation", str(tmp_path / name))
        writing.trigger(availableNow=True).start().awaitTermination()

    run("of_blue", reads(spark.readStream, subscribePattern=".*").load())
    assert seen(spark.table("of_blue")) == BLUE
    with pytest.raises(PySparkException, match=r"(?i)prefix"):
        run("of_red", reads(spark.readStream).load("red.orders"))
    assert spark.table("of_red").count() == 0


def test_sql(tenants: ServerProcess, spark: SparkSession) -> None:
    tables = Tables(spark, Connection(tenants.url, token="blue-key"))
    with tables.query("SELECT topic, tag, raw AS data FROM `blue.orders`") as (frame, _):
        assert seen(frame) == {"blue.orders": SEALED + TAIL}
    for statement in (
        "SELECT * FROM `red.orders`",
        "SELECT b.seq FROM `blue.orders` b JOIN `red.orders` r USING (seq)",
        "SELECT count(*) FROM redder",
    ):
        with pytest.raises(Forbidden), tables.query(statement) as (frame, _):
            frame.collect()


def test_sql_with_a_lake(tenants: ServerProcess, spark: SparkSession, tmp_path: Path) -> None:
    """Which records of the lake are deleted is in the manifest, and that is not for such a key."""
    lake = Lake(str(tmp_path))
    with Client(tenants.url, token="root") as root:
        connection = Connection(tenants.url, token="root")
        (done,) = Sync(root, connection, lake, run_inline).run(["blue.orders"])
    assert done.error is None
    history = LakeArchiveTables(spark, lake)
    tables = Tables(spark, Connection(tenants.url, token="blue-key"), history)
    with tables.query("SELECT topic, tag, raw AS data FROM `blue.bills`") as (frame, _):
        assert seen(frame) == {"blue.bills": SEALED + TAIL}, "the lake has nothing of it"
    with (
        pytest.raises(Forbidden, match="or ask without a lake"),
        tables.query("SELECT * FROM `blue.orders`") as (frame, _),
    ):
        frame.collect()
