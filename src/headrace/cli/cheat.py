"""`headrace cheat`: the commands one looks for, a screen for each noun."""

from __future__ import annotations

import argparse
from typing import Final

from headrace.cli.options import Verb, print_json
from headrace.core.errors import ConfigError

SHEETS: Final = {
    "topic": """\
headrace topic ls                              every topic: records, bytes, seqs
headrace topic create jobs type=queue          a queue; settings are NAME=VALUE
headrace topic config orders cap_records=1000  change one setting, keep the others
headrace topic show orders                     state and config
headrace topic rm orders                       with all its records; asks first""",
    "record": """\
headrace append orders '{"id":1}' '{"id":2}'   two records
headrace append orders < orders.jsonl          a record of each line, in batches
headrace append log --format text < app.log    each line as a string
headrace append blobs --format raw < file.bin  one record of bytes
headrace read orders --last 5                  a table
headrace read orders --all --format jsonl      everything, a JSON object each
headrace read orders --after 100 --limit 10    records 101 to 110
headrace tail orders -f                        payloads as they come
headrace tail orders -f --format '{seq} {tag} {data}'
headrace delete orders --before 100            lower seqs go
headrace delete orders --tag 'user-7:*'        by tag""",
    "queue": """\
headrace topic create mails type=queue max_deliveries=3 dead_letter=mails.dead
headrace queue stats mails                     ready, leased, dead
headrace queue peek mails                      look without claiming
headrace queue claim mails --max 2 --lease 1m
headrace queue ack mails 1 2
headrace queue nack mails 3 --delay 30s
headrace queue redrive mails.dead              dead letters get another chance""",
    "router": """\
headrace router create copy orders audit       copy what orders gets into audit
headrace router create eu orders orders.eu --tag 'eu*' --exactly-once
headrace router graph                          what leads where
headrace router graph --dot | dot -Tsvg > routers.svg""",
    "spark": """\
headrace sql "select count(*) from orders"
headrace lake sync --every 1m                  history as Delta tables
headrace pipelines put counts counts.toml      declare a computation
headrace pipelines run                         a worker that computes""",
    "server": """\
headrace serve --data-dir ./headrace-data --port 4000
headrace config show --origin                  each setting and where it came from
headrace check                                 verify every byte of a directory
headrace backup s3://bucket/headrace           incremental""",
}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("noun", nargs="?", help=f"one of {', '.join(SHEETS)}; else all")


def _run(options: argparse.Namespace) -> int:
    if options.noun is not None and options.noun not in SHEETS:
        raise ConfigError(
            f"there is no sheet about {options.noun!r}", fix=f"there is {', '.join(SHEETS)}"
        )
    sheets = {name: text for name, text in SHEETS.items() if options.noun in (None, name)}
    if options.json:
        print_json({name: text.splitlines() for name, text in sheets.items()})
        return 0
    for index, (name, text) in enumerate(sheets.items()):
        print(f"{'' if index == 0 else chr(10)}# {name}\n{text}")
    return 0


VERBS = (Verb(("cheat",), "commands by example", _arguments, _run),)
