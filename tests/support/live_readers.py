"""A server without sockets for tests of live readers: an engine, the routes, and open streams.

Time moves when the clock is told to.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.metrics.requests import Metrics
from headrace.wire.exchange import Key
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.native.live_api import LiveApi
from headrace.wire.routes import RouteTable
from headrace.wire.server_context import ServerContext
from tests.support.exchanges import ListExchange
from tests.support.seqs import json_seqs


class Event:
    """One server-sent event."""

    def __init__(self, block: str) -> None:
        lines = [line.partition(": ") for line in block.split("\n")]
        fields = {name: value for name, _, value in lines}
        self.event = fields.get("event", "")
        self.id = fields.get("id", "")
        self.block = block
        self.data: dict[str, Any] = json.loads(fields["data"]) if "data" in fields else {}

    @property
    def cursors(self) -> dict[str, Any]:
        """What the id says."""
        padded = self.id + "=" * (-len(self.id) % 4)
        decoded = json.loads(base64.urlsafe_b64decode(padded))
        assert isinstance(decoded, dict)
        return decoded

    @property
    def seqs(self) -> list[int]:
        return json_seqs(self.data)

    def __repr__(self) -> str:
        return self.block


def record_seqs(events: list[Event]) -> list[int]:
    """The seqs of all records of some events."""
    return [seq for event in events if event.event == "record" for seq in event.seqs]


class Watcher:
    """An open stream, as its client sees it."""

    def __init__(self, live: Live, exchange: ListExchange) -> None:
        assert exchange.outlet is not None
        self._live = live
        self.exchange = exchange
        self.outlet = exchange.outlet

    def text(self) -> str:
        """What came since the last time."""
        self._live.run()
        return self.outlet.take().decode()

    def events(self) -> list[Event]:
        """The events that came since the last time; comments and `retry` are left out."""
        blocks = self.text().split("\n\n")
        assert blocks.pop() == ""
        return [Event(block) for block in blocks if not block.startswith((":", "retry"))]

    def names(self) -> list[str]:
        return [event.event for event in self.events()]


class Live:
    """A server without sockets."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.metrics = Metrics()
        self.context = ServerContext(engine, engine.settings, self.metrics)
        self.streams = self.context.open_streams
        self.hub = self.streams.hub
        self.api = LiveApi(self.context, shortest_heartbeat_ms=1_000)
        self.table = RouteTable([NativeDialect(self.api.routes())])

    def run(self) -> None:
        runtime = self.engine.runtime
        assert isinstance(runtime, StepRuntime)
        runtime.run()

    def wait(self, ms: int) -> None:
        """Let time pass, in steps in which timers can run."""
        for _ in range(ms // 10):
            self.clock.advance(10)
            self.run()

    def append(self, topic: str, *values: Any, **how: Any) -> None:
        self.engine.append(topic, list(values), **how).result()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: Key | None = None,
        upgrade_to: bytes = b"",
        **headers: str,
    ) -> ListExchange:
        """Send a request; header names have `_` for `-`."""
        sent = {n.replace("_", "-").encode(): v.encode() for n, v in headers.items()}
        if body is not None:
            sent.setdefault(b"content-type", b"application/json")
        path, _, query = path.partition("?")
        started = self.clock.monotonic_ns()
        exchange = ListExchange(self.clock, method, path, query, sent, started)
        exchange.upgraded = upgrade_to
        exchange.key = key
        if body is not None:
            exchange.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        exchange.route, exchange.params = self.table.match(method, path)
        try:
            exchange.route.handler(exchange)
        except Exception as error:  # noqa: BLE001 - as the server does
            exchange.fail(error)
        return exchange

    def session(self, topics: Any, **body: Any) -> dict[str, Any]:
        """Create a watch session."""
        named = topics if isinstance(topics, dict) else {name: {} for name in topics.split()}
        asked = self.ask("POST", "/v0/watch", {"topics": named, **body})
        assert asked.status == 200, asked.reply
        return asked.json

    def open(self, session: dict[str, Any], **headers: Any) -> Watcher:
        """Open a stream on a session."""
        asked = self.ask("GET", session["stream_url"], **headers)
        assert asked.status == 200, asked.reply
        return Watcher(self, asked)

    def watch(self, topics: Any, **body: Any) -> Watcher:
        """A session and its stream at once."""
        return self.open(self.session(topics, **body))


StartLive = Callable[..., Live]
