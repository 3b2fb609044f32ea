"""`headrace topic`: list, create, look at, configure and delete topics."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import islice
from typing import Any

from headrace.cli.options import Verb, add_server, print_json, print_table
from headrace.cli.talking import builtins, client_of
from headrace.core.errors import ConfigError
from headrace.core.units import format_size
from headrace.wire.rfc3339 import rfc3339

LIST_LIMIT = 1_000
EXIT_DECLINED = 1


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", nargs="?", default="", help="only names that begin so")
    parser.add_argument("--limit", type=int, default=LIST_LIMIT, help=f"({LIST_LIMIT:,})")
    add_server(parser)


def _list(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        found = list(islice(client.topics(options.prefix), options.limit + 1))
    more = len(found) > options.limit
    del found[options.limit :]
    if options.json:
        print_json({"topics": builtins(found), "more": more})
        return 0
    rows = [("topic", "records", "bytes", "earliest", "head")]
    rows += [
        (
            one.topic,
            f"{one.count:,}",
            format_size(one.bytes),
            str(one.earliest_seq),
            str(one.head_seq),
        )
        for one in found
    ]
    print_table(rows)
    if more:
        print(f"more than {options.limit:,}: give a prefix or --limit", file=sys.stderr)
    return 0


def _config_arguments(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("topic")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help=help)
    add_server(parser)


def _settings(words: list[str]) -> dict[str, Any]:
    """Settings of a topic: `cap_records=1000`, `type=queue`; a value is JSON, or else text."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"{word!r} is not NAME=VALUE", fix="write it as cap_records=1000")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    _config_arguments(parser, "its settings, such as type=queue or cap_records=1000")


def _create(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        put = client.put_topic(options.topic, _settings(options.settings))
    if options.json:
        print_json(builtins(put))
    else:
        what = "created" if put.created else "was there; it has exactly this config now:"
        print(f"{what} {put.topic}")
    return 0


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    add_server(parser)


def _show(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        state = client.topic(options.topic, touch=False)
    if options.json:
        print_json(builtins(state))
        return 0
    rows = [("topic", state.topic), ("type", state.type)]
    rows.append(("records", f"{state.count:,}, seqs {state.earliest_seq} to {state.head_seq}"))
    rows.append(("bytes", format_size(state.bytes)))
    rows.append(("epoch", str(state.epoch)))
    for name, ts in (("last write", state.last_write_ts), ("last read", state.last_read_ts)):
        rows.append((name, "never" if ts is None else rfc3339(ts)))
    for part in (state.queue, state.stream):
        if part is not None:
            rows += [(name, str(value)) for name, value in builtins(part).items()]
    rows += [(name, json.dumps(value)) for name, value in state.config.items()]
    print_table(rows)
    return 0


def _configure_arguments(parser: argparse.ArgumentParser) -> None:
    _config_arguments(parser, "what to change; without any, the config is shown")


def _configure(options: argparse.Namespace) -> int:
    """Changes only what is named: a PUT of HTTP replaces the whole config."""
    changes = _settings(options.settings)
    with client_of(options) as client:
        config = client.topic(options.topic, touch=False).config
        if changes:
            config = client.put_topic(options.topic, {**config, **changes}).config
    if options.json:
        print_json({"topic": options.topic, "config": config})
    else:
        print_table([(name, json.dumps(value)) for name, value in config.items()])
    return 0


def _remove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("--if-empty", action="store_true", help="refuse while it has records")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_server(parser)


def _remove(options: argparse.Namespace) -> int:
    if not options.yes and not options.if_empty and not _agreed(options.topic):
        print(
            "headrace: nothing is deleted; say --yes to go on without a question", file=sys.stderr
        )
        return EXIT_DECLINED
    with client_of(options) as client:
        gone = client.delete_topic(options.topic, if_empty=options.if_empty)
    if options.json:
        print_json(builtins(gone))
    else:
        print(f"deleted {gone.topic}" if gone.deleted else f"there was no topic {gone.topic}")
        for router in gone.routers_removed:
            print(f"with it went the router {router}")
    return 0


def _agreed(topic: str) -> bool:
    """Whether the person at the terminal wants it; nobody there means no."""
    if not sys.stdin.isatty():
        return False
    print(f"delete {topic} with all its records? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


VERBS = (
    Verb(("topic", "ls"), "list topics", _list_arguments, _list),
    Verb(("topic", "create"), "create a topic, or replace its config", _create_arguments, _create),
    Verb(("topic", "show"), "show the state of a topic", _show_arguments, _show),
    Verb(("topic", "config"), "show or change single settings", _configure_arguments, _configure),
    Verb(("topic", "rm"), "delete a topic with its records", _remove_arguments, _remove),
)
