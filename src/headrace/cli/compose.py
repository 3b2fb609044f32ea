"""Putting a server together: the engine, the dialects, the gate and the transports, once each.

The composition root: the only file that knows all of them.  It starts nothing and opens nothing;
`cli/serve.py` does, in the right order.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from headrace.core.errors import ConfigError
from headrace.core.limits import heartbeat_ms_min
from headrace.core.runtime import Runtime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.lake.cold import cold_lake
from headrace.server.app import App
from headrace.server.auth import KeyRing
from headrace.server.gate import Gate
from headrace.server.http1 import Http1Protocol
from headrace.storage.fs import RealFilesystem
from headrace.wire.docs_page import Documents
from headrace.wire.metrics import Metrics
from headrace.wire.metrics_process import ProcessWatch, watch_process
from headrace.wire.native import TOPICS
from headrace.wire.native_live import LiveApi
from headrace.wire.native_pipelines import PipelinesApi
from headrace.wire.native_probes import Probes
from headrace.wire.native_queue import queue_routes
from headrace.wire.native_routers import RoutersApi
from headrace.wire.native_routes import NativeApi
from headrace.wire.native_segments import SegmentsApi
from headrace.wire.pressure import ResponseMemory
from headrace.wire.routes import RouteTable

STATM_BYTES_MAX = 256
# How often sessions that nobody uses are looked for.
SESSIONS_LOOK_MS = 10_000
# Tests of heartbeats cannot wait for a second each.
SHORTEST_HEARTBEAT = "HEADRACE_TEST_MIN_HEARTBEAT_MS"


class Server(NamedTuple):
    """What the parts are together."""

    app: App
    native: NativeApi
    live: LiveApi
    watch: ProcessWatch
    runtime: Runtime
    engine: Engine

    def protocol(self) -> asyncio.Protocol:
        """A new connection's."""
        return Http1Protocol(self.app)

    def start(self) -> None:
        """Begin with what happens by itself."""
        self.app.start()
        self.watch.start()
        self.engine.govern()
        self._look_after_sessions()

    def _look_after_sessions(self) -> None:
        self.live.tick()
        self.runtime.later(SESSIONS_LOOK_MS, self._look_after_sessions)

    def drain(self) -> None:
        """Tell every stream, take nothing new, and let what is in progress end."""
        self.live.drain()
        self.native.drain()
        self.app.drain()

    def stop(self) -> None:
        self.app.stop()
        self.watch.stop()


def compose(settings: Settings, engine: Engine, keys: KeyRing) -> Server:
    """Every route of every dialect behind one gate, on an engine that need not be ready yet."""
    engine.core.history = cold_lake(settings)
    metrics = Metrics()
    memory = ResponseMemory(settings.response_memory_bytes_max)
    native = NativeApi(engine, settings, metrics, memory)
    probes = Probes(engine, metrics, TOPICS)
    live = LiveApi(engine, settings, metrics, shortest_heartbeat_ms=_shortest_heartbeat_ms())
    table = RouteTable(
        [
            *native.routes(),
            *queue_routes(engine, metrics, memory),
            *RoutersApi(engine, settings).routes(),
            *PipelinesApi(engine, settings, metrics).routes(),
            *SegmentsApi(engine, settings).routes(),
            *live.routes(),
            *probes.routes(),
        ]
    )
    for route in Documents(table.routes, settings, TOPICS).routes():
        table.add(route)
    app = App(settings, table, Gate(settings, keys), engine.runtime, metrics, memory)
    probes.state = lambda: app.state

    sources = metrics.sources
    sources.open_connections = lambda: len(app.connections)
    sources.request_body_bytes = lambda: app.budget.used
    sources.response_pending_bytes = lambda: app.pending_bytes
    sources.parked_requests = lambda: app.parked
    watch = watch_process(metrics, engine.runtime, resident_bytes)
    return Server(app, native, live, watch, engine.runtime, engine)


def _shortest_heartbeat_ms() -> int:
    text = os.environ.get(SHORTEST_HEARTBEAT) or str(heartbeat_ms_min)
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"{SHORTEST_HEARTBEAT}={text!r} does not parse", fix="write a number of milliseconds"
        ) from None


def resident_bytes() -> int:
    """Memory of this process that is in use now; 0 where the machine does not tell.

    >>> resident_bytes() > 1_000_000
    True
    """
    try:
        file = RealFilesystem("/proc/self").open_read("statm")
    except OSError:
        return 0
    try:
        pages = file.pread(STATM_BYTES_MAX, 0).split()[1]
    finally:
        file.close()
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
