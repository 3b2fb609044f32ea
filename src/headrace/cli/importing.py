"""`headrace import`: files become records of a topic, in parallel, once however often it runs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from headrace.cli.lake_options import EXIT_NOT_ALL, Work, connection_of
from headrace.cli.loading import add_feeding, runner_of, watching, workers_of
from headrace.cli.options import Verb, add_server, print_json, server_of
from headrace.cli.sql import add_spark

if TYPE_CHECKING:
    from headrace.lake.loading.importing import Imported

FORMATS = ("jsonl", "kafka-json", "csv", "parquet")
BAD_SHOWN = 10


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="or a pattern such as 'day-*.jsonl.gz'; .gz, .zst and .bz2 are unpacked",
    )
    parser.add_argument("--to", metavar="TOPIC", required=True, help="made if it is not there")
    parser.add_argument("--format", choices=FORMATS, help="else by the ending of each name")
    parser.add_argument(
        "--id",
        metavar="NAME",
        default="",
        help="bring files again that were brought before: a file is stored once under each name",
    )
    parser.add_argument(
        "--bad-rows",
        choices=("fail", "skip"),
        default="fail",
        help="a row that cannot be a record ends the import (fail), or is left out and told",
    )
    parser.add_argument(
        "--strings", action="store_true", help="values of CSV stay text: no numbers, no nulls"
    )
    parser.add_argument("--delimiter", default=",", metavar="CHARACTER", help="of CSV (,)")
    add_feeding(parser)
    add_server(parser)
    add_spark(parser)


def _run(options: argparse.Namespace) -> int:
    import msgspec

    from headrace.client import Client
    from headrace.lake.loading.importing import import_files

    server, work, workers = server_of(options), Work(options), workers_of(options)
    with Client(server.url, token=server.token, tls=server.ca_file, deadline_ms=0) as client:
        client.health()  # nothing is read for a server that is not there
    with watching() as watch:
        done = import_files(
            options.files,
            options.to,
            connection_of(server),
            runner_of(options, work),
            format=options.format,
            name=options.id,
            strings=options.strings,
            delimiter=options.delimiter,
            skip_bad=options.bad_rows == "skip",
            in_order=options.in_order,
            workers=workers,
            watch=watch,
        )
    if options.json:
        print_json(msgspec.to_builtins(done))
    else:
        _say(done)
    return EXIT_NOT_ALL if done.bad_rows else 0


def _say(done: Imported) -> None:
    files = "1 file" if done.files == 1 else f"{done.files} files"
    before = f"; {done.rows_before:,} were there before" if done.rows_before else ""
    print(f"{done.rows:,} rows of {files} are in {done.to}{before}")
    if done.bad_rows:
        print(f"headrace: {done.bad_rows:,} rows were left out:", file=sys.stderr)
        for named in done.bad_rows_named[:BAD_SHOWN]:
            print(f"  {named}", file=sys.stderr)


VERBS = (Verb(("import",), "bring files into a topic", _arguments, _run),)
