"""From a declaration to a running Structured Streaming query.

Only this file knows how sources become tables and rows become records.  Rows for a topic are staged
(`mode=staged` of the sink) under the checkpoint's id and the batch's number: a batch that runs
again may come to other rows, by the order in which a shuffle brings them or because the SQL was
changed, and what is seen in the topic is one attempt of it, whole and once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from headrace.api.pipelines import TIME_COLUMN, Declaration, PipelineSource
from headrace.core.errors import DataLost, HeadraceError, InvalidRequest, TopicNotFound
from headrace.core.limits import seq_max
from headrace.core.units import parse_duration_ms
from headrace.pipelines.registry.declaration import AVAILABLE_NOW, EVENT_TIME
from headrace.pipelines.registry.sql_check import check_sql
from headrace.pipelines.worker.bad_records import COLUMNS, DeadLetters
from headrace.pipelines.worker.checkpoints import Checkpoint, Marker, fit, path_of
from headrace.pipelines.worker.entry_points import Entry, entry_of
from headrace.pipelines.worker.plan_check import check_leaves, check_plan, is_stateful, new_session
from headrace.pipelines.worker.progress import BAD_PREFIX
from headrace.pipelines.worker.tables import TableWriter
from headrace.spark.connection import connect
from headrace.spark.options import Connection

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import DataType

# Of a result: what the record gets beside its data.
BESIDE: Final = ("tag", "node", "meta")
_TO_JSON: Final = {"ignoreNullFields": "false"}


class WorkerSetup(NamedTuple):
    """What the worker was started with: the server, places for its files, and its functions."""

    connection: Connection
    checkpoints: str
    entries: Mapping[str, Entry]
    tables: str = ""


class Built(NamedTuple):
    """A query that is ready to start, and the session that it lives in."""

    session: SparkSession
    start: Callable[[], list[StreamingQuery]]
    finish_first: Callable[[], StreamingQuery] | None


def build(spark: SparkSession, name: str, declaration: Declaration, place: WorkerSetup) -> Built:
    """Everything short of starting: what Spark refuses is refused here."""
    session = new_session(spark)
    checkpoint = Checkpoint(session, path_of(place.checkpoints, name, declaration.checkpoint))
    found = checkpoint.marker()
    starts = starts_of(declaration, checkpoint.places(), place.connection)
    result = result_of(session, declaration, place, starts)
    stateful = declaration.python is not None or is_stateful(result)
    marker, before = fit(found, name, declaration, stateful)
    finish = None
    if before is not None and checkpoint.unfinished():
        old = result_of(new_session(spark), before, place, {})
        # Of all triggers this one ends after the batch that was begun, whatever else there is.
        finish = writer_of(old, name, before, place, checkpoint, marker).trigger(once=True).start
    writers = [
        writer_of(result, name, declaration, place, checkpoint, marker),
        *dead_letter_writers(session, name, declaration, place, checkpoint, marker, starts),
    ]

    def start() -> list[StreamingQuery]:
        if found != marker:
            checkpoint.mark(marker, found)
        started: list[StreamingQuery] = []
        try:
            for writer in writers:
                started.append(writer.trigger(**trigger_of(declaration)).start())
        except BaseException:
            for query in started:
                query.stop()
            raise
        return started

    return Built(session, start, finish)


# Reading


def starts_of(
    declaration: Declaration, places: Mapping[str, int], connection: Connection
) -> dict[str, int]:
    """The first seq of each topic for a query that is new, where that is not the earliest.

    All queries of a pipeline begin at one place: where the checkpoint is, or at the latest of now.
    A topic that is not there yet is an error before anything has been started for it.
    """
    found = {topic: seq + 1 for topic, seq in places.items()}
    with connect(connection, starting=True) as client:
        for source in declaration.sources:
            try:
                head = client.topic(source.topic, touch=False).head_seq
            except TopicNotFound:
                raise _missing(source.topic, places) from None
            if source.start == "latest":
                found.setdefault(source.topic, head + 1)
    return found


def _missing(topic: str, places: Mapping[str, int]) -> HeadraceError:
    if topic in places:
        return DataLost(
            f"the source {topic!r} was deleted; what came after seq {places[topic]} is lost"
        )
    return TopicNotFound(
        f"the source {topic!r} does not exist", fix="append to it: the pipeline then begins"
    )


def result_of(
    session: SparkSession, declaration: Declaration, place: WorkerSetup, starts: Mapping[str, int]
) -> DataFrame:
    """The rows that the pipeline computes, as a streaming data frame."""
    frames = {
        source.table: source_frame(session, source, declaration, place.connection, starts)
        for source in declaration.sources
    }
    if declaration.python is not None:
        function = entry_of(place.entries, declaration.python.entry)
        frame: DataFrame = function(session, frames, **declaration.python.args)
    else:
        assert declaration.sql is not None
        for table, source in frames.items():
            source.createOrReplaceTempView(table)
        check_sql(declaration.sql, list(declaration.tables))
        check_plan(session, declaration.sql)
        frame = session.sql(declaration.sql)
        check_leaves(frame)
    if not frame.isStreaming:
        raise InvalidRequest(
            "the result does not come from the sources", fix="select from a source"
        )
    return frame


def server_options(connection: Connection) -> dict[str, str]:
    options = {"url": connection.url}
    if connection.token is not None:
        options["token"] = connection.token
    if connection.ca_file is not None:
        options["caFile"] = connection.ca_file
    return options


def source_options(
    source: PipelineSource, connection: Connection, starts: Mapping[str, int] | None = None
) -> dict[str, str]:
    options = {**server_options(connection), "startingSeqs": source.start}
    if starts is not None and source.topic in starts:
        seqs = {source.topic: starts[source.topic]}
        options["startingSeqs"] = msgspec.json.encode(seqs).decode()
    # A comma would part two names; a pattern has the server list its topics again and again.
    if "," in source.topic:
        options["subscribePattern"] = re.escape(source.topic)
    else:
        options["subscribe"] = source.topic
    if source.max_records is not None:
        options["maxRecordsPerTrigger"] = str(min(source.max_records, seq_max))
    if source.schema is not None:
        options["schema"] = source.schema
    return options


def source_frame(
    session: SparkSession,
    source: PipelineSource,
    declaration: Declaration,
    connection: Connection,
    starts: Mapping[str, int],
) -> DataFrame:
    """A source as the SQL sees it."""
    from pyspark.sql import functions

    skips = source.schema is not None and declaration.on_error != "fail"
    options = source_options(source, connection, starts)
    if skips:
        options["badRecords"] = "null"
    frame = session.readStream.format("headrace").options(**options).load()
    if source.schema is None:
        frame = frame.withColumn("raw", frame["data"]).withColumn(
            "data", functions.expr("try_parse_json(cast(raw as string))")
        )
    if skips:
        # A null is a record that does not fit, or one that is null itself.
        frame = frame.observe(
            BAD_PREFIX + source.table.lower(),
            functions.expr("count_if(data is null)").alias("bad"),
            functions.expr("min(case when data is null then seq end)").alias("seq"),
        ).where("data is not null")
    return _unique(_with_watermark(frame, source), source)


def _with_watermark(frame: DataFrame, source: PipelineSource) -> DataFrame:
    watermark = source.watermark
    if watermark is None:
        return frame
    column = watermark.column
    if column != TIME_COLUMN:
        frame = frame.withColumn(EVENT_TIME, frame[column].cast("timestamp"))
        column = EVENT_TIME
    return frame.withWatermark(column, f"{parse_duration_ms(watermark.delay)} milliseconds")


def _unique(frame: DataFrame, source: PipelineSource) -> DataFrame:
    """Without records whose keys came before, within the watermark's delay."""
    from pyspark.sql import functions

    keys = [f"headrace_key_{number}" for number in range(len(source.unique_by))]
    if not keys:
        return frame
    columns = frame.columns
    for key, path in zip(keys, source.unique_by, strict=True):
        column = frame[path] if source.schema is not None or "." not in path else None
        if column is None:  # of a VARIANT
            field = path.removeprefix("data.")
            column = functions.expr(f"variant_get(data, '$.{field}', 'string')")
        frame = frame.withColumn(key, column)
    return frame.dropDuplicatesWithinWatermark(keys).select(*columns)


