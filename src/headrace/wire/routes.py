"""The route table: which request goes to which handler, and what it takes to be let in.

Every endpoint of every dialect is one row.  The same rows are what authorises, routes, counts and
documents a request, so that nothing can be served that the table does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple, NoReturn
from urllib.parse import unquote_to_bytes

from headrace.core.errors import InvalidRequest, MethodNotAllowed, NotFound
from headrace.core.lru import FifoMap
from headrace.metrics.requests import UNROUTED
from headrace.wire.dialect import Dialect
from headrace.wire.exchange import Exchange, Handler, TurnHandler

READ: Final = "read"
WRITE: Final = "write"
DELETE: Final = "delete"
ADMIN: Final = "admin"

_READ_ONLY: Final = frozenset({READ})
# Of a row that is not in a table yet.
_NO_DIALECT: Final = Dialect()

# Paths whose route is remembered.
CACHED_MATCHES_MAX = 16_384
CACHED_PATH_BYTES_MAX = 512


class Handling(NamedTuple):
    """How one request is handled, where its route alone does not tell."""

    streamed: bool = False  # as `Route.streamed`
    long_lived: bool = False  # as `Route.long_lived`


class Route(NamedTuple):
    """One endpoint.

    `template` has `{name}` for a segment that may be anything but empty, and may end in `{name*}`
    for the rest of the path (`PathRest`), which is not empty either.
    """

    method: str
    template: str
    handler: Handler
    scopes: frozenset[str] = frozenset()
    summary: str = ""
    request: object = None  # the types of the bodies, for the documentation
    response: object = None
    query: Sequence[str] = ()  # names of query parameters, for the documentation
    public: bool = False  # a probe: no key is asked for unless `probe_auth` is set
    own_auth: bool = False  # the handler itself decides whether the caller may
    token_query: bool = False  # `?token=` stands for the Authorization header
    name_param: bool = True  # the first parameter is a name that keys with prefixes must allow
    long_lived: bool = False  # holds no in-flight slot
    streamed: bool = False  # the handler is called before the body has arrived
    # Decides the last two for each request, by what its head says (content type, Accept, query)
    # other than Content-Length; it leaves refusals to the handler.  None: they hold for all.
    handling: Callable[[Exchange], Handling] | None = None
    # Takes the requests that came in one turn of the loop together, in place of `handler`.
    turn_handler: TurnHandler | None = None
    unready: bool = False  # is answered during recovery and while draining
    hidden: bool = False  # not in the documentation
    dialect: Dialect = _NO_DIALECT  # whose row it is; the table fills it in


def is_read(route: Route | None) -> bool:
    """Whether the route changes nothing; what has no route does not either."""
    return route is None or route.scopes <= _READ_ONLY


def takes_stream(exchange: Exchange) -> bool:
    """Whether the handler is to be called before the body has arrived.

    Where the route leaves it to the request, this also decides whether the request is long-lived.
    """
    route = exchange.route
    if route is None:
        return False
    if route.handling is None:
        return route.streamed
    streamed, exchange.long_lived = route.handling(exchange)
    return streamed


class Match(NamedTuple):
    """The route of a request, and the parameters of its path, decoded."""

    route: Route
    params: Sequence[str]


class RouteTable:
    """All routes of one port, of all dialects that are served there."""

    def __init__(self, dialects: Iterable[Dialect]) -> None:
        self.dialects = tuple(dialects)
        self.routes: list[Route] = []
        self._fixed: dict[str, _Methods] = {}
        self._shapes: dict[int, list[_Shape]] = {}  # by how many segments they have
        self._open_shapes: list[_Shape] = []  # with the rest of the path; the longest first
        self._matches: FifoMap[tuple[str, str], Match] = FifoMap(CACHED_MATCHES_MAX)
        self._unrouted = {
            dialect: Route("", UNROUTED, _unserved, name_param=False, dialect=dialect)
            for dialect in self.dialects
        }
        owners = [(prefix, dialect) for dialect in self.dialects for prefix in dialect.paths]
        self._owners = sorted(owners, key=lambda owner: len(owner[0]), reverse=True)
        for dialect in self.dialects:
            for route in dialect.routes():
                self.add(route, dialect)

    def add(self, route: Route, dialect: Dialect) -> None:
        """Add a row of a dialect."""
        assert dialect in self._unrouted, f"{dialect.name} is not served here"
        route = route._replace(dialect=dialect)
        methods = self._methods_of(route.template)
        assert route.method not in methods, (route.method, route.template)
        methods[route.method] = route
        self.routes.append(route)

    def _methods_of(self, template: str) -> _Methods:
        """The routes of a template by their methods, to be added to."""
        if "{" not in template:
            return self._fixed.setdefault(template, {})
        made = _Shape(template)
        count = len(made.parts)
        shapes = self._open_shapes if made.is_open else self._shapes.setdefault(count, [])
        for shape in shapes:
            if shape.parts == made.parts:
                return shape.methods
        shapes.append(made)
        self._open_shapes.sort(key=lambda shape: len(shape.parts), reverse=True)
        return made.methods

    # Requests

    def match(self, method: str, path: str) -> Match:
        """The route of a request and its parameters, or `NotFound`, `MethodNotAllowed`."""
        found = self._matches.get((method, path))
        if found is None:
            found = self._find(method, path)
            if len(path) <= CACHED_PATH_BYTES_MAX:
                self._matches.put((method, path), found)
        return found

    def _find(self, method: str, path: str) -> Match:
        methods, params = self._fixed.get(path), tuple[str, ...]()
        if methods is None:
            parts = path.split("/")
            shape = self._shape_of(parts)
            if shape is None:
                raise NotFound(f"no route {path}", fix="see /docs or /openapi.json for all of them")
            methods, params = shape.methods, shape.params(parts)
        route = methods.get(method)
        if route is None and method == "HEAD":
            route = methods.get("GET")
        if route is None:
            allow = sorted(methods)
            if "GET" in methods and "HEAD" not in methods:
                allow.append("HEAD")
            raise MethodNotAllowed(
                f"{method} on {path}", fix=f"use {' or '.join(allow)}", detail={"allow": allow}
            )
        return Match(route, params)

    def _shape_of(self, parts: Sequence[str]) -> _Shape | None:
        for shape in chain(self._shapes.get(len(parts), ()), self._open_shapes):
            if shape.fits(parts):
                return shape
        return None

    def unrouted(self, path: str) -> Route:
        """A row for a request that nothing serves, to refuse it in the form of a dialect.

        It is the dialect that serves the path by another method, else the one whose path it is,
        else the first of all.
        """
        methods = self._fixed.get(path)
        if methods is None:
            shape = self._shape_of(path.split("/"))
            methods = None if shape is None else shape.methods
        if methods is not None:
            return self._unrouted[next(iter(methods.values())).dialect]
        for prefix, dialect in self._owners:
            if path.startswith(prefix):
                return self._unrouted[dialect]
        return self._unrouted[self.dialects[0]]


_Methods = dict[str, Route]


class _Shape:
    """Templates that match the same paths, with their routes by method."""

    __slots__ = ("is_open", "methods", "parts")

    def __init__(self, template: str) -> None:
        *parts, last = template.split("/")
        self.is_open = last.endswith("*}")  # takes the rest of the path
        if not self.is_open:
            parts.append(last)
        # Text, or None where anything may be; without the rest.
        self.parts = tuple(None if part[:1] == "{" else part for part in parts)
        self.methods: _Methods = {}

    def fits(self, parts: Sequence[str]) -> bool:
        """Whether a path of these segments is matched; of an open shape there may be more."""
        count = len(self.parts)
        if self.is_open and (len(parts) <= count or parts[count:] == [""]):
            return False
        for wanted, part in zip(self.parts, parts, strict=False):
            if part != wanted and (wanted is not None or not part):
                return False
        return True

    def params(self, parts: Sequence[str]) -> tuple[str, ...]:
        """The parameters of a path that is matched."""
        named = tuple(
            decode_segment(part)
            for wanted, part in zip(self.parts, parts, strict=False)
            if wanted is None
        )
        return (*named, PathRest.of(parts[len(self.parts) :])) if self.is_open else named


class PathRest(str):
    """The rest of a path: decoded, and as the segments that were sent.

    Text alone cannot tell `a%2Fb` from `a/b`; the segments can.

    >>> rest = PathRest.of(["a%2Fb", "c"])
    >>> str(rest), rest.segments, rest.raw
    ('a/b/c', ('a/b', 'c'), 'a%2Fb/c')
    """

    __slots__ = ("raw", "segments")
    raw: str  # as sent
    segments: tuple[str, ...]  # each decoded; empty ones are kept

    @classmethod
    def of(cls, parts: Sequence[str]) -> PathRest:
        """The rest that these percent-encoded segments are."""
        segments = tuple(decode_segment(part) for part in parts)
        rest = cls("/".join(segments))
        rest.raw = "/".join(parts)
        rest.segments = segments
        return rest


def decode_segment(segment: str) -> str:
    """A path segment without its percent signs.

    >>> decode_segment("jobs-%3Eaudit")
    'jobs->audit'
    """
    if "%" not in segment:
        return segment
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"{segment!r} is not UTF-8 when decoded", fix="percent-encode UTF-8"
        ) from None


def _unserved(_exchange: Exchange) -> NoReturn:
    raise AssertionError("a row that stands for no route has no handler")
