"""The Python part of a request, when one comes in a turn of the loop and when many do.

The server's own protocol, routes and engine in this process, on transports that only keep what was
written: no system call but the log's.  Beside the time of the loop thread stands how many bytecodes
it ran, which no other load of the machine can change.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from bench.case_http_budget import Clocked, connected, until
from bench.measure import Measured, run_loop, settings_of
from bench.wires import http_request

TOPICS = 100
TOGETHER = 64
REQUESTS = 2_000  # in one of the rounds
ROUNDS = 20
LISTED = 10  # records that a read returns
TRACED_TURNS = 5
PAYLOAD = b'{"x":"' + b"a" * 230 + b'"}'
HEADERS = {"Content-Type": "application/json"}


def run(directory: str, quick: bool) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    for count in (1, TOGETHER):
        for kind in ("append", "diff"):
            cpu, steps = run_loop(measure(f"{directory}/{kind}-{count}", kind, count, quick))
            found[f"http_turn_{kind}_{count}_cpu"] = cpu
            found[f"http_turn_{kind}_{count}_bytecodes"] = steps
    return found


async def measure(directory: str, kind: str, count: int, quick: bool) -> tuple[float, float]:
    """Microseconds of the loop thread and bytecodes, for one request of `count` in a turn."""
    from headrace.cli.compose import compose
    from headrace.engine.engine import Engine
    from headrace.server.auth import KeyRing

    settings = settings_of(directory)
    engine = Engine.prepare_async(directory, settings)
    server = compose(settings, engine, KeyRing.parse(""))
    await engine.recover_async()
    server.app.go_live()
    requests = []
    for number in range(TOPICS):
        await engine.append(f"t{number}", [{"x": "a" * 230}] * LISTED)
        if kind == "append":
            body = b'{"records":[{"data":' + PAYLOAD + b"}]}"
            requests.append(http_request("POST", f"/v0/topics/t{number}", body, HEADERS))
        else:
            body = b'{"from_seq":0,"limit":%d}' % LISTED
            requests.append(http_request("POST", f"/v0/topics/t{number}/diff", body, HEADERS))
    connections = [connected(server) for _ in range(count)]
    turns = 0

    async def turn() -> None:
        nonlocal turns
        for number, (protocol, _) in enumerate(connections):
            protocol.data_received(requests[(turns * count + number) % TOPICS])
        turns += 1
        await until(lambda: all(transport.data for _, transport in connections))
        for _, transport in connections:
            _check(transport)

    for _ in range(2 * TOPICS):  # until every head is known
        await turn()
    many = max(1, (200 if quick else REQUESTS) // count)
    best = float("inf")
    for _ in range(2 if quick else ROUNDS):
        begun = time.thread_time_ns()
        for _ in range(many):
            await turn()
        best = min(best, (time.thread_time_ns() - begun) / many / count / 1e3)
    steps = await bytecodes(turn)
    engine.abandon()
    return best, steps / TRACED_TURNS / count


def _check(transport: Clocked) -> None:
    assert transport.data.startswith(b"HTTP/1.1 200"), transport.data
    transport.data = b""


async def bytecodes(turn: Callable[[], Any]) -> int:
    """How many bytecodes of the server a few turns take."""
    ran = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal ran
        if event == "call":
            if "/headrace/" not in frame.f_code.co_filename:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            ran += 1
        return trace

    sys.settrace(trace)
    try:
        for _ in range(TRACED_TURNS):
            await turn()
            await asyncio.sleep(0)
    finally:
        sys.settrace(None)
    return ran
