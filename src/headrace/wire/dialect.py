"""A dialect: one protocol of the port, as one object that the composition root gives to the server.

The server routes, admits, answers, counts and drains requests by what this object says, and knows
no dialect by name.  To add one is to write a package beside `wire/native/` and to name its object
in `cli/compose.py`; nothing generic imports it, and it imports no other dialect
(`tests/test_tidy.py` checks both).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.core.errors import HeadraceError
from headrace.wire.exchange import Exchange, Headers, HeldKey, Reply

if TYPE_CHECKING:
    from headrace.wire.openapi.notes import ApiNotes
    from headrace.wire.routes import Route


class Cors(NamedTuple):
    """What web pages of other origins may send and see, once `cors_origins` lets them in."""

    methods: bytes = b"GET, HEAD, POST, PUT, DELETE"
    request_headers: bytes = b"Accept, Authorization, Content-Encoding, Content-Type"
    exposed_headers: bytes = b"ETag, Location, Retry-After"
    max_age_seconds: int = 3_600

    def preflight(self) -> Headers:
        """The headers of the answer to a browser that asks before it sends a request."""
        return (
            (b"access-control-allow-methods", self.methods),
            (b"access-control-allow-headers", self.request_headers),
            (b"access-control-max-age", b"%d" % self.max_age_seconds),
        )


class Requirement(NamedTuple):
    """What a key must allow: all of the scopes, and the engine name if there is one."""

    scopes: frozenset[str] = frozenset()
    name: str | None = None


class Dialect:
    """What differs between the protocols of one port.  Attributes are set once, before serving."""

    name: str  # a label of metrics
    # Paths that are its own begin with one of these, also where no route is; of the prefixes of
    # all dialects that a path begins with, the longest decides.
    paths: Sequence[str] = ()
    headers: Headers = ()  # every answer carries them, whatever its status
    cors: Cors = Cors()
    notes: ApiNotes | None = None  # for /openapi.json; None: its routes are not shown there
    # What a body may have, decompressed, where that is less than `body_bytes_max`.
    body_bytes_max: int | None = None
    # Whether an answer carries more headers than its handler gave it; the server sets it.
    adds_headers: bool = False

    def routes(self) -> Sequence[Route]:
        """The rows that it adds to the route table."""
        raise NotImplementedError

    def failure(self, error: HeadraceError, exchange: Exchange) -> Reply:
        """The answer that tells of an error, in the form of this dialect.

        `exchange` is the request that failed; its path and query are empty when it was not HTTP.
        """
        raise NotImplementedError

    def check_head(self, exchange: Exchange) -> None:
        """Refuse a routed request that was let in for what its head says of its body.

        Called before a body is unpacked, or a large one is taken; the handler checks it as well.
        """

    def engine_name(self, exchange: Exchange) -> str | None:
        """The name of the engine that a routed request is about; None when it is about none.

        A key with prefixes must allow it.  By default it is the first parameter of the path,
        unless the route says that this is not a name.
        """
        route = exchange.route
        if route is None or not route.name_param or not exchange.params:
            return None
        return exchange.params[0]

    def own_key(self, exchange: Exchange) -> HeldKey | None:
        """What whoever shows no key of the server is known by; None: by nothing.

        It is asked for routes whose handlers decide who may call them, on a server with keys, and
        has the limits of one key.
        """
        return None

    def required_by_unknown(self, method: str, path: str) -> Requirement:
        """What a key must allow before it learns that a path of this dialect does not exist.

        By default no more than to be a key.
        """
        return Requirement()

    def tick(self, now_ms: int) -> None:
        """Do what is due; called about once a second, with the time of the monotonic clock."""

    def drain(self) -> None:
        """End what this dialect alone keeps going: the server is stopping.

        Open streams and long polls of all dialects are ended by `ServerContext.drain`.
        """
