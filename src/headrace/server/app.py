"""What happens to a request between a transport and its handler, and to its answer on the way back.

Only this file decides, for every transport alike: which route a request takes, whether it is let in
(`access.py` says), whether it has to wait for recovery, and how an answer is compressed, stamped
and counted.  Transports parse and write; handlers answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol

from headrace.core.errors import HeadraceError, OutOfResources, ShuttingDown
from headrace.core.runtime import Done, Runtime, Thunk
from headrace.core.settings import Settings
from headrace.engine.topics.loading import LoadingTopics
from headrace.metrics.requests import Metrics
from headrace.server.access import AccessControl
from headrace.server.admitted_heads import AdmittedHead
from headrace.server.compression import choose, decode_body, encode_body
from headrace.server.freed_memory import FreedMemory, keep_freed_blocks
from headrace.server.loop_shares import LoopShares
from headrace.server.memory_reserve import MemoryReserve
from headrace.server.refusals import no_memory
from headrace.server.turn import Turn
from headrace.server.waiting import WaitingRequests
from headrace.wire.exchange import Exchange, Headers
from headrace.wire.request_memory import Budget
from headrace.wire.response_memory import ResponseMemory
from headrace.wire.routes import Route, RouteTable

log = logging.getLogger("headrace.server")

TICK_MS = 1_000
SILENT_MS = 60_000  # between two lines of the log about a lack of memory
VISIT_NS_MAX = 1_000_000  # at a time, however many connections there are
# Larger bodies are compressed and decompressed in a thread, so that the loop does not wait.
INLINE_CODING_BYTES_MAX = 32 * 1024
CODING_LANE = "coding"
State = Literal["starting", "serving", "draining"]


class TransportConnection(Protocol):
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


class RequestTarget(NamedTuple):
    """A request line as it was understood; `route` is None when nothing serves it."""

    method: str
    path: str
    query: str
    route: Route | None = None
    params: Sequence[str] = ()


class App:
    """All routes behind one port."""

    def __init__(
        self,
        settings: Settings,
        routes: RouteTable,
        access: AccessControl,
        runtime: Runtime,
        metrics: Metrics,
        memory: ResponseMemory | None = None,
        loading: LoadingTopics | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.memory = memory or ResponseMemory(settings.response_memory_bytes_max)
        self.settings = settings
        self.routes = routes
        self.access = access
        for dialect in routes.dialects:
            dialect.adds_headers = access.adds_headers or bool(dialect.headers)
        self.metrics = metrics
        self.clock = runtime.clock
        self.now_ns = runtime.clock.monotonic_ns
        self.state: State = "starting"
        self.budget = budget or Budget(settings.request_memory_bytes_max)
        self.shares = LoopShares(runtime)
        self.passing_bytes = 0  # of bodies that were unpacked, or taken in pieces
        self.connections: set[TransportConnection] = set()
        self.pending_bytes = 0  # of answers not yet taken, as of the last tick
        self._runtime = runtime
        self._reserve = MemoryReserve()
        self._freed = FreedMemory()
        self._silent_to_ms = 0  # when a lack of memory may be logged again
        self._ticking = False
        self.turn = Turn(runtime, settings.turn_requests_max)
        self.waiting = WaitingRequests(
            settings, self.budget, LoadingTopics() if loading is None else loading, self._run
        )

    # The life of the server

    def start(self) -> None:
        """Begin to tick: time-outs of connections, and what dialects do by themselves."""
        keep_freed_blocks()
        self._ticking = True
        self._tick()

    def go_live(self) -> None:
        """Serve, recovery being done, and go on with the requests that waited for it.

        Those that need topics of class `memory` wait on until these are back, too.
        """
        self.state = "serving"
        self.waiting.go_live()

    def drain(self) -> None:
        """Tell every dialect, take nothing new, and let what is in progress end."""
        for dialect in self.routes.dialects:
            try:
                dialect.drain()
            except Exception:  # the others have to end, too
                log.exception("the dialect %s failed to drain", dialect.name)
        self.state = "draining"
        for exchange in self.waiting.all():
            exchange.fail(_shutting_down())
        for connection in list(self.connections):
            connection.drain()

    def stop(self) -> None:
        """Tick no more."""
        self._ticking = False

    def ran_out_of_memory(self) -> None:
        """Make room for answers: something had to be given up for want of memory."""
        now_ms = self.now_ms()
        if self._reserve.release() and now_ms >= self._silent_to_ms:
            self._silent_to_ms = now_ms + SILENT_MS
            log.error("out of memory: requests are refused that need more than there is")

    def _tick(self) -> None:
        if not self._ticking:
            return
        budget = self.budget
        self._freed.look(budget.taken + self.passing_bytes, budget.used)
        self._reserve.restore()
        now_ms = self.now_ms()
        self.waiting.refuse_late(now_ms)
        for dialect in self.routes.dialects:
            try:
                dialect.tick(now_ms)
            except Exception:  # connections have their time-outs all the same
                log.exception("the dialect %s failed at its tick", dialect.name)
        self._visit(iter(list(self.connections)), 0)

    def _visit(self, left: Iterator[TransportConnection], pending: int) -> None:
        """Tick connections for at most `VISIT_NS_MAX`, and the rest in later turns of the loop."""
        now_ns = self.now_ns()
        stop_ns = now_ns + VISIT_NS_MAX
        for connection in left:
            pending += connection.pending_bytes
            try:
                connection.tick(now_ns // 1_000_000)
            except Exception:  # the others have their time-outs, too
                log.exception("a connection failed at its tick")
            if self.now_ns() > stop_ns:
                self._runtime.later(0, partial(self._visit, left, pending))
                return
        self.pending_bytes = pending
        self._runtime.later(TICK_MS, self._tick)

    def soon(self, thunk: Thunk) -> None:
        """Call when this turn of the loop ends."""
        self._runtime.soon(thunk)

    def submit(self, lane: str, work: Callable[[], object], done: Done) -> None:
        """Do work that may wait in a lane, then call `done` with its result or its error."""
        self._runtime.submit(lane, work, done)

    @property
    def parked(self) -> int:
        """Requests that wait for recovery."""
        return len(self.waiting)

    def now_ms(self) -> int:
        return self.clock.monotonic_ns() // 1_000_000

    # A request

    def target_of(self, method: bytes, url: bytes) -> RequestTarget:
        """What a request line asks for."""
        path, _, query = url.decode("ascii").partition("?")
        verb = method.decode("ascii")
        try:
            route, params = self.routes.match(verb, path)
        except HeadraceError:
            return RequestTarget(verb, path, query)
        return RequestTarget(verb, path, query, route, params)

    def find_route(self, exchange: Exchange) -> Route | None:
        """Give an exchange its route; None when there is none, which `handle` then answers."""
        try:
            route, params = self.routes.match(exchange.method, exchange.path)
        except HeadraceError:
            return None
        exchange.route = route
        exchange.params = params
        return route

    def check_sender(self, exchange: Exchange) -> None:
        """Raise what `handle` would, of all that can be known before the body is there.

        Called before a large body is taken, so that only requests that are let in use the memory
        that all bodies share.
        """
        if exchange.method == "OPTIONS":
            return  # a browser's question is answered when it is whole
        route = exchange.route
        try:
            self.access.admit(exchange, route or self.routes.unrouted(exchange.path))
            if route is None:
                self.routes.match(exchange.method, exchange.path)
            else:
                route.dialect.check_head(exchange)
        finally:
            self.access.release(exchange)
            exchange.key = None

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        try:
            route = exchange.route or self.find_route(exchange)
            if route is None:
                self._refuse_unrouted(exchange)
                return
            exchange.on_answered = self.finished
            self.access.admit(exchange, route)
            if self.state == "draining" and not route.unready:
                raise _shutting_down()
            if not self.waiting.none and self.waiting.wanted_by(exchange, route):
                self.waiting.park(exchange, self.now_ms())
            elif b"content-encoding" in exchange.headers and not exchange.streamed:
                self._decode(exchange)
            else:
                self._call_handler(route, exchange)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
            exchange.fail(error)

    def handle_admitted(self, exchange: Exchange, head: AdmittedHead) -> None:
        """Answer a request of which its head has settled all but the key."""
        if self.state != "serving" or not self.waiting.none:
            self.handle(exchange)
            return
        exchange.on_answered = self.finished
        if head.needs_key:
            try:
                self.access.admit(exchange, head.route)
            except Exception as error:  # noqa: BLE001 - as in `handle`
                exchange.fail(error)
                return
        self.turn.add(head.group, exchange)

    def _run(self, exchange: Exchange) -> None:
        """Call the handler of a request that has been let in."""
        assert exchange.route is not None
        try:
            if b"content-encoding" in exchange.headers and not exchange.streamed:
                self._decode(exchange)
            else:
                self._call_handler(exchange.route, exchange)
        except Exception as error:  # noqa: BLE001 - as in `handle`
            exchange.fail(error)

    def _call_handler(self, route: Route, exchange: Exchange) -> None:
        """Call the handler, or have it called at the end of the turn with the others."""
        if route.turn_handler is not None:
            self.turn.add(self.turn.group_of(route), exchange)
        else:
            route.handler(exchange)

    def _refuse_unrouted(self, exchange: Exchange) -> None:
        """Refuse a request that nothing serves, or answer a browser's question about one."""
        exchange.route = self.routes.unrouted(exchange.path)
        exchange.on_answered = self.finished
        self.access.admit(exchange, exchange.route)
        if exchange.answered:
            return
        self.routes.match(exchange.method, exchange.path)  # says what is wrong

    def _decode(self, exchange: Exchange) -> None:
        """Decompress the body, then call the handler."""
        encoding = exchange.header(b"content-encoding").strip().lower()
        body, bytes_max, route = exchange.body, self.settings.body_bytes_max, exchange.route
        assert route is not None
        if route.dialect.body_bytes_max is not None:
            bytes_max = min(bytes_max, route.dialect.body_bytes_max)
        route.dialect.check_head(exchange)

        def decoded(value: object, error: BaseException | None) -> None:
            # One that failed may have become as large as it may be before.
            self.passing_bytes += len(value) if isinstance(value, bytes) else bytes_max
            if exchange.answered:
                return  # the client went away
            if error is not None:
                short = isinstance(error, MemoryError)
                exchange.fail(OutOfResources.told("nothing") if short else error)
                return
            try:
                assert isinstance(value, bytes)
                self._take_decoded(exchange, value)
                self._call_handler(route, exchange)
            except Exception as failure:  # noqa: BLE001 - as in `handle`
                exchange.fail(failure)

        if len(body) <= INLINE_CODING_BYTES_MAX // 8:
            decoded(decode_body(body, encoding, bytes_max), None)
            return
        if not self.budget.take(waiting := len(body) - exchange.budgeted):
            raise no_memory(self.budget.limit)

        def done(value: object, error: BaseException | None) -> None:
            self.budget.give(waiting)
            decoded(value, error)

        try:
            self._runtime.submit(CODING_LANE, lambda: decode_body(body, encoding, bytes_max), done)
        except MemoryError:
            self.budget.give(waiting)
            raise OutOfResources.told("nothing") from None

    def _take_decoded(self, exchange: Exchange, body: bytes) -> None:
        """Put a decompressed body in the place of what was sent, if there is memory for it."""
        exchange.let_go_body()
        if len(body) > INLINE_CODING_BYTES_MAX:
            if not self.budget.take(len(body)):
                raise no_memory(self.budget.limit)
            exchange.budgeted = len(body)
            self.passing_bytes -= len(body)  # `taken` tells of it
        exchange.body = body

    # Its answer

    def prepare(self, exchange: Exchange, headers: Headers) -> Headers:
        """The headers of an answer, with those that every answer of its dialect gets.

        Transports call it for dialects that add any (`Dialect.adds_headers`).
        """
        assert exchange.route is not None
        dialect = exchange.route.dialect
        return (*headers, *dialect.headers, *self.access.response_headers(exchange, dialect.cors))

    def coding(self, exchange: Exchange, body: bytes) -> str | None:
        """The coding in which a body is to be sent; None for as it is."""
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

        self._runtime.submit(CODING_LANE, lambda: encode_body(body, coding), finish)
        self.memory.used += len(body)

    def finished(self, exchange: Exchange, status: int) -> None:
        """Give back the slot of a request that has ended, and count it.

        Status 0 means that the client went away before there was an answer.
        """
        if exchange.key is not None:
            self.access.release(exchange)
        if exchange.route is not None:
            taken_ns = self.now_ns() - exchange.started_ns
            if exchange.long_lived:
                self.metrics.stream_done(exchange.route, status)
            else:
                self.metrics.request_done(exchange.route, status, taken_ns)


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the server is stopping", fix="retry after the restart")
