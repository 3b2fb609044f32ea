"""Appends and reads of 10,000 rows as Arrow streams, the data as `binary` and as `utf8`."""

from __future__ import annotations

from typing import Any

from bench.case_http_batch import bulk
from bench.measure import PAYLOAD_BYTES, Measured
from bench.served import serving

CONNECTIONS = 4
ROUNDS = 5
SECONDS = 1.0
ROWS = 10_000


def run(directory: str, quick: bool) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    options: dict[str, Any] = {
        "seconds": 0.2 if quick else SECONDS,
        "rounds": 1 if quick else ROUNDS,
        "warm_up": 0.1 if quick else 0.3,
    }
    rows = 500 if quick else ROWS
    for kind in ("binary", "utf8"):
        append = {"wire": "arrow_append", "topic": "orders", "rows": rows, "size": PAYLOAD_BYTES}
        diff = {"wire": "arrow_diff", "topic": "orders", "limit": rows}
        with serving(f"{directory}/{kind}") as server:
            rounds = server.load({**append, "utf8": kind == "utf8"}, CONNECTIONS, **options)
            found |= bulk(f"http_arrow_append_{kind}", rounds, rows)
            head = server.call("GET", "/v0/topics/orders")["head_seq"]
            rounds = server.load({**diff, "from_seq": head - rows}, CONNECTIONS, **options)
            found |= bulk(f"http_arrow_diff_{kind}", rounds, rows)
    return found
