"""What the tests of live readers share: an engine, the routes, and a transport made of lists.

The transport is the one part that is not real here: it keeps what is written, and is full or gone
when a test says so.  Time moves when the clock is told to.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.testing.simdisk import SimDisk
from headrace.wire.exchange import JSON, Exchange, Headers, Key, Outlet
from headrace.wire.metrics import Metrics
from headrace.wire.native_live import LiveApi
from headrace.wire.routes import RouteTable

SMALL = {"wal_file_bytes": 64 << 10, "wal_batch_bytes_max": 16 << 10}


class ListOutlet(Outlet):
    """A stream that keeps what is written to it."""

    __slots__ = ("clock", "closed", "full_since_ms", "written")

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.written: list[bytes] = []
        self.closed = False
        self.full_since_ms: int | None = None

    @property
    def room(self) -> bool:
        return self.full_since_ms is None and not self.closed

    @property
    def stuck_ms(self) -> int:
        if self.full_since_ms is None:
            return 0
        return self.clock.monotonic_ns() // 1_000_000 - self.full_since_ms

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.written.append(data)

    def close(self) -> None:
        self.closed = True

    # What a test does with it

    def fill(self) -> None:
        """The client takes nothing any more."""
        self.full_since_ms = self.clock.monotonic_ns() // 1_000_000

    def drain(self) -> None:
        """The client has taken everything."""
        self.full_since_ms = None
        if self.on_room is not None:
            self.on_room()

    def hang_up(self) -> None:
        """The client goes away."""
        self.closed = True
        if self.on_closed is not None:
            self.on_closed()

    def take(self) -> bytes:
        """What was written since the last time."""
        data = b"".join(self.written)
        self.written.clear()
        return data


class ListExchange(Exchange):
    """A request whose answer is kept."""

    __slots__ = ("clock", "content_type", "outlet", "reply", "reply_headers", "status", "upgraded")

    def __init__(self, clock: ManualClock, *request: Any) -> None:
        super().__init__(*request)
        self.clock = clock
        self.status = 0
        self.reply = b""
        self.content_type = b""
        self.reply_headers: dict[bytes, bytes] = {}
        self.outlet: ListOutlet | None = None
        self.upgraded = b""

    def answer(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        assert not self.answered
        self.answered = True
        self.status, self.reply, self.content_type = status, body, content_type
        self.reply_headers = dict(headers)

    def stream(self, content_type: bytes, headers: Headers = ()) -> Outlet:
        self.answer(200, b"", content_type, headers)
        self.outlet = ListOutlet(self.clock)
        return self.outlet

    def tunnel(self, headers: Headers = ()) -> Outlet:
        self.answer(101, b"", b"", headers)
        self.outlet = ListOutlet(self.clock)
        return self.outlet

    @property
    def upgrade(self) -> bytes:
        return self.upgraded

    @property
    def json(self) -> dict[str, Any]:
        decoded = json.loads(self.reply)
        assert isinstance(decoded, dict)
        return decoded

    @property
    def code(self) -> str:
        """The error's code."""
        return str(self.json["error"]["code"])


class GivenKey:
    """A key with scopes and prefixes."""

    def __init__(self, scopes: str = "read write delete admin", *prefixes: str) -> None:
        self._scopes = scopes.split()
        self._prefixes = prefixes

    def allows_scope(self, scope: str) -> bool:
        return scope in self._scopes

    def allows_name(self, name: str) -> bool:
        return not self._prefixes or name.startswith(self._prefixes)

    @property
    def has_prefixes(self) -> bool:
        return bool(self._prefixes)


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
        return [record["$seq"] for record in self.data["records"]]

    def __repr__(self) -> str:
        return self.block


def seqs(events: list[Event]) -> list[int]:
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
        self.api = LiveApi(engine, engine.settings, self.metrics, shortest_heartbeat_ms=1_000)
        self.table = RouteTable(self.api.routes())

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

    def open(self, session: dict[str, Any], **headers: str) -> Watcher:
        """Open a stream on a session."""
        asked = self.ask("GET", session["stream_url"], **headers)
        assert asked.status == 200, asked.reply
        return Watcher(self, asked)

    def watch(self, topics: Any, **body: Any) -> Watcher:
        """A session and its stream at once."""
        return self.open(self.session(topics, **body))


StartLive = Callable[..., Live]


@pytest.fixture
def clock() -> ManualClock:
    """Starts at 1_700_000_000_000 ms."""
    return ManualClock()


@pytest.fixture
def start(clock: ManualClock) -> Iterator[StartLive]:
    """Start a server: `start(**settings)`."""
    engines: list[Engine] = []

    def started(disk: SimDisk | None = None, **settings: int | str) -> Live:
        engine = Engine(
            disk or SimDisk(),
            StepRuntime(clock),
            Settings(**{**SMALL, **settings}),  # type: ignore[arg-type]
            random=SeededRandom(1),
        )
        engine.recover()
        engines.append(engine)
        return Live(engine, clock)

    yield started
    for engine in engines:
        engine.abandon()


@pytest.fixture
def live(start: StartLive) -> Live:
    return start()
