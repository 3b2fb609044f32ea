"""`headrace import`: files become records of a topic, in parallel, once however often it runs."""

from __future__ import annotations

import argparse

from headrace.cli.lake import Work, connection_of
from headrace.cli.options import Verb, add_server, print_json, server_of
from headrace.cli.sql import add_spark

FORMATS = ("jsonl", "kafka-json", "csv", "parquet")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="every Spark worker must see them")
    parser.add_argument("--to", metavar="TOPIC", required=True, help="made if it is not there")
    parser.add_argument("--format", choices=FORMATS, help="else by the ending of each name")
    parser.add_argument(
        "--id",
        metavar="NAME",
        help="of this import: what was stored under it is not stored again. By default it follows "
        "from the files' names and sizes, so that one that was cut off is just run again",
    )
    parser.add_argument(
        "--strings", action="store_true", help="values of CSV stay text: no numbers, no nulls"
    )
    add_server(parser)
    add_spark(parser)


def _run(options: argparse.Namespace) -> int:
    import msgspec

    from headrace.client import Client
    from headrace.lake.importing import import_files

    server, work = server_of(options), Work(options)
    with Client(server.url, token=server.token, tls=server.ca_file, deadline_ms=0) as client:
        client.health()  # Spark takes seconds to start, and would be in vain
    done = import_files(
        options.files,
        options.to,
        connection_of(server),
        work.runner,
        format=options.format,
        write_id=options.id,
        strings=options.strings,
    )
    if options.json:
        print_json(msgspec.to_builtins(done))
    else:
        print(f"{done.rows:,} rows of {done.files} files are in {done.to} (import {done.id})")
    return 0


VERBS = (Verb(("import",), "bring files into a topic, with Spark", _arguments, _run),)
