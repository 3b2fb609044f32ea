"""Declared pipelines as a project of Spark's own declarative pipelines (`spark-pipelines`).

Only this file knows what of a declaration fits there, and how it is written.  A source is a
temporary view, a query a streaming table, or a materialized view where every result replaces the
one before; a topic to write to is a sink that gets the table's new rows, each once: the rows of a
table come in the same order again, those behind a shuffle do not.  Pure: text out, nothing written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from headrace.api.pipelines import TIME_COLUMN, Declaration, PipelineSource
from headrace.core.errors import InvalidRequest
from headrace.core.units import parse_duration_ms
from headrace.pipelines.registry.declaration import AVAILABLE_NOW, EVENT_TIME
from headrace.pipelines.registry.sql_check import columns_of
from headrace.pipelines.worker.building import BESIDE, source_options
from headrace.spark.options import Connection
from headrace.spark.session import SHUFFLE_PARTITIONS_MIN, cores_of

SPEC: Final = "spark-pipeline.yml"
SETTINGS: Final = "conf"
DEFAULTS: Final = f"{SETTINGS}/spark-defaults.conf"
DEFINITIONS: Final = "transformations"
SOURCES: Final = f"{DEFINITIONS}/sources.py"
SINKS: Final = f"{DEFINITIONS}/sinks.py"
# Where a run keeps tables, the catalog and its checkpoints, beside the files that are written here.
STORAGE: Final = "storage"
WAREHOUSE: Final = "warehouse"
CATALOG: Final = "catalog"

# How the file of a query begins, by which it is known again.
QUERY_MARK: Final = "-- The pipeline "

_WORK: Final = "leave it to `headrace pipelines run`"


class Misfit(NamedTuple):
    """A pipeline that Spark's own cannot run: why, and what to do instead."""

    pipeline: str
    why: str
    fix: str


class Fitted(NamedTuple):
    """A pipeline and what it becomes."""

    pipeline: str
    declaration: Declaration
    table: str
    columns: list[str] | None  # of the result, where they have to be known

    @property
    def replaces(self) -> bool:
        """Whether every result takes the place of the one before."""
        return self.declaration.output_mode == "complete"

    def view(self, source: PipelineSource) -> str:
        return f"{self.table}__{source.table.lower()}"


class Project(NamedTuple):
    """The files of a project by their paths in it, and what its owner had better know."""

    files: dict[str, str]
    fitted: list[Fitted]
    notes: list[str]


def fit(declared: Mapping[str, Declaration], *, sinks: bool) -> tuple[list[Fitted], list[Misfit]]:
    """What fits, and what does not and why; `sinks`: results go to their topics, too."""
    fitted: list[Fitted] = []
    misfits: list[Misfit] = []
    tables: dict[str, str] = {}
    for name, declaration in sorted(declared.items()):
        table = table_name(declaration.dest.table or name)
        try:
            columns = _check(declaration, sinks)
            if table in tables:
                raise InvalidRequest(
                    f"its table would be called {table}, as that of {tables[table]!r} is",
                    fix="make a project of its own for it",
                )
        except InvalidRequest as error:
            misfits.append(Misfit(name, error.message, error.fix))
            continue
        tables[table] = name
        fitted.append(Fitted(name, declaration, table, columns))
    return fitted, misfits


def table_name(name: str) -> str:
    """A name as a table of Spark's catalog can have it.

    >>> table_name("eu:orders.per-minute"), table_name("5-minutes")
    ('eu_orders_per_minute', 't_5_minutes')
    """
    found = re.sub(r"\W", "_", name, flags=re.ASCII).lower()
    return found if found[0].isalpha() else f"t_{found}"


def _check(declaration: Declaration, sinks: bool) -> list[str] | None:
    """Refuse what has no counterpart; the columns of the result, if they have to be known."""
    if declaration.sql is None:
        raise InvalidRequest(
            "it is a Python function of the worker",
            fix=f"{_WORK}, or write a transformation that calls the function",
        )
    if declaration.output_mode == "update":
        raise InvalidRequest(
            "output_mode is update, and tables there only grow or are computed anew",
            fix=f"{_WORK}, or declare it with append and a watermark, or with complete and a table",
        )
    if declaration.dead_letter is not None:
        raise InvalidRequest(
            "bad records go to a topic, for which nothing is there",
            fix=f"{_WORK}, or declare it with on_error skip",
        )
    if declaration.output_mode == "complete":
        _check_complete(declaration)
    if not sinks or declaration.dest.topic is None:
        return None
    columns = columns_of(declaration.sql)
    if columns is None:
        raise InvalidRequest(
            "its result has columns without a name, or *, of which no record can be made",
            fix="give every column a name with AS, or leave --sinks out",
        )
    if "data" in columns:
        raise InvalidRequest(
            "its result has a column called data, whose type nobody knows before it runs",
            fix="give its fields names of their own: they become one object; or leave --sinks out",
        )
    return columns