# Writing


def records_of(frame: DataFrame) -> DataFrame:
    """Rows as records: columns `tag`, `node` and `meta` as such, `data` or all others as data."""
    from pyspark.sql import functions

    beside = [name for name in BESIDE if name in frame.columns]
    others = [name for name in frame.columns if name not in beside]
    if len(set(frame.columns)) != len(frame.columns):
        raise InvalidRequest(
            "two columns of the result have one name", fix="give each another name with AS"
        )
    if not others:
        raise InvalidRequest("the result has no column for data", fix="select something as data")
    if "data" in others and len(others) > 1:
        extra = ", ".join(name for name in others if name != "data")
        raise InvalidRequest(
            f"the result has data, and columns beside it that are no part of a record: {extra}",
            fix="leave them out, or call data something else: then all become one object",
        )
    if "data" in others:
        data = _as_text("data", frame)
    else:
        data = functions.to_json(functions.struct(*(frame[f"`{n}`"] for n in others)), _TO_JSON)
    columns = [data.alias("data")]
    columns += [_as_text(name, frame).alias(name) for name in beside]
    return frame.select(*columns)


def _as_text(name: str, frame: DataFrame) -> Column:
    from pyspark.sql import functions
    from pyspark.sql.types import BinaryType, StringType

    column, kind = frame[name], frame.schema[name].dataType
    if isinstance(kind, StringType) or (isinstance(kind, BinaryType) and name == "data"):
        return column
    if name in ("data", "meta") and _is_nested(kind):
        return functions.to_json(column, _TO_JSON)
    return column.cast("string")


