"""Single appends of 256 B over HTTP/1.1: what each costs the server, how soon it is answered."""

from __future__ import annotations

from bench import wrk
from bench.measure import Measured
from bench.served import Round, column, serving

CONNECTIONS = 64
ROUNDS = 12
SECONDS = 1.0


def run(directory: str, quick: bool, with_wrk: bool = False) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for durability in ("disk", "fsync"):
        place = f"{directory}/{durability}-64"
        many = appends(place, durability, CONNECTIONS, quick, with_wrk)
        found |= described(f"http_append_{durability}", many)
        if durability == "disk":
            found["http_append_generator_cpu"] = column(many, "generator_cpu")
        one = appends(f"{directory}/{durability}-1", durability, 1, quick, with_wrk)
        found |= described(f"http_append_one_{durability}", one)
    return found


def appends(
    directory: str, durability: str, connections: int, quick: bool, with_wrk: bool
) -> list[Round]:
    plan = {"wire": "append", "topic": "orders"}
    seconds, rounds = (0.2, 1) if quick else (SECONDS, ROUNDS)
    with serving(directory) as server:
        server.call("PUT", "/v0/topics/orders", {"durability": durability})
        if with_wrk:
            return wrk.load(server, plan, connections, seconds, rounds)
        warm_up = 0.1 if quick else 1.0
        return server.load(plan, connections, seconds, rounds, warm_up=warm_up)


def described(name: str, rounds: list[Round]) -> dict[str, Measured]:
    """The four figures of a closed loop."""
    return {
        f"{name}_cpu": column(rounds, "cpu"),
        f"{name}_rate": column(rounds, "rate"),
        f"{name}_p50": column(rounds, "p50"),
        f"{name}_p99": column(rounds, "p99"),
    }
