"""The load generator: connections in an epoll loop of their own process, and what they measured.

A plain epoll loop, because the generator shares the machine with what it measures: one request
costs it about 7 microseconds, most of that in the kernel.  How a protocol is spoken is in
`wires.py`; here is only when the next request goes out and how long its answer took.

Closed loop: each connection sends its next request when it has its answer.  Open loop: requests are
due at even intervals whatever the server does, and a latency counts from the time it was due, so
that a stall is seen by all who would have waited in it.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from array import array
from pathlib import Path
from typing import Any, NamedTuple

from bench.plans import wire_of
from bench.wires import Wire

BUFFER_BYTES = 1 << 20
SILENCE_SECONDS = 30.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Window(NamedTuple):
    """One round: what was answered in it, and what that cost the server."""

    requests: int
    seconds: float
    server_cpu_seconds: float
    own_cpu_seconds: float
    latencies: array[float]  # seconds, in order of arrival

    def report(self) -> dict[str, float]:
        """For the process that asked: rates, and microseconds."""
        ordered = sorted(self.latencies)
        requests = max(self.requests, 1)
        return {
            "requests": self.requests,
            "rate": self.requests / self.seconds,
            "cpu": self.server_cpu_seconds / requests * 1e6,
            "generator_cpu": self.own_cpu_seconds / requests * 1e6,
            "busy": self.server_cpu_seconds / self.seconds,
            **{name: at(ordered, part) * 1e6 for name, part in PARTS.items()},
        }


PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}


def at(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of processes, all their threads."""
    ticks = 0
    for pid in pids:
        # The name in parentheses may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_SECOND


class Generator:
    """Connections to one server, and the loops that drive them."""

    def __init__(self, wires: list[Wire], pids: list[int]) -> None:
        self.wires = wires
        self.pids = pids
        self.buffer = bytearray(BUFFER_BYTES)
        self.poller = select.epoll()
        self.by_fd = {wire.socket.fileno(): wire for wire in wires}
        for fd in self.by_fd:
            self.poller.register(fd, select.EPOLLIN)

    def closed(self, seconds: float) -> Window:
        """Every connection busy all the time; ends once all have their last answer."""
        latencies = array("d")
        buffer, by_fd, poll, clock = self.buffer, self.by_fd, self.poller.poll, time.perf_counter
        cpu, own = cpu_seconds(self.pids), time.process_time()
        started = clock()
        end = started + seconds
        outstanding = 0
        for wire in self.wires:
            for _ in range(wire.depth):
                wire.sent.append(clock())
                wire.send_next()
                outstanding += 1
        requests = outstanding
        now = started
        while outstanding:
            events = poll(SILENCE_SECONDS)
            if not events:
                raise TimeoutError(f"{outstanding} answers are missing")
            for fd, _ in events:
                wire = by_fd[fd]
                size = wire.socket.recv_into(buffer)
                done = wire.received(buffer, size)
                if not done:
                    continue
                now = clock()
                for _ in range(done):
                    latencies.append(now - wire.sent.popleft())
                    if now < end:
                        wire.sent.append(now)
                        wire.send_next()
                        requests += 1
                    else:
                        outstanding -= 1
        seconds = now - started
        cpu, own = cpu_seconds(self.pids) - cpu, time.process_time() - own
        return Window(requests, seconds, cpu, own, latencies)

    def open(self, seconds: float, rate: float) -> Window:
        """`rate` requests a second, each on a connection that is free, or on the next to be."""
        latencies = array("d")
        clock = time.perf_counter
        free = list(self.wires)
        cpu, own = cpu_seconds(self.pids), time.process_time()
        started = clock()
        total = int(rate * seconds)
        sent = answered = 0
        while answered < total:
            now = clock()
            while free and sent < total and started + sent / rate <= now:
                wire = free.pop()
                wire.sent.append(started + sent / rate)
                wire.send_next()
                sent += 1
            due = started + sent / rate if free and sent < total else now + SILENCE_SECONDS
            # By way of `select`, whose time-out is finer than epoll's millisecond.
            ready, _, _ = select.select([self.poller], [], [], max(due - clock(), 0.0))
            if not ready:
                if not (free and sent < total):
                    raise TimeoutError(f"{sent - answered} answers are missing")
                continue
            for fd, _ in self.poller.poll(0):
                wire = self.by_fd[fd]
                size = wire.socket.recv_into(self.buffer)
                if wire.received(self.buffer, size):
                    latencies.append(clock() - wire.sent.popleft())
                    answered += 1
                    free.append(wire)
        cpu, own = cpu_seconds(self.pids) - cpu, time.process_time() - own
        return Window(answered, clock() - started, cpu, own, latencies)

    def close(self) -> None:
        for wire in self.wires:
            wire.close()
        self.poller.close()


def take_turns(
    plan: dict[str, Any],
    port: int,
    pids: list[int],
    connections: int,
    seconds: float,
    warm_up: float,
) -> None:
    """A partner: one round of the closed loop for each line of standard input.

    Each round has connections of its own, since a server may close those that rest.
    """
    while sys.stdin.readline():
        generator = Generator([wire_of(plan, port) for _ in range(connections)], pids)
        generator.closed(warm_up)
        report = generator.closed(seconds).report()
        generator.close()
        print(json.dumps(report), flush=True)


def drive(
    plan: dict[str, Any],
    port: int,
    pids: list[int],
    connections: int,
    seconds: float,
    rounds: int,
    rate: float = 0.0,
    warm_up: float = 0.5,
) -> list[dict[str, float]]:
    """A step: connect, warm up, measure some rounds.  With a rate: the open loop."""
    generator = Generator([wire_of(plan, port) for _ in range(connections)], pids)
    try:
        if warm_up:
            generator.closed(warm_up)
        if rate:
            return [generator.open(seconds, rate).report() for _ in range(rounds)]
        return [generator.closed(seconds).report() for _ in range(rounds)]
    finally:
        generator.close()
