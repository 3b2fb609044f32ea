"""Spark writes topics: exactly once by producer state, for batches and streams.

A stream's task is the producer `spark:<query>:<partition>`, the batch its epoch, a chunk its
sequence: a retry, a speculative duplicate, or a driver that comes back after a week sends the same
chunks under the same numbers.  A batch write is known by the `writeId` its user gives it, in the
same way; without one the keys of its chunks are made up, which covers the retries of its tasks
within the topic's window and leaves nothing behind.  Where a plan gives other rows when it runs
again, that is not enough: `staging.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    CharType,
    DataType,
    StringType,
    StructType,
    VarcharType,
)

from headrace.client import Client
from headrace.core.clock import SystemClock, SystemRandom
from headrace.core.errors import InvalidRequest
from headrace.core.limits import reserved_topic_prefixes
from headrace.spark.connection import connect
from headrace.spark.options import SinkOptions
from headrace.spark.writing.chunks import TOPIC, chunks
from headrace.spark.writing.sending import Sender, Sending
from headrace.spark.writing.staging import Staged, Staging
from headrace.spark.writing.whole_input import whole

# Local properties that Spark gives to the tasks of a stream.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"

# What a staging topic is named after when rows name their topics themselves.
STAGING_BASE: Final = "headrace"
WRITE_ID_BYTES: Final = 16

_TEXT: Final = (StringType, CharType, VarcharType)
_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "data": (*_TEXT, BinaryType),
    TOPIC: _TEXT,
    "tag": _TEXT,
    "node": _TEXT,
    "meta": (*_TEXT, BinaryType),
}


@dataclass
class Written(WriterCommitMessage):
    """What one task has written."""

    partition: int
    rows: int


def check_columns(schema: StructType, topic: str | None) -> None:
    """Refuse a DataFrame that cannot be written, before anything runs.

    >>> check_columns(StructType().add("data", "string"), "orders")
    >>> check_columns(StructType().add("date", "string"), "orders")
    Traceback (most recent call last):
    headrace.core.errors.InvalidRequest: the column date means nothing here, did you mean data?; \
