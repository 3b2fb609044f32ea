"""A server of the S2 API without sockets: an engine, the dialect, and requests that keep answers.

Time moves when the clock is told to.  A session is sent pieces of its body by the test, and what it
is told is taken apart into frames.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.metrics.requests import Metrics
from headrace.wire.routes import RouteTable, takes_stream
from headrace.wire.s2.dialect import s2_dialect
from headrace.wire.server_context import ServerContext
from tests.support.exchanges import ListExchange, ListOutlet

BASIN = "test-basin"
SESSION = {"content-type": "s2s/proto"}
EVENTS = {"accept": "text/event-stream"}
JSON_TYPE = {"content-type": "application/json"}


class S2Exchange(ListExchange):
    """A request whose body may come in pieces."""

    __slots__ = ("paused",)

    def __init__(self, *request: Any) -> None:
        super().__init__(*request)
        self.paused = False

    def pause_body(self) -> None:
        self.paused = True

    def resume_body(self) -> None:
        self.paused = False


class SentFrame(NamedTuple):
    """A frame that a session was told."""

    flag: int
    payload: bytes

    @property
    def is_terminal(self) -> bool:
        return bool(self.flag & 0x80)

    @property
    def error(self) -> tuple[int, dict[str, Any]]:
        """The status and the body of a terminal frame."""
        assert self.is_terminal, self
        return int.from_bytes(self.payload[:2], "big"), json.loads(self.payload[2:])


def split_frames(data: bytes) -> list[SentFrame]:
    """The frames of a whole number of them."""
    found = []
    while data:
        end = 3 + int.from_bytes(data[:3], "big")
        assert len(data) >= end > 3, data
        found.append(SentFrame(data[3], data[4:end]))
        data = data[end:]
    return found


class Session:
    """A session, as its client sees it."""

    def __init__(self, server: S2Server, exchange: S2Exchange) -> None:
        assert exchange.outlet is not None, exchange.reply
        self.server = server
        self.exchange = exchange
        self.outlet: ListOutlet = exchange.outlet

    def send(self, *pieces: bytes) -> None:
        """Send pieces of the body in one turn; the end is an empty one."""
        for piece in pieces:
            on_body = self.exchange.on_body
            if on_body is None:  # the session is over, and takes no more
                return
            on_body(piece)

    def frames(self) -> list[SentFrame]:
        """What was told since the last time."""
        self.server.run()
        return split_frames(self.outlet.take())


class S2Server:
    """A server without sockets, with one basin."""

    def __init__(self, engine: Engine, clock: ManualClock, **config: object) -> None:
        self.engine = engine
        self.clock = clock
        self.context = ServerContext(engine, engine.settings, Metrics())
        self.dialect = s2_dialect(self.context, has_keys=False)
        self.table = RouteTable([self.dialect])
        self.dialect.tick(0)
        self.run()
        body = {"basin": BASIN, "config": config}
        assert self.ask("POST", "/v1/basins", body).status == 201

    def run(self) -> None:
        runtime = self.engine.runtime
        assert isinstance(runtime, StepRuntime)
        runtime.run()

    def wait(self, ms: int) -> None:
        """Let time pass, in steps in which timers can run."""
        for _ in range(ms // 10):
            self.clock.advance(10)
            self.run()

    def ask(
        self, method: str, target: str, body: object = None, headers: dict[str, str] | None = None
    ) -> S2Exchange:
        """Send a request, and let what it starts run; bytes are sent as they are."""
        exchange = self.begin(method, target, body, headers)
        self.run()
        return exchange

    def begin(
        self, method: str, target: str, body: object = None, headers: dict[str, str] | None = None
    ) -> S2Exchange:
        """Send a request, and look no further."""
        exchange = self.request(method, target, body, headers)
        self.handle([exchange])
        return exchange

    def request(
        self, method: str, target: str, body: object = None, headers: dict[str, str] | None = None
    ) -> S2Exchange:
        """A request that has arrived."""
        given = {"s2-basin": BASIN, **(JSON_TYPE if body is not None else {}), **(headers or {})}
        sent = {name.encode(): value.encode() for name, value in given.items()}
        path, _, query = target.partition("?")
        started = self.clock.monotonic_ns()
        exchange = S2Exchange(self.clock, method, path, query, sent, started)
        if isinstance(body, bytes):
            exchange.body = body
        elif body is not None:
            exchange.body = json.dumps(body).encode()
        exchange.route, exchange.params = self.table.match(method, path)
        exchange.streamed = takes_stream(exchange)
        return exchange

    def handle(self, exchanges: Sequence[S2Exchange]) -> None:
        """Handle requests of one route that came in one turn."""
        route = exchanges[0].route
        assert route is not None
        if route.turn_handler is not None:
            route.turn_handler(exchanges)
            return
        for exchange in exchanges:
            try:
                route.handler(exchange)
            except Exception as error:  # noqa: BLE001 - as the server does
                exchange.fail(error)

    # Streams

    def create(self, stream: str = "s", **config: object) -> None:
        made = self.ask("POST", "/v1/streams", {"stream": stream, "config": config})
        assert made.status == 201, made.reply

    def append(self, *bodies: str, stream: str = "s", **fields: object) -> dict[str, Any]:
        """Append records; return the ack."""
        done = self.ask(
            "POST", records(stream), {"records": [{"body": body} for body in bodies], **fields}
        )
        assert done.status == 200, done.reply
        return done.json

    def read(self, query: str = "seq_num=0", stream: str = "s", **headers: str) -> S2Exchange:
        return self.ask("GET", f"{records(stream)}?{query}", headers=_named(headers))

    def session(self, method: str, query: str = "", stream: str = "s", **headers: str) -> Session:
        """Open a session."""
        target = f"{records(stream)}?{query}"
        return Session(self, self.ask(method, target, headers={**SESSION, **_named(headers)}))


def records(stream: str) -> str:
    """The path of the records of a stream."""
    return f"/v1/streams/{stream}/records"


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
