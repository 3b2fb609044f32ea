"""`headrace pipelines run`: the worker as a command, until it is told to stop.

It says on stderr what starts, fails and ends; what each pipeline does is in the topic
`_pipelines.progress`.  The first SIGINT or SIGTERM stops every query and gives the pipelines back,
so that another worker has them at once; the second ends the process.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from types import FrameType

from headrace.cli.options import Verb, add_server, print_json, server_of
from headrace.cli.sql import add_spark, settings_of_spark, start_spark, waiting
from headrace.core.errors import ConfigError
from headrace.core.limits import lease_ms_max
from headrace.core.settings import DEFAULTS
from headrace.core.units import parse_duration_ms

LEASE_MS_MIN = 3_000
NODE_CHARS_MAX = 100
# Each call of the worker takes no longer: the others' leases have to be renewed meanwhile.
TIMEOUT_MS = 3_000
CHECKPOINTS = "pipelines"
TABLES = "tables"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoints",
        metavar="PLACE",
        help="where checkpoints are kept: a directory, or a URL that Spark knows; workers that "
        "take over from each other need the same (default: pipelines/ in $HEADRACE_DATA_DIR)",
    )
    parser.add_argument(
        "--tables",
        metavar="DIRECTORY",
        help="where pipelines that write tables have them (default: tables/ in $HEADRACE_DATA_DIR)",
    )
    parser.add_argument(
        "--entry",
        action="append",
        default=[],
        metavar="NAME=MODULE:FUNCTION",
        help="a Python function that pipelines may name; may be repeated",
    )
    parser.add_argument("--node", help="this worker's name (default: the machine's and a number)")
    parser.add_argument(
        "--max", type=int, default=8, metavar="N", help="pipelines at a time (default: 8)"
    )
    parser.add_argument(
        "--lease", default="30s", metavar="TIME", help="how long each is held (default: 30s)"
    )
    add_server(parser)
    add_spark(parser)


def _run(options: argparse.Namespace) -> int:
    from headrace.client import Client
    from headrace.pipelines.worker.building import WorkerSetup
    from headrace.pipelines.worker.entry_points import load_entries
    from headrace.pipelines.worker.worker import Limits, Worker
    from headrace.spark.options import Connection
    from headrace.spark.session import is_in_process

    limits = Limits(_pipelines_max(options.max), _lease_ms(options.lease))
    entries = load_entries(options.entry)
    server = server_of(options)
    node = (options.node or f"{os.uname().nodename}-{os.getpid()}")[:NODE_CHARS_MAX]
    place = WorkerSetup(
        Connection(server.url, server.token, server.ca_file),
        options.checkpoints or _in_data_dir(CHECKPOINTS),
        entries,
        options.tables or _in_data_dir(TABLES),
    )
    with Client(
        server.url, token=server.token, tls=server.ca_file, timeout_ms=TIMEOUT_MS, deadline_ms=0
    ) as client:
        client.health()
        _start_logging()
        stop = threading.Event()
        _stop_by_signal(stop)
        with waiting("starting Spark ..."):
            spark = start_spark(options, settings_of_spark(options))
        _stop_by_signal(stop)  # once more: Spark takes SIGINT for itself when it starts
        if not is_in_process(spark):
            raise ConfigError(
                "a worker needs the driver of Spark in its own process",
                fix="use --master for a cluster, and not --remote",
            )
        worker = Worker(spark, client, node, place, limits)
        logging.getLogger("headrace.pipelines").info("%s is ready", node)
        worker.run(stop)
    if options.json:
        done = {"started": worker.started_total, "reports": worker.reports_total}
        print_json({"node": node, **done})
    return 0


def _pipelines_max(count: int) -> int:
    if count < 1:
        raise ConfigError(f"--max {count} runs nothing", fix="give a number above 0")
    return count


def _lease_ms(text: str) -> int:
    try:
        found = parse_duration_ms(text)
    except ValueError as error:
        raise ConfigError(f"--lease {text!r} does not parse", fix=str(error)) from None
    if not LEASE_MS_MIN <= found <= lease_ms_max:
        raise ConfigError(f"--lease {text} is out of bounds", fix="use 3s to 1d")
    return found


def _in_data_dir(name: str) -> str:
    directory = os.environ.get("HEADRACE_DATA_DIR") or str(DEFAULTS["data_dir"])
    return os.path.join(os.path.abspath(directory), name)


def _start_logging() -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("headrace").setLevel(logging.INFO)


def _stop_by_signal(asked: threading.Event) -> None:
    """Have the first signal set the event, and the second end the process."""

    def heard(number: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, heard)


VERBS = (Verb(("pipelines", "run"), "run pipelines with Spark, until stopped", _arguments, _run),)
