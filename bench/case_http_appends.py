"""Single appends as clients send them: to many topics, of mixed lengths, with keys, as producers.

A connection goes from topic to topic, so that no request begins like the one before it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bench.measure import Measured
from bench.served import Served, column, serving

CONNECTIONS = 64
ROUNDS = 5
SECONDS = 1.0
TOPICS = 100
MANY_TOPICS = 10_000
TOPICS_QUICK = 20
SIZES = (40, 256, 256, 256, 1_000, 4_000)
KEY = "bench-key"


class Traffic(NamedTuple):
    """One row: what is sent, and to which kind of topic."""

    name: str
    durability: str = "disk"
    topics: int = TOPICS
    sizes: tuple[int, ...] | None = None
    key: str = ""
    producer: bool = False


TRAFFIC = (
    Traffic("disk"),
    Traffic("fsync", "fsync"),
    Traffic("many", topics=MANY_TOPICS),
    Traffic("mixed", sizes=SIZES),
    Traffic("key", key=KEY),
    Traffic("producer", producer=True),
)


def settings_of(traffic: Traffic) -> dict[str, Any]:
    """What a server is started with."""
    return {"api_keys": f"{KEY}:read+write+admin"} if traffic.key else {}


def prepared(server: Served, traffic: Traffic, topics: int) -> dict[str, Any]:
    """Make the topics; the plan of what is sent to them."""
    config = {"durability": traffic.durability}
    for number in range(topics):
        server.call("PUT", f"/v0/topics/t{number}", config, key=traffic.key)
    return {
        "wire": "appends",
        "topics": topics,
        "sizes": traffic.sizes,
        "key": traffic.key,
        "producer": traffic.producer,
    }


def run(directory: str, quick: bool) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for traffic in TRAFFIC:
        with serving(f"{directory}/{traffic.name}", **settings_of(traffic)) as server:
            plan = prepared(server, traffic, TOPICS_QUICK if quick else traffic.topics)
            rounds = server.load(
                plan, CONNECTIONS, 0.2 if quick else SECONDS, 1 if quick else ROUNDS,
                warm_up=0.1 if quick else 1.0,
            )  # fmt: skip
        found[f"http_appends_{traffic.name}_cpu"] = column(rounds, "cpu")
        found[f"http_appends_{traffic.name}_rate"] = column(rounds, "rate")
    return found
