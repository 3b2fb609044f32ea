"""Plans: what a generator is to send, as plain data that crosses to its process.

A plan is {"wire": name, ...}; the rest are the arguments of that way of speaking.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from bench import wires, wires_durable_streams, wires_peers, wires_streams
from bench.wires import Http, Wire


def wire_of(plan: dict[str, Any], port: int) -> Wire:
    """A connection that sends what the plan says."""
    given = dict(plan)
    name = given.pop("wire")
    if name in REQUESTS:
        return Http(port, _request(name, tuple(sorted(given.items()))))
    wire: Wire = WIRES[name](port, **given)
    return wire


@cache
def _request(name: str, arguments: tuple[tuple[str, Any], ...]) -> bytes:
    """Made once, whatever the number of connections."""
    request: bytes = REQUESTS[name](**dict(arguments))
    return request


# HTTP/1.1: one request, sent again and again.
REQUESTS: dict[str, Any] = {
    "append": wires.append_request,
    "diff": wires.diff_request,
    "arrow_append": wires.arrow_append_request,
    "arrow_diff": wires.arrow_diff_request,
    "http": wires.plain_request,
}
# Everything else.
WIRES: dict[str, Any] = {
    "appends": wires.HttpAppends,
    "http_turns": wires.HttpTurns,
    "h2_append": wires_streams.Http2Append,
    "ws_publish": wires_streams.WebSocketPublish,
    "redis_xadd": wires_peers.RedisAppend,
    "redis_xadds": wires_peers.RedisAppends,
    "redis_xread": wires_peers.RedisRead,
    "nats_publish": wires_peers.NatsPublish,
    "stream_appends": wires_durable_streams.StreamAppends,
    "catch_up": wires_durable_streams.CatchUp,
}
