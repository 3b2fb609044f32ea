"""`headrace sql`: statements over the topics of a server, run by Spark.

A statement is an argument, or statements come from a pipe; without either a terminal gets a shell
(`cli/shell.py`).  Rows go to stdout as a table, as CSV or as JSON; all else goes to stderr.  An
error of Spark is one line like any other.  Spark is imported when a statement runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from headrace.cli.options import Verb, add_server, check_delta, server_of
from headrace.cli.rows import csv_line, print_cells
from headrace.cli.statements import all_statements
from headrace.core.errors import ConfigError, Internal, NotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.lake.tables.layout import Lake
    from headrace.spark.options import Connection
    from headrace.spark.sql.tables import Answer, Tables
    from headrace.spark.sql.topic_ends import Cut

# A table is collected before it is shown; CSV and JSON are written as rows come.
TABLE_ROWS_MAX = 1_000
# A server that does not answer for so long is an error: somebody is waiting.
RETRY_MS = 30_000
CANCEL_LOOK_SECONDS = 0.5
FORMATS = ("table", "csv")
LAKE_VARIABLE = "HEADRACE_LAKE"

Result = TypeVar("Result")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "statement",
        nargs="?",
        help='such as "select tag, count(*) from orders group by tag"; every topic is a table '
        "with the columns topic, seq, ts, node, tag, meta, data and raw. Without a statement: "
        "those of stdin, or a shell",
    )
    parser.add_argument("--format", choices=FORMATS, default="table", help="how rows are shown")
    parser.add_argument(
        "--limit",
        type=int,
        metavar="ROWS",
        help=f"at most so many rows (a table: {TABLE_ROWS_MAX}; csv and json: all)",
    )
    parser.add_argument("--verbose", action="store_true", help="say where each topic was cut")
    parser.add_argument(
        "--lake",
        metavar="PLACE",
        help=f"answer from this lake as far as it goes; else ${LAKE_VARIABLE}, else from none",
    )
    parser.add_argument(
        "--origin",
        action="store_true",
        help="a column `origin`: lake, segments (sealed files of the server) or tail (the rest)",
    )
    add_server(parser)
    add_spark(parser)


def add_spark(parser: argparse.ArgumentParser) -> None:
    """Where Spark runs, for every verb that needs it; `settings_of_spark` reads `--conf`."""
    group = parser.add_argument_group("Spark", "without these it runs inside this process")
    group.add_argument("--master", metavar="URL", help="a cluster; else $HEADRACE_SPARK_MASTER")
    group.add_argument(
        "--remote", metavar="URL", help="a Spark Connect server; else $HEADRACE_SPARK_REMOTE"
    )
    group.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a spark.* setting; may be repeated",
    )


def settings_of_spark(options: argparse.Namespace) -> dict[str, str]:
    settings = {}
    for text in options.conf:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--conf {text} has no value", fix="write --conf NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def run(options: argparse.Namespace) -> int:
    """Run the statement, those of stdin, or the shell."""
    if options.limit is not None and options.limit < 1:
        raise ConfigError(f"--limit {options.limit} shows nothing", fix="give a number above 0")
    settings = settings_of_spark(options)
    statements = _statements(options)
    if statements == []:
        raise ConfigError("there is no statement", fix='give one: headrace sql "select 1"')
    lake = _lake(options)
    connection = _connect(options)
    runner = Runner(options, settings, connection, lake)
    if statements is None:
        from headrace.cli.shell import Shell

        return Shell(runner.run, connection).run()
    for statement in statements:
        runner.run(statement)
    return 0


def _statements(options: argparse.Namespace) -> list[str] | None:
    """What to run; None: somebody will type it."""
    if options.statement is not None:
        return all_statements(options.statement)
    return None if sys.stdin.isatty() else all_statements(sys.stdin.read())


def _connect(options: argparse.Namespace) -> Connection:
    """The server, which has to answer: Spark takes seconds to start, and would be in vain."""
    from headrace.client import Client
    from headrace.spark.options import Connection

    server = server_of(options)
    with Client(server.url, token=server.token, tls=server.ca_file, deadline_ms=0) as client:
        client.health()
    return Connection(server.url, server.token, server.ca_file, retry_timeout_ms=RETRY_MS)


def _lake(options: argparse.Namespace) -> Lake | None:
    """The lake, if one is named; that it can be read is known before Spark starts."""
    place = options.lake or os.environ.get(LAKE_VARIABLE)
    if not place:
        return None
    check_delta(f", or leave out --lake and ${LAKE_VARIABLE}")
    from headrace.lake.tables.layout import Lake

    lake = Lake(place)
    if not lake.tables():
        # Else a name that is not right would be answered without any history.
        raise NotFound(
            f"there is no table in the lake {lake}",
            fix=f"run `headrace lake sync` first, or leave out --lake and ${LAKE_VARIABLE}",
        )
    return lake


class OutputClosed(BrokenPipeError):
    """Return whether the reader of our output left; any other broken pipe is one to Spark."""


def write_out(text: str) -> None:
    try:
        sys.stdout.write(text)
    except BrokenPipeError as error:
        raise OutputClosed from error


class WorkThread:
    """Where statements run, so that Ctrl-C finds the main thread free to cancel them."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sql")

    def run(self, work: Callable[[], Result], cancel: Callable[[], None]) -> Result:
        """What `work` returns; an interrupt ends the work before it goes on."""
        future = self._executor.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            # Once is not enough: between two jobs there is none to cancel.
            while not future.done():
                cancel()
                wait([future], timeout=CANCEL_LOOK_SECONDS)
            raise


