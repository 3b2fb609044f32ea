"""The rows and goals of `--peers s2`: the S2 API by its Python SDK and its command, beside s2-lite.

s2-lite keeps its data in a local directory and answers when it is synced, as our class fsync does.
Rates of sessions and of `s2 bench` are MiB a second, and their CPU is of a MiB.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from bench import peer_servers
from bench.measure import QUICK_VARIABLE
from bench.peer_builds import CRATES
from bench.peer_goals import PeerGoal
from bench.peer_loads import Load
from bench.peer_starts import Started
from bench.s2_sdk import RECORD_BYTES, SERIAL_BYTES
from bench.served import serving

NAME = "s2"
LITE = "s2-lite"
SESSION_BATCHES = 600  # 59 MiB
SERIAL_APPENDS = 2_000  # in each of five rounds
UNARY_APPENDS = 300
STREAMS = 10_000
STREAM_APPENDS = 10_000
BENCH_SECONDS = 3
# More than any server here takes, so that it is the server that says how much.
BENCH_TARGET_MIB = 2_000
QUICK_PART = 100
COUNTED = ("count", "streams", "seconds")
COMMAND = CRATES[LITE]

Plan = dict[str, Any]


@contextlib.contextmanager
def served(directory: str, kind: str, plan: Plan) -> Iterator[Started]:
    """A server without basins, and what the SDK is to do."""
    if plan["work"] == "bench":
        if not COMMAND.path.exists():
            raise peer_servers.NotOffered(f"the command `s2` of {COMMAND.name} is not built")
        plan = {**plan, "program": str(COMMAND.path), "home": directory}
    else:
        need_sdk()
    if QUICK_VARIABLE in os.environ:
        plan |= {name: part_of(plan[name]) for name in COUNTED if name in plan}
    if kind == LITE:
        with peer_servers.s2_lite(directory, stored=True) as server:
            yield server, plan
    else:
        with serving(directory) as server:
            yield server, plan


def need_sdk() -> None:
    """Say that a row is not offered where the SDK cannot be had."""
    # Only here: it comes with the tests, which no other plan needs.
    import pytest

    from tests.support.s2_sdk import load_sdk

    try:
        load_sdk()
    except (pytest.fail.Exception, pytest.skip.Exception) as error:
        raise peer_servers.NotOffered(str(error).splitlines()[0]) from None


def part_of(count: int) -> int:
    """What a quick run does of so much."""
    return max(1, count // QUICK_PART)


_ON_DISK = "on disk"


def _rows(case: str, what: str, plan: Plan, suffix: str = "") -> Iterator[Load]:
    """Ours and theirs."""
    for kind in ("headrace", LITE):
        yield Load(
            row_name(kind, case, suffix), what, "" if "read" in case else _ON_DISK,
            partial(served, kind=kind, plan=plan), row_name("headrace", case, suffix), case, 1,
            partner="s2_sdk:command_bench" if plan["work"] == "bench" else "s2_sdk:drive",
        )  # fmt: skip


def row_name(kind: str, case: str, suffix: str = "") -> str:
    return f"{kind} {case.replace('_', ' ')}{suffix}"


APPEND_SESSION, READ_SESSION = "s2_append_session", "s2_read_session"
UNARY, SERIAL, MANY, BENCH = "s2_unary", "s2_serial", "s2_streams", "s2_bench"

LOADS = (
    *_rows(APPEND_SESSION, "MiB of an append session, 100 x 1 KiB a batch",
           {"work": "append_session", "count": SESSION_BATCHES}),
    *_rows(READ_SESSION, "MiB of a read session, records of 1 KiB",
           {"work": "read_session", "count": SESSION_BATCHES}),
    *_rows(UNARY, "unary append of 1 KiB, one after the other",
           {"work": "serial_appends", "count": UNARY_APPENDS, "size": RECORD_BYTES}),
    *_rows(SERIAL, "unary append of 128 B, one after the other",
           {"work": "serial_appends", "count": SERIAL_APPENDS, "size": SERIAL_BYTES}),
    *(row for streams in (1, STREAMS)
      for row in _rows(MANY, f"append 128 B, 64 writers, {streams:,} streams in turn",
                       {"work": "round_robin", "count": STREAM_APPENDS, "streams": streams},
                       f" {streams:,}")),
    *_rows(BENCH, "MiB of `s2 bench`, records of 8 KiB",
           {"work": "bench", "seconds": BENCH_SECONDS, "target": BENCH_TARGET_MIB}),
)  # fmt: skip
CASES = tuple(dict.fromkeys(load.case for load in LOADS))


def _goals() -> Iterator[PeerGoal]:
    def ours(case: str, suffix: str = "") -> str:
        return row_name("headrace", case, suffix)

    yield PeerGoal("rate", ours(APPEND_SESSION), "", 30.0, at_most=False)
    yield PeerGoal("rate", ours(READ_SESSION), "", 60.0, at_most=False)
    yield PeerGoal("p50", ours(UNARY), "", 5_000.0)
    yield PeerGoal("p50", ours(SERIAL), "", 3_000.0)
    yield PeerGoal("p50", ours(SERIAL), row_name(LITE, SERIAL), 1.0)
    yield PeerGoal("cpu", ours(MANY, f" {STREAMS:,}"), ours(MANY, " 1"), 2.0)
    for figure in ("rate", "live", "catch_up"):
        yield PeerGoal(figure, ours(BENCH), row_name(LITE, BENCH), 1.0, at_most=False)


GOALS = tuple(_goals())
