"""A lone writer of class fsync over HTTP, and what its syncs cost a neighbour.

Two servers take turns: one whose loop may sync by itself, and one that leaves every sync to the
lane.  The neighbour is one connection in a closed loop, of appends of class disk or of reads.
"""

from __future__ import annotations

import contextlib
from typing import Any

from bench.measure import BareFile, Measured, Partner
from bench.served import Round, Served, serving

ROUNDS = 8
SECONDS = 1.0
BARE_SYNCS = 100  # between two rounds
Plan = dict[str, Any]
WAYS: dict[str, Any] = {"inline": {}, "lane": {"inline_sync_us_max": 0}}
LONE: Plan = {"wire": "append", "topic": "lone"}
NEIGHBOURS: dict[str, Plan] = {
    "append": {"wire": "append", "topic": "busy"},
    "read": {"wire": "diff", "topic": "busy", "from_seq": 0, "limit": 10},
}


def run(directory: str, quick: bool) -> dict[str, Measured]:
    seconds, rounds = (0.1, 1) if quick else (SECONDS, ROUNDS)
    found: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        servers = {}
        for way, settings in WAYS.items():
            servers[way] = stack.enter_context(serving(f"{directory}/{way}", **settings))
            prepare(servers[way])
        bare = BareFile(directory, rounds * BARE_SYNCS)
        stack.callback(bare.close)
        for _ in range(rounds):
            found.setdefault("bare", []).extend(bare.sync_us() for _ in range(BARE_SYNCS))
            # In turns, so that whatever else the machine does meets both.
            for way, server in servers.items():
                for name, value in one_round(server, seconds).items():
                    found.setdefault(f"{way}_{name}", []).append(value)
    bare_us = sorted(found.pop("bare"))
    return {
        "http_lone_bare_p50": bare_us[len(bare_us) // 2],
        **{f"http_lone_{name}": values for name, values in found.items()},
    }


def prepare(server: Served) -> None:
    """Make the two topics, and some records to read."""
    server.call("PUT", "/v0/topics/lone", {"durability": "fsync"})
    server.call("PUT", "/v0/topics/busy", {"durability": "disk"})
    server.load(NEIGHBOURS["append"], 1, 0.1, warm_up=0.0)


def one_round(server: Served, seconds: float) -> dict[str, float]:
    """The writer alone, then beside each neighbour."""
    (alone,) = server.load(LONE, 1, seconds, warm_up=seconds / 4)
    found = {"p50": alone["p50"], "p99": alone["p99"]}
    for name, plan in NEIGHBOURS.items():
        writer, neighbour = side_by_side(server, seconds, LONE, plan)
        found |= {f"beside_{name}_p50": writer["p50"]}
        found |= {f"{name}_{part}": neighbour[part] for part in ("p50", "p99", "rate")}
    return found


def side_by_side(server: Served, seconds: float, *plans: Plan) -> list[Round]:
    """One round of each plan at the same time, on one connection each."""
    with contextlib.ExitStack() as stack:
        partners = [
            stack.enter_context(
                Partner(
                    "load:take_turns",
                    plan=plan,
                    port=server.port,
                    pids=[server.pid],
                    connections=1,
                    seconds=seconds,
                    warm_up=seconds / 4,
                )
            )
            for plan in plans
        ]
        for partner in partners:
            partner.tell()
        return [partner.hear() for partner in partners]
