"""Access control: which requests are let in, in which order it is decided, and web pages' rights.

The rules this file alone owns.  With keys: a probe is open, then 401 for no known key, 429 for a
key with too many requests in progress, 403 for a missing scope, 403 for a name outside the key's
prefixes; a path that no route has is refused in the same order before the caller learns that it is
unknown.  Who is known to a dialect alone, by a token of its own, has the limits of a key.  Without
keys: a server on loopback answers only to its own names, and no web page of another origin may
change anything or open a WebSocket, so that a page that a developer visits cannot use the
developer's server.  Which name a request is about, what an unknown path needs, and which headers a
web page may send and see, its dialect says.  What is in a body, and a session's own binding,
handlers check.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

from headrace.core.errors import Forbidden, Throttled, Unauthorized
from headrace.core.settings import Settings
from headrace.metrics.requests import UNROUTED
from headrace.server.auth import ApiKey, KeyRing, bearer_token, query_token
from headrace.server.network import host_of, is_loopback
from headrace.wire.dialect import Cors
from headrace.wire.exchange import Exchange, Headers, HeldKey
from headrace.wire.routes import Route, is_read

_SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}

# Values of `Host` that have been allowed; all are forgotten when there are more.
HOSTS_REMEMBERED_MAX = 256


class AccessControl:
    """Admits requests or raises why not.

    >>> access = AccessControl(Settings(), KeyRing.parse("k1:read"))
    >>> access.admit(Exchange("GET", "/orders", "", {}, 0), Route("GET", "/orders", print))
    Traceback (most recent call last):
    headrace.core.errors.Unauthorized: no API key; send the header `Authorization: Bearer <key>`
    """

    def __init__(self, settings: Settings, keys: KeyRing) -> None:
        self._keys = keys
        self._probe_auth = settings.probe_auth
        self._in_flight_max = settings.max_inflight_per_key
        # Requests that hold a slot: one is given back once, however often `release` is called.
        self._holders: dict[Exchange, HeldKey] = {}
        self._hosts: _HostRule | None = None
        self._known_hosts: set[bytes | None] = set()
        if not keys and is_loopback(settings.host):
            self._hosts = _HostRule(settings.host, settings.allowed_hosts)
            self._known_hosts = self._hosts.known
        self._origins = _Origins(settings.cors_origins)
        self.adds_headers = bool(self._origins)  # whether `response_headers` may say anything
        self._keys_only = bool(keys) and not self._origins  # nothing but a key decides

    # Letting in and out

    def admit(self, exchange: Exchange, route: Route) -> None:
        """Let a request in, or raise.

        For a path or method that nothing serves, `route` is that of `RouteTable.unrouted`.  A
        browser's question whether a page may send a request is answered here, unless a dialect
        has a row for it.
        """
        headers = exchange.headers
        if self._keys_only:
            self._admit_key(exchange, route)
            return
        if self.admits_by_head(headers):
            return  # without keys nearly every request
        if self._hosts is not None:
            self._hosts.check(headers.get(b"host"))
        asks = self._origins and exchange.method == "OPTIONS" and route.method != "OPTIONS"
        if asks and _is_preflight(headers):
            self._origins.check(headers[b"origin"], headers.get(b"host", b""))
            exchange.answer(204, b"", headers=route.dialect.cors.preflight())
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

    @property
    def has_keys(self) -> bool:
        """Whether a request has to show a key."""
        return bool(self._keys)

    def admits_by_head(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether any request with these headers is let in, to whatever route: there are no keys,
        it is addressed as others were before, and no web page sends it.
        """
        return headers.get(b"host") in self._known_hosts and b"origin" not in headers

    def release(self, exchange: Exchange) -> None:
        """Give back the slot of a request that has ended, if it holds one."""
        if not self._holders:
            return
        key = self._holders.pop(exchange, None)
        if key is not None:
            key.in_flight -= 1
            assert key.in_flight >= 0

    def _admit_key(self, exchange: Exchange, route: Route) -> None:
        if route.public and not self._probe_auth:
            return
        token = bearer_token(exchange.headers.get(b"authorization", b""))
        if token is None and route.token_query:
            token = query_token(exchange.query)
        key = None if token is None else self._keys.find(token)
        if key is None:
            if route.own_auth:
                self._admit_own(exchange, route)
                return
            raise Unauthorized(
                "no API key" if token is None else "no such API key",
                fix="send the header `Authorization: Bearer <key>`",
            )
        needs_slot = not route.long_lived and not exchange.long_lived
        if 0 < self._in_flight_max <= key.in_flight and needs_slot:
            raise self._too_many()
        unrouted = route.template == UNROUTED
        name = None
        if route.own_auth:
            pass  # what the key may do, the handler decides
        elif unrouted:
            scopes, name = route.dialect.required_by_unknown(exchange.method, exchange.path)
            _check_scopes(key, scopes)
        else:
            _check_scopes(key, route.scopes)
            name = route.dialect.engine_name(exchange) if key.has_prefixes else None
        if name is not None:
            _check_name(key, name)
        exchange.key = key
        # What has no route is refused next, and is over then.
        if needs_slot and not unrouted:
            assert exchange not in self._holders
            key.in_flight += 1
            self._holders[exchange] = key

    def _admit_own(self, exchange: Exchange, route: Route) -> None:
        """Hold whoever is known to the dialect alone to the limits of a key."""
        key = route.dialect.own_key(exchange)
        if key is None:
            return
        if route.long_lived or exchange.long_lived:
            exchange.key = key
            return
        if 0 < self._in_flight_max <= key.in_flight:
            raise self._too_many()
        exchange.key = key
        key.in_flight += 1
        self._holders[exchange] = key

    def _too_many(self) -> Throttled:
        return Throttled(
            f"this key has {self._in_flight_max} requests in progress",
            fix="wait for one of them to end",
        )

    def response_headers(self, exchange: Exchange, cors: Cors) -> Headers:
        """What every answer to a web page carries; nothing unless `cors_origins` is set."""
        if not self._origins:
            return ()
        return self._origins.headers(exchange.headers.get(b"origin"), cors.exposed_headers)


def _is_preflight(headers: Mapping[bytes, bytes]) -> bool:
    """Whether an OPTIONS request is a browser's question about another one."""
    return b"origin" in headers and b"access-control-request-method" in headers


class _HostRule:
    """The names by which a server on loopback without keys may be addressed.

    A page of another site can have its own name resolve to this machine; it cannot change the name.
    """

    def __init__(self, bound: str, more: str) -> None:
        self._names = {"localhost", host_of(bound)}
        self._names.update(host_of(name) for name in more.split(",") if name.strip())
        self.known: set[bytes | None] = set()  # headers that have been allowed

    def check(self, host: bytes | None) -> None:
        """Refuse a `Host` that is no name of this server."""
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
    """The web pages that may use the server; false when only its own may."""

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

    def headers(self, origin: bytes | None, exposed: bytes) -> Headers:
        """What an answer to a page of this origin carries, with which it may read `exposed`."""
        if self._any:
            return (
                (b"access-control-allow-origin", b"*"),
                (b"access-control-expose-headers", exposed),
            )
        if origin is None or origin.lower() not in self._listed:
            return ((b"vary", b"Origin"),)
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", exposed),
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
