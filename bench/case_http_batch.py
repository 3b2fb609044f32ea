"""JSON appends of many records a request, class disk: how many records a second they bring in."""

from __future__ import annotations

from bench.measure import PAYLOAD_BYTES, Measured
from bench.served import Round, column, serving

CONNECTIONS = 8
ROUNDS = 5
SECONDS = 2.0
SIZES = (100, 1_000)


def run(directory: str, quick: bool) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for records in SIZES:
        with serving(f"{directory}/{records}") as server:
            rounds = server.load(
                {"wire": "append", "topic": "orders", "records": records, "size": PAYLOAD_BYTES},
                CONNECTIONS,
                seconds=0.2 if quick else SECONDS,
                rounds=1 if quick else ROUNDS,
                warm_up=0.1 if quick else 0.5,
            )
        found |= bulk(f"http_batch_{records}", rounds, records)
    return found


def bulk(name: str, rounds: list[Round], units: int) -> dict[str, Measured]:
    """Units a second by the clock and by the server's CPU."""
    return {
        name: [rate * units for rate in column(rounds, "rate")],
        f"{name}_cpu": [units * 1e6 / cost if cost else 0.0 for cost in column(rounds, "cpu")],
    }
