"""A program that syncs a topic again and again, to be killed."""

from __future__ import annotations

import sys

from headrace.client import Client
from headrace.lake.layout import Lake
from headrace.lake.sync import Sync
from headrace.lake.tasks import run_inline
from headrace.spark.options import Connection

# Several commits for what a round appends.
COMMIT_BYTES = 12_000


def main() -> None:
    url, root, topic = sys.argv[1:]
    with Client(url) as client:
        sync = Sync(client, Connection(url), Lake(root), run_inline, commit_bytes_max=COMMIT_BYTES)
        print("started", flush=True)
        while True:
            sync.run([topic])


if __name__ == "__main__":
    main()
