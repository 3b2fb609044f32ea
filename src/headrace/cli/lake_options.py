"""What the verbs of `headrace lake` share: the lake, its tables, and where their work runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from headrace.cli.options import (
    ServerAddress,
    check_delta,
    settings_of,
)
from headrace.cli.sql import (
    WorkThread,
    settings_of_spark,
    spark_errors,
    start_spark,
    waiting,
)
from headrace.core import config
from headrace.core.errors import HeadraceError, NotFound
from headrace.core.settings import RULES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.lake.loading.replay_filter import Filter
    from headrace.lake.tables.layout import Lake
    from headrace.lake.tables.table import Table
    from headrace.lake.tables.tasks import Failed, Runner
    from headrace.lake.writing.copy_task import Copied, CopyJob
    from headrace.spark.options import Connection

Done = TypeVar("Done")

EXIT_NOT_ALL = 1
# A server that does not answer for this long is an error, which the next round may not have.
RETRY_MS = 60_000
TOPICS = "topics, separated by commas; * stands for anything"


def add_tables(parser: argparse.ArgumentParser, topics: str) -> None:
    """Which topics, and where the lake is."""
    parser.add_argument("--topics", metavar="NAMES", default="", help=topics)
    add_lake(parser)


def add_lake(parser: argparse.ArgumentParser) -> None:
    """Where the lake is; `lake_of` reads it."""
    parser.set_defaults(**{f"setting_{name}": None for name in RULES})
    parser.add_argument("--config", metavar="FILE", help="a TOML file of settings")
    for name in ("lake", "data_dir"):
        flag, rule = config.flag_of(name), RULES[name]
        parser.add_argument(flag, dest=f"setting_{name}", metavar="PLACE", help=rule.doc)


def lake_of(options: argparse.Namespace) -> Lake:
    """The lake of a verb whose arguments came from `add_lake`."""
    check_delta()
    from headrace.lake.tables.layout import DIRECTORY, Lake

    settings = settings_of(options).settings
    return Lake(settings.lake or os.path.join(settings.data_dir, DIRECTORY))


def names_of(options: argparse.Namespace) -> list[str]:
    """The topics that were named."""
    return list(filter(None, (name.strip() for name in options.topics.split(","))))


def tables_of(lake: Lake, names: Sequence[str], failed: Failures | None = None) -> list[Table]:
    """The tables of these topics, or all; each name has to be one, and there has to be any.

    With `failed`, one that cannot be opened is noted there, and the others are found.
    """
    from headrace.lake.tables.layout import slug_of
    from headrace.lake.tables.table import Table
    from headrace.lake.tables.topic_choice import fits, is_pattern

    slugs = {slug_of(name) for name in names}
    some = bool(names) and not any(map(is_pattern, names))  # the others need not be opened
    found: list[Table] = []
    for name in lake.tables():
        if some and name.partition("-")[2] not in slugs:
            continue
        with contextlib.nullcontext() if failed is None else failed(name):
            table = Table(lake, name)
            if not names or any(fits(one, table.identity.topic) for one in names):
                found.append(table)
    topics = [table.identity.topic for table in found]
    missing = [name for name in names if not any(fits(name, topic) for topic in topics)]
    if (missing or not found) and not (failed and failed.errors):
        what = f"no table of {', '.join(missing)}" if missing else "no table"
        raise NotFound(
            f"{lake.shown} has {what}",
            fix="run `headrace lake sync` first, or name another lake with --lake",
        )
    return found


class Failures:
    """What went wrong with a table is said, and the others go on."""

    def __init__(self) -> None:
        self.errors: list[dict[str, str]] = []

    @contextlib.contextmanager
    def __call__(self, table: str) -> Iterator[None]:
        try:
            yield
        except HeadraceError as error:
            self.errors.append({"table": table, "code": error.code, "message": str(error)})
            print(f"headrace: {table}: {error}", file=sys.stderr)


class Work:
    """Spark for the work of one command: it starts when there is something to do."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._settings = settings_of_spark(options)
        self._spark: SparkSession | None = None
        self._thread = WorkThread()

    @property
    def runner(self) -> Runner:
        """Runs jobs on Spark, with a bar on a terminal."""
        return self._run

    def _run(self, work: Callable[..., object], jobs: Sequence[object]) -> list[object]:
        from headrace.lake.tables.tasks import run_on

        return self._watched(lambda spark: run_on(spark)(work, jobs)) if jobs else []

    def copy(self, jobs: Sequence[CopyJob]) -> list[Copied | Failed[CopyJob]]:
        """The same for the parts of a sync."""
        from headrace.lake.writing.variants import copy_on

        return self._watched(lambda spark: copy_on(spark)(jobs)) if jobs else []

    def filtered(self, topic: str) -> Filter:
        """The same for rows that have to fit a condition."""
        from headrace.lake.loading.replay_filter import Filter

        return Filter(self._watched, topic)

    def _watched(self, work: Callable[[SparkSession], Done]) -> Done:
        from headrace.cli.spark_progress import spark_progress
        from headrace.spark.session import is_in_process

        spark = self._start()

        def cancel() -> None:
            # The signal may have ended Java as well.
            with contextlib.suppress(HeadraceError), spark_errors():
                if is_in_process(spark):
                    spark.sparkContext.cancelAllJobs()
                else:
                    spark.interruptAll()

        with spark_errors(), spark_progress(spark):
            return self._thread.run(lambda: work(spark), cancel)

    def check(self) -> None:
        """Spark still runs, if it was started; a new one cannot be had in this process."""
        if self._spark is not None:
            with spark_errors():
                self._spark.range(1).count()

    def _start(self) -> SparkSession:
        if self._spark is None:
            with waiting("starting Spark ..."):
                self._spark = start_spark(self._options, self._settings)
        return self._spark


def connection_of(server: ServerAddress) -> Connection:
    from headrace.spark.options import Connection

    return Connection(server.url, server.token, server.ca_file, retry_timeout_ms=RETRY_MS)


def rest(seconds: float) -> None:
    """Wait; Ctrl-C ends it."""
    threading.Event().wait(seconds)


@contextlib.contextmanager
def ends_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that nothing stays pinned or running."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
