"""Options: what each says, and that a wrong one is told what would be right."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from headrace.core.errors import HeadraceError
from headrace.spark import option_table as table
from headrace.spark.options import (
    DEFAULT_URL,
    Connection,
    Position,
    SinkOptions,
    SourceOptions,
    sink_options,
    source_options,
)
from tests.support.checkout import ROOT

SECRET = "hr_key_that_nobody_may_see"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_URL", raising=False)
    monkeypatch.delenv("HEADRACE_TOKEN", raising=False)


def batch(**options: str) -> SourceOptions:
    return source_options({"subscribe": "orders", **options}, streaming=False)


def stream(**options: str) -> SourceOptions:
    return source_options({"subscribe": "orders", **options}, streaming=True)


def test_defaults() -> None:
    expected = SourceOptions(Connection(DEFAULT_URL), topics=("orders",))
    assert batch() == stream() == expected
    assert source_options({"path": "orders"}, streaming=None) == expected
    assert sink_options({"path": "orders"}, streaming=True) == SinkOptions(
        Connection(DEFAULT_URL), topic="orders"
    )
    assert sink_options({}, streaming=False).topic is None


def test_every_option_of_a_read() -> None:
    options = {
        "SUBSCRIBE": "orders, logs",
        "startingSeqs": '{"orders": 5, "logs": -2}',
        "failOnDataLoss": "False",
        "maxRecordsPerTrigger": "100",
        "minRecordsPerTrigger": "10",
        "maxTriggerDelay": "2m",
        "minPartitions": "8",
        "columns": "Seq, data",
        "schema": "id BIGINT",
        "badRecords": "NULL",
        "url": "https://events.example",
        "token": SECRET,
        "caFile": "ca.pem",
        "direct": "false",
        "retryTimeout": "30s",
    }
    # Spark hands names over in lower case.
    found = source_options(CaseInsensitiveDict(options), streaming=True)
    assert found == source_options(options, streaming=True)
    assert found == SourceOptions(
        Connection("https://events.example", SECRET, "ca.pem", 30_000),
        topics=("orders", "logs"),
        starting=Position(seqs={"orders": 5, "logs": -2}),
        fail_on_data_loss=False,
        max_records_per_trigger=100,
        min_records_per_trigger=10,
        max_trigger_delay_ms=120_000,
        min_partitions=8,
        columns=("seq", "data"),
        data_format="typed",
        data_schema="id BIGINT",
        bad_records="null",
        direct="false",
    )
    assert batch(pushFilters="true").push_filters


def test_every_option_of_a_write() -> None:
    options = {
        "topic": "orders",
        "mode": "staged",
        "stagingTopic": "waiting",
        "writeId": "load-7",
        "writeVersion": "3",
        "create": "false",
    }
    assert sink_options(options, streaming=False) == SinkOptions(
        Connection(DEFAULT_URL), "orders", True, "waiting", "load-7", 3, False
    )


def test_where_reading_starts_and_ends() -> None:
    assert stream(startingSeqs="Latest").starting == Position("latest")
    assert batch(startingTimestamp="1767225600000").starting == Position(ts_ms=1767225600000)
    found = batch(startingTimestamp="2026-01-01", endingTimestamp="2026-01-01T01:00:00.0005+01:00")
    assert found.starting == Position(ts_ms=1767225600000)
    assert found.ending == Position(ts_ms=1767225600001)
    times = '{"orders": "2026-01-01T00:00:00Z"}'
    by_topic = Position(ts_by_topic={"orders": 1767225600000})
    assert batch(endingSeqsByTimestamp=times).ending == by_topic
    assert stream(startingSeqsByTimestamp='{"orders": 1767225600000}').starting == by_topic
    assert batch(endingSeqs='{"orders": -1}').ending == Position(seqs={"orders": -1})
    pattern = {"subscribePattern": "order.*", "startingSeqs": '{"orders": 0}'}
    assert source_options(pattern, streaming=False).starting == Position(seqs={"orders": 0})


def test_the_server_may_be_named_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_URL", "http://elsewhere:1")
    monkeypatch.setenv("HEADRACE_TOKEN", SECRET)
    assert batch().connection == Connection("http://elsewhere:1", SECRET)
    assert batch(url="http://b:2", token="other").connection == Connection("http://b:2", "other")


@pytest.mark.parametrize(
    ("options", "said", "fix"),
    [
        ({"subscribes": "a"}, "no option 'subscribes'", "did you mean subscribe?"),
        ({"Fail_on_data_loss": "a"}, "no option", "did you mean failOnDataLoss?"),
        ({"startingOffsets": "latest"}, "no option", "here it is startingSeqs"),
        ({"kafka.bootstrap.servers": "a"}, "no option", "here it is url"),
        ({"endingOffsetsByTimestamp": "a"}, "no option", "here it is endingSeqsByTimestamp"),
        ({"topic": "a"}, "topic is an option of a batch write", "use subscribe"),
        ({"maxRecordsPerTrigger": "1"}, "of a stream read, and this is a batch read", "leave it"),
        ({"subscribePattern": "a"}, "both subscribe", "one of them"),
        ({"path": "other"}, "'orders', and the path of load or save 'other'", "one of them"),
        ({"subscribe": "a,,b"}, "a name is empty", "separated by commas"),
        ({"subscribe": "a,b,a"}, "'a' is named twice", "separated by commas"),
        ({"subscribe": ""}, "subscribe is empty", "topics, separated by commas"),
        ({"startingSeqs": "latest"}, "startingSeqs is latest", "use earliest"),
        ({"startingSeqs": '{"orders": -1}'}, "startingSeqs is latest", "use earliest"),
        ({"startingSeqs": "5"}, "startingSeqs is '5'", 'such as {"orders": 100'),
        ({"startingSeqs": "first"}, "startingSeqs is 'first'", "give earliest, latest"),
        ({"startingSeqs": "{}"}, "the map is empty", "JSON map"),
        ({"startingSeqs": '{"orders": -3}'}, "neither -2 nor -1", "JSON map"),
        ({"startingSeqs": '{"orders": true}'}, "no seq of 0 or more", "JSON map"),
        ({"startingSeqs": '{"order": 1}'}, "'order' is not subscribed", "did you mean 'orders'?"),
        ({"endingSeqs": "earliest"}, "endingSeqs is earliest", "use latest"),
        ({"endingSeqs": '{"orders": -2}'}, "endingSeqs is earliest", "use latest"),
        ({"startingTimestamp": "soon"}, "'soon' is no time", "milliseconds since 1970"),
        ({"startingTimestamp": "1969-01-01"}, "before 1970", "milliseconds since 1970"),
        ({"endingSeqsByTimestamp": '{"orders": null}'}, "None is no time", "JSON map"),
        (
            {"startingSeqs": "earliest", "startingTimestamp": "5"},
            "both startingSeqs and startingTimestamp",
            "one of them",
        ),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss is 'perhaps'", "true or false"),
        ({"minPartitions": "0"}, "minPartitions is '0'", "at least 1"),
        ({"minPartitions": "many"}, "minPartitions is 'many'", "at least 1"),
        ({"dataFormat": "avro"}, "dataFormat is 'avro'", "binary, json or variant"),
        ({"dataFormat": "variant", "schema": "a INT"}, "dataFormat is variant", "leave dataFormat"),
        ({"badRecords": "skip"}, "badRecords is 'skip'", "fail or null"),
        ({"direct": "yes"}, "direct is 'yes'", "auto, true or false"),
        ({"url": "ftp://a"}, "not the address of a server", "http://HOST:PORT"),
        ({"caFile": "ca.pem"}, "caFile is set", "https://"),
        ({"retryTimeout": "long"}, "retryTimeout is 'long'", "500ms, 30s"),
    ],
)
def test_a_wrong_option_of_a_batch(options: dict[str, str], said: str, fix: str) -> None:
    with pytest.raises(HeadraceError) as refused:
        batch(token=SECRET, **options)
    assert said in str(refused.value)
    assert fix in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said", "fix"),
    [
        ({"endingSeqs": "latest"}, "of a batch read, and this is a stream read", "leave it out"),
        ({"pushFilters": "true"}, "of a batch read, and this is a stream read", "leave it out"),
        (
            {"minRecordsPerTrigger": "5", "maxRecordsPerTrigger": "4"},
            "more than maxRecordsPerTrigger",
            "4 or less",
        ),
        ({"maxTriggerDelay": "1m"}, "nothing waits for it", "minRecordsPerTrigger"),
        ({"maxOffsetsPerTrigger": "1"}, "no option", "here it is maxRecordsPerTrigger"),
    ],
)
def test_a_wrong_option_of_a_stream(options: dict[str, str], said: str, fix: str) -> None:
    with pytest.raises(HeadraceError) as refused:
        stream(**options)
    assert said in str(refused.value)
    assert fix in str(refused.value)


def test_a_pattern_is_checked() -> None:
    with pytest.raises(HeadraceError, match="subscribePattern is"):
        source_options({"subscribePattern": "a("}, streaming=False)
    with pytest.raises(HeadraceError, match="'x' does not match subscribePattern"):
        source_options({"subscribePattern": "a.*", "startingSeqs": '{"x": 1}'}, streaming=False)
    with pytest.raises(HeadraceError, match="no option says which topics"):
        source_options({}, streaming=None)


@pytest.mark.parametrize(
    ("options", "streaming", "said"),
    [
        ({"subscribe": "a"}, False, "use topic"),
        ({"stagingTopic": "a"}, False, "mode is direct"),
        ({"writeVersion": "1"}, False, "without writeId"),
        ({"writeId": "a"}, True, "of a batch write, and this is a stream write"),
        ({"mode": "fast"}, False, "direct or staged"),
        ({"topics": "a"}, False, "did you mean topic?"),
        ({"topic": "a", "path": "b"}, False, "one of them"),
    ],
)
def test_a_wrong_option_of_a_write(options: dict[str, str], streaming: bool, said: str) -> None:
    with pytest.raises(HeadraceError) as refused:
        sink_options(options, streaming=streaming)
    assert said in str(refused.value)


def test_what_spark_adds_is_let_through() -> None:
    options = {"topic": "a", "checkpointLocation": "/c", "queryName": "q"}
    assert sink_options(options, streaming=True).topic == "a"


def test_the_token_is_never_shown() -> None:
    found = batch(token=SECRET)
    assert found.connection.token == SECRET
    assert SECRET not in repr(found) + str(found)
    for options in ({"tokn": SECRET}, {"url": f"http://u:{SECRET}@host"}):
        with pytest.raises(HeadraceError) as refused:
            batch(**options)
        assert SECRET not in str(refused.value)


def test_the_page_is_what_the_table_says() -> None:
    command = [sys.executable, str(ROOT / "tools" / "spark_options_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (ROOT / "docs" / "reference" / "spark-options.md").read_text(encoding="utf-8")
    text = text.partition("\n## Columns")[0]
    assert [text.count(f"\n| `{option.name}` |") for option in table.TABLE] == [1] * len(
        table.TABLE
    )
    assert len(table.BY_LOWER) == len(table.TABLE)
    assert all(
        known in {option.name for option in table.TABLE} for known in table.ELSEWHERE.values()
    )