def _check_complete(declaration: Declaration) -> None:
    if declaration.dest.topic is not None:
        raise InvalidRequest(
            "every result replaces the one before, and a topic only grows",
            fix=f"{_WORK}, or declare it with a table",
        )
    for source in declaration.sources:
        if source.unique_by or source.start != "earliest":
            what = "unique_by" if source.unique_by else f"start {source.start}"
            raise InvalidRequest(
                f"it is computed anew from all of {source.topic!r}, which knows no {what}",
                fix=f"{_WORK}, or declare it with append and a watermark",
            )


def project_of(name: str, fitted: list[Fitted], connection: Connection, directory: str) -> Project:
    """The project; `directory` is where it will be, as an absolute path."""
    files = {
        SPEC: _spec(name, directory),
        DEFAULTS: _defaults(directory),
        SOURCES: _sources(fitted, connection),
    }
    for one in fitted:
        files[f"{DEFINITIONS}/{one.table}.sql"] = _query(one)
    written = [one for one in fitted if one.columns is not None]
    if written:
        files[SINKS] = _sinks(written, connection)
    return Project(files, fitted, _notes(fitted))


def _notes(fitted: list[Fitted]) -> list[str]:
    writers = {one.declaration.dest.topic: one for one in fitted if one.declaration.dest.topic}
    notes = []
    for one in fitted:
        trigger = one.declaration.trigger
        if trigger not in (None, AVAILABLE_NOW):
            notes.append(f"{one.pipeline}: a run reads what there is and ends, not every {trigger}")
        if one.columns is not None:
            notes.append(
                f"{one.pipeline}: a run appends to {one.declaration.dest.topic}, as a worker that "
                "has the pipeline does: delete the pipeline, or each result comes twice"
            )
        for source in one.declaration.sources:
            if source.topic in writers:
                notes.append(
                    f"{one.pipeline}: it reads what {writers[source.topic].pipeline} writes, and "
                    "sees that in the next run"
                )
    return notes


# The files


def _spec(name: str, directory: str) -> str:
    """YAML, of which JSON's texts are a part."""
    storage = json.dumps(f"file://{directory}/{STORAGE}")
    lines = [f"name: {json.dumps(name)}", f"storage: {storage}"]
    lines += ["libraries:", "  - glob:", f"      include: {DEFINITIONS}/**"]
    # Set again for each flow: what is fixed when Spark starts cannot be here.
    lines += ["configuration:", '  spark.sql.session.timeZone: "UTC"']
    return "\n".join(lines) + "\n"


def _defaults(directory: str) -> str:
    """What is fixed when Spark starts: a catalog in which the next run finds the tables again."""
    derby = f"jdbc:derby:;databaseName={directory}/{CATALOG};create=true"
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"file://{directory}/{WAREHOUSE}",
        "spark.hadoop.javax.jdo.option.ConnectionURL": derby,
        "spark.sql.shuffle.partitions": str(max(SHUFFLE_PARTITIONS_MIN, cores_of("local[*]"))),
        # Each flow has Python processes to start, which Spark gives ten seconds: not all at once,
        # and where the machine is busy once more.
        "spark.sql.pipelines.execution.maxConcurrentFlows": "1",
        "spark.sql.pipelines.maxFlowRetryAttempts": "10",
        "spark.ui.enabled": "false",
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def _head(what: str, connection: Connection) -> str:
    ca_file = "" if connection.ca_file is None else f'\nSERVER["caFile"] = {connection.ca_file!r}'
    return f'''\
"""{what}"""

import os

from pyspark import pipelines as dp

SERVER = {{"url": os.environ.get("HEADRACE_URL", {connection.url!r})}}{ca_file}
if os.environ.get("HEADRACE_TOKEN"):
    SERVER["token"] = os.environ["HEADRACE_TOKEN"]
'''


