"""`headrace serve`: open the data directory, answer the probes, leave cleanly when told to.

The composition root of a serving process: the only place that puts the engine and the server
together.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import resource
import signal
import sys

import headrace
from headrace.cli.options import print_json, settings_of
from headrace.core.clock import EngineClock, SystemClock
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.server.probe import Answer, Probe, ProbeProtocol, error_body
from headrace.storage.fs import RealFilesystem, write_file_durably

log = logging.getLogger("headrace")

# A serving process makes many objects that live long and are in no cycle.  A collection of the
# middle generation then looks at no more than takes 8 ms, and full ones, 520 ms for 50,000
# topics, are left to very rare occasions.
GC_THRESHOLDS = (5_000, 2, 1_000_000)


def run(options: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    settings = settings_of(options).settings
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    _raise_file_limit()
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(_serve(settings, as_json=options.json))
    return 0


def _raise_file_limit() -> None:
    """Every sealed file and every connection takes a descriptor: as many as are allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(settings: Settings, *, as_json: bool) -> None:
    loop = asyncio.get_running_loop()
    clock = EngineClock(SystemClock())
    started_ns = clock.monotonic_ns()
    engine = await Engine.open_async(settings.data_dir, settings)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)

    def health() -> Answer:
        uptime_ms = (clock.monotonic_ns() - started_ns) // 1_000_000
        return 200, {"status": "ok", "version": headrace.__version__, "uptime_ms": uptime_ms}

    probes: dict[str, Probe] = {"/v0/health": health, "/v0/ready": lambda: readiness(engine)}
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        server = await loop.create_server(
            lambda: ProbeProtocol(probes), settings.host, settings.port
        )
        host, port = server.sockets[0].getsockname()[:2]
        _announce(settings, f"{host}:{port}", as_json)
        await stop.wait()
        server.close()
    finally:
        engine.close()
    log.info("stopped")


def _announce(settings: Settings, address: str, as_json: bool) -> None:
    if settings.port_file:
        directory, _, name = settings.port_file.rpartition("/")
        write_file_durably(RealFilesystem(directory or "."), name, [address.encode()])
    if as_json:
        print_json({"address": address, "data_dir": settings.data_dir})
        sys.stdout.flush()
    log.info("serving %s on http://%s", settings.data_dir, address)


def readiness(engine: Engine) -> Answer:
    """Whether the engine takes writes, and if not, why."""
    core = engine.core
    states = {shard.state for shard in core.shards} - {"ok"}
    if not core.ready or states:
        reason = next(iter(states), "recovering")
        body = error_body("not_ready", f"the engine does not take writes: {reason}")
        return 503, body
    return 200, {"status": "ready", "wal_replay_complete": True, "topics": len(core.by_name)}
