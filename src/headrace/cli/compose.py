"""Putting a server together: the engine, the dialects, access control and the transports.

The composition root: the only file that knows all of them.  It starts nothing and opens nothing;
`cli/serve.py` does, in the right order.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from headrace.core.errors import ConfigError
from headrace.core.limits import heartbeat_ms_min
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.lake.serving.lake_archive import open_lake_archive
from headrace.metrics.engine import watch_engine
from headrace.metrics.process import ProcessWatch, watch_process
from headrace.metrics.requests import Metrics
from headrace.server.access import AccessControl
from headrace.server.app import App
from headrace.server.auth import KeyRing
from headrace.server.fan_out import write_to_all
from headrace.server.holders import hold_app
from headrace.server.http1.connection import Http1Connection
from headrace.server.http1.heads import KnownHeads
from headrace.server.outbound_posts import HttpPosts
from headrace.storage.fs import RealFilesystem
from headrace.wire.durable_streams.dialect import durable_streams_dialect
from headrace.wire.native.dialect import native_dialect
from headrace.wire.openapi.page import Documents
from headrace.wire.routes import RouteTable
from headrace.wire.s2.dialect import s2_dialect
from headrace.wire.server_context import ServerContext

STATM_BYTES_MAX = 256
# Tests of heartbeats cannot wait for a second each.
SHORTEST_HEARTBEAT = "HEADRACE_TEST_MIN_HEARTBEAT_MS"


class Server(NamedTuple):
    """The parts of a server that are started and stopped."""

    app: App
    watch: ProcessWatch
    engine: Engine
    context: ServerContext
    heads: KnownHeads

    def protocol(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        return Http1Connection(self.app, self.heads)

    def start(self) -> None:
        """Begin with what happens by itself."""
        self.app.start()
        self.watch.start()
        self.engine.govern()

    def drain(self) -> None:
        """End streams and waits, take nothing new, and let what is in progress end."""
        self.context.drain()
        self.app.drain()

    def stop(self) -> None:
        """End what happens by itself."""
        self.app.stop()
        self.watch.stop()


def compose(settings: Settings, engine: Engine, keys: KeyRing) -> Server:
    """Every dialect behind one port, on an engine that need not be ready yet."""
    engine.read_archive_from(open_lake_archive(settings))
    metrics = Metrics()
    watch_engine(metrics, engine)
    context = ServerContext(engine, settings, metrics)
    native = native_dialect(
        context, state=lambda: app.state, shortest_heartbeat_ms=_shortest_heartbeat_ms()
    )
    streams = durable_streams_dialect(context, HttpPosts(settings))
    table = RouteTable([native, streams, s2_dialect(context, has_keys=bool(keys))])
    for route in Documents(table.routes, settings).routes():
        table.add(route, native)
    context.open_streams.write_to_all = write_to_all
    access = AccessControl(settings, keys)
    app = App(
        settings,
        table,
        access,
        engine.runtime,
        metrics,
        context.memory,
        engine.loading,
        context.request_memory,
    )
    engine.throttle.waiting_requests = app.shares.waiting_requests

    sources = metrics.sources
    sources.open_connections.add(lambda: len(app.connections))
    sources.request_body_bytes.add(lambda: app.budget.used)
    sources.response_pending_bytes.add(lambda: app.pending_bytes)
    heads = KnownHeads()
    hold_app(sources.holders, app, keys, heads)
    sources.parked_requests.add(lambda: app.parked)
    watch = watch_process(metrics, engine.runtime, resident_bytes)
    return Server(app, watch, engine, context, heads)


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
