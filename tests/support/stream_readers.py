"""A server without sockets for tests of reads of streams: an engine, the routes, open streams.

Time moves when the clock is told to.
"""

from __future__ import annotations

import msgspec

from headrace.core.clock import ManualClock
from headrace.core.errors import HeadraceError
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.engine.streams.spec import StreamSpec, StreamWrite
from headrace.engine.topics.config import make_config
from headrace.metrics.requests import Metrics
from headrace.storage.rows import KIND_BYTES, KIND_JSON
from headrace.wire.dialect import Dialect
from headrace.wire.durable_streams.errors import failure_reply
from headrace.wire.durable_streams.offsets import offset_text
from headrace.wire.durable_streams.reads import read_routes
from headrace.wire.exchange import Exchange, Key, Reply
from headrace.wire.routes import Route, RouteTable
from headrace.wire.server_context import ServerContext
from tests.support.durable_streams import SentEvent, parse_events
from tests.support.exchanges import ListExchange


class ReadsDialect(Dialect):
    """Nothing but the reads of Durable Streams."""

    name = "durable_streams"

    def __init__(self, routes: list[Route]) -> None:
        self._routes = routes

    def routes(self) -> list[Route]:
        return self._routes

    def failure(self, error: HeadraceError, exchange: Exchange) -> Reply:
        return failure_reply(error, lambda: None)


class EventReader:
    """An open stream of events, as its client sees it."""

    def __init__(self, server: StreamServer, exchange: ListExchange) -> None:
        assert exchange.outlet is not None, exchange.reply
        self._server = server
        self.exchange = exchange
        self.outlet = exchange.outlet

    def writes(self) -> list[bytes]:
        """What was written since the last time, each write by itself."""
        self._server.run()
        written = list(self.outlet.written)
        self.outlet.written.clear()
        return written

    def events(self) -> list[SentEvent]:
        """The events that came since the last time."""
        return parse_events(b"".join(self.writes()).decode())


class StreamServer:
    """A server without sockets."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.context = ServerContext(engine, engine.settings, Metrics())
        self.table = RouteTable([ReadsDialect(read_routes(self.context))])

    def run(self) -> None:
        runtime = self.engine.runtime
        assert isinstance(runtime, StepRuntime)
        runtime.run()

    def wait(self, ms: int) -> None:
        """Let time pass, in steps in which timers can run."""
        for _ in range(ms // 10):
            self.clock.advance(10)
            self.run()

    def create(
        self, path: str, type: str = "text/plain", expires_ms: int | None = None, **config: object
    ) -> None:
        """Create an empty stream."""
        kind = KIND_JSON if type == "application/json" else KIND_BYTES
        made = make_config({"durability": "fsync", **config})
        spec = StreamSpec(
            dialect="ds", content_type=type, kind=kind, expires_ms=expires_ms, config=made
        )
        self.engine.streams.create(f"ds:{path}", spec).result()

    def fork(self, path: str, source: str) -> None:
        """Create a fork of all that a stream holds."""
        made = make_config({"durability": "fsync"})
        spec = StreamSpec(
            dialect="ds", content_type=None, kind=None, source=f"ds:{source}", config=made
        )
        self.engine.streams.create(f"ds:{path}", spec).result()

    def append(self, path: str, *values: bytes) -> None:
        """Append each value; JSON as it is written."""
        stream = self.engine.streams.info(f"ds:{path}")
        for value in values:
            if stream.state.kind == KIND_JSON:
                self.engine.append_batch(f"ds:{path}", msgspec.Raw(value)).result()
            else:
                self.engine.append_batch(f"ds:{path}", value).result()

    def close(self, path: str) -> None:
        """Close a stream."""
        self.engine.streams.close(f"ds:{path}", StreamWrite(closes=True)).result()

    def offset(self, path: str, seq: int) -> str:
        """The offset behind a record."""
        return offset_text(self.engine.streams.position(f"ds:{path}", seq)).decode()

    def ask(self, target: str, *, key: Key | None = None, **headers: str) -> ListExchange:
        """Send a request, and let what it starts run."""
        sent = {n.replace("_", "-").encode(): v.encode() for n, v in headers.items()}
        path, _, query = f"/v1/stream/{target}".partition("?")
        started = self.clock.monotonic_ns()
        exchange = ListExchange(self.clock, "GET", path, query, sent, started)
        exchange.key = key
        exchange.route, exchange.params = self.table.match("GET", path)
        try:
            exchange.route.handler(exchange)
        except Exception as error:  # noqa: BLE001 - as the server does
            exchange.fail(error)
        self.run()
        return exchange

    def events(self, path: str, offset: str = "-1", cursor: str = "") -> EventReader:
        """Open a stream of events."""
        return EventReader(self, self.ask(f"{path}?offset={offset}&live=sse&cursor={cursor}"))