class Runner:
    """Runs statements one after the other, in a session that starts with the first."""

    def __init__(
        self,
        options: argparse.Namespace,
        settings: dict[str, str],
        connection: Connection,
        lake: Lake | None = None,
    ) -> None:
        self._options = options
        self._settings = settings
        self._connection = connection
        self._lake = lake
        self._tables: Tables | None = None
        self._thread = WorkThread()

    def run(self, statement: str) -> None:
        """Run one statement and print its rows."""
        tables = self._start()
        with spark_errors(), self._progress(tables.spark):
            show = self._thread.run(lambda: self._query(tables, statement), tables.cancel)
        show()

    def _query(self, tables: Tables, statement: str) -> Callable[[], None]:
        with tables.query(statement) as answer:
            if self._options.verbose:
                print_cuts(answer)
            show = self._show(answer)

        def show_all() -> None:
            show()
            note_losses(answer)

        return show_all

    def _start(self) -> Tables:
        if self._tables is None:
            from headrace.spark.sql.tables import Tables

            with waiting("starting Spark ..."):
                spark = start_spark(self._options, self._settings)
                history = None
                if self._lake is not None:
                    from headrace.lake.sql.frames import LakeArchiveTables

                    history = LakeArchiveTables(spark, self._lake)
                origins = self._options.origin
                self._tables = Tables(spark, self._connection, history, origins=origins)
        return self._tables

    def _progress(self, spark: SparkSession) -> contextlib.AbstractContextManager[None]:
        from headrace.cli.spark_progress import spark_progress

        # A bar among rows that are written to the same terminal as they come would be in the way.
        streams = self._options.json or self._options.format == "csv"
        return (
            contextlib.nullcontext() if streams and sys.stdout.isatty() else spark_progress(spark)
        )

    def _show(self, answer: Answer) -> Callable[[], None]:
        """Compute the rows; what is left to do when nothing can go wrong any more."""
        if self._options.json:
            write_json(answer, self._options.limit)
        elif self._options.format == "csv":
            write_csv(answer, self._options.limit)
        else:
            return table_of(answer, self._options.limit)
        return lambda: None


def start_spark(options: argparse.Namespace, settings: dict[str, str]) -> SparkSession:
    """The session that runs in this process already, or a new one that leaves errors to us."""
    from headrace.spark import spark_session
    from headrace.spark.session import is_in_process, running_session

    running = running_session()
    spark = spark_session(settings, master=options.master, remote=options.remote)
    if running is None and is_in_process(spark):
        spark.sparkContext.setLogLevel("OFF")
    return spark


