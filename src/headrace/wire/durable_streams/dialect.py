"""Durable Streams as a dialect: its routes, error form, keys, web pages, and what it keeps going.

Only this file puts its parts together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from headrace.core.errors import HeadraceError, InvalidRequest, NotFound
from headrace.engine.streams.spec import Position
from headrace.wire.dialect import Cors, Dialect, Requirement
from headrace.wire.durable_streams.append import AppendApi
from headrace.wire.durable_streams.create import CreateApi
from headrace.wire.durable_streams.errors import failure_reply
from headrace.wire.durable_streams.look import LookApi
from headrace.wire.durable_streams.paths import ROOT, TEMPLATE, name_at, stream_name
from headrace.wire.durable_streams.reads import read_routes
from headrace.wire.durable_streams.request_headers import EXPECTED_OFFSET
from headrace.wire.durable_streams.subscriptions.routes import (
    CONTROL,
    control_failure,
    subscription_routes,
)
from headrace.wire.durable_streams.subscriptions.service import Subscriptions
from headrace.wire.exchange import Exchange, Headers, Reply
from headrace.wire.outbound import OutboundPosts
from headrace.wire.routes import DELETE, READ, WRITE, PathRest, Route
from headrace.wire.server_context import ServerContext

NAME: Final = "durable_streams"
_SCOPES: Final = {"GET": READ, "HEAD": READ, "DELETE": DELETE}


class Part(Protocol):
    """What this dialect alone keeps going."""

    def tick(self, now_ms: int) -> None: ...
    def drain(self) -> None: ...


class DurableStreamsDialect(Dialect):
    """The protocol, whose parts `durable_streams_dialect` makes."""

    name = NAME
    paths = (ROOT.rstrip("/"),)
    # A page of another origin may use what an allowed request brings, and guesses no type.
    headers: Headers = (
        (b"x-content-type-options", b"nosniff"),
        (b"cross-origin-resource-policy", b"cross-origin"),
    )
    cors = Cors(
        methods=b"GET, HEAD, POST, PUT, DELETE, OPTIONS",
        request_headers=b"Accept, Authorization, Content-Encoding, Content-Type, If-Match,"
        b" If-None-Match, Producer-Epoch, Producer-Id, Producer-Seq, Stream-Closed,"
        b" Stream-Expected-Offset, Stream-Expires-At, Stream-Fork-Offset, Stream-Fork-Sub-Offset,"
        b" Stream-Forked-From, Stream-Retention-Age, Stream-Retention-Bytes, Stream-Seq,"
        b" Stream-TTL",
        exposed_headers=b"ETag, Location, Retry-After, Producer-Epoch, Producer-Expected-Seq,"
        b" Producer-Received-Seq, Producer-Seq, Stream-Closed, Stream-Cursor, Stream-Expires-At,"
        b" Stream-Next-Offset, Stream-Retention-Age, Stream-Retention-Bytes,"
        b" Stream-SSE-Data-Encoding, Stream-TTL, Stream-Up-To-Date",
    )

    def __init__(
        self,
        context: ServerContext,
        routes: Sequence[Route] = (),
        parts: Sequence[Part] = (),
    ) -> None:
        self._append = AppendApi(context, NAME)
        self._create = CreateApi(context)
        self._look = LookApi(context)
        self._more = routes
        self._parts = parts

    def routes(self) -> Sequence[Route]:
        append, look = self._append, self._look
        write = frozenset({WRITE})
        routes = [
            Route("PUT", TEMPLATE, self._create.create, write, "Create a stream"),
            Route(
                "POST", TEMPLATE, append.append, write,
                "Append to a stream, or close it", turn_handler=append.append_turn,
            ),
            Route("HEAD", TEMPLATE, look.head, frozenset({READ}), "What a stream is"),
            Route("DELETE", TEMPLATE, look.delete, frozenset({DELETE}), "Delete a stream"),
            *self._more,
        ]  # fmt: skip
        # Also of the root: a page may ask there what holds for all streams.
        templates = dict.fromkeys([ROOT, ROOT[:-1], *(route.template for route in routes)])
        return [*routes, *(self._preflight_route(template) for template in templates)]

    def _preflight_route(self, template: str) -> Route:
        # Whether a page is granted anything, the server adds; a browser asks without a key.
        return Route(
            "OPTIONS", template, self._preflight, summary="What a web page may ask for",
            own_auth=True, name_param=False, unready=True,
        )  # fmt: skip

    def _preflight(self, exchange: Exchange) -> None:
        exchange.answer(204, b"", b"", self.cors.preflight())

    def failure(self, error: HeadraceError, exchange: Exchange) -> Reply:
        if exchange.path == CONTROL or exchange.path.startswith(CONTROL + "/"):
            return control_failure(error)

        def tail() -> Position | None:
            name = self.engine_name(exchange)
            return None if name is None else self._append.tail(name)

        expected = EXPECTED_OFFSET.lower().encode() in exchange.headers
        return failure_reply(error, tail, expected=expected)

    def check_head(self, exchange: Exchange) -> None:
        route = exchange.route
        if route is None or route.template != TEMPLATE:
            return
        if route.method == "POST":
            self._append.check_head(exchange)
        elif route.method == "PUT":
            self._create.check_head(exchange)

    def engine_name(self, exchange: Exchange) -> str | None:
        route = exchange.route
        if route is None or not route.name_param or not exchange.params:
            return None
        (path,) = exchange.params
        return stream_name(path) if isinstance(path, PathRest) else None

    def required_by_unknown(self, method: str, path: str) -> Requirement:
        scopes = frozenset({_SCOPES.get(method, WRITE)})
        try:
            return Requirement(scopes, name_at(path))
        except (InvalidRequest, NotFound):
            return Requirement(scopes)

    def tick(self, now_ms: int) -> None:
        for part in self._parts:
            part.tick(now_ms)

    def drain(self) -> None:
        for part in self._parts:
            part.drain()


def durable_streams_dialect(context: ServerContext, posts: OutboundPosts) -> DurableStreamsDialect:
    """Durable Streams on one server, which makes the POSTs of webhooks with `posts`."""
    subscriptions = Subscriptions(context, posts)
    routes = [*read_routes(context), *subscription_routes(context, subscriptions)]
    return DurableStreamsDialect(context, routes, [subscriptions])
