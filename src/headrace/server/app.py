"""What happens to a request between a transport and its handler, and to its answer on the way back.

Only this file decides, for every transport alike: which route a request takes, whether it is let in
(`gate.py` says), whether it has to wait for recovery, and how an answer is compressed, stamped and
counted.  Transports parse and write; handlers answer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol

from headrace.core.errors import (
    HeadraceError,
    NotFound,
    NotReady,
    ShuttingDown,
)
from headrace.core.runtime import Runtime, Thunk
from headrace.core.settings import Settings
from headrace.server.compression import choose, decode_body, encode_body
from headrace.server.gate import Gate
from headrace.server.refusals import no_memory
from headrace.wire.exchange import Exchange, Headers
from headrace.wire.metrics import UNROUTED, Metrics
from headrace.wire.native import dialect_of
from headrace.wire.pressure import ResponseMemory
from headrace.wire.routes import Route, RouteTable

log = logging.getLogger("headrace.server")

TICK_MS = 1_000
VISIT_NS_MAX = 1_000_000  # at a time, however many connections there are
# Larger bodies are compressed and decompressed in a thread, so that the loop does not wait.
INLINE_CODING_BYTES_MAX = 32 * 1024
CODING_LANE = "coding"
# Request lines whose route is remembered; all are forgotten when there are more.
TARGETS_MAX = 4_096
TARGET_BYTES_MAX = 512
State = Literal["starting", "serving", "draining"]


class Connection(Protocol):
    """A connection of any transport."""

    def tick(self, now_ms: int) -> None:
        """Once a second: look for time-outs."""
        ...

    def drain(self) -> None:
        """Finish what is in progress, take nothing new, close."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes of answers that the client has not taken."""
        ...


class Target(NamedTuple):
    """Where a request line leads; without a route, nowhere."""

    method: str
    path: str
    query: str
    route: Route | None = None
    params: Sequence[str] = ()


