"""The Python part of a delivery: from an append to the last of its watchers, without the kernel.

The server's own protocol, routes, engine and streams in this process, as in `case_http_turn.py`.
The sockets of the watchers are the null device, except for the last one's, which has none and keeps
what was written.  What an append alone costs is taken off, and the rest is divided by the watchers
of its topic: the time of the loop thread, and how many bytecodes it ran.
"""

from __future__ import annotations

import os
import time
from typing import Any

from bench.case_http_budget import Clocked, connected, until, watching
from bench.case_http_turn import HEADERS, PAYLOAD, TRACED_TURNS, bytecodes
from bench.figures_http import DELIVERED
from bench.measure import Measured, run_loop, settings_of
from bench.wires import http_request

APPENDS = 20  # in one of the rounds
APPENDS_MIN = 4_000  # deliveries in one of the rounds, where the watchers are few
ROUNDS = 10


class Unheard(Clocked):
    """A transport whose socket is the null device."""

    null = os.open(os.devnull, os.O_WRONLY)

    def get_extra_info(self, name: str) -> Any:
        return self if name == "socket" else None

    def fileno(self) -> int:
        return self.null

    def write(self, data: bytes) -> None:
        if b"caught-up" in self.data:
            os.write(self.null, data)
        else:
            self.data += data


def run(directory: str, quick: bool) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    alone = run_loop(measure(f"{directory}/0", 0, quick))
    for watchers in DELIVERED:
        both = run_loop(measure(f"{directory}/{watchers}", watchers, quick))
        for name, of, bare in zip(("cpu", "bytecodes"), both, alone, strict=True):
            found[f"http_delivery_{watchers}_{name}"] = max(of - bare, 0.0) / watchers
    return found


async def measure(directory: str, watchers: int, quick: bool) -> tuple[float, float]:
    """Microseconds of the loop thread and bytecodes, for one append and all its deliveries."""
    from headrace.cli.compose import compose
    from headrace.engine.engine import Engine
    from headrace.server.auth import KeyRing

    settings = settings_of(directory)
    engine = Engine.prepare_async(directory, settings)
    server = compose(settings, engine, KeyRing.parse(""))
    await engine.recover_async()
    server.app.go_live()
    await engine.put_topic("orders")
    writer, answers = connected(server)
    unheard = [await watching(server, Unheard()) for _ in range(watchers - 1)]
    last = (await watching(server))[1] if watchers else Clocked()
    last.data = b"" if watchers else b"event: record"
    request = http_request(
        "POST", "/v0/topics/orders", b'{"records":[{"data":' + PAYLOAD + b"}]}", HEADERS
    )

    async def turn() -> int:
        begun = time.thread_time_ns()
        writer.data_received(request)
        await until(lambda: answers.data and last.data)
        took = time.thread_time_ns() - begun
        assert answers.data.startswith(b"HTTP/1.1 200"), answers.data
        assert b"event: record" in last.data, last.data
        answers.data = b""
        if watchers:
            last.data = b""
        return took

    for _ in range(10):
        await turn()
    many = max(APPENDS, (200 if quick else APPENDS_MIN) // max(watchers, 1))
    best = float("inf")
    for _ in range(2 if quick else ROUNDS):
        best = min(best, sum([await turn() for _ in range(many)]) / many / 1e3)
    # To count takes a hundred times as long: slices of a millisecond would be very short ones.
    now_ns = time.monotonic_ns()
    engine.state.turns.monotonic_ns = lambda: now_ns
    steps = await bytecodes(turn)
    engine.abandon()
    del unheard
    return best, steps / TRACED_TURNS
