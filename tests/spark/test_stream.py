"""Streaming queries over real topics: every seq once, and every loss told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from headrace.client import Client
from headrace.testing.process import ServerProcess

WAIT_SECONDS = 120
LOSSY = {"failOnDataLoss": "false"}


class Loss(NamedTuple):
    topic: str
    first: int
    last: int
    reason: str


class Got:
    """What arrived, batch by batch; a batch that is run again replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, int]]] = {}
        self.losses: dict[int, list[Loss]] = {}
        self.fails = 0

    def take(self, frame: DataFrame, batch: int) -> None:
        rows = frame.collect()
        found = [(row.topic, row.seq) for row in rows if row.seq is not None]
        lost = [Loss(row.topic, *row.gap) for row in rows if row.seq is None]
        self.batches[batch], self.losses[batch] = sorted(found), sorted(lost)
        if self.fails:
            self.fails -= 1
            raise OSError("the sink fails after it was given the rows")

    @property
    def rows(self) -> list[tuple[str, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)

    @property
    def lost(self) -> list[Loss]:
        return sorted(loss for losses in self.losses.values() for loss in losses)


class Runs:
    """Queries with one checkpoint, one after the other."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: Path) -> None:
        self.spark = spark
        self.url = url
        self.checkpoint = checkpoint
        self.got = Got()
        self.loaded: dict[str, DataFrame] = {}
        self.query: StreamingQuery | None = None

    def load(self, options: dict[str, object]) -> DataFrame:
        """The source with these options; loading it starts a process, so each is loaded once."""
        key = str(sorted(options.items()))
        if key not in self.loaded:
            reading = self.spark.readStream.format("headrace")
            self.loaded[key] = reading.options(url=self.url, **options).load()
        return self.loaded[key]

    def start(self, trigger: dict[str, Any] | None = None, **options: object) -> StreamingQuery:
        self.stop()
        writing = self.load(options).writeStream.foreachBatch(self.got.take)
        writing = writing.option("checkpointLocation", str(self.checkpoint))
        self.query = (writing.trigger(**trigger) if trigger else writing).start()
        return self.query

    def all_available(self, **options: object) -> None:
        """A run that ends when it has read what there was."""
        query = self.start({"availableNow": True}, **options)
        assert query.awaitTermination(WAIT_SECONDS), "the run does not end"

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None


@pytest.fixture
def runs(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> Iterator[Runs]:
    running = Runs(spark, server.url, tmp_path / "checkpoint")
    yield running
    running.stop()


def topic_rows(topic: str, first: int, last: int) -> list[tuple[str, int]]:
    return [(topic, seq) for seq in range(first, last + 1)]


def append(client: Client, topic: str, count: int) -> None:
    client.append(topic, [{"n": n} for n in range(count)])


@pytest.mark.parametrize(
    "times",
    [3, pytest.param(8, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.long)],
)
def test_available_now_resumed_many_times(
    runs: Runs, client: Client, topic: str, times: int
) -> None:
    """Records, topics and limits come in between; each seq arrives once."""
    heads = {f"{topic}-a": 0, f"{topic}-b": 0}
    for name in heads:
        client.put_topic(name)
    client.put_topic(f"{topic}.other")
    append(client, f"{topic}.other", 3)
    for run in range(times):
        if run == 7:
            heads[f"{topic}-new"] = 0
        for n, name in enumerate(sorted(heads)):
            count = (run * (n + 2)) % 5
            if count:
                append(client, name, count)
            heads[name] += count
        limit = {"maxRecordsPerTrigger": 3} if run in (3, 9, 14) else {}
        runs.all_available(subscribePattern=f"{topic}-.*", **limit)
        expected = [row for name, head in heads.items() for row in topic_rows(name, 1, head)]
        assert runs.got.rows == sorted(expected), f"run {run}"
        if limit:
            newest = runs.got.batches[max(runs.got.batches)]
            assert 0 < len(newest) <= 3
    assert runs.got.lost == []


def test_a_query_goes_on_where_it_was(runs: Runs, client: Client, topic: str) -> None:
    """Starting options are for new queries, and hold even when the first batch is run again."""
    append(client, topic, 5)
    runs.start(subscribe=topic, startingSeqs="latest").processAllAvailable()
    assert runs.got.rows == []
    runs.stop()
    # Nothing was read yet, and still the query knows where it began.
    append(client, topic, 3)
    runs.got.fails = 1
    query = runs.start(subscribe=topic, startingSeqs="latest")
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        query.processAllAvailable()
    append(client, topic, 4)
    query = runs.start(subscribe=topic, startingSeqs="earliest")
    query.processAllAvailable()
    assert runs.got.rows == topic_rows(topic, 6, 12)
    assert topic_rows(topic, 6, 8) in runs.got.batches.values()
    # A running query: limits, and what it says of itself.
    query = runs.start(subscribe=topic, maxRecordsPerTrigger=4)
    append(client, topic, 10)
    query.processAllAvailable()
    assert runs.got.rows == topic_rows(topic, 6, 22)
    sizes = [len(rows) for rows in runs.got.batches.values()]
    assert max(sizes) <= 4
    progress = [p for p in query.recentProgress if p["numInputRows"]][-1]["sources"][0]
    place = {"topics": {topic: {"epoch": client.topic(topic).epoch, "seq": 22}}}
    assert json.loads(progress["endOffset"]) == place
    assert json.loads(progress["latestOffset"]) == place
    # Too few for a batch, and then enough.
    query = runs.start(subscribe=topic, minRecordsPerTrigger=5, maxTriggerDelay="1h")
    append(client, topic, 3)
    query.processAllAvailable()
    assert runs.got.rows == topic_rows(topic, 6, 22)
    append(client, topic, 2)
    query.processAllAvailable()
    assert runs.got.rows == topic_rows(topic, 6, 27)
    # AvailableNow does not wait for enough.
    append(client, topic, 1)
    runs.all_available(subscribe=topic, minRecordsPerTrigger=5, maxTriggerDelay="1h")
    assert runs.got.rows == topic_rows(topic, 6, 28)


def test_every_loss_is_a_row_or_an_error(runs: Runs, client: Client, topic: str) -> None:
    capped, other, third = f"{topic}-capped", f"{topic}-other", f"{topic}-third"
    client.put_topic(capped, {"cap_records": 10})
    for name in (capped, other, third):
        append(client, name, 5)
    names = ",".join((capped, other, third))
    runs.start(subscribe=names, **LOSSY).processAllAvailable()
    whole = [row for name in (capped, other, third) for row in topic_rows(name, 1, 5)]
    assert (runs.got.rows, runs.got.lost) == (whole, [])
    # While no query runs: one is trimmed, one is made anew, one is gone.
    runs.stop()
    append(client, capped, 25)
    client.delete_topic(other)
    append(client, other, 2)
    client.delete_topic(third)
    for name, words in {
        other: "another one now.*seq 5 of epoch.*checkpointLocation.*failOnDataLoss=false",
        third: r"topic '[\w-]+' \(epoch \d+\) was deleted",
        # The last one: Spark runs a batch that it has planned again, until it succeeds.
        capped: r"seqs 6 to 20 of topic '[\w-]+' are lost.*cap",
    }.items():
        with pytest.raises(StreamingQueryException, match=words):
            runs.start(subscribe=name).processAllAvailable()
    assert runs.got.rows == whole
    query = runs.start(subscribe=names, **LOSSY)
    query.processAllAvailable()
    found = topic_rows(capped, 21, 30) + topic_rows(other, 1, 2)
    assert runs.got.rows == sorted(whole + found)
    lost = [
        Loss(capped, 6, 20, "cap"),
        Loss(other, 6, 5, "recreated"),
        Loss(third, 6, 5, "deleted"),
    ]
    assert runs.got.lost == lost
    # Told once; the topic that comes back is a new one.
    append(client, third, 2)
    append(client, other, 1)
    query.processAllAvailable()
    assert runs.got.rows == sorted(whole + found + topic_rows(third, 1, 2) + [(other, 3)])
    assert runs.got.lost == lost


def test_a_topic_trimmed_under_a_running_query(runs: Runs, client: Client, topic: str) -> None:
    """The query is slower than the topic's cap: rows and gaps are every seq, each once."""
    client.put_topic(topic, {"cap_records": 20})
    append(client, topic, 20)
    take, left = runs.got.take, [15, 12, 1, 30, 7]

    def slowly(frame: DataFrame, batch: int) -> None:
        # Before the rows are read, and after the batch was planned.
        if left:
            append(client, topic, left.pop(0))
        take(frame, batch)

    runs.got.take = slowly  # type: ignore[method-assign]
    query = runs.start(subscribe=topic, maxRecordsPerTrigger=8, **LOSSY)
    query.processAllAvailable()
    head = client.topic(topic).head_seq
    assert head == 20 + 15 + 12 + 1 + 30 + 7
    seen = [seq for _, seq in runs.got.rows]
    for loss in runs.got.lost:
        assert loss.reason == "cap"
        seen += range(loss.first, loss.last + 1)
    assert sorted(seen) == list(range(1, head + 1))
    assert len(runs.got.rows) < head