class Budget:
    """A number of bytes that many share."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, amount: int) -> bool:
        """Whether so much more may be used; if so, it is."""
        if self.used + amount > self.limit:
            return False
        self.used += amount
        return True

    def give(self, amount: int) -> None:
        self.used -= amount
        assert self.used >= 0, self.used


class App:
    """All routes behind one port."""

    def __init__(
        self,
        settings: Settings,
        routes: RouteTable,
        gate: Gate,
        runtime: Runtime,
        metrics: Metrics,
        memory: ResponseMemory | None = None,
    ) -> None:
        self.memory = memory or ResponseMemory(settings.response_memory_bytes_max)
        self.settings = settings
        self.routes = routes
        self.gate = gate
        self.metrics = metrics
        self.clock = runtime.clock
        self._now_ns = runtime.clock.monotonic_ns
        self.state: State = "starting"
        self.budget = Budget(settings.request_memory_bytes_max)
        self.connections: set[Connection] = set()
        self.pending_bytes = 0  # of answers not yet taken, as of the last tick
        self._runtime = runtime
        # Until when, how many bytes of the budget, and who.
        self._parked: deque[tuple[int, int, Exchange]] = deque()
        self._ticking = False
        self._targets: dict[tuple[bytes, bytes], Target] = {}

    # The life of the server

    def start(self) -> None:
        """Begin to look after time-outs."""
        self._ticking = True
        self._tick()

    def go_live(self) -> None:
        """Recovery is done: what waited for it goes on."""
        self.state = "serving"
        for exchange in self._unpark(len(self._parked)):
            self._run(exchange)

    def drain(self) -> None:
        """Take nothing new, and let what is in progress end."""
        self.state = "draining"
        for exchange in self._unpark(len(self._parked)):
            exchange.fail(_shutting_down())
        for connection in list(self.connections):
            connection.drain()

    def stop(self) -> None:
        self._ticking = False

    def _tick(self) -> None:
        if not self._ticking:
            return
        now_ms = self.now_ms()
        late = sum(1 for due_ms, _, _ in self._parked if due_ms <= now_ms)
        for exchange in self._unpark(late):
            exchange.fail(_not_ready())
        self._visit(iter(list(self.connections)), 0)

    def _visit(self, left: Iterator[Connection], pending: int) -> None:
        """Look at connections for a while, and at the rest after what else there is to do."""
        now_ns = self._now_ns()
        stop_ns = now_ns + VISIT_NS_MAX
        for connection in left:
            pending += connection.pending_bytes
            try:
                connection.tick(now_ns // 1_000_000)
            except Exception:  # the others have their time-outs, too
                log.exception("a connection failed at a look at its time-outs")
            if self._now_ns() > stop_ns:
                self._runtime.later(0, partial(self._visit, left, pending))
                return
        self.pending_bytes = pending
        self._runtime.later(TICK_MS, self._tick)

    def soon(self, thunk: Thunk) -> None:
        """Call when this turn of the loop ends."""
        self._runtime.soon(thunk)

    @property
    def parked(self) -> int:
        """Requests that wait for recovery."""
        return len(self._parked)

    def now_ms(self) -> int:
        return self.clock.monotonic_ns() // 1_000_000

    # A request

    def target_of(self, method: bytes, url: bytes) -> Target:
        """Where a request line leads; remembered, since most requests repeat an earlier one."""
        target = self._targets.get((method, url))
        if target is None:
            path, _, query = url.decode("ascii").partition("?")
            verb = method.decode("ascii")
            try:
                route, params = self.routes.match(verb, path)
                target = Target(verb, path, query, route, params)
            except HeadraceError:
                return Target(verb, path, query)
            if len(url) <= TARGET_BYTES_MAX:
                if len(self._targets) >= TARGETS_MAX:
                    self._targets.clear()
                self._targets[method, url] = target
        return target

    def route_of(self, exchange: Exchange) -> Route | None:
        """Find the route; None when there is none, which `handle` then answers."""
        try:
            route, params = self.routes.match(exchange.method, exchange.path)
        except HeadraceError:
            return None
        exchange.route = route
        exchange.params = params
        return route

    def check_sender(self, exchange: Exchange) -> None:
        """Raise what `handle` would, of all that can be known before the body is there.

        For large bodies, so that nobody fills the memory that they share without being let in.
        """
        if exchange.method == "OPTIONS":
            return  # a browser's question is answered when it is whole
        route = exchange.route
        try:
            self.gate.admit(exchange, route)
        finally:
            self.gate.release(exchange)
            exchange.key = None
        if route is None:
            self.routes.match(exchange.method, exchange.path)

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        try:
            route = exchange.route or self.route_of(exchange)
            if route is None:
                self._refuse_unrouted(exchange)
                return
            exchange.on_answered = self.finished
            self.gate.admit(exchange, route)
            if self.state != "serving" and not route.unready:
                self._park(exchange)
                return
            if b"content-encoding" in exchange.headers:
                self._decode(exchange)
                return
            route.handler(exchange)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
            exchange.fail(error)

    def _run(self, exchange: Exchange) -> None:
        """The handler of an exchange that has been let in."""
        assert exchange.route is not None
        try:
            if b"content-encoding" in exchange.headers and not exchange.route.streamed:
                self._decode(exchange)
            else:
                exchange.route.handler(exchange)
        except Exception as error:  # noqa: BLE001 - as in `handle`
            exchange.fail(error)

    def _refuse_unrouted(self, exchange: Exchange) -> None:
        dialect = dialect_of(exchange.path)
        exchange.route = Route(exchange.method, UNROUTED, _unserved, dialect)
        exchange.on_answered = self.finished
        self.gate.admit(exchange, None)
        if exchange.answered:
            return
        self.routes.match(exchange.method, exchange.path)  # says what is wrong

    def _park(self, exchange: Exchange) -> None:
        if self.state == "draining":
            raise _shutting_down()
        if len(self._parked) >= self.settings.parked_requests_max:
            raise _not_ready()
        size = len(exchange.body)
        if not self.budget.take(size):
            raise no_memory(self.budget.limit)
        self._parked.append((self.now_ms() + self.settings.parked_ms_max, size, exchange))

    def _unpark(self, count: int) -> list[Exchange]:
        """Those who wait the longest, without the ones whose client went away meanwhile."""
        left = [self._parked.popleft() for _ in range(count)]
        self.budget.give(sum(size for _, size, _ in left))
        return [exchange for _, _, exchange in left if not exchange.answered]

    def _decode(self, exchange: Exchange) -> None:
        """Decompress the body, then call the handler."""
        encoding = exchange.header(b"content-encoding").strip().lower()
        body, bytes_max = exchange.body, self.settings.body_bytes_max
        assert exchange.route is not None
        handler = exchange.route.handler

        def decoded(value: object, error: BaseException | None) -> None:
            if exchange.answered:
                return  # the client went away
            try:
                if error is not None:
                    raise error
                assert isinstance(value, bytes)
                exchange.body = value
                handler(exchange)
            except Exception as failure:  # noqa: BLE001 - as in `handle`
                exchange.fail(failure)

        if len(body) <= INLINE_CODING_BYTES_MAX // 8:
            decoded(decode_body(body, encoding, bytes_max), None)
            return
        if not self.budget.take(len(body)):
            raise no_memory(self.budget.limit)

        def done(value: object, error: BaseException | None) -> None:
            self.budget.give(len(body))
            decoded(value, error)

        self._runtime.submit(CODING_LANE, lambda: decode_body(body, encoding, bytes_max), done)

    # Its answer

    def prepare(self, exchange: Exchange, headers: Headers) -> Headers:
        """The headers of an answer, with those that every answer gets."""
        more = self.gate.response_headers(exchange)
        return (*headers, *more) if more else headers

    def coding(self, exchange: Exchange, body: bytes) -> str | None:
        """How this body is to be compressed, or None."""
        accepted = exchange.headers.get(b"accept-encoding")
        if accepted is None or len(body) < self.settings.compress_bytes_min:
            return None
        return choose(accepted)

    def compress(self, body: bytes, coding: str, done: Callable[[bytes | None], None]) -> None:
        """Compress a body, at once when it is small, and hand it to `done`."""
        if len(body) <= INLINE_CODING_BYTES_MAX:
            done(encode_body(body, coding))
            return

        def finish(value: object, error: BaseException | None) -> None:
            self.memory.used -= len(body)
            done(value if isinstance(value, bytes) else None)

        self.memory.used += len(body)
        self._runtime.submit(CODING_LANE, lambda: encode_body(body, coding), finish)

    def finished(self, exchange: Exchange, status: int) -> None:
        """An exchange has come to its end; status 0: the client went away first."""
        if exchange.key is not None:
            self.gate.release(exchange)
        if exchange.route is not None:
            taken_ns = self._now_ns() - exchange.started_ns
            self.metrics.request_done(exchange.route, status, taken_ns)


def _unserved(exchange: Exchange) -> None:
    raise NotFound(f"no route {exchange.path}", fix="see /openapi.json for all of them")


def _not_ready() -> NotReady:
    return NotReady("recovery is running", fix="retry", detail={"reason": "recovering"})


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the server is stopping", fix="retry after the restart")
