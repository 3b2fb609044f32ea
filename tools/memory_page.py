"""Write docs/operate/memory.md from what the parts of a server say they hold.

python tools/memory_page.py            rewrite the page
python tools/memory_page.py --check    fail when the page is not what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.cli.compose import Server, compose
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.limits import GIB, KIB, MIB
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.metrics.holders import (
    BASE_BYTES,
    COPIES_OF_A_BODY,
    HEAP_SHARE,
    SEGMENTS_AT_WORK,
    memory_budget,
)
from headrace.server.auth import KeyRing
from headrace.testing.simdisk import SimDisk

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operate" / "memory.md"

HEAD = """\
# The memory of a server

Nothing that a caller can ask for is held without a bound, and each bound has a name: a setting
([../reference/settings.md](../reference/settings.md)), or, in capitals or in lower case without a
setting, a limit that nobody can change. What does not fit is refused: by 429 in most cases, in the
words of each dialect, and [serving.md](serving.md#limits) has the others.

The most that the process takes is

    {base} for the process itself
    + {copies} x the largest of `body_bytes_max` and `websocket_message_bytes_max`, at work
    + `arrow_bytes_max` + {segments} x `segment_max_bytes`, at work
    + the sum of the last column below
    + an eighth of that sum, for what the heap cannot give back

which is **{total}** with the settings a server has by itself. `headrace_held_bytes_max` is the same
with the settings it has. It is what callers that are all hostile at once could bring about; a
server that takes appends as fast as it can stays below 350 MB. Most of it is for connections and
streams whose clients take nothing, {streams} of it: to give a server less, lower `max_connections`,
`max_sse_connections` and `stream_pending_bytes` first.

Who holds memory now is in two series of [metrics.md](metrics.md), with the kind as their label:
`headrace_held_bytes`, which is an estimate where objects are counted and exact where bytes are, and
`headrace_held_objects`. They are worked out at a scrape.

| kind | what it is | bounded by | one | all |
|---|---|---|---|---|
"""

TAIL = """
A kind that has nothing in the last column counts as part of the one above it.

## Held for how long

| what | for how long |
|---|---|
| a head that is arriving | `header_timeout_ms` |
| a body that is arriving | `body_timeout_ms` without a byte |
| an answer that is not taken | `write_timeout_ms` |
| a stream, a WebSocket, a session whose client takes nothing | `slow_consumer_timeout_ms` |
| a read that waits | `wait_ms_max`; `ds_long_poll_ms`; 60 s in S2 |
| a watch session that nobody uses | `watch_session_ttl_ms` |
| an idempotency key | `idempotency_window_ms` of its topic |
| a lease | `lease_ms` of its claim; the job is out until it is done |
| a manifest's files | `manifest_pin_ms` |
| a webhook | 15 s |
| topics, producers, routers, pipelines, subscriptions, basins | until they are deleted |
| an access token | until it is revoked or expires |

What was held is free for others at once, and what large bodies needed goes back to the system
within seconds.

## What grows with what is stored

Beside the table, each sealed file takes about a kilobyte in memory and a descriptor, however much
it holds; files of small topics are merged, so there is about one for each `segment_max_bytes`. A
topic with `cold_reads` remembers which records were deleted of what only the lake has, in at most
1 MiB (`erased_bytes_max`), and a topic that routers feed at most 10,000 ranges that their source
had lost (`source_trims_max`).

`tests/process/test_bounds.py` sends the largest requests that are accepted, of every type of every
dialect and as many as are allowed, and holds the process to this page. This page is written by
`python tools/memory_page.py`.
"""


def served(settings: Settings) -> Server:
    """A server with these settings, which serves nothing."""
    runtime = StepRuntime(ManualClock())
    engine = Engine(SimDisk(), runtime, settings, random=SeededRandom(1))
    server = compose(settings, engine, KeyRing.parse(""))
    engine.abandon()
    return server


def shown(size: int) -> str:
    """A number of bytes in the largest unit of which there are some.

    >>> shown(64 << 20), shown(1536), shown(100), shown(0)
    ('64 MiB', '1.5 KiB', '100 B', '')
    """
    if not size:
        return ""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{size} B"


def page() -> str:
    settings = Settings()
    held = served(settings).app.metrics.sources.holders
    kinds = held.kinds
    streams = kinds["connection"].most + kinds["sse"].most
    parts = [
        HEAD.format(
            base=shown(BASE_BYTES),
            copies=COPIES_OF_A_BODY,
            segments=SEGMENTS_AT_WORK,
            total=shown(memory_budget(settings, held.most)),
            streams=shown(streams + streams // HEAP_SHARE),
        )
    ]
    for one in kinds.values():
        row = (f"`{one.kind}`", one.what, one.bound, shown(one.one), shown(one.most))
        parts.append(f"| {' | '.join(row)} |\n")
    return "".join(parts) + TAIL


if __name__ == "__main__":
    # Beside this file, where Python looks first when it runs it.
    from pages import main

    sys.exit(main(PAGE, page(), __file__))
