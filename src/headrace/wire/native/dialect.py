"""The native API as a dialect: its routes, error form, keys, CORS, and the life of its streams.

Only this file puts the parts of the native API together.  Paths that no dialect owns are its own
as well, so that a path that nothing serves is refused in its form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import unquote

from headrace.api.records import AppendBody
from headrace.core.errors import HeadraceError
from headrace.core.limits import heartbeat_ms_min
from headrace.wire.bodies import check_json_type
from headrace.wire.dialect import Cors, Dialect, Requirement
from headrace.wire.exchange import ARROW_STREAM, Exchange, Reply
from headrace.wire.native.docs.notes import NATIVE_NOTES
from headrace.wire.native.live_api import LiveApi
from headrace.wire.native.pipelines import PipelinesApi
from headrace.wire.native.probes import Probes
from headrace.wire.native.queues import queue_routes
from headrace.wire.native.routers import RoutersApi
from headrace.wire.native.routes import topic_routes
from headrace.wire.native.scrub import ScrubApi
from headrace.wire.native.segments import SegmentsApi
from headrace.wire.native.vocabulary import vocabulary_of
from headrace.wire.routes import ADMIN, DELETE, READ, WRITE, Route
from headrace.wire.server_context import ServerContext

# How often sessions that are not used any more are looked for.
SESSIONS_TICK_MS: Final = 10_000
_ROUTER_SCOPES: Final = {"GET": READ, "HEAD": READ, "DELETE": DELETE}


class NativeDialect(Dialect):
    """The native API, whose parts `native_dialect` makes.

    >>> NativeDialect().required_by_unknown("POST", "/v0/topics/orders/unknown")
    Requirement(scopes=frozenset({'write'}), name='orders')
    """

    name = "native"
    paths = ("/",)
    cors = Cors(
        request_headers=b"Accept, Authorization, Content-Encoding, Content-Type, Idempotency-Key,"
        b" Last-Event-ID, Producer-Epoch, Producer-Id, Producer-Seq",
        exposed_headers=b"ETag, Location, Retry-After, Server-Timing",
    )
    notes = NATIVE_NOTES

    def __init__(
        self,
        routes: Sequence[Route] = (),
        live: LiveApi | None = None,
    ) -> None:
        self._routes = routes
        self._live = live
        self._ticked_ms = 0

    def routes(self) -> Sequence[Route]:
        return self._routes

    def failure(self, error: HeadraceError, exchange: Exchange) -> Reply:
        return vocabulary_of(exchange.path).failure(error)

    def check_head(self, exchange: Exchange) -> None:
        route = exchange.route
        if route is None or route.request is None:
            return
        arrow = exchange.headers.get(b"content-type", b"").startswith(ARROW_STREAM)
        if not (arrow and route.request is AppendBody):
            check_json_type(exchange)

    def required_by_unknown(self, method: str, path: str) -> Requirement:
        """What the call that may be meant would need; of several, what the strictest does."""
        match path.split("/"):
            case ["", "v0", "topics" | "boxes", name, _, *_]:
                return Requirement(frozenset((WRITE,)), unquote(name))
            case ["", "v0", "topics" | "boxes", name]:
                return Requirement(frozenset((ADMIN,)), unquote(name))
            case ["", "v0", "topics" | "boxes"]:
                return Requirement(frozenset((ADMIN,)))
            case ["", "v0", "routers", *_]:
                return Requirement(frozenset((_ROUTER_SCOPES.get(method, ADMIN),)))
        return Requirement()

    def tick(self, now_ms: int) -> None:
        if self._live is not None and now_ms - self._ticked_ms >= SESSIONS_TICK_MS:
            self._ticked_ms = now_ms
            self._live.tick()


def native_dialect(
    context: ServerContext,
    *,
    state: Callable[[], str],
    shortest_heartbeat_ms: int = heartbeat_ms_min,
) -> NativeDialect:
    """The native API of one server.

    `state` tells the probes whether the server is `starting`, `serving` or `draining`;
    `shortest_heartbeat_ms` is for tests that cannot wait a second.
    """
    engine, settings, metrics = context.engine, context.settings, context.metrics
    live = LiveApi(context, shortest_heartbeat_ms=shortest_heartbeat_ms)
    routes = [
        *topic_routes(context),
        *queue_routes(engine, metrics, context.memory),
        *RoutersApi(engine, settings).routes(),
        *PipelinesApi(engine, settings, metrics).routes(),
        *SegmentsApi(engine, settings).routes(),
        *ScrubApi(engine, settings).routes(),
        *live.routes(),
        *Probes(engine, metrics, state, context.problems).routes(),
    ]
    return NativeDialect(routes, live)
