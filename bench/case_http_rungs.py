"""How soon watchers have a record on each rung of the ladder of a server with too much to do.

Twice.  *Held*: the server is told what its pressure is (`held_serve.py`), and has little to do, so
that the figures are the ladder's own.  *Loaded*: other connections append to other topics as fast
as they are answered, and the pressure is what the server makes of it; more connections, more
pressure.  The server has one processor, everything else the other.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from statistics import mean

from bench import streams
from bench.figures_queue import CLASSES, CROWDS, HELD
from bench.measure import Measured, Partner
from bench.served import Served, serving, two_cores

WATCHERS = 10
RATE = 20.0
APPENDS = 200
LOOK_SECONDS = 0.25
# A rung is entered at the latest so long after the pressure is there.
ENTER_SECONDS = 1.5
START_SECONDS = 0.5  # until the others have connected
PROGRAM = ("-P", str(Path(__file__).with_name("held_serve.py")))
PATIENCE_SECONDS = 30.0
QUICK_SECONDS = 0.3


def run(directory: str, quick: bool) -> dict[str, Measured]:
    own, other = two_cores()
    os.sched_setaffinity(0, {other})  # ours, and of all whom we start
    told = Path(directory, "pressure")
    told.write_text("0")
    found: dict[str, Measured] = {}
    program = (*PROGRAM, str(told), "serve")
    with serving(f"{directory}/held", program) as server, Clients(server, own, quick) as clients:
        for rung, pressure in HELD.items():
            hold(server, told, pressure, quick)
            for durability in CLASSES:
                one = clients.delivered(durability)
                found |= _named(f"http_rungs_{rung}_{durability}", one)
    with serving(f"{directory}/loaded") as server, Clients(server, own, quick) as clients:
        for crowd in CROWDS:
            found |= _named(f"http_rungs_load_{crowd}", beside(server, clients, crowd, quick))
    return found


def _named(name: str, one: dict[str, float]) -> dict[str, Measured]:
    return {f"{name}_{part}": value for part, value in one.items()}


def hold(server: Served, told: Path, pressure: float, quick: bool) -> None:
    """Have the server under this pressure, on its rungs."""
    new = told.with_suffix(".new")
    new.write_text(str(pressure))
    new.replace(told)  # so that it is never read half written
    end = time.monotonic() + PATIENCE_SECONDS
    while server.metrics("headrace_pressure") != [pressure]:
        assert time.monotonic() < end, "the server does not look at what it is told"
        time.sleep(LOOK_SECONDS)
    time.sleep(0 if quick else ENTER_SECONDS)


def beside(server: Served, clients: Clients, crowd: int, quick: bool) -> dict[str, float]:
    """Deliveries while `crowd` other connections append to a topic of their own."""
    if not crowd:
        return clients.delivered("disk", with_pressure=True)
    enter = QUICK_SECONDS if quick else ENTER_SECONDS
    with Partner(
        "load:take_turns",
        plan={"wire": "append", "topic": "crowd"},
        port=server.port,
        pids=[server.pid],
        connections=crowd,
        seconds=clients.seconds + 2 * START_SECONDS,
        warm_up=enter,
    ) as partner:
        partner.tell()
        time.sleep(enter + START_SECONDS)
        found = clients.delivered("disk", with_pressure=True)
        partner.hear()
    return found


class Clients:
    """A writer and watchers of a server, in a process each."""

    def __init__(self, server: Served, core: int, quick: bool) -> None:
        server.keep_on(core)
        for durability in CLASSES:
            server.call("PUT", f"/v0/topics/{durability}", {"durability": durability})
        self._server = server
        self._appends = 4 if quick else APPENDS
        self.seconds = self._appends / RATE
        self._writer = Partner("case_http_rungs:write", port=server.port)
        self._watchers = Partner("case_http_rungs:watch", port=server.port)

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        for partner in (self._writer, self._watchers):
            partner.__exit__()

    def delivered(self, topic: str, with_pressure: bool = False) -> dict[str, float]:
        """Milliseconds from before an append to its delivery, and the mean pressure meanwhile."""
        question = json.dumps({"topic": topic, "appends": self._appends})
        self._watchers.ask(question)
        self._writer.tell(question)
        pressures = []
        for _ in range(int(self.seconds / LOOK_SECONDS)):
            time.sleep(LOOK_SECONDS)
            if with_pressure:
                pressures += self._server.metrics("headrace_pressure")
        self._writer.hear()
        found = self._watchers.hear()
        more = {"pressure": mean(pressures or [0.0])} if with_pressure else {}
        return {"p50": found["p50"], "p99": found["p99"], **more}


def write(port: int) -> None:
    """A partner: for each line, appends at even intervals."""
    while line := sys.stdin.readline():
        asked = json.loads(line)
        print(json.dumps(streams.write(port, rate=RATE, **asked)), flush=True)


def watch(port: int) -> None:
    """A partner: for each line, watchers of a topic; when they are there, and what they saw."""
    while line := sys.stdin.readline():
        asked = json.loads(line)
        connections = streams.connect_watchers(port, [asked["topic"]] * WATCHERS, "sse")
        print(json.dumps(len(connections)), flush=True)
        deliveries = streams.Deliveries(connections, asked["appends"])
        deliveries.collect()
        for connection in connections:
            connection.close()
        print(json.dumps(deliveries.report()), flush=True)
