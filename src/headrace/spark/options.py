"""Every option of `format("headrace")`, typed and validated in one place.

The rules it owns: names count without their case; a name that nobody knows, a value that cannot be
and two options that contradict each other are errors that say what would be right; no message and
no `repr` has the token.  Messages are whole by themselves, because Spark hands on only their text.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from headrace.client.message import Address
from headrace.core.errors import ConfigError
from headrace.spark import option_table as table
from headrace.spark.option_values import GivenOptions, time_ms

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
# In the names of topics in which a sink keeps rows aside; no pattern of a source means them.
STAGED: Final = ".staged-"
# What a map of seqs has for them.
SEQ_EARLIEST: Final = -2
SEQ_LATEST: Final = -1

DEFAULT_URL: Final = "http://127.0.0.1:4000"

_STARTING: Final = ("startingSeqs", "startingTimestamp", "startingSeqsByTimestamp")
_ENDING: Final = ("endingSeqs", "endingTimestamp", "endingSeqsByTimestamp")


class Position(msgspec.Struct, frozen=True):
    """Where reading starts or ends: a word for all topics, or a seq or a time for each."""

    word: Literal["earliest", "latest", ""] = ""
    seqs: dict[str, int] = {}  # by topic; -2 earliest, -1 latest
    ts_ms: int | None = None  # of all topics
    ts_by_topic: dict[str, int] = {}

    def floats(self, topic: str) -> bool:
        """Whether it is at the first record that is left (of a time), and not at a seq."""
        by_time = self.ts_ms is not None or topic in self.ts_by_topic
        return by_time or self.word == EARLIEST or self.seqs.get(topic) == SEQ_EARLIEST


class Connection(msgspec.Struct, frozen=True):
    """How to reach the server.  `token` never appears in a message.

    >>> Connection("http://127.0.0.1:4000", token="secret")
    Connection(url='http://127.0.0.1:4000', token=..., ca_file=None, retry_timeout_ms=600000, \
start_timeout_ms=30000)
    """

    url: str
    token: str | None = None
    ca_file: str | None = None
    retry_timeout_ms: int = 600_000  # for how long a call is tried again
    start_timeout_ms: int = 30_000  # the same while a query has nothing to lose yet

    def __repr__(self) -> str:
        token = "None" if self.token is None else "..."
        return (
            f"Connection(url={self.url!r}, token={token}, ca_file={self.ca_file!r}, "
            f"retry_timeout_ms={self.retry_timeout_ms}, start_timeout_ms={self.start_timeout_ms})"
        )


class SourceOptions(msgspec.Struct, frozen=True):
    """What to read, and how."""

    connection: Connection
    topics: tuple[str, ...] = ()  # `subscribe`; empty when there is a pattern
    pattern: str | None = None  # a regular expression that matches whole names
    starting: Position = Position(EARLIEST)
    ending: Position = Position(LATEST)
    fail_on_data_loss: bool = True
    max_records_per_trigger: int | None = None
    min_records_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    min_partitions: int | None = None
    columns: tuple[str, ...] = ()
    data_format: Literal["binary", "json", "variant", "typed"] = "binary"
    data_schema: str | None = None  # DDL of the fields of `data`, with data_format "typed"
    bad_records: Literal["fail", "null"] = "fail"
    direct: Literal["auto", "true", "false"] = "auto"
    push_filters: bool = False


class SinkOptions(msgspec.Struct, frozen=True):
    """Where to write, and how."""

    connection: Connection
    topic: str | None = None  # None: the column `topic` says it
    staged: bool = False
    staging_topic: str | None = None
    write_id: str | None = None
    write_version: int = 0
    create: bool = True


def source_options(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """What a query reads.  `streaming=None`: it is not known yet whether as a batch or a stream."""
    uses = {None: table.READS, False: (table.BATCH,), True: (table.STREAM,)}[streaming]
    given = GivenOptions(options, uses, path="subscribe")
    topics, pattern = _subscription(given)
    starting = _position(given, _STARTING, Position(EARLIEST), topics, pattern)
    ending = _position(given, _ENDING, Position(LATEST), topics, pattern)
    if streaming is False and (starting.word == LATEST or SEQ_LATEST in starting.seqs.values()):
        raise ConfigError(
            "startingSeqs is latest, and a batch that starts there reads nothing",
            fix=f"use {EARLIEST}, a seq, or a stream",
        )
    if ending.word == EARLIEST or SEQ_EARLIEST in ending.seqs.values():
        raise ConfigError(
            "endingSeqs is earliest, and a batch that ends there reads nothing",
            fix=f"use {LATEST}, or a seq",
        )
    least, most = given.count("minRecordsPerTrigger"), given.count("maxRecordsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"minRecordsPerTrigger is {least}, more than maxRecordsPerTrigger, which is {most}",
            fix=f"set minRecordsPerTrigger to {most} or less",
        )
    if least is None and given.has("maxTriggerDelay"):
        raise ConfigError(
            "maxTriggerDelay is set, and nothing waits for it", fix="set minRecordsPerTrigger too"
        )
    data_format, data_schema = _data(given)
    fails: Any = given.word("badRecords", ("fail", "null"), "fail")
    direct: Any = given.word("direct", ("auto", "true", "false"), "auto")
    return SourceOptions(
        connection=_connection(given),
        topics=topics,
        pattern=pattern,
        starting=starting,
        ending=ending,
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        max_records_per_trigger=most,
        min_records_per_trigger=least,
        max_trigger_delay_ms=given.duration_ms("maxTriggerDelay", 900_000),
        min_partitions=given.count("minPartitions"),
        columns=tuple(name.lower() for name in given.names("columns")),
        data_format=data_format,
        data_schema=data_schema,
        bad_records=fails,
        direct=direct,
        push_filters=given.flag("pushFilters", False),
    )


def sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Where a query writes."""
    given = GivenOptions(options, (table.STREAM_SINK if streaming else table.SINK,), path="topic")
    staged = given.word("mode", ("direct", "staged"), "direct") == "staged"
    if given.has("stagingTopic") and not staged:
        raise ConfigError("stagingTopic is set, and mode is direct", fix="set mode to staged")
    if given.has("writeVersion") and not given.has("writeId"):
        raise ConfigError(
            "writeVersion is set without writeId", fix="name the write with writeId too"
        )
    return SinkOptions(
        connection=_connection(given),
        topic=given.text("topic"),
        staged=staged,
        staging_topic=given.text("stagingTopic"),
        write_id=given.text("writeId"),
        write_version=given.count("writeVersion", least=0) or 0,
        create=given.flag("create", True),
    )


