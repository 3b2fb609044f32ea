"""`headrace lake`: the history of topics as Delta tables, kept up to date, checked and tidied.

Every verb prints for people, or one JSON document with `--json`; exit code 0 means that all is as
it should be, 1 that something is not.  Spark and Delta are imported when a verb runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.cli.lake_options import (
    EXIT_NOT_ALL,
    TOPICS,
    Failures,
    Work,
    add_tables,
    connection_of,
    ends_by_sigterm,
    lake_of,
    names_of,
    rest,
    tables_of,
)
from headrace.cli.options import (
    Verb,
    add_server,
    print_json,
    print_table,
    server_of,
)
from headrace.cli.sql import (
    add_spark,
)
from headrace.core.errors import ConfigError, HeadraceError, Internal, NotFound
from headrace.core.units import parse_duration_ms

if TYPE_CHECKING:
    from headrace.lake.writing.sync_result import Result, Synced
    from headrace.lake.writing.verify import Verified


# sync


def _sync_arguments(parser: argparse.ArgumentParser) -> None:
    add_tables(parser, f"{TOPICS}; default: every log but those of the server itself")
    often = parser.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="up to the heads of now (the default)")
    often.add_argument("--every", metavar="TIME", help="again and again, such as 1m, until Ctrl-C")
    parser.add_argument(
        "--schema",
        metavar="DDL",
        help='fields of the JSON, such as "id BIGINT, price DOUBLE", that a new table has as '
        "columns beside the bytes; VARIANT for whole records",
    )
    add_server(parser)
    add_spark(parser)


def _sync(options: argparse.Namespace) -> int:
    from headrace.client import Client
    from headrace.lake.tables.topic_choice import chosen_topics
    from headrace.lake.writing.sync import Sync

    lake = lake_of(options)
    every_ms = _every_ms(options)
    ddl = _ddl(options)
    server = server_of(options)
    work = Work(options)
    with Client(server.url, token=server.token, tls=server.ca_file) as client, ends_by_sigterm():
        sync = Sync(
            client, connection_of(server), lake, work.runner, copier=work.copy, value_ddl=ddl
        )
        told = (lambda done: None) if options.json else _say_synced
        while True:
            try:
                results = sync.run(chosen_topics(client, names_of(options)), told)
                _print_synced(options, results)
                if any(one.code == Internal.code for one in results):
                    work.check()
            except HeadraceError as error:
                # A server that is away comes back, and so may a topic that fits.
                if every_ms is None or not (error.retryable or isinstance(error, NotFound)):
                    raise
                _say_failed(options, error)
            if every_ms is None:
                return EXIT_NOT_ALL if any(one.error or one.report_error for one in results) else 0
            rest(every_ms / 1000)


def _every_ms(options: argparse.Namespace) -> int | None:
    if options.every is None:
        return None
    try:
        return max(1, parse_duration_ms(options.every))
    except ValueError as error:
        raise ConfigError(f"--every {options.every}: {error}", fix="such as --every 1m") from None


def _ddl(options: argparse.Namespace) -> str | None:
    from headrace.lake.tables.columns import checked_ddl

    return None if options.schema is None else checked_ddl(options.schema)


def _say_synced(done: Synced) -> None:
    gaps = f", {done.gap_seqs:,} gaps" if done.gap_seqs else ""
    print(
        f"{done.topic}: seqs {done.first_seq} to {done.last_seq}, {done.rows:,} rows{gaps}, "
        f"{done.files} files, {done.bytes:,} bytes",
        flush=True,
    )


def _print_synced(options: argparse.Namespace, results: list[Result]) -> None:
    import msgspec

    if options.json:
        print_json({"topics": [msgspec.to_builtins(result) for result in results]})
        sys.stdout.flush()
        return
    for result in results:
        if result.error is not None:
            print(f"headrace: {result.topic}: {result.error}", file=sys.stderr)
        if result.report_error is not None:
            print(
                f"headrace: {result.topic}: it is in the lake, and the server does not know it: "
                f"{result.report_error}",
                file=sys.stderr,
            )
    behind = sum(result.error is not None for result in results)
    rows = sum(result.rows for result in results)
    print(f"{len(results) - behind} of {len(results)} topics are in the lake; {rows:,} new rows")


def _say_failed(options: argparse.Namespace, error: HeadraceError) -> None:
    if options.json:
        print_json({"topics": [], "error": {"code": error.code, "message": str(error)}})
        sys.stdout.flush()
    print(f"headrace: {error}", file=sys.stderr)


# compact


def _compact_arguments(parser: argparse.ArgumentParser) -> None:
    add_tables(parser, f"{TOPICS}; default: every table")
    add_spark(parser)


def _compact(options: argparse.Namespace) -> int:
    import msgspec

    from headrace.lake.writing.compact import compact

    lake, work, found, failed = lake_of(options), Work(options), [], Failures()
    for table in tables_of(lake, names_of(options), failed):
        with failed(table.name):
            while (done := compact(table, work.runner)) is not None:
                found.append(done)
                table = table.fresh()
                if not options.json:
                    print(
                        f"{done.topic}: {done.files_before} files are {done.files_after} now, "
                        f"{done.rows:,} rows were put together",
                        flush=True,
                    )
    errors = failed.errors
    if options.json:
        print_json({"tables": [msgspec.to_builtins(done) for done in found], "errors": errors})
    elif not found and not errors:
        print("there is nothing to put together")
    return EXIT_NOT_ALL if errors else 0


# vacuum


def _vacuum_arguments(parser: argparse.ArgumentParser) -> None:
    add_tables(parser, f"{TOPICS}; default: every table")
    parser.add_argument(
        "--keep", metavar="TIME", default="7d", help="what older versions need, for so long (7d)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument(
        "--nobody-writes", action="store_true", help="allow --keep of less than a day"
    )


def _vacuum(options: argparse.Namespace) -> int:
    import msgspec

    from headrace.lake.writing.vacuum import checked_hours, vacuum

    lake = lake_of(options)
    try:
        hours = -(-parse_duration_ms(options.keep) // 3_600_000)
    except ValueError as error:
        raise ConfigError(f"--keep {options.keep}: {error}", fix="such as --keep 7d") from None
    hours = checked_hours(hours, alone=options.nobody_writes)
    found, failed = [], Failures()
    for table in tables_of(lake, names_of(options), failed):
        with failed(table.name):
            done = vacuum(table, hours, dry_run=options.dry_run)
            found.append(done)
            if not options.json:
                verb = "would be removed" if options.dry_run else "removed"
                print(f"{done.topic}: {len(done.files)} files {verb}", flush=True)
    errors = failed.errors
    if options.json:
        print_json({"tables": [msgspec.to_builtins(done) for done in found], "errors": errors})
    return EXIT_NOT_ALL if errors else 0


# verify


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    add_tables(parser, f"{TOPICS}; default: every table")
    parser.add_argument(
        "--no-source", action="store_true", help="do not compare with what the server has"
    )
    add_server(parser)
    add_spark(parser)


def _verify(options: argparse.Namespace) -> int:
    import msgspec

    from headrace.client import Client
    from headrace.lake.writing.verify import verify

    lake, work, found, failed = lake_of(options), Work(options), [], Failures()
    server = server_of(options)
    with Client(server.url, token=server.token, tls=server.ca_file) as client:
        source = () if options.no_source else (client, connection_of(server))
        for table in tables_of(lake, names_of(options), failed):
            with failed(table.name):
                done = verify(table, work.runner, *source)
                found.append(done)
                if not options.json:
                    _say_verified(done)
    errors = failed.errors
    if options.json:
        shown = [{**msgspec.to_builtins(done), "ok": done.ok} for done in found]
        print_json({"tables": shown, "errors": errors})
    return 0 if all(done.ok for done in found) and not errors else EXIT_NOT_ALL


def _say_verified(done: Verified) -> None:
    for finding in done.findings:
        detail = f" ({finding.detail})" if finding.detail else ""
        print(f"{done.topic}: seqs {finding.first} to {finding.last}: {finding.what}{detail}")
    compared = {
        "compared": f"{done.compared:,} compared with the server",
        "deleted": "the server has this topic no more",
        "skipped": "not compared with the server",
    }[done.source]
    print(
        f"{'ok' if done.ok else 'NOT OK'}: {done.topic}: seqs 1 to {done.watermark}: "
        f"{done.rows:,} rows in {done.files} files, {done.gap_seqs:,} gaps; {compared}",
        flush=True,
    )


# history


def _history_arguments(parser: argparse.ArgumentParser) -> None:
    add_tables(parser, f"{TOPICS}; default: every table")
    parser.add_argument("--limit", type=int, default=20, metavar="COMMITS", help="(20)")


def _history(options: argparse.Namespace) -> int:
    import msgspec

    from headrace.lake.tables.commits import history

    if options.limit < 1:
        raise ConfigError(f"--limit {options.limit} shows nothing", fix="give a number above 0")
    found, failed = [], Failures()
    for table in tables_of(lake_of(options), names_of(options), failed):
        with failed(table.name):
            found.append((table, history(table, options.limit)))
    if options.json:
        shown = [
            {
                "topic": table.identity.topic,
                "table": table.name,
                "commits": msgspec.to_builtins(commits),
            }
            for table, commits in found
        ]
        print_json({"tables": shown, "errors": failed.errors})
        return EXIT_NOT_ALL if failed.errors else 0
    rows: list[Sequence[str]] = [("table", "version", "time", "what", "seqs", "rows", "gaps")]
    for table, commits in found:
        for one in commits:
            seqs = "" if one.last_seq is None else f"{one.first_seq} to {one.last_seq}"
            at = f"{datetime.fromtimestamp(one.ts / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
            shown_counts = ("" if count is None else f"{count:,}" for count in (one.rows, one.gaps))
            rows.append((table.name, str(one.version), at, one.what, seqs, *shown_counts))
    print_table(rows)
    return EXIT_NOT_ALL if failed.errors else 0


VERBS = (
    Verb(("lake", "sync"), "bring topics into the lake", _sync_arguments, _sync),
    Verb(("lake", "compact"), "put small files together", _compact_arguments, _compact),
    Verb(("lake", "vacuum"), "remove files of old versions", _vacuum_arguments, _vacuum),
    Verb(("lake", "verify"), "account for every seq", _verify_arguments, _verify),
    Verb(("lake", "history"), "show what was committed", _history_arguments, _history),
)
