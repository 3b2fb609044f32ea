"""What `lake replay` and `import` share: where they run, a bar, and how they end."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.cli.lake_options import Work
from headrace.cli.progress import ProgressBar
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, HeadraceError, ServerError

if TYPE_CHECKING:
    from headrace.lake.loading.parallel_sender import Watch
    from headrace.lake.loading.producers import Fed
    from headrace.lake.tables.tasks import Runner

WORKERS_DEFAULT_MAX = 4
_SPARK_VARIABLES = ("HEADRACE_SPARK_MASTER", "HEADRACE_SPARK_REMOTE")
_PARTS_OF_BAR = 1_000


def add_feeding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--in-order", action="store_true", help="one part after the other, so that order is kept"
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="COUNT",
        help=f"threads that read and send (one for each processor, at most {WORKERS_DEFAULT_MAX}); "
        "with --master or --remote parts are tasks of Spark instead",
    )


def workers_of(options: argparse.Namespace) -> int:
    from headrace.lake.loading.parallel_sender import WORKERS_MAX

    if options.workers is None:
        return min(os.cpu_count() or 1, WORKERS_DEFAULT_MAX)
    count: int = options.workers
    if not 1 <= count <= WORKERS_MAX:
        raise ConfigError(f"--workers {count} cannot be", fix=f"give 1 to {WORKERS_MAX}")
    return count


def runner_of(options: argparse.Namespace, work: Work) -> Runner | None:
    """Tasks of Spark, if one is named to run them."""
    named = options.master or options.remote or options.conf
    return work.runner if named or any(map(os.environ.get, _SPARK_VARIABLES)) else None


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Show a bar, and say how to go on when interrupted."""
    from headrace.lake.loading.parallel_sender import goes_on

    bar = ProgressBar(sys.stderr, SystemClock(), shown=sys.stderr.isatty())

    def watch(fed: Fed, share: float) -> None:
        rows = fed.rows + fed.rows_before
        bar(f"{rows:,} rows", int(share * _PARTS_OF_BAR), _PARTS_OF_BAR)

    try:
        yield watch
    except KeyboardInterrupt:
        bar.clear()
        print("headrace: stopped; the same command goes on from here", file=sys.stderr)
        raise
    except HeadraceError as error:
        if error.retryable or isinstance(error, ServerError):
            raise goes_on(error) from None
        raise
    finally:
        bar.clear()
