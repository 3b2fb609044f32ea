"""The route table: which request goes to which handler, and what it takes to be let in.

Every endpoint of every dialect is one row.  The same rows are what authorises, routes, counts and
documents a request, so that nothing can be served that the table does not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from headrace.core.errors import InvalidRequest, MethodNotAllowed, NotFound
from headrace.wire.exchange import Dialect, Handler

READ: Final = "read"
WRITE: Final = "write"
DELETE: Final = "delete"
ADMIN: Final = "admin"

_READ_ONLY: Final = frozenset({READ})

# Paths whose route is remembered; all are forgotten when there are more.
CACHED_MATCHES_MAX = 4_096
CACHED_PATH_BYTES_MAX = 512


class Route(NamedTuple):
    """One endpoint.  `template` has `{name}` for a segment that may be anything."""

    method: str
    template: str
    handler: Handler
    dialect: Dialect
    scopes: frozenset[str] = frozenset()
    summary: str = ""
    request: object = None  # the types of the bodies, for the documentation
    response: object = None
    query: Sequence[str] = ()  # names of query parameters, for the documentation
    public: bool = False  # a probe: no key is asked for unless `probe_auth` is set
    own_auth: bool = False  # the handler itself decides whether the caller may
    token_query: bool = False  # `?token=` stands for the Authorization header
    name_param: bool = True  # the first parameter is a topic's name, checked against prefixes
    long_lived: bool = False  # holds no in-flight slot
    streamed: bool = False  # the handler is called before the body has arrived
    unready: bool = False  # is answered during recovery and while draining
    hidden: bool = False  # not in the documentation


def is_read(route: Route | None) -> bool:
    """Whether the route changes nothing; what has no route does not either."""
    return route is None or route.scopes <= _READ_ONLY


class Match(NamedTuple):
    route: Route
    params: Sequence[str]


class RouteTable:
    """All routes of one port."""

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self.routes: list[Route] = []
        self._fixed: dict[str, dict[str, Route]] = {}
        self._shaped: list[tuple[tuple[str, ...], dict[str, Route]]] = []
        self._matches: dict[tuple[str, str], Match] = {}
        for route in routes:
            self.add(route)

    def add(self, route: Route) -> None:
        self.routes.append(route)
        if "{" not in route.template:
            methods = self._fixed.setdefault(route.template, {})
        else:
            shape = tuple(route.template.split("/"))
            known = [m for s, m in self._shaped if _shape(s) == _shape(shape)]
            methods = known[0] if known else {}
            if not known:
                self._shaped.append((shape, methods))
        assert route.method not in methods, (route.method, route.template)
        methods[route.method] = route

    def match(self, method: str, path: str) -> Match:
        """The route of a request and its parameters, or `NotFound`, `MethodNotAllowed`."""
        found = self._matches.get((method, path))
        if found is None:
            found = self._find(method, path)
            if len(path) <= CACHED_PATH_BYTES_MAX:
                if len(self._matches) >= CACHED_MATCHES_MAX:
                    self._matches.clear()
                self._matches[method, path] = found
        return found

    def _find(self, method: str, path: str) -> Match:
        methods, params = self._methods(path)
        if methods is None:
            raise NotFound(f"no route {path}", fix="see /docs or /openapi.json for all of them")
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            allow = sorted(methods)
            if "GET" in methods:
                allow.append("HEAD")
            raise MethodNotAllowed(
                f"{method} on {path}", fix=f"use {' or '.join(allow)}", detail={"allow": allow}
            )
        return Match(route, params)

    def _methods(self, path: str) -> tuple[dict[str, Route] | None, Sequence[str]]:
        methods = self._fixed.get(path)
        if methods is not None:
            return methods, ()
        parts = path.split("/")
        for shape, candidates in self._shaped:
            if len(shape) == len(parts) and all(
                a == b or (a[:1] == "{" and b != "") for a, b in zip(shape, parts, strict=True)
            ):
                return candidates, tuple(
                    decode_segment(b) for a, b in zip(shape, parts, strict=True) if a[:1] == "{"
                )
        return None, ()


def _shape(parts: Sequence[str]) -> tuple[str, ...]:
    return tuple("{}" if part[:1] == "{" else part for part in parts)


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
