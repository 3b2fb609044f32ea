"""Appends and reads of 10,000 rows as Arrow streams, the data as `binary` and as `utf8`."""

from __future__ import annotations

from bench.case_http_batch import MEMORY_BYTES, bulk, short_rounds
from bench.measure import PAYLOAD_BYTES, Measured
from bench.served import serving

CONNECTIONS = 4
ROWS = 10_000


def run(directory: str, quick: bool) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    rows = 500 if quick else ROWS
    for kind in ("binary", "utf8"):
        append = {"wire": "arrow_append", "topic": "orders", "rows": rows, "size": PAYLOAD_BYTES}
        diff = {"wire": "arrow_diff", "topic": "orders", "limit": rows}
        with serving(f"{directory}/{kind}", memory_budget_bytes=MEMORY_BYTES) as server:
            plan = {**append, "utf8": kind == "utf8"}
            appended = short_rounds(server, plan, CONNECTIONS, quick)
            found |= bulk(f"http_arrow_append_{kind}", appended, rows)
            head = server.call("GET", "/v0/topics/orders")["head_seq"]
            read = short_rounds(server, {**diff, "from_seq": head - rows}, CONNECTIONS, quick)
            found |= bulk(f"http_arrow_diff_{kind}", read, rows)
    return found
