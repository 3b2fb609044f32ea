"""Single appends over HTTP/2 with prior knowledge, class disk."""

from __future__ import annotations

from bench.case_http_append import described
from bench.measure import Measured
from bench.served import serving

CONNECTIONS = 4
STREAMS = 16  # of each connection at once
ROUNDS = 3
SECONDS = 3.0


def run(directory: str, quick: bool) -> dict[str, Measured]:
    with serving(directory) as server:
        server.call("PUT", "/v0/topics/orders")
        rounds = server.load(
            {"wire": "h2_append", "topic": "orders", "streams": STREAMS},
            CONNECTIONS,
            seconds=0.2 if quick else SECONDS,
            rounds=1 if quick else ROUNDS,
            warm_up=0.1 if quick else 0.5,
        )
    return described("http_h2_disk", rounds)
