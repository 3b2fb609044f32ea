"""The S2 API as a dialect: its routes, error form, keys, web pages, and what it keeps going.

Only this file puts its parts together.  Every row decides by itself who may call it (`access.py`),
and is called once the catalog is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.metrics.requests import UNROUTED
from headrace.wire.dialect import Cors, Dialect
from headrace.wire.exchange import JSON, Exchange, Handler, Headers, HeldKey, Reply, TurnHandler
from headrace.wire.failures import error_headers
from headrace.wire.routes import Route
from headrace.wire.s2.access import Access
from headrace.wire.s2.append_session import AppendSessions
from headrace.wire.s2.basins import basin_routes
from headrace.wire.s2.catalog.catalog import Catalog
from headrace.wire.s2.data_requests import DataRequests
from headrace.wire.s2.data_routes import data_routes
from headrace.wire.s2.errors import S2Refusal, bad_path, code_of, failure_body, shown_to
from headrace.wire.s2.holders import hold_s2
from headrace.wire.s2.locations import location_routes
from headrace.wire.s2.metrics_api import MetricsApi, metric_routes
from headrace.wire.s2.names import topic_name
from headrace.wire.s2.requests import BASIN_HEADER, BODY_BYTES_MAX
from headrace.wire.s2.streams import ONE as ONE_STREAM
from headrace.wire.s2.streams import stream_routes
from headrace.wire.s2.tokens import token_routes
from headrace.wire.s2.usage import Usage
from headrace.wire.server_context import ServerContext

NAME: Final = "s2"
# Paths that programs made for this API ask whether a server is there.
PROBES: Final = ("/health", "/ping")


class S2Dialect(Dialect):
    """The S2 API, whose parts `s2_dialect` makes."""

    name = NAME
    paths = ("/v1/basins", "/v1/streams", "/v1/access-tokens", "/v1/metrics", "/v1/locations")
    body_bytes_max = BODY_BYTES_MAX
    cors = Cors(
        methods=b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
        request_headers=b"Accept, Accept-Encoding, Authorization, Content-Encoding, Content-Type,"
        b" Last-Event-ID, S2-Basin, S2-Encryption-Key, S2-Format, S2-Request-Token,"
        b" S2-Stream-Config, User-Agent",
        exposed_headers=b"Retry-After, Retry-After-Ms, S2-Provision-Result",
    )

    def __init__(
        self,
        catalog: Catalog,
        access: Access,
        metrics: MetricsApi,
        sessions: AppendSessions,
        routes: Sequence[Route] = (),
    ) -> None:
        self._catalog = catalog
        self._access = access
        self._sessions = sessions
        self._metrics = metrics
        self._routes = [self._ready(route._replace(own_auth=True)) for route in routes]

    def routes(self) -> Sequence[Route]:
        probes = [
            Route("GET", path, _alive, summary="Whether the server is there", public=True)
            for path in PROBES
        ]
        return [*self._routes, *probes]

    def failure(self, error: HeadraceError, exchange: Exchange) -> Reply:
        route = exchange.route
        if isinstance(error, InvalidRequest) and route is not None and route.template == UNROUTED:
            error = bad_path(str(error))
        status, body = failure_body(shown_to(error, partial(self._access.shown, exchange)))
        final = isinstance(error, S2Refusal) or code_of(error) == "quota_exhausted"
        headers: Headers = () if final else error_headers(error)
        return status, body, JSON if body else b"", headers

    def engine_name(self, exchange: Exchange) -> str | None:
        route = exchange.route
        if route is None or not route.template.startswith(ONE_STREAM):
            return None
        basin = exchange.headers.get(BASIN_HEADER, b"").decode("latin-1")
        return topic_name(basin, exchange.params[0])

    def check_head(self, exchange: Exchange) -> None:
        # Who may not call at all has nothing unpacked.  Tokens are known once they are loaded.
        if self._catalog.loaded or not self._access.shows_token(exchange):
            self._access.caller(exchange)

    def own_key(self, exchange: Exchange) -> HeldKey | None:
        return self._access.own_key(exchange)

    def tick(self, now_ms: int) -> None:
        self._catalog.tick(now_ms)
        self._metrics.storage.tick()
        self._sessions.tick(now_ms)

    def _ready(self, route: Route) -> Route:
        """A row whose handlers are called once the catalog is loaded."""
        turn = route.turn_handler
        return route._replace(
            handler=partial(self._when_ready, route.handler),
            turn_handler=None if turn is None else partial(self._turn_when_ready, turn),
        )

    def _when_ready(self, handler: Handler, exchange: Exchange) -> None:
        if self._catalog.loaded:
            handler(exchange)
        else:
            self._catalog.when_ready(partial(_go_on, [exchange], handler))

    def _turn_when_ready(self, handler: TurnHandler, exchanges: Sequence[Exchange]) -> None:
        if self._catalog.loaded:
            handler(exchanges)
            return

        def go_on(error: BaseException | None) -> None:
            _go_on(exchanges, lambda exchange: handler([exchange]), error)

        self._catalog.when_ready(go_on)


def _alive(exchange: Exchange) -> None:
    exchange.answer(200, b"OK", b"text/plain; charset=utf-8")


def _go_on(
    exchanges: Sequence[Exchange], handler: Callable[[Exchange], None], error: BaseException | None
) -> None:
    """Handle requests that have waited, or refuse them all."""
    for exchange in exchanges:
        if exchange.answered:
            continue  # the client went away
        try:
            if error is not None:
                raise error
            handler(exchange)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the client hears of it
            exchange.fail(failure)


def s2_dialect(context: ServerContext, *, has_keys: bool) -> S2Dialect:
    """The S2 API on one server; `has_keys`: who shows no token has to show a native key."""
    usage = Usage(context.engine.clock)
    catalog = Catalog(context.engine, usage)
    context.parts["s2"] = lambda: catalog.problem
    access = Access(catalog.tokens, has_keys, catalog.count_op)
    metrics = MetricsApi(context.engine, catalog, access)
    data = DataRequests(context, catalog, access)
    sessions = AppendSessions(data)
    hold_s2(context, catalog, sessions)
    routes = [
        *basin_routes(catalog, access),
        *stream_routes(catalog, access),
        *token_routes(context.engine, catalog, access),
        *location_routes(catalog, access),
        *metric_routes(metrics),
        *data_routes(data, sessions),
    ]
    return S2Dialect(catalog, access, metrics, sessions, routes)
