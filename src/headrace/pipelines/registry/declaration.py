"""The checks of a declaration, and what its checkpoint depends on.

Only this file decides what may be in a `Declaration` (api/pipelines.py has its fields);
`sql_check.py` checks the SQL.  A declaration holds names and SQL, never code and never a path: the
worker's own settings say which functions there are, and where tables and checkpoints lie.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from headrace.api.pipelines import TIME_COLUMN, Declaration, PipelineDest, PipelineSource
from headrace.core.errors import InvalidRequest
from headrace.core.limits import (
    pipeline_arguments_bytes_max,
    pipeline_dest_bytes_max,
    pipeline_keys_max,
    pipeline_name_bytes_max,
    pipeline_schema_bytes_max,
    pipeline_sources_max,
    pipeline_sql_bytes_max,
    reserved_topic_prefixes,
    topic_name_bytes_max,
)
from headrace.core.units import parse_duration_ms

AVAILABLE_NOW: Final = "available_now"
# The name of a watermark's column that is taken from the payload.
EVENT_TIME: Final = "event_time"

NAME_PATTERN: Final = f"^[A-Za-z0-9][A-Za-z0-9._:-]{{0,{pipeline_name_bytes_max - 1}}}$"
ALIAS_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,99}$"
ENTRY_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}$"
KEY_PATTERN: Final = r"^(tag|node|data(\.[A-Za-z_][A-Za-z0-9_]*)+)$"
COLUMN_PATTERN: Final = r"^(ts|data(\.[A-Za-z_][A-Za-z0-9_]*)+)$"
TOPIC_PATTERN: Final = f"^[A-Za-z0-9][A-Za-z0-9._:-]{{0,{pipeline_dest_bytes_max - 1}}}$"
_NAME: Final = re.compile(NAME_PATTERN, re.ASCII)
_ALIAS: Final = re.compile(ALIAS_PATTERN, re.ASCII)
_ENTRY: Final = re.compile(ENTRY_PATTERN, re.ASCII)
_KEY: Final = re.compile(KEY_PATTERN, re.ASCII)
_COLUMN: Final = re.compile(COLUMN_PATTERN, re.ASCII)
_TOPIC: Final = re.compile(TOPIC_PATTERN, re.ASCII)

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def plan_of(declaration: Declaration) -> str:
    """Return a short name for what a checkpoint depends on: sources, computation, output mode.

    Where the result goes, how often it runs, how much at a time and what happens to bad records
    may change freely.

    >>> one = Declaration([PipelineSource("a")], PipelineDest("b"), sql="select 1")
    >>> plan_of(one) == plan_of(msgspec.structs.replace(one, trigger="10s"))
    True
    """
    sources = [
        (source.topic, source.table.lower(), source.schema, source.watermark, source.unique_by)
        for source in declaration.sources
    ]
    depends = (
        sources,
        declaration.sql,
        declaration.python,
        declaration.output_mode,
    )
    return hashlib.sha256(_ENCODER.encode(depends)).hexdigest()[:16]


def reads_of(declaration: Declaration) -> list[tuple[str, str | None]]:
    """Return what a checkpoint without state depends on: topics and their schemas, in order."""
    return [(source.topic, source.schema) for source in declaration.sources]


def check_pipeline_name(name: str) -> None:
    """Refuse a name that no pipeline can have.

    >>> check_pipeline_name("per-minute")
    >>> check_pipeline_name("a/b")
    Traceback (most recent call last):
    headrace.core.errors.InvalidRequest: 'a/b' is not a name of a pipeline; use 1 to 100 of A-Z \
a-z 0-9 . _ : - and begin with a letter or a digit
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name[:80]!r} is not a name of a pipeline",
            fix=f"use 1 to {pipeline_name_bytes_max} of A-Z a-z 0-9 . _ : - and begin with a "
            "letter or a digit",
        )


def check_declaration(declaration: Declaration) -> None:
    """Refuse what no worker could run, as far as it is not about the SQL itself.

    >>> check_declaration(Declaration([], PipelineDest("b"), sql="select 1"))
    Traceback (most recent call last):
    headrace.core.errors.InvalidRequest: there is no source; name 1 to 16 topics to read
    """
    _check_sources(declaration.sources)
    _check_computation(declaration)
    _check_dest(declaration.dest)
    if declaration.trigger is not None and declaration.trigger != AVAILABLE_NOW:
        _check_duration("trigger", declaration.trigger, f"or {AVAILABLE_NOW!r}")
    if _NAME.fullmatch(declaration.checkpoint) is None:
        raise InvalidRequest(
            f"checkpoint is {declaration.checkpoint[:80]!r}",
            fix="give it a name such as 2: a name, not a path",
        )
    _check_errors(declaration)