def _subscription(given: GivenOptions) -> tuple[tuple[str, ...], str | None]:
    topics, pattern = given.names("subscribe"), given.text("subscribePattern")
    if topics and pattern is not None:
        raise ConfigError(
            "both subscribe (or the path of load) and subscribePattern are set",
            fix="give one of them",
        )
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise given.wrong("subscribePattern", str(error)) from None
    elif not topics:
        raise ConfigError(
            "no option says which topics to read",
            fix='set subscribe to topics, separated by commas, or use .load("orders")',
        )
    return topics, pattern


def _position(
    given: GivenOptions,
    names: tuple[str, str, str],
    default: Position,
    topics: Collection[str],
    pattern: str | None,
) -> Position:
    """Out of the options `names`: by seq, by one time, by times; at most one of them is set."""
    present = [name for name in names if given.has(name)]
    if not present:
        return default
    if len(present) > 1:
        raise ConfigError(f"both {present[0]} and {present[1]} are set", fix="give one of them")
    name = present[0]
    if name == names[1]:
        return Position(ts_ms=given.time_ms(name))
    if name == names[0]:
        word: Any = (given.text(name) or "").lower()
        if word in (EARLIEST, LATEST):
            return Position(word)
    found = given.map(name)
    _check_topics(given, name, found, topics, pattern)
    if name == names[0]:
        for topic, seq in found.items():
            if type(seq) is not int or not SEQ_EARLIEST <= seq < 1 << 63:
                raise given.wrong(name, f"{topic!r} has no seq of 0 or more, and neither -2 nor -1")
        return Position(seqs=found)
    try:
        return Position(ts_by_topic={topic: time_ms(at) for topic, at in found.items()})
    except ValueError as error:
        raise given.wrong(name, str(error)) from None


def _check_topics(
    given: GivenOptions,
    name: str,
    found: Iterable[str],
    topics: Collection[str],
    pattern: str | None,
) -> None:
    """Each topic of the map is one that is read."""
    if not found:
        raise given.wrong(name, "the map is empty")
    for topic in found:
        if pattern is not None and re.fullmatch(pattern, topic) is None:
            raise given.wrong(name, f"{topic!r} does not match subscribePattern")
        if pattern is None and topic not in topics:
            near = difflib.get_close_matches(topic, topics, n=1, cutoff=0.0)[0]
            raise given.wrong(name, f"{topic!r} is not subscribed; did you mean {near!r}?")


def _data(given: GivenOptions) -> tuple[Any, str | None]:
    """The format of `data`, and its fields."""
    ddl = given.text("schema")
    if ddl is None:
        return given.word("dataFormat", ("binary", "json", "variant"), "binary"), None
    data_format = given.word("dataFormat", ("binary", "json", "variant"), "json")
    if data_format != "json":
        raise ConfigError(
            f"schema is set, and dataFormat is {data_format}",
            fix="leave dataFormat out: fields are of JSON",
        )
    return "typed", ddl


def _connection(given: GivenOptions) -> Connection:
    url = given.text("url") or os.environ.get("HEADRACE_URL") or DEFAULT_URL
    if not Address.of(url).tls and given.has("caFile"):
        raise ConfigError(f"caFile is set, and url is {url!r}", fix="use an https:// address")
    return Connection(
        url=url,
        token=given.text("token") or os.environ.get("HEADRACE_TOKEN") or None,
        ca_file=given.text("caFile"),
        retry_timeout_ms=given.duration_ms("retryTimeout", 600_000),
        start_timeout_ms=given.duration_ms("retryTimeout", 30_000),
    )
