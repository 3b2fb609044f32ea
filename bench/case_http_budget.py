"""Where the time of one lone append goes, from its bytes to its answer and to a watcher.

The server's own protocol, routes and engine in this process, on transports that only note when
they were written to; the kernel's part of a write is measured on a socket of its own.  Stages are
told apart by noting the time where one calls the next.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
import time
from collections.abc import Callable
from typing import Any

from bench.measure import Measured, percentile, run_loop, settings_of
from bench.wires import HOST, append_request, http_request

REQUESTS = 3_000
PATIENCE_SECONDS = 10.0


def run(directory: str, quick: bool) -> dict[str, Measured]:
    requests = 50 if quick else REQUESTS
    disk = run_loop(stages(f"{directory}/disk", "disk", requests))
    fsync = run_loop(stages(f"{directory}/fsync", "fsync", requests))
    return {
        "http_budget_read": disk["read"],
        "http_budget_stage": disk["stage"],
        "http_budget_write": disk["write"],
        "http_budget_sync": fsync["sync"],
        "http_budget_answer": disk["answer"],
        "http_budget_watch": disk["watch"],
        "http_budget_socket": socket_write(requests),
        "http_budget_disk": disk["all"],
        "http_budget_fsync": fsync["all"],
    }


class Clocked:
    """A transport that keeps what was written last, and when."""

    def __init__(self) -> None:
        self.written_ns = 0
        self.data = b""

    def write(self, data: bytes) -> None:
        self.written_ns = time.perf_counter_ns()
        self.data += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> Any:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, **_limits: int) -> None:
        """There is no buffer."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None


async def stages(directory: str, durability: str, requests: int) -> dict[str, float]:
    """Medians in microseconds."""
    from headrace.cli.compose import compose
    from headrace.cli.serve import GC_THRESHOLDS
    from headrace.engine.engine import Engine
    from headrace.server.auth import KeyRing

    settings = settings_of(directory)
    engine = Engine.prepare_async(directory, settings)
    server = compose(settings, engine, KeyRing.parse(""))
    await engine.recover_async()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    server.app.go_live()
    await engine.put_topic("orders", {"durability": durability})
    marks = Marks()
    marks.put_around(engine._appender, "_append_each", "staging", "staged")
    shard = engine.state.shards[0]
    writer, client = connected(server)
    _watcher, heard = await watching(server)
    request = append_request("orders")
    samples: dict[str, list[float]] = {}
    for _ in range(requests):
        client.written_ns = heard.written_ns = 0
        begun = time.perf_counter_ns()
        writer.data_received(request)
        read = time.perf_counter_ns()
        await until(lambda: client.written_ns and heard.written_ns)
        at = marks.at
        assert client.data.startswith(b"HTTP/1.1 200"), client.data
        client.data = heard.data = b""
        found = {
            "read": at["staging"] - begun,
            "stage": at["staged"] - at["staging"],
            "write": shard.write_ns,
            "sync": shard.sync_ns,
            # What is left between the end of the read and the answer: the turn, publishing, and
            # the answer's bytes.
            "answer": max(0, client.written_ns - read - shard.write_ns),
            "watch": max(0, heard.written_ns - client.written_ns),
            "all": client.written_ns - begun,
        }
        for name, ns in found.items():
            samples.setdefault(name, []).append(ns / 1e3)
    engine.abandon()
    return {name: percentile(values, 0.5) for name, values in samples.items()}


class Marks:
    """When a call began and ended."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}

    def put_around(self, owner: Any, name: str, before: str, after: str) -> None:
        call = getattr(owner, name)

        def marked(*arguments: Any) -> Any:
            self.at[before] = time.perf_counter_ns()
            result = call(*arguments)
            self.at[after] = time.perf_counter_ns()
            return result

        setattr(owner, name, marked)


def connected(server: Any, transport: Clocked | None = None) -> tuple[asyncio.Protocol, Clocked]:
    protocol, transport = server.protocol(), transport or Clocked()
    protocol.connection_made(transport)
    return protocol, transport


async def watching(
    server: Any, transport: Clocked | None = None
) -> tuple[asyncio.Protocol, Clocked]:
    """A stream that is at its tail."""
    protocol, transport = connected(server, transport)
    body = json.dumps({"topics": {"orders": {"tail": True}}}).encode()
    headers = {"Content-Type": "application/json"}
    protocol.data_received(http_request("POST", "/v0/watch", body, headers))
    await until(lambda: transport.data.endswith(b"}"))
    address = re.search(rb'"stream_url":"([^"]+)"', transport.data)
    assert address is not None, transport.data
    protocol.data_received(b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (address[1], HOST.encode()))
    await until(lambda: b"caught-up" in transport.data)
    return protocol, transport


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        await asyncio.sleep(0)
        if time.monotonic() > end:
            raise TimeoutError


def socket_write(times: int) -> float:
    """The median of a small write to a TCP connection on loopback."""
    answer = b"x" * 400
    taken = []
    with socket.create_server((HOST, 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far, _ = listener.accept()
        with near, far:
            for _ in range(times):
                started = time.perf_counter_ns()
                near.send(answer)
                taken.append((time.perf_counter_ns() - started) / 1e3)
                far.recv(4_096)
    return percentile(taken, 0.5)
