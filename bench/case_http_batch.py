"""JSON appends of many records a request, class disk: how many records a second they bring in.

Records come in faster than they are sealed and than a disk may take them, so rounds are short, the
server has room for what they bring, and each waits until the last one has been sealed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from bench.measure import PAYLOAD_BYTES, Measured
from bench.served import Round, Served, column, serving

CONNECTIONS = 8
ROUNDS = 5
SECONDS = 0.8
PAUSE_SECONDS = 2.0
MEMORY_BYTES = 2 << 30
SIZES = (100, 1_000)


def run(directory: str, quick: bool) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for records in SIZES:
        plan = {"wire": "append", "topic": "orders", "records": records, "size": PAYLOAD_BYTES}
        with serving(f"{directory}/{records}", memory_budget_bytes=MEMORY_BYTES) as server:
            rounds = short_rounds(server, plan, CONNECTIONS, quick)
        found |= bulk(f"http_batch_{records}", rounds, records)
    return found


def short_rounds(
    server: Served, plan: Mapping[str, Any], connections: int, quick: bool
) -> list[Round]:
    """Rounds with a pause after each."""
    rounds: list[Round] = []
    for _ in range(1 if quick else ROUNDS):
        rounds += server.load(plan, connections, 0.2 if quick else SECONDS, warm_up=0.1)
        time.sleep(0 if quick else PAUSE_SECONDS)
    return rounds


def bulk(name: str, rounds: list[Round], units: int) -> dict[str, Measured]:
    """Units a second by the clock and by the server's CPU."""
    return {
        name: [rate * units for rate in column(rounds, "rate")],
        f"{name}_cpu": [units * 1e6 / cost if cost else 0.0 for cost in column(rounds, "cpu")],
    }
