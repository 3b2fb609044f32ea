"""One topic whose records go to 1,000 others: what its writer notices, and what the copies cost.

The same server has a topic with no routers beside it, and both get an append in turn, with rests
between, so that whatever else the machine does meets both.  Nobody reads a destination meanwhile: a
read would do what the routers have left to do.  That all copies are there is seen in the list of
routers, which does nothing of that kind.
"""

from __future__ import annotations

import time

from bench.measure import Measured, percentile
from bench.served import Round, Served, serving, two_cores
from bench.wires import Http, append_request, diff_request

DESTINATIONS = 1_000
DESTINATIONS_QUICK = 20
APPENDS = 60
PAGE = 1_000
# Copies of one append are made in less; then the server is at rest.
REST_SECONDS = 0.25
TOPICS = ("plain", "source")
SETTLE_SECONDS = 10.0
LOOP_SECONDS = 3.0


class Asking:
    """One connection that waits for each answer."""

    def __init__(self, port: int) -> None:
        self._wire = Http(port, b"")
        self._buffer = bytearray(1 << 20)

    def ms(self, request: bytes) -> float:
        """How long an answer takes."""
        wire, buffer = self._wire, self._buffer
        started = time.perf_counter_ns()
        wire.socket.sendall(request)
        while not wire.received(buffer, wire.socket.recv_into(buffer)):
            pass
        return (time.perf_counter_ns() - started) / 1e6

    def close(self) -> None:
        self._wire.close()


def run(directory: str, quick: bool) -> dict[str, Measured]:
    routers = DESTINATIONS_QUICK if quick else DESTINATIONS
    appends = 4 if quick else APPENDS
    with serving(directory) as server:
        server.keep_on(two_cores()[0])
        prepare(server, routers)
        asking = Asking(server.port)
        try:
            alternate(server, asking, 2)  # to warm up
            frames = server.metrics("headrace_wal_frames_total")[0]
            waits, costs = alternate(server, asking, appends)
            frames = server.metrics("headrace_wal_frames_total")[0] - frames
            settled(server, routers, appends + 2)
            reads = read_back(server, asking, appends)
        finally:
            asking.close()
        plain, source = (closed_loop(server, name, quick) for name in TOPICS)
    return {
        "http_fanout_plain_p50": percentile(waits["plain"], 0.5),
        "http_fanout_plain_p99": percentile(waits["plain"], 0.99),
        "http_fanout_source_p50": percentile(waits["source"], 0.5),
        "http_fanout_source_p99": percentile(waits["source"], 0.99),
        "http_fanout_plain_cpu": costs["plain"],
        "http_fanout_copies_cpu": costs["source"],
        "http_fanout_frames": frames / appends - 1,  # the other one is the plain topic's
        "http_fanout_read_p50": percentile(reads, 0.5),
        "http_fanout_read_p99": percentile(reads, 0.99),
        "http_fanout_plain_loop_p50": plain["p50"] / 1e3,
        "http_fanout_plain_loop_p99": plain["p99"] / 1e3,
        "http_fanout_source_loop_p50": source["p50"] / 1e3,
        "http_fanout_source_loop_p99": source["p99"] / 1e3,
    }


def closed_loop(server: Served, topic: str, quick: bool) -> Round:
    """One writer that never rests: it shares the loop with the copies."""
    return server.load({"wire": "append", "topic": topic}, 1, 0.2 if quick else LOOP_SECONDS)[0]


def prepare(server: Served, routers: int) -> None:
    for name in TOPICS:
        server.call("PUT", f"/v0/topics/{name}", {"durability": "disk"})
    for n in range(routers):
        server.call("PUT", f"/v0/routers/r{n}", {"source": "source", "dest": f"d{n}"})


def alternate(
    server: Served, asking: Asking, appends: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Milliseconds until an answer, and of CPU from an append until the server rests again."""
    waits: dict[str, list[float]] = {name: [] for name in TOPICS}
    costs: dict[str, list[float]] = {name: [] for name in TOPICS}
    requests = {name: append_request(name) for name in TOPICS}
    for _ in range(appends):
        idle = server.cpu_ns
        time.sleep(REST_SECONDS)
        idle = server.cpu_ns - idle
        for name, request in requests.items():
            cpu = server.cpu_ns
            waits[name].append(asking.ms(request))
            time.sleep(REST_SECONDS)
            costs[name].append(max(server.cpu_ns - cpu - idle, 0) / 1e6)
    return waits, costs


def settled(server: Served, routers: int, appends: int) -> None:
    """All copies are made, without anybody having read one."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        page = server.call("GET", f"/v0/routers?source=source&page_size={PAGE}")["routers"]
        assert len(page) == routers, len(page)
        behind = [row["router"] for row in page if row["forwarded_total"] != appends]
        if not behind:
            return
        assert time.monotonic() < end, f"{len(behind)} routers are behind: {behind[:5]}"
        time.sleep(REST_SECONDS)


def read_back(server: Served, asking: Asking, appends: int) -> list[float]:
    """Milliseconds of a read of one destination right after the append, its copy in the answer."""
    request = append_request("source")
    head = int(server.call("GET", "/v0/topics/d0")["head_seq"])
    found = []
    for n in range(appends):
        asking.ms(request)
        found.append(asking.ms(diff_request("d0", head + n, 10)))
        time.sleep(REST_SECONDS)
    assert int(server.call("GET", "/v0/topics/d0")["head_seq"]) == head + appends
    return found
