"""The gate: who is let in to which route, in which order it is decided, and from which web pages.

The rules this file alone owns.  With keys: a probe is open, then 401 for no known key, 429 for a
key with too many requests in progress, 403 for a missing scope, 403 for a name outside the key's
prefixes; a path that no route has is refused in the same order before anybody learns that it is
unknown.  Without keys: a server on loopback answers only to its own names, and no web page of
another origin may change anything or open a WebSocket, so that a page that a developer visits
cannot use the developer's server.  What is in a body, and a session's own binding, handlers check.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import unquote

from headrace.core.errors import Forbidden, Throttled, Unauthorized
from headrace.core.settings import Settings
from headrace.server.auth import ApiKey, KeyRing, bearer_token, query_token
from headrace.server.network import host_of, is_loopback
from headrace.wire.exchange import Exchange, Headers
from headrace.wire.routes import ADMIN, DELETE, READ, WRITE, Route, is_read

_SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}

# Values of `Host` that have been allowed; all are forgotten when there are more.
HOSTS_REMEMBERED_MAX = 256

PREFLIGHT_MAX_AGE_SECONDS = 3_600
_ALLOW_METHODS: Final = b"GET, HEAD, POST, PUT, DELETE"
_ALLOW_HEADERS: Final = (
    b"Accept, Authorization, Content-Encoding, Content-Type, Idempotency-Key, Last-Event-ID,"
    b" Producer-Epoch, Producer-Id, Producer-Seq"
)
_EXPOSE_HEADERS: Final = b"ETag, Location, Retry-After, Server-Timing"
_PREFLIGHT: Final = (
    (b"access-control-allow-methods", _ALLOW_METHODS),
    (b"access-control-allow-headers", _ALLOW_HEADERS),
    (b"access-control-max-age", b"%d" % PREFLIGHT_MAX_AGE_SECONDS),
)


class Gate:
    """Admits requests or raises why not.

    >>> gate = Gate(Settings(), KeyRing.parse("k1:read"))
    >>> gate.admit(Exchange("GET", "/v0/topics", "", {}, 0), None)
    Traceback (most recent call last):
    headrace.core.errors.Unauthorized: no API key; send the header `Authorization: Bearer <key>`
    """

    def __init__(self, settings: Settings, keys: KeyRing) -> None:
        self._keys = keys
        self._probe_auth = settings.probe_auth
        self._in_flight_max = settings.max_inflight_per_key
        # Who holds a slot; so a slot is given back once, however often `release` is called.
        self._holders: dict[Exchange, ApiKey] = {}
        self._hosts: _HostRule | None = None
        self._known_hosts: set[bytes | None] = set()
        if not keys and is_loopback(settings.host):
            self._hosts = _HostRule(settings.host, settings.allowed_hosts)
            self._known_hosts = self._hosts.known
        self._origins = _Origins(settings.cors_origins)
        self.adds_headers = bool(self._origins)  # whether `response_headers` may say anything

    # Letting in and out

    def admit(self, exchange: Exchange, route: Route | None) -> None:
        """Let a request in, or raise; `route` is None for a path or method that nothing serves.

        A browser's question whether a page may send a request is answered here.
        """
        headers = exchange.headers
        # Without keys nearly every request: addressed as others were before, and by no web page.
        if headers.get(b"host") in self._known_hosts and b"origin" not in headers:
            return
        if self._hosts is not None:
            self._hosts.check(headers.get(b"host"))
        if route is None and self._origins and self._is_preflight(exchange):
            self._origins.check(headers[b"origin"], headers.get(b"host", b""))
            exchange.answer(204, b"", headers=_PREFLIGHT)
            return
        if self._keys:
            self._admit_key(exchange, route)
            return
        origin = headers.get(b"origin")
        if origin is None:
            return
        # A stream of jobs is a GET that leases them.
        safe = exchange.method in _SAFE_METHODS and b"upgrade" not in headers and is_read(route)
        if not safe:
            self._origins.check(origin, headers.get(b"host", b""))

    def release(self, exchange: Exchange) -> None:
        """The request has come to its end."""
        if not self._holders:
            return
        key = self._holders.pop(exchange, None)
        if key is not None:
            key.in_flight -= 1
            assert key.in_flight >= 0

    def _admit_key(self, exchange: Exchange, route: Route | None) -> None:
        if route is not None and route.public and not self._probe_auth:
            return
        token = bearer_token(exchange.headers.get(b"authorization", b""))
        if token is None and route is not None and route.token_query:
            token = query_token(exchange.query)
        key = None if token is None else self._keys.find(token)
        if route is not None and route.own_auth:
            exchange.key = key
            return
        if key is None:
            raise Unauthorized(
                "no API key" if token is None else "no such API key",
                fix="send the header `Authorization: Bearer <key>`",
            )
        holds_slot = route is not None and not route.long_lived
        # Whoever is refused below has been answered by then, so that only the rest take a slot.
        if 0 < self._in_flight_max <= key.in_flight and (holds_slot or route is None):
            raise Throttled(
                f"this key has {self._in_flight_max} requests in progress",
                fix="wait for one of them to end",
            )
        if route is None:
            _check_unknown(key, exchange.method, exchange.path)
        else:
            _check_scopes(key, route.scopes)
            if route.name_param and exchange.params:
                _check_name(key, exchange.params[0])
        exchange.key = key
        if holds_slot:
            assert exchange not in self._holders
            key.in_flight += 1
            self._holders[exchange] = key

    # Web pages of other origins

    @staticmethod
    def _is_preflight(exchange: Exchange) -> bool:
        headers = exchange.headers
        return (
            exchange.method == "OPTIONS"
            and b"origin" in headers
            and b"access-control-request-method" in headers
        )

    def response_headers(self, exchange: Exchange) -> Headers:
        """What every answer to a web page carries; nothing unless `cors_origins` is set."""
        return self._origins.headers(exchange.headers.get(b"origin")) if self._origins else ()


class _HostRule:
    """By which names a server on loopback may be addressed when it has no keys.

    A page of another site can have its own name resolve to this machine; it cannot change the name.
    """

    def __init__(self, bound: str, more: str) -> None:
        self._names = {"localhost", host_of(bound)}
        self._names.update(host_of(name) for name in more.split(",") if name.strip())
        self.known: set[bytes | None] = set()  # headers that have been allowed

    def check(self, host: bytes | None) -> None:
        # A browser always sends the header; HTTP/1.0 clients need not.
        if host is None or host in self.known:
            return
        name = host_of(host.decode("latin-1"))
        if name not in self._names and not _is_loopback_address(name):
            raise Forbidden(
                f"this server is not known as {name!r}",
                fix="address it as localhost, or add the name to HEADRACE_ALLOWED_HOSTS",
            )
        if len(self.known) >= HOSTS_REMEMBERED_MAX:
            self.known.clear()
        self.known.add(host)


def _is_loopback_address(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class _Origins:
    """Which web pages may use the server; false when only its own."""

    def __init__(self, setting: str) -> None:
        self._listed = frozenset(
            word.strip().rstrip("/").lower().encode() for word in setting.split(",") if word.strip()
        )
        self._any = b"*" in self._listed

    def __bool__(self) -> bool:
        return bool(self._listed)

    def check(self, origin: bytes, host: bytes) -> None:
        """Refuse a page that is neither ours nor listed."""
        if not self._any and origin.lower() not in self._listed and not same_origin(origin, host):
            raise Forbidden(
                f"a web page of {origin.decode('latin-1')!r} may not do this",
                fix="add its origin to HEADRACE_CORS_ORIGINS",
            )

    def headers(self, origin: bytes | None) -> Headers:
        if self._any:
            return (
                (b"access-control-allow-origin", b"*"),
                (b"access-control-expose-headers", _EXPOSE_HEADERS),
            )
        if origin is None or origin.lower() not in self._listed:
            return ((b"vary", b"Origin"),)
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSE_HEADERS),
            (b"vary", b"Origin"),
        )


def same_origin(origin: bytes, host: bytes) -> bool:
    """Whether a page of this origin came from the server that the request names.

    >>> same_origin(b"http://localhost:4000", b"localhost:4000"), same_origin(b"null", b"x")
    (True, False)
    """
    scheme, separator, authority = origin.decode("latin-1").lower().partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    if not separator or default is None:
        return False
    asked = host.decode("latin-1").lower()
    return authority.removesuffix(default) == asked.removesuffix(default)


def _check_scopes(key: ApiKey, scopes: frozenset[str]) -> None:
    if not scopes <= key.scopes:
        missing = " and ".join(sorted(scopes - key.scopes))
        raise Forbidden(f"this key does not have the scope {missing}", fix="use a key that has it")


def _check_name(key: ApiKey, name: str) -> None:
    if not key.allows_name(name):
        raise Forbidden(
            f"this key may not use the name {name!r}", fix="use a name with one of its prefixes"
        )


def _check_unknown(key: ApiKey, method: str, path: str) -> None:
    """The same checks where there is no route: what might be meant decides, the stricter first."""
    match path.split("/"):
        case ["", "v0", "topics" | "boxes", name, _, *_]:
            _check_scopes(key, frozenset((WRITE,)))
            _check_name(key, unquote(name))
        case ["", "v0", "topics" | "boxes", name]:
            _check_scopes(key, frozenset((ADMIN,)))
            _check_name(key, unquote(name))
        case ["", "v0", "topics" | "boxes"]:
            _check_scopes(key, frozenset((ADMIN,)))
        case ["", "v0", "routers", *_]:
            scope = {"GET": READ, "HEAD": READ, "DELETE": DELETE}.get(method, ADMIN)
            _check_scopes(key, frozenset((scope,)))
