"""`headrace lake replay`: history of the lake as records of a topic again."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.cli.lake_options import Work, add_lake, connection_of, lake_of, tables_of
from headrace.cli.loading import add_feeding, runner_of, watching, workers_of
from headrace.cli.options import Verb, add_server, print_json, server_of
from headrace.cli.sql import add_spark
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.lake.loading.replay import Note
    from headrace.lake.tables.layout import Lake
    from headrace.lake.tables.table import Table

_SEQS = re.compile(r"([0-9]{1,18})?-([0-9]{1,18})?")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="whose history")
    parser.add_argument("--to", metavar="TOPIC", required=True, help="where it goes")
    parser.add_argument(
        "--where",
        metavar="SQL",
        help="only rows that fit, such as \"tag = 'eu' and data:price::double > 9\"; the columns "
        "are those of `headrace sql`, and day",
    )
    parser.add_argument("--seqs", metavar="FIRST-LAST", help="only these, such as 100-200 or 100-")
    parser.add_argument(
        "--restart",
        action="store_true",
        help="begin anew where the same replay was cut off before; what it stored stays",
    )
    add_feeding(parser)
    add_lake(parser)
    add_server(parser)
    add_spark(parser)


def seqs_of(text: str | None) -> tuple[int, int]:
    """
    >>> seqs_of("100-200"), seqs_of("-7")
    ((100, 200), (1, 7))
    """
    from headrace.lake.loading.replay import SEQ_MAX

    if text is None:
        return 1, SEQ_MAX
    match = _SEQS.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--seqs {text} is no range", fix="write it as 100-200, 100- or -200")
    first, last = int(match[1] or 1), int(match[2] or SEQ_MAX)
    if first > last:
        raise ConfigError(f"--seqs {text} has no seq", fix="give the lower one first")
    return first, last


def _run(options: argparse.Namespace) -> int:
    import msgspec

    from headrace.client import Client
    from headrace.lake.loading.replay import Wanted, left_out, replay

    first, last = seqs_of(options.seqs)
    lake = lake_of(options)
    table = table_of(lake, options.topic)
    server, work, workers = server_of(options), Work(options), workers_of(options)
    with Client(server.url, token=server.token, tls=server.ca_file, deadline_ms=0) as client:
        client.health()  # nothing is read for a server that is not there
    if left_out(table):
        _say_left_out(options.topic, options.to)
    with watching() as watch:
        done = replay(
            table,
            Wanted(options.to, first, last, options.where),
            connection_of(server),
            runner_of(options, work),
            filtered=work.filtered(options.topic),
            in_order=options.in_order,
            restart=options.restart,
            workers=workers,
            told=_say_resumed,
            watch=watch,
        )
    if options.json:
        print_json(msgspec.to_builtins(done))
    else:
        before = f", {done.rows_before:,} were there before" if done.rows_before else ""
        again = " (it went on where it was cut off)" if done.resumed else ""
        what = f"{done.topic} to {done.to}"
        print(f"{what}: {done.rows:,} rows of version {done.version}{before}{again}")
    return 0


def table_of(lake: Lake, topic: str) -> Table:
    """Return the table of a topic; of one that was created again, that of its newest life."""
    tables = [one for one in tables_of(lake, [topic]) if one.identity.topic == topic]
    if not tables:
        raise ConfigError(f"{topic} is no single topic", fix="replay one topic at a time")
    return max(tables, key=lambda one: one.identity.epoch)


def _say_left_out(topic: str, to: str) -> None:
    print(
        f"headrace: {topic} is a stream: its content type and the headers of its records are not "
        f"in the copy; if {to} is a stream it keeps the type that it has",
        file=sys.stderr,
    )


def _say_resumed(note: Note) -> None:
    since = f"{datetime.fromtimestamp(note.started / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    print(
        f"headrace: going on with the replay of version {note.version} that began {since}; "
        "--restart begins anew",
        file=sys.stderr,
    )


VERBS = (Verb(("lake", "replay"), "bring history back into a topic", _arguments, _run),)
