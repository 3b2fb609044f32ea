"""Very many topics and watchers that do nothing: the memory and the CPU they take."""

from __future__ import annotations

import time

from bench.load import cpu_seconds
from bench.measure import Measured, Partner, step
from bench.served import Served, serving
from bench.wires import Http, append_request

TOPICS = 100_000
WATCHERS = 5_000
CONNECTIONS = 32
IDLE_SECONDS = 20.0


def run(directory: str, quick: bool) -> dict[str, Measured]:
    topics, watchers, seconds = (500, 50, 0.5) if quick else (TOPICS, WATCHERS, IDLE_SECONDS)
    with serving(directory) as server:
        step("case_http_idle:create", port=server.port, topics=topics)
        time.sleep(seconds / 4)
        before = server.resident_mb
        spread = [name_of(n * (topics // watchers)) for n in range(watchers)]
        arguments = {"port": server.port, "topics": spread}
        with Partner("streams:watch", appends=0, **arguments) as partner:
            partner.ask()
            cpu, resident = at_rest(server, seconds)
            partner.close()
    return {
        "http_idle_topics": before,
        "http_idle_resident": resident,
        "http_idle_watcher_kb": max(resident - before, 0.0) * 1e3 / watchers,
        "http_idle_cpu": cpu,
    }


def at_rest(server: Served, seconds: float) -> tuple[float, float]:
    """Milliseconds of CPU a second, and the largest memory seen."""
    cpu, resident = cpu_seconds([server.pid]), 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.25)
        resident = max(resident, server.resident_mb)
    return (cpu_seconds([server.pid]) - cpu) * 1e3 / seconds, resident


def name_of(number: int) -> str:
    return f"orders-{number:06d}"


def create(port: int, topics: int) -> None:
    """A step: one record into each topic, some connections at once."""
    wires = [Http(port, b"") for _ in range(min(CONNECTIONS, topics))]
    buffer = bytearray(1 << 16)
    for first in range(0, topics, len(wires)):
        busy = wires[: min(len(wires), topics - first)]
        for n, wire in enumerate(busy, start=first):
            wire.socket.sendall(append_request(name_of(n)))
        for wire in busy:
            while not wire.received(buffer, wire.socket.recv_into(buffer)):
                pass
    for wire in wires:
        wire.close()
