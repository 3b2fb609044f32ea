"""The options of `format("headrace")` as a table: name, where it applies, its values, its meaning.

The reference page is written from it, and an option that is not here does not exist.  What a value
means to the reader or the writer is said by the types of options.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

BATCH: Final = "batch read"
STREAM: Final = "stream read"
SINK: Final = "batch write"
STREAM_SINK: Final = "stream write"

READS: Final = (BATCH, STREAM)
WRITES: Final = (SINK, STREAM_SINK)
USES: Final = (*READS, *WRITES)


class Option(NamedTuple):
    """One option.  `values` is prose for the page and for the message about a wrong value."""

    name: str
    uses: tuple[str, ...]
    values: str
    default: str
    doc: str


_POSITION: Final = 'earliest, latest or a JSON map such as {"orders": 100, "logs": -2}'
_TIME: Final = "milliseconds since 1970 or a time such as 2026-01-31T12:00:00Z"
_TIMES: Final = 'a JSON map such as {"orders": 1767225600000, "logs": "2026-01-31T12:00:00Z"}'
_BOOL: Final = "true or false"
_COUNT: Final = "a whole number of at least 1"
_DURATION: Final = "a duration such as 500ms, 30s, 15m, 1h or 2d"

TABLE: Final = (
    Option(
        "subscribe",
        READS,
        "topics, separated by commas",
        "",
        'What to read. `.load("orders")` says the same. Give this or `subscribePattern`.',
    ),
    Option(
        "subscribePattern",
        READS,
        "a regular expression of Python",
        "",
        "Reads every topic whose whole name matches; a stream takes up new ones as they appear,"
        " from their beginning. No pattern matches a topic in which `mode=staged` keeps rows aside,"
        " and only one that begins with `_` matches topics of the server itself."
        " It is also the way to a name with a comma.",
    ),
    Option(
        "startingSeqs",
        READS,
        _POSITION,
        "earliest",
        "The first seq to read, inclusive. In a map -2 is the earliest and -1 the latest; it names"
        " every topic that is read. A stream that has a checkpoint goes on where it was. A batch"
        " cannot start at the latest.",
    ),
    Option(
        "startingTimestamp",
        READS,
        _TIME,
        "",
        "Starts each topic at its first record of that time or later. Without an offset the time is"
        " UTC. For a stream it cannot lie in the future.",
    ),
    Option("startingSeqsByTimestamp", READS, _TIMES, "", "The same, with a time for each topic."),
    Option(
        "endingSeqs",
        (BATCH,),
        _POSITION,
        "latest",
        "The first seq that is not read any more. It cannot be the earliest.",
    ),
    Option(
        "endingTimestamp",
        (BATCH,),
        _TIME,
        "",
        "Ends each topic before its first record of that time or later.",
    ),
    Option("endingSeqsByTimestamp", (BATCH,), _TIMES, "", "The same, with a time for each topic."),
    Option(
        "failOnDataLoss",
        READS,
        _BOOL,
        "true",
        "Whether records that are gone (a cap, a TTL, a crash, a topic made anew) end the query"
        " with an error. With false each such range is a row whose column `gap` says which seqs"
        " and why.",
    ),
    Option(
        "maxRecordsPerTrigger",
        (STREAM,),
        _COUNT,
        "no bound",
        "At most so many seqs in a micro-batch, shared among topics by how far each is behind.",
    ),
    Option(
        "minRecordsPerTrigger",
        (STREAM,),
        _COUNT,
        "1",
        "Waits until so many are there, or `maxTriggerDelay` is over.",
    ),
    Option(
        "maxTriggerDelay",
        (STREAM,),
        _DURATION,
        "15m",
        "How long `minRecordsPerTrigger` may wait.",
    ),
    Option(
        "minPartitions",
        READS,
        _COUNT,
        "by the files",
        "Cuts the work into at least so many tasks, if there are as many rows.",
    ),
    Option(
        "columns",
        READS,
        "names of columns, separated by commas",
        "topic,seq,ts,node,tag,meta,data",
        "The columns to read, in this order. Spark cannot leave columns out of such a source by"
        " itself, and what is not named is not read from the files. `kind`, `content_type`,"
        " `headers` and `gap` are further ones.",
    ),
    Option(
        "dataFormat",
        READS,
        "binary, json or variant",
        "binary",
        "The type of the column `data`: the bytes as they were written, their text (STRING), or"
        " a VARIANT. A variant is made record by record; `parse_json(data)` on the text is faster.",
    ),
    Option(
        "schema",
        READS,
        "fields as in DDL, such as id BIGINT, items ARRAY<STRING>",
        "",
        "Makes `data` a STRUCT of these fields of the JSON object; other fields are ignored and"
        " missing ones are null.",
    ),
    Option(
        "badRecords",
        READS,
        "fail or null",
        "fail",
        "What becomes of a record whose data is not of `dataFormat` or `schema`: an error that"
        " names its topic and seq, or a null in `data`.",
    ),
    Option(
        "direct",
        READS,
        "auto, true or false",
        "auto",
        "Whether tasks read sealed files themselves. With auto they do where the key allows it and"
        " the files can be reached, with true anything else is an error, with false all comes over"
        " HTTP.",
    ),
    Option(
        "pushFilters",
        (BATCH,),
        _BOOL,
        "false",
        "Lets conditions on `seq`, `ts` and `tag` spare reading. **Only for a data frame that is"
        " used once, in one place of one query**: Spark 4.2 and 4.3 keep the conditions that were"
        " handed over last, so that a self-join, a union with itself, a view or a second action on"
        " the same data frame silently lacks rows. `startingSeqs`, `endingSeqs` and the timestamps"
        " narrow what is read without that danger. It needs Spark's"
        " `spark.sql.python.filterPushdown.enabled`, which `headrace.spark.spark_session()` sets.",
    ),
    Option(
        "topic",
        WRITES,
        "a topic",
        "",
        'Where to write; `.save("orders")` says the same. Without it the column `topic` says it,'
        " row by row.",
    ),
    Option(
        "mode",
        WRITES,
        "direct or staged",
        "direct",
        "With direct each task appends, exactly once if the plan gives the same rows when it is run"
        " again. With staged rows are kept aside until all tasks are done and only then published,"
        " chunk by chunk, exactly once whatever the plan gives.",
    ),
    Option(
        "stagingTopic",
        WRITES,
        "the beginning of a topic's name",
        "that of `topic`, else headrace",
        "`mode=staged` keeps rows in the topic of this name and `.staged-` and the query's id until"
        " they are published; where `topic` is given too, the name ends in it.",
    ),
    Option(
        "writeId",
        (SINK,),
        "a name",
        "",
        "Names this write: another run with the same name and `writeVersion` stores nothing twice.",
    ),
    Option(
        "writeVersion",
        (SINK,),
        "a whole number of at least 0",
        "0",
        "The number of this write among those with the same `writeId`; it grows from run to run.",
    ),
    Option("create", WRITES, _BOOL, "true", "Whether a topic that does not exist is created."),
    Option(
        "url",
        USES,
        "http://HOST:PORT or https://HOST:PORT",
        "`HEADRACE_URL`, else `http://127.0.0.1:4000`",
        "The server. Driver and executors must reach it under this address.",
    ),
    Option(
        "token",
        USES,
        "an API key",
        "`HEADRACE_TOKEN`",
        "No message ever has it. A variable is read where the driver of Spark was started.",
    ),
    Option(
        "caFile",
        USES,
        "the name of a PEM file",
        "those of the machine",
        "The authorities to trust with https; the file must be there on every executor.",
    ),
    Option(
        "retryTimeout",
        USES,
        _DURATION,
        "10m",
        "For how long a call is tried again while the server is away, or says that it is busy."
        " Without it, a batch read that is planned and a stream that is new wait 30s only.",
    ),
)

BY_LOWER: Final = {option.name.lower(): option for option in TABLE}

# What Spark itself hands to a source or a sink, and we do not look at.
OF_SPARK: Final = frozenset(
    {
        "checkpointlocation",
        "queryname",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
    }
)

# Names that people know from Kafka's source, or guess.
ELSEWHERE: Final = {
    "assign": "subscribe",
    "endingoffsets": "endingSeqs",
    "endingoffsetsbytimestamp": "endingSeqsByTimestamp",
    "includeheaders": "columns",
    "kafka.bootstrap.servers": "url",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "minoffsetspertrigger": "minRecordsPerTrigger",
    "paths": "subscribe",
    "startingoffsets": "startingSeqs",
    "startingoffsetsbytimestamp": "startingSeqsByTimestamp",
    "topics": "subscribe",
}
