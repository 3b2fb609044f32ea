"""`headrace queue`: look into a queue, and do by hand what a worker does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.cli.options import Verb, add_server, print_json, print_table
from headrace.cli.record_formats import Printer, shown
from headrace.cli.talking import builtins, client_of
from headrace.core.errors import ConfigError
from headrace.core.units import parse_duration_ms
from headrace.wire.rfc3339 import rfc3339

if TYPE_CHECKING:
    from headrace.client import Client

NODE = "headrace-cli"
PEEK_LIMIT = 20


def _queue_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", help="the queue")
    add_server(parser)


def _node_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", default=NODE, help=f"who works ({NODE})")


def _duration(name: str, text: str | None) -> int | None:
    try:
        return None if text is None else parse_duration_ms(text)
    except ValueError as error:
        raise ConfigError(f"{name} {text!r}: {error}", fix="write it as 30s or 5m") from None


def _peek_arguments(parser: argparse.ArgumentParser) -> None:
    _queue_arguments(parser)
    parser.add_argument("--limit", type=int, default=PEEK_LIMIT, help=f"({PEEK_LIMIT})")


def _peek(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        page = client.diff(options.topic, limit=options.limit)
    if options.json:
        print_json({"topic": page.topic, "jobs": [shown(record) for record in page.records]})
        return 0
    printer = Printer("table", options.topic)
    for record in page.records:
        printer.record(record)
    if not page.records:
        print(f"{options.topic} holds no job", file=sys.stderr)
    return 0


def _claim_arguments(parser: argparse.ArgumentParser) -> None:
    _queue_arguments(parser)
    _node_argument(parser)
    parser.add_argument("--max", type=int, default=1, help="how many jobs (1)")
    parser.add_argument("--lease", metavar="TIME", help="how long they are yours, as 30s")


def _claim(options: argparse.Namespace) -> int:
    lease_ms = _duration("--lease", options.lease)
    with client_of(options) as client:
        claimed = client.claim(options.topic, options.node, options.max, lease_ms=lease_ms)
    if options.json:
        jobs = [
            shown(job)
            | {"lease_id": job.lease_id, "deadline": job.deadline, "deliveries": job.deliveries}
            for job in claimed.jobs
        ]
        print_json({"topic": claimed.topic, "jobs": jobs, "ready": claimed.ready})
        return 0
    rows = [("seq", "until", "delivery", "data")]
    rows += [
        (str(job.seq), rfc3339(job.deadline), str(job.deliveries), bytes(job.raw).decode())
        for job in claimed.jobs
    ]
    if claimed.jobs:
        print_table(rows)
        print(
            f"{claimed.ready:,} more are ready; end with `headrace queue ack {options.topic} "
            f"{' '.join(row[0] for row in rows[1:])}`",
            file=sys.stderr,
        )
    else:
        print("no job is ready", file=sys.stderr)
    return 0


def _seqs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", help="the queue")
    parser.add_argument("seqs", nargs="+", type=int, metavar="SEQ", help="jobs that you hold")
    _node_argument(parser)
    add_server(parser)


def _nack_arguments(parser: argparse.ArgumentParser) -> None:
    _seqs_arguments(parser)
    parser.add_argument("--delay", metavar="TIME", default="0s", help="not to be claimed before")


def _extend_arguments(parser: argparse.ArgumentParser) -> None:
    _seqs_arguments(parser)
    parser.add_argument("--lease", metavar="TIME", required=True, help="from now, as 5m")


Done = Callable[["Client", argparse.Namespace], tuple[object, str, list[int]]]


def _ack(client: Client, options: argparse.Namespace) -> tuple[object, str, list[int]]:
    answer = client.ack(options.topic, options.node, options.seqs)
    return answer, f"{answer.acked} done", answer.skipped


def _nack(client: Client, options: argparse.Namespace) -> tuple[object, str, list[int]]:
    delay_ms = _duration("--delay", options.delay) or 0
    answer = client.nack(options.topic, options.node, options.seqs, delay_ms=delay_ms)
    return answer, f"{answer.nacked} given back", answer.skipped


def _extend(client: Client, options: argparse.Namespace) -> tuple[object, str, list[int]]:
    lease_ms = _duration("--lease", options.lease) or 0
    answer = client.extend(options.topic, options.node, options.seqs, lease_ms)
    return answer, f"{answer.extended} held longer", answer.skipped


def _of_held_jobs(act: Done) -> Callable[[argparse.Namespace], int]:
    """A verb about jobs that a node holds; it fails if it holds one of them no more."""

    def run(options: argparse.Namespace) -> int:
        with client_of(options) as client:
            answer, said, skipped = act(client, options)
        if options.json:
            print_json(builtins(answer))
        else:
            print(said)
        if skipped:
            seqs = ", ".join(map(str, skipped))
            print(f"headrace: {options.node} does not hold {seqs}; see --node", file=sys.stderr)
        return 1 if skipped else 0

    return run


def _stats(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        state = client.topic(options.topic, touch=False)
    if state.queue is None:
        raise ConfigError(
            f"{options.topic} is not a queue",
            fix=f"make it one with `headrace topic config {options.topic} type=queue`",
        )
    counts = {"topic": state.topic, **builtins(state.queue)}
    if options.json:
        print_json(counts)
    else:
        print_table([(name, str(value)) for name, value in counts.items()])
    return 0


def _redrive_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", help="the topic of dead letters")
    parser.add_argument("--tag", help="only those with this tag; one that ends in * is a prefix")
    parser.add_argument("--to", metavar="QUEUE", help="only those that came from this queue")
    add_server(parser)


def _redrive(options: argparse.Namespace) -> int:
    moved = skipped = from_seq = 0
    with client_of(options) as client:
        done = False
        while not done:
            step = client.redrive(
                options.topic, match=options.tag, to=options.to, from_seq=from_seq
            )
            moved, skipped = moved + step.moved, skipped + step.skipped
            from_seq, done = step.next_from_seq, step.done
    if options.json:
        print_json({"topic": options.topic, "moved": moved, "skipped": skipped})
    else:
        print(f"moved {moved:,} dead letters back, left {skipped:,}")
    return 0


VERBS = (
    Verb(("queue", "peek"), "print the next jobs without claiming them", _peek_arguments, _peek),
    Verb(("queue", "claim"), "lease jobs", _claim_arguments, _claim),
    Verb(("queue", "ack"), "jobs are done: delete them", _seqs_arguments, _of_held_jobs(_ack)),
    Verb(("queue", "nack"), "give jobs back", _nack_arguments, _of_held_jobs(_nack)),
    Verb(("queue", "extend"), "hold jobs longer", _extend_arguments, _of_held_jobs(_extend)),
    Verb(("queue", "stats"), "count jobs: ready, leased, dead", _queue_arguments, _stats),
    Verb(("queue", "redrive"), "move dead letters back", _redrive_arguments, _redrive),
)
