"""JSON reads of 1,000 records a request from the newest part of a topic."""

from __future__ import annotations

from bench.case_http_batch import bulk
from bench.measure import PAYLOAD_BYTES, Measured
from bench.served import Served, serving

CONNECTIONS = 8
ROUNDS = 5
SECONDS = 2.0
LIMIT = 1_000
STORED = 100_000


def run(directory: str, quick: bool) -> dict[str, Measured]:
    stored = 2_000 if quick else STORED
    with serving(directory) as server:
        fill(server, "orders", stored)
        rounds = server.load(
            {"wire": "diff", "topic": "orders", "from_seq": stored - LIMIT, "limit": LIMIT},
            CONNECTIONS,
            seconds=0.2 if quick else SECONDS,
            rounds=1 if quick else ROUNDS,
            warm_up=0.1 if quick else 0.5,
        )
    return bulk("http_diff_1000", rounds, LIMIT)


def fill(server: Served, topic: str, records: int) -> None:
    """Records of the usual size, 1,000 a request."""
    note = "x" * (PAYLOAD_BYTES - len('{"note":""}'))
    body = {"records": [{"data": {"note": note}}] * 1_000}
    for _ in range(records // 1_000):
        server.call("POST", f"/v0/topics/{topic}?return_seqs=false", body)
