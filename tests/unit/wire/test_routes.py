"""The route table: which row a path finds, what its parameters are, and whose a path is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.core.errors import InvalidRequest, MethodNotAllowed, NotFound
from headrace.wire.dialect import Dialect
from headrace.wire.exchange import Exchange
from headrace.wire.routes import Handling, PathRest, Route, RouteTable, takes_stream


class Named(Dialect):
    """A dialect that is only a name, paths and rows."""

    def __init__(self, name: str, paths: Sequence[str], routes: Sequence[Route]) -> None:
        self.name = name
        self.paths = paths
        self._routes = routes

    def routes(self) -> Sequence[Route]:
        return self._routes


def unused(_: Exchange) -> None:
    raise AssertionError("no handler is called")


def row(method: str, template: str) -> Route:
    return Route(method, template, unused)


STREAMS = Named(
    "streams",
    ["/v1/stream"],
    [
        row("GET", "/v1/stream/{path*}"),
        row("PATCH", "/v1/stream/{path*}"),
        row("GET", "/v1/stream/__ds/jwks.json"),
        row("PUT", "/v1/stream/__ds/subscriptions/{id}"),
        row("DELETE", "/v1/stream/__ds/subscriptions/{id}/streams/{path}"),
        row("GET", "/v1/stream/__ds/{path*}"),
    ],
)
BASINS = Named(
    "basins",
    ["/v1/", "/v1/streams"],
    [
        row("GET", "/v1/streams/{stream}/records"),
        row("PATCH", "/v1/basins/{basin}"),
        row("HEAD", "/v1/basins/{basin}"),
        row("GET", "/v1/basins/{basin}"),
        row("GET", "/ping"),
    ],
)
REST = Named("rest", ["/"], [row("GET", "/v0/topics/{topic}")])
TABLE = RouteTable([REST, STREAMS, BASINS])


def found(method: str, path: str) -> tuple[str, tuple[str, ...]]:
    route, params = TABLE.match(method, path)
    return route.template, tuple(params)


@pytest.mark.parametrize(
    ("path", "template", "params"),
    [
        ("/v1/stream/a", "/v1/stream/{path*}", ("a",)),
        ("/v1/stream/a/b/c", "/v1/stream/{path*}", ("a/b/c",)),
        ("/v1/stream/a/", "/v1/stream/{path*}", ("a/",)),
        ("/v1/stream//a", "/v1/stream/{path*}", ("/a",)),
        ("/v1/stream/__ds/jwks.json", "/v1/stream/__ds/jwks.json", ()),
        ("/v1/stream/__ds/else/where", "/v1/stream/__ds/{path*}", ("else/where",)),
        ("/v1/stream/__ds", "/v1/stream/{path*}", ("__ds",)),
        ("/v1/streams/a%2Fb/records", "/v1/streams/{stream}/records", ("a/b",)),
    ],
)
def test_a_path_finds_the_most_particular_row(
    path: str, template: str, params: tuple[str, ...]
) -> None:
    assert found("GET", path) == (template, params)
    assert found("GET", path) == (template, params)  # as it is remembered


@pytest.mark.parametrize("path", ["/v1/stream", "/v1/stream/", "/v1/streams", "/v0/topics/"])
def test_a_parameter_is_never_empty(path: str) -> None:
    with pytest.raises(NotFound):
        TABLE.match("GET", path)


def test_the_rest_keeps_its_segments_apart() -> None:
    (joined,) = TABLE.match("GET", "/v1/stream/a/b%2Fc/%E2%82%AC//").params
    assert isinstance(joined, PathRest)
    assert joined == "a/b/c/€//"
    assert joined.segments == ("a", "b/c", "€", "", "")
    assert joined.raw == "a/b%2Fc/%E2%82%AC//"
    (other,) = TABLE.match("GET", "/v1/stream/a/b/c/%E2%82%AC//").params
    assert isinstance(other, PathRest)
    assert other == joined
    assert other.segments != joined.segments


def test_a_rest_that_does_not_decode_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="UTF-8"):
        TABLE.match("GET", "/v1/stream/a/%ff")


def test_methods_of_a_path() -> None:
    assert found("PATCH", "/v1/stream/a/b") == ("/v1/stream/{path*}", ("a/b",))
    assert found("PATCH", "/v1/basins/b") == ("/v1/basins/{basin}", ("b",))
    with pytest.raises(MethodNotAllowed) as caught:
        TABLE.match("DELETE", "/v1/stream/a")
    assert caught.value.detail == {"allow": ["GET", "PATCH", "HEAD"]}


def test_head_is_get_unless_it_has_a_row_of_its_own() -> None:
    assert TABLE.match("HEAD", "/v1/stream/a").route.method == "GET"
    assert TABLE.match("HEAD", "/v1/basins/b").route.method == "HEAD"
    with pytest.raises(MethodNotAllowed) as caught:
        TABLE.match("PUT", "/v1/basins/b")
    assert caught.value.detail == {"allow": ["GET", "HEAD", "PATCH"]}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/stream/a", "streams"),  # by another method
        ("/ping", "basins"),  # the same, at a path that it does not own otherwise
        ("/v1/stream", "streams"),
        ("/v1/streams", "basins"),  # the longer prefix decides
        ("/v1/metrics/x", "basins"),
        ("/v1", "rest"),
        ("/nowhere", "rest"),
        ("", "rest"),  # of what is not even HTTP: the first of all
        ("/v0/topics/%ff", "rest"),
    ],
)
def test_what_nothing_serves_belongs_to_a_dialect(path: str, name: str) -> None:
    route = TABLE.unrouted(path)
    assert route.dialect.name == name
    assert route is TABLE.unrouted(path)
    assert not route.scopes


def test_a_row_knows_its_dialect_once_it_is_in_a_table() -> None:
    assert {route.dialect for route in TABLE.routes} == {REST, STREAMS, BASINS}
    with pytest.raises(AssertionError, match="not served"):
        TABLE.add(row("GET", "/x"), Named("stranger", [], []))
    with pytest.raises(AssertionError):
        TABLE.add(row("GET", "/v1/stream/{other*}"), STREAMS)


def test_a_request_can_decide_how_it_is_handled() -> None:
    def handling(exchange: Exchange) -> Handling:
        live = exchange.query == "live=sse"
        return Handling(streamed=b"s2s" in exchange.headers, long_lived=live)

    def asked(query: str, headers: dict[bytes, bytes], **more: object) -> Exchange:
        exchange = Exchange("GET", "/x", query, headers, 0)
        exchange.route = row("GET", "/x")._replace(**more)  # type: ignore[arg-type]
        return exchange

    exchange = asked("live=sse", {b"s2s": b""}, handling=handling)
    assert takes_stream(exchange)
    assert exchange.long_lived
    exchange = asked("", {}, handling=handling)
    assert not takes_stream(exchange)
    assert not exchange.long_lived
    assert takes_stream(asked("", {}, streamed=True))
    assert not takes_stream(Exchange("GET", "/x", "", {}, 0))