@contextlib.contextmanager
def spark_errors() -> Iterator[None]:
    """Whatever goes wrong in Spark is one of our errors."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from headrace.spark.sql.failures import explained

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise explained(error) from None
    except OutputClosed:
        raise
    except ConnectionError as error:
        raise Internal(
            f"Spark ended by itself: {error}", fix="look at what it printed, and at its memory"
        ) from None


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Say what is being waited for, to a person."""
    if not sys.stderr.isatty():
        yield
        return
    print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r" + " " * len(text) + "\r", end="", file=sys.stderr, flush=True)


def print_cuts(answer: Answer) -> None:
    for cut in answer.cuts.values():
        past = f", up to seq {cut.past_to} from the lake" if cut.past_to else ""
        print(f"{cut.topic}: up to seq {cut.head} of epoch {cut.epoch}{past}", file=sys.stderr)


def note_losses(answer: Answer) -> None:
    """Say what nobody has any more of what was asked for."""
    from headrace.spark.sql.topic_ends import losses_said

    for text in losses_said(answer.cuts.values()):
        note(text)


def table_of(answer: Answer, limit: int | None) -> Callable[[], None]:
    """The rows, collected; printing them is what is left to do."""
    from headrace.spark.sql.printing import column_types, text_rows

    bound = limit or TABLE_ROWS_MAX
    columns = list(column_types(answer.frame))
    if not columns:  # of a statement that is not a query
        return lambda: None
    found = text_rows(answer.frame.limit(bound + 1)).collect()
    rows: list[Sequence[str | None]] = [tuple(row) for row in found[:bound]]

    def show() -> None:
        cut = print_cells(columns, rows)
        if len(found) > bound:
            note(f"only the first {bound} rows are shown; see --limit and --format csv")
        if cut:
            note("values that end in … are longer; --format csv and --json have them whole")

    return show


def note(text: str) -> None:
    sys.stdout.flush()
    print(f"headrace: {text}", file=sys.stderr)


def write_csv(answer: Answer, limit: int | None) -> None:
    """Rows as they come; a null is an empty field, an empty text is \"\"."""
    from headrace.spark.sql.printing import column_types, text_rows

    columns = [name for name, _ in column_types(answer.frame)]
    if not columns:
        return
    frame = answer.frame if limit is None else answer.frame.limit(limit)
    rows = text_rows(frame).toLocalIterator(prefetchPartitions=True)
    row = next(rows, None)  # what fails at once fails before anything is written
    write_out(csv_line(columns))
    while row is not None:
        write_out(csv_line(row))
        row = next(rows, None)


def write_json(answer: Answer, limit: int | None) -> None:
    """One document: columns, the cut of each topic, and rows as they come."""
    import msgspec

    from headrace.spark.sql.printing import column_types, json_rows, row_values

    columns = [{"name": name, "type": kind} for name, kind in column_types(answer.frame)]
    cuts = {cut.topic: _cut_document(cut) for cut in answer.cuts.values()}
    frame = answer.frame if limit is None else answer.frame.limit(limit)
    rows = json_rows(frame).toLocalIterator(prefetchPartitions=True) if columns else iter(())
    row = next(rows, None)  # what fails at once fails before anything is written
    head = msgspec.json.encode({"columns": columns, "cut": cuts}).decode()
    write_out(head[:-1] + ',"rows":[')
    before = ""
    while row is not None:
        write_out(before + msgspec.json.encode(row_values(row[0])).decode())
        before, row = ",", next(rows, None)
    write_out("]}\n")


def _cut_document(cut: Cut) -> dict[str, object]:
    found: dict[str, object] = {"epoch": cut.epoch, "head_seq": cut.head}
    if cut.past_to or cut.losses:
        found["lake_to_seq"] = cut.past_to
        found["lost"] = [loss._asdict() for loss in cut.losses]
    return found


VERBS = (Verb(("sql",), "run SQL over topics, with Spark", add_arguments, run),)
