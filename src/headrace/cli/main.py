"""The `headrace` command: one table of verbs, one way to fail.

Each verb is a row of `VERBS`: its words, what it says of itself, the arguments it takes and the
function that does it.  The rules this file owns: every verb takes `--json` and prints one JSON
document with it; a `HeadraceError` becomes one line, `headrace: <what>; <what to do>`, on stderr
and exit code 1 (2 when a setting or an argument is wrong), never a traceback.  A verb imports what
it needs when it runs, and this file only what is cheap, so that `headrace --help` is quick.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import NoReturn

import headrace
from headrace.cli import (
    cheat,
    completion,
    data,
    importing,
    lake,
    lake_replay,
    pipelines,
    pipelines_project,
    pipelines_run,
    queues,
    records,
    routers,
    sql,
    topics,
)
from headrace.cli.options import Verb, add_settings, print_json, print_table, settings_of
from headrace.core import config
from headrace.core.errors import ConfigError, HeadraceError, typed
from headrace.core.settings import RULES

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def _config_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--origin", action="store_true", help="show where each value came from")
    add_settings(parser)


def _config_show(options: argparse.Namespace) -> int:
    found = settings_of(options)
    if options.json:
        document: dict[str, object] = {}
        for name, rule in RULES.items():
            value = getattr(found.settings, name)
            if rule.secret:
                value = config.show_value(name, value)
            document[name] = (
                {"value": value, "origin": found.origins[name]} if options.origin else value
            )
        print_json(document)
        return 0
    rows = [("setting", "value", "origin"), *config.show(found)]
    print_table(rows if options.origin else [row[:2] for row in rows])
    return 0


def _serve(options: argparse.Namespace) -> int:
    from headrace.cli import serve

    return serve.run(options)


# What `headrace` alone shows, in this order.
GROUPS: tuple[tuple[str, tuple[Verb, ...]], ...] = (
    ("serve", (Verb(("serve",), "serve a data directory", add_settings, _serve),)),
    ("topics and records", (*topics.VERBS, *records.VERBS)),
    ("queues and routers", (*queues.VERBS, *routers.VERBS)),
    ("Spark: SQL, history, computations", (
        *sql.VERBS, *lake.VERBS, *lake_replay.VERBS, *importing.VERBS,
        *pipelines.VERBS, *pipelines_run.VERBS, *pipelines_project.VERBS,
    )),
    ("data directories", data.VERBS),
    ("this command", (
        Verb(("config", "show"), "print every setting", _config_show_arguments, _config_show),
        *cheat.VERBS, *completion.VERBS,
    )),
)  # fmt: skip
VERBS: tuple[Verb, ...] = tuple(verb for _, verbs in GROUPS for verb in verbs)


def overview() -> str:
    """Every command by group, nouns with their verbs in one line."""
    lines: list[str] = []
    for title, verbs in GROUPS:
        lines.append(f"{title}:")
        nouns: dict[str, list[Verb]] = {}
        for verb in verbs:
            nouns.setdefault(verb.words[0], []).append(verb)
        for noun, of_noun in nouns.items():
            alone = len(of_noun) == 1 and len(of_noun[0].words) == 1
            said = of_noun[0].summary if alone else " | ".join(v.words[-1] for v in of_noun)
            lines.append(f"  {noun:12} {said}")
        lines.append("")
    lines.append("Every command takes --json; `headrace COMMAND --help` says more, and")
    lines.append("`headrace cheat` shows examples.")
    return "\n".join(lines)


def build_parser(verbs: Sequence[Verb] = VERBS) -> argparse.ArgumentParser:
    """The parser of the whole command, from the table."""
    parser = argparse.ArgumentParser(
        prog="headrace",
        usage="headrace COMMAND ...",
        description="A durable event engine.",
        epilog=overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"headrace {headrace.__version__}")
    nouns = parser.add_subparsers(metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    groups: dict[tuple[str, ...], argparse._SubParsersAction[argparse.ArgumentParser]]
    groups = {(): nouns}
    for verb in verbs:
        *parents, last = verb.words
        for depth in range(len(parents)):
            path = tuple(parents[: depth + 1])
            if path not in groups:
                noun = groups[path[:-1]].add_parser(path[-1])
                groups[path] = noun.add_subparsers(metavar="COMMAND", required=True)
        leaf = groups[tuple(parents)].add_parser(
            last, help=verb.summary, description=verb.summary, allow_abbrev=False
        )
        leaf.add_argument("--json", action="store_true", help="print one JSON document")
        verb.arguments(leaf)
        leaf.set_defaults(run=verb.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; usage errors leave by `SystemExit(2)`."""
    parser = build_parser()
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        parser.print_help()
        return 0
    options = parser.parse_args(words)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has seen enough; closed here, it is not flushed again at exit.
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.close()
        return 0
    except OSError as error:
        print(f"headrace: {typed(error)}", file=sys.stderr)
        return EXIT_ERROR


def console() -> NoReturn:
    """The entry point of the installed command."""
    sys.exit(main())
