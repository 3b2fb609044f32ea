"""`headrace router`: list, create and delete routers, and draw what leads where."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.cli.options import Verb, add_server, print_json, print_table
from headrace.cli.talking import builtins, client_of

if TYPE_CHECKING:
    from headrace.api.routers import RouterSummary


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", nargs="?", default="", help="only names that begin so")
    parser.add_argument("--source", help="only those that read this topic")
    parser.add_argument("--dest", help="only those that write to this topic")
    add_server(parser)


def _found(options: argparse.Namespace) -> list[RouterSummary]:
    with client_of(options) as client:
        return list(client.routers(options.prefix, source=options.source, dest=options.dest))


def _list(options: argparse.Namespace) -> int:
    found = _found(options)
    if options.json:
        print_json({"routers": builtins(found)})
        return 0
    rows = [("router", "source", "dest", "guarantee", "forwarded", "state")]
    rows += [
        (
            one.router,
            one.source,
            one.dest,
            one.guarantee,
            f"{one.forwarded_total:,}",
            "blocked" if one.blocked else "",
        )
        for one in found
    ]
    print_table(rows)
    return 0


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("router", help="its name")
    parser.add_argument("source", help="the topic that it reads")
    parser.add_argument("dest", help="the topic that it writes to")
    parser.add_argument("--tag", help="only records with this tag; one that ends in * is a prefix")
    parser.add_argument(
        "--exactly-once", action="store_true", help="a record is copied once, whatever is killed"
    )
    parser.add_argument(
        "--backfill", action="store_true", help="begin with what the source holds already"
    )
    add_server(parser)


def _create(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        put = client.put_router(
            options.router,
            options.source,
            options.dest,
            filter=options.tag,
            guarantee="exactly_once" if options.exactly_once else "at_least_once",
            backfill=options.backfill,
        )
    if options.json:
        print_json(builtins(put))
    else:
        print(f"{'created' if put.created else 'changed'} {put.router}: {put.source} -> {put.dest}")
    return 0


def _remove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("router", help="its name; copies stay")
    add_server(parser)


def _remove(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        gone = client.delete_router(options.router)
    if options.json:
        print_json(builtins(gone))
        return 0
    print(f"deleted {gone.router}" if gone.deleted else f"there was no router {gone.router}")
    if gone.records_left:
        print(f"{gone.records_left:,} records after seq {gone.copied_to} were not copied")
    return 0


def _graph_arguments(parser: argparse.ArgumentParser) -> None:
    _list_arguments(parser)
    parser.add_argument("--dot", action="store_true", help="for Graphviz: headrace ... | dot -Tsvg")


def _graph(options: argparse.Namespace) -> int:
    found = _found(options)
    if options.json:
        print_json({"edges": [[one.source, one.dest, one.router] for one in found]})
    elif options.dot:
        print("digraph routers {\n  rankdir=LR;")
        for one in found:
            print(f"  {json.dumps(one.source)} -> {json.dumps(one.dest)}", end="")
            print(f" [label={json.dumps(one.router)}];")
        print("}")
    else:
        for line in drawn((one.source, one.dest, one.router) for one in found):
            print(line)
    return 0


def drawn(edges: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Lines of a tree that begins with the topics nothing leads to.

    >>> print(*drawn([("a", "b", "r1"), ("b", "c", "r2"), ("a", "d", "r3")]), sep="\\n")
    a
    ├─ r1 → b
    │  └─ r2 → c
    └─ r3 → d
    """
    below: dict[str, list[tuple[str, str]]] = defaultdict(list)
    dests = set()
    for source, dest, router in edges:
        below[source].append((router, dest))
        dests.add(dest)
    seen: set[str] = set()
    roots = [source for source in below if source not in dests]
    for root in [*roots, *below]:  # a circle has no root: it begins where it is met
        if root not in seen:
            yield root
            yield from _branches(root, below, seen, "")


def _branches(
    topic: str, below: dict[str, list[tuple[str, str]]], seen: set[str], indent: str
) -> Iterator[str]:
    seen.add(topic)
    edges = below.get(topic, [])
    for index, (router, dest) in enumerate(edges):
        last = index == len(edges) - 1
        shown_before = dest in seen and bool(below.get(dest))
        mark = " (above)" if shown_before else ""
        yield f"{indent}{'└─' if last else '├─'} {router} → {dest}{mark}"
        if dest not in seen:
            yield from _branches(dest, below, seen, indent + ("   " if last else "│  "))


VERBS = (
    Verb(("router", "ls"), "list routers", _list_arguments, _list),
    Verb(("router", "create"), "copy what one topic gets into another", _create_arguments, _create),
    Verb(("router", "rm"), "delete a router", _remove_arguments, _remove),
    Verb(("router", "graph"), "draw which topic leads where", _graph_arguments, _graph),
)
