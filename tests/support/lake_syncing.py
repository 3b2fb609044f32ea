"""A program that syncs a topic again and again, and tidies its table, to be killed."""

from __future__ import annotations

import contextlib
import random
import sys

from headrace.client import Client
from headrace.core.errors import HeadraceError
from headrace.lake.tables.layout import Lake
from headrace.lake.tables.table import Table
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.compact import compact
from headrace.lake.writing.sync import Sync
from headrace.lake.writing.vacuum import KEEP_HOURS_MIN, vacuum
from headrace.spark.options import Connection

# Several commits for what a round appends.
COMMIT_BYTES = 12_000


def tidy(lake: Lake, chance: random.Random) -> None:
    for name in lake.tables():
        if chance.random() < 0.5:
            compact(Table(lake, name), run_inline)
        else:
            vacuum(Table(lake, name), KEEP_HOURS_MIN)


def main() -> None:
    url, root, topic, seed = sys.argv[1:]
    lake, chance = Lake(root), random.Random(int(seed))
    with Client(url) as client:
        sync = Sync(client, Connection(url), lake, run_inline, commit_bytes_max=COMMIT_BYTES)
        print("started", flush=True)
        while True:
            sync.run([topic])
            if chance.random() < 0.4:
                with contextlib.suppress(HeadraceError):  # another one does the same
                    tidy(lake, chance)


if __name__ == "__main__":
    main()
