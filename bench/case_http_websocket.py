"""Publishes over WebSocket, class disk, and how soon subscribers have them."""

from __future__ import annotations

from bench.case_http_append import described
from bench.case_http_sse import delivered
from bench.measure import Measured
from bench.served import serving

CONNECTIONS = 64
SUBSCRIBERS = 10
ROUNDS = 3
SECONDS = 3.0


def run(directory: str, quick: bool) -> dict[str, Measured]:
    with serving(f"{directory}/publish") as server:
        server.call("PUT", "/v0/topics/orders")
        rounds = server.load(
            {"wire": "ws_publish", "topic": "orders"},
            CONNECTIONS,
            seconds=0.2 if quick else SECONDS,
            rounds=1 if quick else ROUNDS,
            warm_up=0.1 if quick else 0.5,
        )
    with serving(f"{directory}/subscribe") as server:
        server.call("PUT", "/v0/topics/orders")
        one = delivered(server, SUBSCRIBERS, "ws", quick)
    return {
        **described("http_websocket_publish", rounds),
        "http_websocket_delivery_p50": one["p50"],
        "http_websocket_delivery_p99": one["p99"],
    }