write data, tag, node, meta: .selectExpr("to_json(struct(*)) AS data"), or .drop("date")
    """
    allowed = [name for name in _TYPES if topic is None or name != TOPIC]
    names = schema.fieldNames()
    for at, field in enumerate(schema.fields):
        name = field.name
        if name == TOPIC and topic is not None:
            raise InvalidRequest(
                f"there is a column topic, and the option topic says {topic!r}",
                fix='leave the option out, or .drop("topic")',
            )
        if name not in allowed:
            nearest = difflib.get_close_matches(name.lower(), allowed, n=1, cutoff=0.5)
            hint = f", did you mean {nearest[0]}?" if nearest else ""
            raise InvalidRequest(
                f"the column {name} means nothing here{hint}",
                fix=f'write {", ".join(allowed)}: .selectExpr("to_json(struct(*)) AS data"), or '
                f'.drop("{name}")',
                detail={"column": name},
            )
        if name in names[:at]:
            raise InvalidRequest(f"there are two columns {name}", fix="drop one of them")
        _check_type(name, field.dataType)
    if "data" not in names:
        raise InvalidRequest(
            "there is no column data", fix='use .selectExpr("to_json(struct(*)) AS data")'
        )
    if topic is None and TOPIC not in names:
        raise InvalidRequest(
            "nothing says which topic to write to",
            fix='use .option("topic", "orders"), or a column topic',
        )


def _check_type(name: str, kind: DataType) -> None:
    if isinstance(kind, _TYPES[name]):
        return
    wanted = "a STRING of JSON, or BINARY" if name in ("data", "meta") else "a STRING"
    how = f"to_json({name})" if name in ("data", "meta") else f"CAST({name} AS STRING)"
    raise InvalidRequest(
        f"the column {name} is {kind.simpleString()[:80].upper()}, and has to be {wanted}",
        fix=f"use {how} AS {name}",
        detail={"column": name},
    )


def _refuse_overwrite(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise InvalidRequest(
            "a topic is only ever appended to: what is there cannot be overwritten",
            fix=f"use {instead}; to begin anew delete the topic first, or write to another",
        )


class _Writer:
    """What both writers have: options, checked columns, and the way to a staging topic."""

    staging_type: type[Staging] = Staging

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = options
        self._text = isinstance(schema["data"].dataType, _TEXT)

    def _write(
        self, iterator: Iterator[pa.RecordBatch], partition: int, sender: Sender
    ) -> WriterCommitMessage:
        options = self._options
        with connect(options.connection) as client:
            sending = Sending(client, sender, create=options.create)
            return Written(partition, sending.send_all(chunks(whole(iterator), options.topic)))

    def _stage(
        self, iterator: Iterator[pa.RecordBatch], partition: int, query: str, batch: int
    ) -> WriterCommitMessage:
        options = self._options
        with connect(options.connection) as client:
            staging = self._staging(client, query, batch)
            return staging.stage(chunks(whole(iterator), options.topic), partition, text=self._text)

    def _staging(self, client: Client, query: str, batch: int) -> Staging:
        options = self._options
        to = options.topic
        # A stream's name cannot be the beginning of a topic that is created here.
        is_stream = to is not None and to.startswith(reserved_topic_prefixes)
        base = options.staging_topic or (None if is_stream else to) or STAGING_BASE
        return self.staging_type(
            client,
            base,
            query,
            batch,
            create=options.create,
            destination=to if options.staging_topic or is_stream else None,
        )

    def _commit(self, messages: list[WriterCommitMessage | None], *, remove: bool = False) -> None:
        """Publish what the tasks have staged; where they have written already, nothing."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        with connect(self._options.connection) as client:
            staging = self._staging(client, staged[0].query, staged[0].batch)
            staging.commit(staged, remove=remove)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("headrace").mode("append").save()`."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        _refuse_overwrite(overwrite, 'mode("append")')
        super().__init__(options, schema)
        # Made where the writer is made, on the driver: all attempts of all tasks share it.
        self._id = options.write_id or SystemRandom().bytes(WRITE_ID_BYTES).hex()
        self._since_ms = SystemClock().wall_ms()

    def write(  # type: ignore[override]  # pyspark's own base says rows
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        """Write the rows of one partition."""
        options = self._options
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        partition = context.partitionId()
        if options.staged:
            return self._stage(iterator, partition, self._id, options.write_version)
        if options.write_id is None:
            since_ms = self._since_ms if context.attemptNumber() else None
            sender = Sender(key=f"{self._id}/{partition}", key_since_ms=since_ms)
        else:
            sender = Sender(f"spark-write:{self._id}:{partition}", options.write_version)
        return self._write(iterator, partition, sender)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        self._commit(messages, remove=self._options.write_id is None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some task failed: what was written stays, and is known when it is sent again."""
        options = self._options
        if not options.staged or options.write_id is not None:
            return
        # Nobody comes back to these.  Spark waits for us to say why it failed.
        at_once = msgspec.structs.replace(options.connection, retry_timeout_ms=0)
        with connect(at_once) as client:
            self._staging(client, self._id, options.write_version).remove()


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream.format("headrace").option("checkpointLocation", …).start()`."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        _refuse_overwrite(overwrite, 'outputMode("append") or outputMode("update")')
        super().__init__(options, schema)

    def write(  # type: ignore[override]  # pyspark's own base says rows
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        """Write the rows of one partition of one batch."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert query is not None, QUERY_ID
        assert batch is not None, BATCH_ID
        partition = context.partitionId()
        if self._options.staged:
            return self._stage(iterator, partition, query, int(batch))
        return self._write(iterator, partition, Sender(f"spark:{query}:{partition}", int(batch)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch are done."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A batch failed: whatever is staged may have been decided on, so it stays."""
