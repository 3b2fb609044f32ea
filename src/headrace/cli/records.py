"""`headrace append`, `read`, `tail` and `delete`: records in and out, made for pipes.

Data goes to stdout and nothing else does; what was done, and how far it is, goes to stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.cli.options import Verb, add_server, print_json
from headrace.cli.progress import Counted
from headrace.cli.record_formats import INPUTS, OUTPUTS, Printer, drafts, shown
from headrace.cli.talking import builtins, client_of
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.limits import MIB
from headrace.wire.rfc3339 import parse_rfc3339

if TYPE_CHECKING:
    from headrace.api.records import Draft
    from headrace.client import Client

BATCH_RECORDS = 500
BATCH_BYTES_MAX = MIB
READ_LIMIT = 100
TAIL_RECORDS = 10


# append


def _append_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", help="where to; it is made on the way if it is not there")
    parser.add_argument("data", nargs="*", metavar="JSON", help="records; else stdin has them")
    parser.add_argument(
        "--format",
        choices=INPUTS,
        default="jsonl",
        help="jsonl: a JSON payload each line; text: a string each line; records: an object each "
        "line, with data, tag, node, meta; raw: everything is one record of bytes",
    )
    parser.add_argument("--tag", help="the tag of every record that has none of its own")
    parser.add_argument("--node", help="who writes; readers can leave it out")
    parser.add_argument(
        "--batch", type=int, default=BATCH_RECORDS, help=f"records of a request ({BATCH_RECORDS})"
    )
    add_server(parser)


def _append(options: argparse.Namespace) -> int:
    if options.batch < 1:
        raise ConfigError("--batch is below 1", fix="use 1 or more")
    with client_of(options) as client:
        total = _append_raw(client, options) if options.format == "raw" else None
        if total is None:
            total = _append_lines(client, options)
    if options.json:
        print_json(total)
    elif total["count"]:
        print(
            f"appended {_records(total['count'])} to {options.topic}, "
            f"seqs {total['first_seq']} to {total['last_seq']}",
            file=sys.stderr,
        )
    else:
        print("there was no record to append", file=sys.stderr)
    return 0


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def _append_lines(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    total: dict[str, Any] = {
        "topic": options.topic, "count": 0, "first_seq": None, "last_seq": None, "created": False
    }  # fmt: skip
    progress = Counted(sys.stderr, SystemClock(), "records appended")
    try:
        lines, source = _input(options)
        records = drafts(lines, options.format, options.tag, source)
        for batch in _batches(records, options.batch):
            answer = client.append(options.topic, batch, node=options.node)
            if total["first_seq"] is None:
                total["first_seq"] = answer.first_seq
            total["last_seq"] = answer.last_seq
            total["created"] = total["created"] or answer.created
            total["count"] += len(batch)
            progress(total["count"])
    except HeadraceError as error:
        if total["count"]:
            error.args = (
                f"{error.args[0]}; the {_records(total['count'])} before it are appended, up to "
                f"seq {total['last_seq']}",
                *error.args[1:],
            )
        raise
    finally:
        progress.clear()
    return total


def _append_raw(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    import pyarrow as pa

    if options.data:
        raise ConfigError("--format raw takes no records as arguments", fix="pipe them in")
    lines, _ = _input(options)
    data = b"".join(lines)
    columns: dict[str, Any] = {"data": pa.array([data], pa.large_binary())}
    for name in ("tag", "node"):
        if getattr(options, name) is not None:
            columns[name] = [getattr(options, name)]
    table = pa.table(columns)
    answer = client.append_arrow(options.topic, table)
    return {
        "topic": options.topic,
        "count": 1,
        "first_seq": answer.first_seq,
        "last_seq": answer.last_seq,
        "created": answer.created,
    }


def _input(options: argparse.Namespace) -> tuple[Iterable[bytes], str]:
    """The lines to append, and what to call them."""
    if options.data:
        return [text.encode() for text in options.data], "the arguments"
    if sys.stdin.isatty():
        print("records, one a line; Ctrl-D ends", file=sys.stderr)
    return sys.stdin.buffer, "stdin"


def _batches(records: Iterable[Draft], count: int) -> Iterator[list[Draft]]:
    """Lists of so many records at most, and of `BATCH_BYTES_MAX` unless one alone is larger."""
    import msgspec

    batch: list[Draft] = []
    size = 0
    for record in records:
        length = len(msgspec.json.encode(record.data))
        if batch and (len(batch) == count or size + length > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += length
    if batch:
        yield batch


# read and tail


def _format_argument(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--format",
        default=default,
        help=f"{', '.join(OUTPUTS)}, or a template such as '{{seq}} {{tag}} {{data}}' ({default})",
    )


def _read_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--after", type=int, metavar="SEQ", help="records after this seq (0)")
    where.add_argument("--since", metavar="TIME", help="from a time on, as 2026-11-18T12:00:00Z")
    where.add_argument("--last", type=int, metavar="N", help="the last N records")
    parser.add_argument("--limit", type=int, default=READ_LIMIT, help=f"({READ_LIMIT})")
    parser.add_argument("--all", action="store_true", help="up to the head, whatever --limit says")
    _format_argument(parser, "table")
    add_server(parser)


def _read(options: argparse.Namespace) -> int:
    printer = Printer(options.format, options.topic)
    since = None
    if options.since is not None and (since := parse_rfc3339(options.since)) is None:
        raise ConfigError(
            f"--since {options.since!r} is not a time", fix="write it as 2026-11-18T12:00:00Z"
        )
    with client_of(options) as client:
        page = client.diff(
            options.topic, options.after, from_ts=since, last=options.last, limit=options.limit
        )
        if options.json:
            document = {
                "topic": page.topic,
                "records": [shown(record) for record in page.records],
                "tombstone": builtins(page.tombstone),
                "next_after": page.next_from_seq,
                "head_seq": page.head_seq,
            }
            print_json(document)
            return 0
        while True:
            if page.tombstone is not None:
                printer.tombstone(page.tombstone)
            for record in page.records:
                printer.record(record)
            if page.caught_up or not options.all:
                break
            page = client.diff(options.topic, page.next_from_seq, epoch=page.epoch)
    if not page.caught_up:
        print(
            f"{page.lag:,} more; go on with --after {page.next_from_seq}, or read --all",
            file=sys.stderr,
        )
    return 0


def _tail_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("-n", type=int, default=TAIL_RECORDS, help=f"how many ({TAIL_RECORDS})")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    _format_argument(parser, "data")
    add_server(parser)


def _tail(options: argparse.Namespace) -> int:
    from headrace.api.records import Tombstone

    printer = Printer("jsonl" if options.json else options.format, options.topic)
    with client_of(options) as client:
        page = client.diff(options.topic, last=options.n)
        while True:
            for record in page.records:
                printer.record(record)
            if page.caught_up:
                break
            page = client.diff(options.topic, page.next_from_seq, epoch=page.epoch)
        sys.stdout.flush()
        if not options.follow:
            return 0
        for one in client.follow(options.topic, page.next_from_seq, epoch=page.epoch):
            if isinstance(one, Tombstone):
                printer.tombstone(one)
            else:
                printer.record(one)
            sys.stdout.flush()
    return 0


# delete


def _delete_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("--before", type=int, metavar="SEQ", help="records with a lower seq")
    parser.add_argument("--tag", help="records with this tag; one that ends in * is a prefix")
    add_server(parser)


def _delete(options: argparse.Namespace) -> int:
    if options.before is None and options.tag is None:
        raise ConfigError("nothing says which records to delete", fix="give --before or --tag")
    with client_of(options) as client:
        gone = client.delete_records(options.topic, before_seq=options.before, match=options.tag)
    if options.json:
        print_json(builtins(gone))
    else:
        print(f"deleted {gone.deleted:,} records of {gone.topic}; {gone.count:,} are left")
    return 0


VERBS = (
    Verb(("append",), "append records: from arguments or stdin", _append_arguments, _append),
    Verb(("read",), "print records of a topic", _read_arguments, _read),
    Verb(("tail",), "print the last records, and with -f what comes", _tail_arguments, _tail),
    Verb(("delete",), "delete records of a topic, by seq or tag", _delete_arguments, _delete),
)
