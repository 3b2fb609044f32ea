"""How soon watchers have a record over SSE, and what they do to the one who writes."""

from __future__ import annotations

from bench.figures_http import WATCHERS
from bench.load import cpu_seconds
from bench.measure import Measured, Partner, step
from bench.served import Served, serving

RATE = 20.0
APPENDS = 400


def run(directory: str, quick: bool) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for watchers in WATCHERS:
        with serving(f"{directory}/{watchers}") as server:
            server.call("PUT", "/v0/topics/orders")
            one = delivered(server, min(watchers, 50) if quick else watchers, "sse", quick)
        name = f"http_sse_{watchers}"
        found[f"{name}_writer_p99"] = one["writer_p99"]
        if watchers:
            found |= {f"{name}_{part}": one[part] for part in ("p50", "p99", "cpu")}
        else:
            found[f"{name}_writer_p50"] = one["writer_p50"]
    return found


def delivered(server: Served, watchers: int, kind: str, quick: bool) -> dict[str, float]:
    """One writer and `watchers` of its topic; milliseconds, and CPU per delivery in µs."""
    appends = 10 if quick else APPENDS
    return deliveries(server.port, server.pid, watchers, kind, RATE, appends)


def deliveries(
    port: int, pid: int, watchers: int, kind: str, rate: float, appends: int, timed: int = 0
) -> dict[str, float]:
    """The same at any rate; with `timed`, only so many of the watchers are timed."""
    arguments = {"port": port, "topics": ["orders"] * watchers, "kind": kind, "timed": timed}
    with Partner("streams:watch", appends=appends, **arguments) as partner:
        partner.ask()
        cpu = cpu_seconds([pid])
        writer = step(
            "streams:write", port=port, topic="orders", rate=rate, appends=appends, kind=kind
        )
        found = partner.ask()
        cpu = cpu_seconds([pid]) - cpu
    return {
        "p50": found["p50"],
        "p99": found["p99"],
        "cpu": cpu * 1e6 / max(appends * watchers, 1),
        "writer_p50": writer["p50"],
        "writer_p99": writer["p99"],
        "writer_rate": writer["rate"],
    }