def _is_nested(kind: DataType) -> bool:
    return kind.typeName() in ("struct", "array", "map", "variant")


def writer_of(
    result: DataFrame,
    name: str,
    declaration: Declaration,
    place: WorkerSetup,
    checkpoint: Checkpoint,
    marker: Marker,
) -> DataStreamWriter:
    """The query, but for its trigger."""
    table = declaration.dest.table
    if table is not None:
        replaces = declaration.output_mode == "complete"
        app_id = f"headrace-pipeline:{name}:{marker.id}"
        target = TableWriter(place.tables, table, app_id, replaces=replaces)
        writer = result.writeStream.foreachBatch(target.write)
    else:
        options = {**server_options(place.connection), "topic": declaration.dest.topic or ""}
        writer = records_of(result).writeStream.foreachBatch(topic_batches(options, marker.id))
    writer = writer.outputMode(declaration.output_mode).queryName(name)
    return writer.option("checkpointLocation", checkpoint.path)


def topic_batches(options: dict[str, str], write_id: str) -> Callable[[DataFrame, int], None]:
    """What writes a batch to a topic: all of it, from one attempt, once."""

    def write(batch: DataFrame, number: int) -> None:
        writing = batch.write.format("headrace").options(**options, mode="staged")
        writing.options(writeId=write_id, writeVersion=number).mode("append").save()

    return write


def dead_letter_writers(
    session: SparkSession,
    name: str,
    declaration: Declaration,
    place: WorkerSetup,
    checkpoint: Checkpoint,
    marker: Marker,
    starts: Mapping[str, int],
) -> Iterator[DataStreamWriter]:
    """A query beside the pipeline's for each source whose bad records are to be copied."""
    if declaration.dead_letter is None:
        return
    for source in declaration.sources:
        if source.schema is None:
            continue
        options = source_options(source, place.connection, starts)
        options |= {"badRecords": "null", "columns": COLUMNS}
        frame = session.readStream.format("headrace").options(**options).load()
        producer = f"pipeline-bad:{name}:{marker.id}:{source.table.lower()}"
        letters = DeadLetters(
            place.connection, name, producer, source.topic, declaration.dead_letter
        )
        writer = frame.where("data is null").writeStream.foreachBatch(letters.copy)
        writer = writer.queryName(f"{name} (bad records of {source.table})")
        # Spark's own names there are words without a dot.
        beside = f"{checkpoint.path}/bad.{source.table.lower()}"
        yield writer.option("checkpointLocation", beside)


def trigger_of(declaration: Declaration) -> dict[str, Any]:
    """As Spark names it.

    >>> from headrace.api.pipelines import PipelineDest
    >>> trigger_of(Declaration([], PipelineDest("b"), trigger="10s"))
    {'processingTime': '10000 milliseconds'}
    """
    if declaration.trigger == AVAILABLE_NOW:
        return {"availableNow": True}
    every = 0 if declaration.trigger is None else parse_duration_ms(declaration.trigger)
    return {"processingTime": f"{every} milliseconds"}