def _check_sources(sources: list[PipelineSource]) -> None:
    if not 1 <= len(sources) <= pipeline_sources_max:
        said = f"there are {len(sources)} sources" if sources else "there is no source"
        raise InvalidRequest(said, fix=f"name 1 to {pipeline_sources_max} topics to read")
    seen: set[str] = set()
    for source in sources:
        _check_size("topic", source.topic, topic_name_bytes_max)
        if _ALIAS.fullmatch(source.table) is None:
            raise InvalidRequest(
                f"{source.table[:80]!r} is no name that SQL takes without quotes",
                fix='give the source an alias of letters, digits and "_"',
            )
        if source.table.lower() in seen:
            raise InvalidRequest(
                f"two sources are called {source.table!r}", fix="give each an alias of its own"
            )
        seen.add(source.table.lower())
        _check_unique(source)
        if source.schema is not None:
            _check_size("schema", source.schema, pipeline_schema_bytes_max)
        if source.watermark is not None:
            _check_duration("watermark.delay", source.watermark.delay)
            if _COLUMN.fullmatch(source.watermark.column) is None:
                raise InvalidRequest(
                    f"watermark.column is {source.watermark.column[:80]!r}",
                    fix="name ts, or a field of typed data such as data.at",
                )
            if source.watermark.column != TIME_COLUMN and source.schema is None:
                raise InvalidRequest(
                    f"watermark.column is {source.watermark.column!r} of data without a schema",
                    fix="give the source a schema that has the field",
                )


def _check_unique(source: PipelineSource) -> None:
    """Refuse keys that cannot tell a repeated record, or that are remembered for ever."""
    if len(source.unique_by) > pipeline_keys_max:
        raise InvalidRequest(
            f"unique_by has {len(source.unique_by)} fields", fix=f"use at most {pipeline_keys_max}"
        )
    for key in source.unique_by:
        if _KEY.fullmatch(key) is None:
            raise InvalidRequest(
                f"unique_by has {key[:80]!r}", fix="name tag, node, or fields such as data.id"
            )
    if source.unique_by and source.watermark is None:
        raise InvalidRequest(
            "unique_by without a watermark would remember every record for ever",
            fix="give the source a watermark: its delay is how long a repeat is recognised",
        )


def _check_computation(declaration: Declaration) -> None:
    if (declaration.sql is None) == (declaration.python is None):
        raise InvalidRequest("sql and python are both given, or neither", fix="send one of them")
    if declaration.sql is not None:
        _check_size("sql", declaration.sql, pipeline_sql_bytes_max)
    if declaration.python is not None:
        entry = declaration.python
        if _ENTRY.fullmatch(entry.entry) is None:
            raise InvalidRequest(
                f"python.entry is {entry.entry[:80]!r}",
                fix="send the name that the worker's list of entry points has, not code",
            )
        size = len(_ENCODER.encode(entry.args))
        if size > pipeline_arguments_bytes_max:
            raise InvalidRequest(
                f"python.args have {size} bytes", fix=f"use at most {pipeline_arguments_bytes_max}"
            )


def _check_dest(dest: PipelineDest) -> None:
    if (dest.topic is None) == (dest.table is None):
        raise InvalidRequest("dest is no topic and no table, or both", fix="name one of them")
    if dest.topic is not None:
        # Whether a stream takes the results, only the server that has it can say.
        if is_stream_name(dest.topic):
            _check_size("dest.topic", dest.topic, topic_name_bytes_max)
        else:
            _check_new_topic("dest.topic", dest.topic)
    if dest.table is not None and _NAME.fullmatch(dest.table) is None:
        raise InvalidRequest(
            f"dest.table is {dest.table[:80]!r}", fix="give it a name: a name, not a path"
        )


def _check_errors(declaration: Declaration) -> None:
    wanted = declaration.on_error == "dead_letter"
    if wanted != (declaration.dead_letter is not None):
        raise InvalidRequest(
            f"on_error is {declaration.on_error!r} and dead_letter {declaration.dead_letter!r}",
            fix='send on_error "dead_letter" and the topic dead_letter together',
        )
    if declaration.dead_letter is not None:
        _check_new_topic("dead_letter", declaration.dead_letter)
    read = {source.topic for source in declaration.sources}
    if declaration.dead_letter in read or declaration.dest.topic in read:
        raise InvalidRequest(
            "the pipeline would read what it writes", fix="name other topics to write to"
        )
    if declaration.on_error != "fail" and not any(s.schema for s in declaration.sources):
        raise InvalidRequest(
            f"on_error is {declaration.on_error!r} and no source has a schema",
            fix="give a source a schema: only then a record can be a bad one",
        )


def is_stream_name(name: str) -> bool:
    """Whether only another dialect can have created the topic.

    >>> is_stream_name("ds:logs/eu"), is_stream_name("orders")
    (True, False)
    """
    return name.startswith(reserved_topic_prefixes)


def _check_new_topic(field: str, name: str) -> None:
    if _TOPIC.fullmatch(name) is None or name.startswith(reserved_topic_prefixes):
        raise InvalidRequest(
            f"{field} is {name[:80]!r}",
            fix=f"use 1 to {pipeline_dest_bytes_max} of A-Z a-z 0-9 . _ : - and begin with a "
            "letter or a digit",
        )


def _check_size(field: str, text: str, bytes_max: int) -> None:
    size = len(text.encode(errors="replace"))
    if not 1 <= size <= bytes_max or not text.strip():
        raise InvalidRequest(f"{field} has {size} bytes", fix=f"use 1 to {bytes_max}")


def _check_duration(field: str, text: str, more: str = "") -> int:
    try:
        if len(text) > 20:
            raise ValueError
        return parse_duration_ms(text)
    except ValueError:
        raise InvalidRequest(
            f"{field} is {text[:80]!r}",
            fix=" ".join(filter(None, ("write a duration such as 10s, 5m or 1h", more))),
        ) from None
