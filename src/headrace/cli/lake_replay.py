"""`headrace lake replay`: history of the lake as records of a topic again."""

from __future__ import annotations

import argparse
import re

from headrace.cli.lake import Work, add_lake, connection_of, lake_of, tables_of
from headrace.cli.options import Verb, add_server, print_json, server_of
from headrace.cli.sql import add_spark
from headrace.core.errors import ConfigError

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
        "--in-order", action="store_true", help="one part after the other, so that order is kept"
    )
    add_lake(parser)
    add_server(parser)
    add_spark(parser)


def seqs_of(text: str | None) -> tuple[int, int]:
    """
    >>> seqs_of("100-200"), seqs_of("-7")
    ((100, 200), (1, 7))
    """
    from headrace.lake.replay import SEQ_MAX

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
    from headrace.lake.replay import Wanted, replay

    first, last = seqs_of(options.seqs)
    lake = lake_of(options)
    tables = tables_of(lake, [options.topic])
    # The newest life of a topic that was made anew.
    table = max(tables, key=lambda one: one.identity.epoch)
    server, work = server_of(options), Work(options)
    with Client(server.url, token=server.token, tls=server.ca_file, deadline_ms=0) as client:
        client.health()  # Spark takes seconds to start, and would be in vain
    done = replay(
        table,
        Wanted(options.to, first, last, options.where),
        connection_of(server),
        work.runner,
        filtered=work.filtered(options.topic),
        in_order=options.in_order,
    )
    if options.json:
        print_json(msgspec.to_builtins(done))
    else:
        again = " (it went on where it was cut off)" if done.resumed else ""
        print(f"{done.topic} to {done.to}: {done.rows:,} rows of version {done.version}{again}")
    return 0


VERBS = (Verb(("lake", "replay"), "bring history back into a topic", _arguments, _run),)