def _sources(fitted: list[Fitted], connection: Connection) -> str:
    parts = [_head("The topics that are read, as the queries see them.", connection)]
    parts += [_source(one, source) for one in fitted for source in one.declaration.sources]
    return "\n\n".join(parts)


def _source(one: Fitted, source: PipelineSource) -> str:
    """A source as `building.source_frame` has it, without its reports of bad records."""
    skips = source.schema is not None and one.declaration.on_error == "skip"
    options = source_options(source, Connection(""), {})
    del options["url"]
    if skips:
        options["badRecords"] = "null"
    reads = "readStream"
    if one.replaces:
        reads = "read"
        options.pop("maxRecordsPerTrigger", None)
    name = one.view(source)
    lines = [
        f"@dp.temporary_view(name={name!r})",
        f"def {name}():",
        f"    options = {options!r}",
        f'    rows = spark.{reads}.format("headrace").options(**SERVER, **options).load()',
    ]
    lines += [f"    rows = rows.{step}" for step in _steps(source, skips, streams=not one.replaces)]
    return "\n".join([*lines, "    return rows", ""])


def _steps(source: PipelineSource, skips: bool, *, streams: bool) -> Iterable[str]:
    if source.schema is None:
        parsed = "try_parse_json(CAST(data AS STRING)) AS data"
        yield f'selectExpr("* EXCEPT (data)", "data AS raw", "{parsed}")'
    if skips:
        yield 'where("data IS NOT NULL")'
    watermark = source.watermark
    if watermark is None:
        return
    column = watermark.column
    if column != TIME_COLUMN:
        yield f'selectExpr("*", {f"CAST({column} AS TIMESTAMP) AS {EVENT_TIME}"!r})'
        column = EVENT_TIME
    if streams:
        yield f'withWatermark("{column}", "{parse_duration_ms(watermark.delay)} milliseconds")'
    if source.unique_by:
        keys = [f"headrace_key_{number}" for number in range(len(source.unique_by))]
        paths = zip(keys, source.unique_by, strict=True)
        made = [f"{_key(source, path)} AS {key}" for key, path in paths]
        yield f'selectExpr("*", {", ".join(map(repr, made))})'
        yield f"dropDuplicatesWithinWatermark({keys!r}).drop({', '.join(map(repr, keys))})"


def _key(source: PipelineSource, path: str) -> str:
    if source.schema is not None or "." not in path:
        return path
    return f"variant_get(data, '$.{path.removeprefix('data.')}', 'string')"


def _query(one: Fitted) -> str:
    """The pipeline's own SQL, over its sources under the names that it has for them."""
    kind = "MATERIALIZED VIEW" if one.replaces else "STREAMING TABLE"
    read: Callable[[str], str] = (lambda view: view) if one.replaces else "STREAM({})".format
    tables = ",\n  ".join(
        f"{source.table} AS (SELECT * FROM {read(one.view(source))})"
        for source in one.declaration.sources
    )
    sql = (one.declaration.sql or "").strip().rstrip(";")
    return f"""\
{QUERY_MARK}{one.pipeline}.
CREATE {kind} {one.table} AS
WITH
  {tables}
SELECT * FROM (
{sql}
)
"""


def _sinks(written: list[Fitted], connection: Connection) -> str:
    parts = [_head("The topics that are written: the new rows of tables, as records.", connection)]
    parts += [_sink(one) for one in written]
    return "\n\n".join(parts)


def _sink(one: Fitted) -> str:
    assert one.columns is not None
    fields = ", ".join(f"`{name}`" for name in one.columns if name not in BESIDE)
    made = [f"to_json(struct({fields}), map('ignoreNullFields', 'false')) AS data"]
    made += [f"CAST({name} AS STRING) AS {name}" for name in BESIDE if name in one.columns]
    sink = f"{one.table}__topic"
    options = f'{{**SERVER, "topic": {one.declaration.dest.topic!r}}}'
    return "\n".join(
        [
            f'dp.create_sink({sink!r}, "headrace", {options})',
            "",
            "",
            f"@dp.append_flow(target={sink!r}, name={one.table + '__records'!r})",
            f"def {one.table}__records():",
            f"    return spark.readStream.table({one.table!r}).selectExpr(",
            *(f"        {text!r}," for text in made),
            "    )",
            "",
        ]
    )
