"""`headrace pipelines`: declare computations, look at them, and run the worker that does them.

All but `run` only speak to a server.  A declaration is a file, in TOML (where SQL may have many
lines) or in JSON; docs/reference/pipelines.md has its fields.  `run` imports Spark when it runs.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from headrace.cli.options import (
    Verb,
    add_server,
    print_json,
    print_table,
    read_text,
)
from headrace.cli.talking import builtins, client_of
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.api.pipelines import PipelineReport, PipelineState

ERROR_CELL_CHARS = 60


# list and show


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", nargs="?", default="", help="only names that begin so")
    add_server(parser)


def _list(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        found = list(client.pipelines(options.prefix))
    if options.json:
        print_json({"pipelines": builtins(found)})
        return 0
    rows = [("pipeline", "state", "worker", "sources", "dest", "lag", "error")]
    for one in found:
        dest = one.dest.get("topic") or f"table {one.dest.get('table')}"
        lag = "" if one.lag is None else str(one.lag)
        error = (one.error or "").partition("\n")[0][:ERROR_CELL_CHARS]
        sources = ", ".join(one.sources)
        rows.append((one.pipeline, one.state, one.worker or "", sources, dest, lag, error))
    print_table(rows)
    return 0


def _name_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the pipeline")
    add_server(parser)


def _show(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        found = client.pipeline(options.name)
    if options.json:
        print_json(builtins(found))
    else:
        _print_state(found)
    return 0


def _print_state(found: PipelineState) -> None:
    declared = found.declaration
    rows = [("pipeline", found.pipeline), ("version", str(found.version)), ("state", found.state)]
    rows.append(("worker", found.worker or "none"))
    rows += [("source", _source_text(source)) for source in declared["sources"]]
    dest = declared["dest"]
    rows.append(("dest", dest.get("topic") or f"table {dest.get('table')}"))
    for field in ("trigger", "output_mode", "checkpoint", "on_error", "dead_letter"):
        if declared.get(field) is not None:
            rows.append((field, str(declared[field])))
    if declared.get("python"):
        rows.append(("python", declared["python"]["entry"]))
    rows += _report_rows(found.progress)
    print_table(rows)
    if declared.get("sql"):
        print("\n" + declared["sql"].strip())


def _source_text(source: dict[str, Any]) -> str:
    alias = source.get("alias")
    text = source["topic"] if alias in (None, source["topic"]) else f"{source['topic']} as {alias}"
    watermark = source.get("watermark")
    if watermark:
        text += f", {watermark['column']} at most {watermark['delay']} late"
    return text


def _report_rows(report: PipelineReport | None) -> list[tuple[str, str]]:
    if report is None:
        return []
    named = builtins(report)
    for hidden in ("pipeline", "state", "node", "version", "ts"):
        named.pop(hidden, None)
    return [(name, str(value)) for name, value in named.items() if value is not None]


# put, delete and restart


def _put_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the pipeline")
    parser.add_argument(
        "file", metavar="FILE", help="its declaration: *.toml, or JSON; - reads JSON from stdin"
    )
    add_server(parser)


def _put(options: argparse.Namespace) -> int:
    declaration = read_declaration(options.file)
    with client_of(options) as client:
        put = client.put_pipeline(options.name, declaration)
    if options.json:
        print_json(builtins(put))
    else:
        what = "declared" if put.created else "changed"
        print(f"{what} {put.pipeline}, version {put.version}")
    return 0


def read_declaration(path: str) -> dict[str, Any]:
    """A declaration from a file; `ConfigError` says what it is not."""
    import json
    import tomllib

    fix = "write the fields of docs/reference/pipelines.md"
    text = sys.stdin.read() if path == "-" else read_text(path, fix="name a file that is there")
    try:
        found = tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} does not parse: {error}", fix=fix) from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is no object", fix=fix)
    return found


def _delete(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        gone = client.delete_pipeline(options.name)
    if options.json:
        print_json(builtins(gone))
    else:
        print(f"deleted {gone.pipeline}" if gone.deleted else f"there was no {gone.pipeline}")
    return 0


def _restart(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        put = client.restart_pipeline(options.name)
    if options.json:
        print_json(builtins(put))
    else:
        print(f"restarted {put.pipeline}, version {put.version}")
    return 0


def _example_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the example; without it all are listed")
    parser.add_argument(
        "--print", action="store_true", help="print the declaration, and change nothing"
    )
    add_server(parser)


def _example(options: argparse.Namespace) -> int:
    from headrace.pipelines import examples

    if options.name is None:
        if options.json:
            print_json({"examples": list(examples.NAMES)})
        else:
            print("\n".join(examples.NAMES))
        return 0
    if options.name not in examples.NAMES:
        raise ConfigError(
            f"there is no example {options.name!r}", fix=f"use one of {', '.join(examples.NAMES)}"
        )
    declaration = examples.declaration(options.name)
    if options.print:
        if options.json:
            print_json(declaration)
        else:
            print(examples.text(options.name), end="")
        return 0
    events = examples.events(options.name)
    with client_of(options) as client:
        for topic, drafts in events.items():
            client.append(topic, drafts)
        put = client.put_pipeline(f"example.{options.name}", declaration)
    appended = {topic: len(drafts) for topic, drafts in events.items()}
    if options.json:
        print_json({**builtins(put), "appended": appended})
        return 0
    for topic, count in appended.items():
        print(f"appended {count} records to {topic}")
    print(f"declared {put.pipeline}: its result is in {put.declaration['dest']['topic']}")
    return 0


VERBS = (
    Verb(("pipelines", "list"), "show all pipelines", _list_arguments, _list),
    Verb(("pipelines", "show"), "show a pipeline and how it goes", _name_arguments, _show),
    Verb(("pipelines", "put"), "declare a pipeline, or change it", _put_arguments, _put),
    Verb(
        ("pipelines", "delete"), "delete a pipeline; what it wrote stays", _name_arguments, _delete
    ),
    Verb(("pipelines", "restart"), "run a pipeline anew", _name_arguments, _restart),
    Verb(
        ("pipelines", "example"), "declare one that is ready to run", _example_arguments, _example
    ),
)
