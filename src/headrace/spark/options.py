"""Every option of `format("headrace")`, typed and validated in one place."""

from __future__ import annotations

from typing import Literal

import msgspec

EARLIEST = "earliest"
LATEST = "latest"


class Position(msgspec.Struct, frozen=True):
    """Where reading starts or ends: a word for all topics, or a seq or a time for each."""

    word: Literal["earliest", "latest", ""] = ""
    seqs: dict[str, int] = {}  # by topic; -2 earliest, -1 latest
    ts_ms: int | None = None  # of all topics
    ts_by_topic: dict[str, int] = {}


class Connection(msgspec.Struct, frozen=True):
    """How to reach the server.  `token` never appears in a message."""

    url: str
    token: str | None = None
    ca_file: str | None = None
    retry_timeout_ms: int = 600_000  # for how long a call is tried again


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
