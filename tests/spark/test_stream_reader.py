"""The streaming reader, asked as Spark asks it, where a whole query would prove no more."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
)

from headrace.client import Client
from headrace.core.clock import ManualClock
from headrace.core.errors import InvalidRequest, NotFound, TopicNotFound, Unreachable
from headrace.spark.options import source_options
from headrace.spark.read_failures import DataLost
from headrace.spark.reading.batch_source import BatchReader
from headrace.spark.reading.columns import shape_of
from headrace.spark.reading.parts import ReadPart
from headrace.spark.reading.stream_source import HTTP_SEQS_MAX, StreamReader
from headrace.testing.process import ServerProcess
from tests.support.request_counts import requests_of

Reads = Callable[..., StreamReader]
Json = dict[str, Any]

ALL = ReadAllAvailable()


@pytest.fixture
def reads(server: ServerProcess) -> Iterator[Reads]:
    made: list[StreamReader] = []

    def make(clock: ManualClock | None = None, **given: object) -> StreamReader:
        texts = {name: str(value) for name, value in given.items()}
        options = source_options({"url": server.url, **texts}, streaming=True)
        made.append(StreamReader(options, shape_of(options, None), clock))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def rows_of(reader: StreamReader, start: Json, end: Json) -> list[tuple[str, int | None]]:
    """What the tasks of a batch read, each with a copy of the reader, as executors have it."""
    found = []
    for part in reader.partitions(start, end):
        copy = pickle.loads(pickle.dumps(reader))
        for batch in copy.read(pickle.loads(pickle.dumps(part))):
            columns = batch.to_pydict()
            found += zip(columns["topic"], columns["seq"], strict=True)
    return sorted(found, key=lambda row: (row[0], row[1] or 0))


def append(client: Client, topic: str, count: int) -> None:
    client.append(topic, [{"n": n} for n in range(count)])


def test_a_batch_waits_for_enough_records_or_for_long_enough(
    client: Client, reads: Reads, topic: str
) -> None:
    append(client, topic, 2)
    clock = ManualClock()
    how = {"minRecordsPerTrigger": 5, "maxTriggerDelay": "10s"}
    reader = reads(clock, subscribe=topic, **how)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    # The first batch is there at once, so that the start is kept, and is empty.
    begun = reader.initialOffset()
    start = reader.latestOffset(begun, limit)
    assert start != begun and rows_of(reader, begun, start) == []
    assert reader.latestOffset(start, limit) == start
    clock.advance(9_999)
    assert reader.latestOffset(start, limit) == start
    clock.advance(1)
    end = reader.latestOffset(start, limit)
    assert rows_of(reader, start, end) == [(topic, 1), (topic, 2)]
    # The time counts from the last batch; enough records end the waiting.
    append(client, topic, 4)
    assert reader.latestOffset(end, limit) == end
    append(client, topic, 1)
    start, end = end, reader.latestOffset(end, limit)
    assert len(rows_of(reader, start, end)) == 5
    # A trigger that wants all there is does not wait, and neither does AvailableNow.
    append(client, topic, 1)
    assert reader.latestOffset(end, limit) == end
    start = reader.latestOffset(end, ALL)
    assert rows_of(reader, end, start) == [(topic, 8)]
    append(client, topic, 1)
    other = reads(ManualClock(), subscribe=topic, maxRecordsPerTrigger=100, **how)
    assert other.getDefaultReadLimit() == ReadMaxRows(100)
    assert other.latestOffset(start, ReadMaxRows(100)) == start
    other.prepareForTriggerAvailableNow()
    end = other.latestOffset(start, ReadMaxRows(100))
    append(client, topic, 9)
    assert rows_of(other, start, end) == [(topic, 9)]
    assert other.latestOffset(end, ReadMaxRows(100)) == end


def test_limits_and_what_is_reported(client: Client, reads: Reads, topic: str) -> None:
    counts = {f"{topic}-a": 30, f"{topic}-b": 10, f"{topic}-c": 0}
    for name, count in counts.items():
        client.put_topic(name)
        if count:
            append(client, name, count)
    reader = reads(subscribePattern=f"{topic}-.", maxRecordsPerTrigger=8)
    assert reader.reportLatestOffset() is None
    start = reader.initialOffset()
    limit: ReadLimit = reader.getDefaultReadLimit()
    seen: list[tuple[str, int | None]] = []
    sizes = []
    while (end := reader.latestOffset(start, limit)) != start:
        rows = rows_of(reader, start, end)
        # Another process that runs the batch again gives the same rows, whatever came since.
        if not seen:
            append(client, f"{topic}-c", 1)
        again = reads(subscribePattern=f"{topic}-.", maxRecordsPerTrigger=1)
        assert rows_of(again, again.initialOffset() if not seen else start, end) == rows
        seen += rows
        sizes.append(len(rows))
        start = end
    assert sizes == [8, 8, 8, 8, 8, 1]
    assert len(set(seen)) == len(seen) == 41
    said = reader.reportLatestOffset()
    assert said is not None
    heads = {name: place["seq"] for name, place in said["topics"].items()}
    assert heads == {**counts, f"{topic}-c": 1}
    # All there is, whatever the options say.
    append(client, f"{topic}-a", 50)
    assert len(rows_of(reader, start, reader.latestOffset(start, ALL))) == 50


def test_files_are_kept_while_their_batch_is_read(
    start_server: Callable[..., ServerProcess], topic: str
) -> None:
    """Until another batch is planned; planning one again does not let go of it."""
    server = start_server()
    with Client(server.url) as client:
        for _ in range(3):
            append(client, topic, HTTP_SEQS_MAX)
    server.stop()  # which seals what there is
    server = start_server()
    options = source_options({"url": server.url, "subscribe": topic}, streaming=True)
    reader = StreamReader(options, shape_of(options, None))
    limit = ReadMaxRows(HTTP_SEQS_MAX + 1)
    start = reader.initialOffset()
    with Client(server.url) as client:
        pins = []
        for _ in range(2):
            end = reader.latestOffset(start, limit)
            for _ in range(2):
                [part] = reader.partitions(start, end)
                assert isinstance(part, ReadPart)
                pins += [pin.pin for pin in part.pins]
            assert sum(len(batch) for batch in reader.read(part)) == HTTP_SEQS_MAX + 1
            start = end
        assert len(set(pins)) == 4
        for pin in pins[:2]:
            with pytest.raises(NotFound):
                client.renew_pin(topic, pin)
        assert [client.renew_pin(topic, pin).pin for pin in pins[2:]] == pins[2:]
        reader.stop()
        with pytest.raises(NotFound):
            client.renew_pin(topic, pins[-1])


def test_a_micro_batch_costs_few_calls(client: Client, reads: Reads, topic: str) -> None:
    names = [f"{topic}-{n}" for n in range(3)]
    for name in names:
        append(client, name, 1)
    named, matching = {"subscribe": ",".join(names)}, {"subscribePattern": f"{topic}-."}
    for how, calls in ((named, 3), (matching, 1)):
        reader = reads(**how)
        start = reader.latestOffset(reader.initialOffset(), ALL)
        for name in names:
            append(client, name, 1)
        before = requests_of(client)
        end = reader.latestOffset(start, ALL)
        parts = reader.partitions(start, end)
        reader.reportLatestOffset()
        reader.commit(end)
        # One more is the question itself.
        assert requests_of(client) - before == calls + 1, how
        assert sum(len(batch) for part in parts for batch in reader.read(part)) == 3


def test_a_start_in_the_future_is_refused(client: Client, reads: Reads, topic: str) -> None:
    """Else what comes before that time would be read, as if it had been asked for."""
    append(client, topic, 1)
    for option, at in (("startingTimestamp", "{0}"), ("startingSeqsByTimestamp", '{{"{1}":{0}}}')):
        clock = ManualClock()
        later = reads(clock, subscribe=topic, **{option: at.format(clock.wall_ms() + 5, topic)})
        with pytest.raises(InvalidRequest, match="5 ms from now; use startingSeqs=latest"):
            later.initialOffset()
        clock.advance(5)
        later.initialOffset()


def test_a_query_that_has_not_begun_gives_up_soon() -> None:
    nowhere = {"url": "http://127.0.0.1:9", "subscribe": "t"}
    patient = source_options(nowhere, streaming=True).connection
    assert (patient.start_timeout_ms, patient.retry_timeout_ms) == (30_000, 600_000)
    options = source_options({**nowhere, "retryTimeout": "50ms"}, streaming=True)
    hasty = options.connection
    assert (hasty.start_timeout_ms, hasty.retry_timeout_ms) == (50, 50)
    slow = msgspec.structs.replace(hasty, retry_timeout_ms=600_000)
    options = msgspec.structs.replace(options, connection=slow)
    shape = shape_of(options, None)
    for begin in (
        StreamReader(options, shape).initialOffset,
        BatchReader(options, shape).partitions,
    ):
        with pytest.raises(Unreachable):
            begin()


def test_topics_that_are_missing(client: Client, reads: Reads, topic: str) -> None:
    reader = reads(subscribe=f"{topic}x")
    append(client, topic, 1)
    with pytest.raises(TopicNotFound, match=topic):
        reader.initialOffset()
    reader = reads(subscribe=topic)
    start = reader.latestOffset(reader.initialOffset(), ALL)
    client.delete_topic(topic)
    with pytest.raises(DataLost, match=r"was deleted.*checkpointLocation") as caught:
        reader.latestOffset(start, ALL)
    assert caught.value.code == "data_loss"
    lossy = reads(subscribe=topic, failOnDataLoss="false")
    gone = lossy.latestOffset(start, ALL)
    assert gone == {"topics": {}}
    assert rows_of(lossy, start, gone) == [(topic, None)]
    assert lossy.latestOffset(gone, ALL) == gone
    with pytest.raises(DataLost):
        reader.partitions(start, gone)
    append(client, topic, 2)
    back = lossy.latestOffset(gone, ALL)
    assert rows_of(lossy, gone, back) == [(topic, 1), (topic, 2)]
    epochs = rf"epoch {start['topics'][topic]['epoch']}, .* epoch {client.topic(topic).epoch};"
    with pytest.raises(DataLost, match=epochs):
        reader.latestOffset(start, ALL)
