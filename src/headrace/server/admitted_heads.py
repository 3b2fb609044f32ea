"""Heads that repeat: what is settled for all requests that have the same one.

Only this file decides which requests need not be looked at one by one: those whose handler takes
the requests of a turn together, which are let in whatever their body is.  Without keys the head
tells that: the server is addressed as it was before, and by no web page.  With keys all but the key
is settled, which each request has to show.  What is settled holds for as long as the server runs,
since its settings do not change; what may change (recovery, a drain) is asked each time
(`App.handle_admitted`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.core.limits import KIB
from headrace.server.turn import TurnGroup
from headrace.wire.exchange import Exchange

if TYPE_CHECKING:
    from headrace.server.app import App

# Where nothing is ever compressed: longer than any answer.
_NEVER: Final = KIB**5


class AdmittedHead:
    """What is settled for all requests with one head."""

    __slots__ = ("compressed_from", "durations_ns", "group", "needs_key", "route", "total")

    def __init__(self, app: App, exchange: Exchange, *, needs_key: bool) -> None:
        route = exchange.route
        assert route is not None
        self.route = route
        self.needs_key = needs_key  # each request has to show one that may do this
        counted = app.metrics.answers_of(route, 200)
        self.group: TurnGroup = app.turn.group_of(route)
        # Of answers with status 200.
        self.total, self.durations_ns = counted
        # The length from which an answer may have to be compressed.
        accepts = b"accept-encoding" in exchange.headers
        self.compressed_from = app.settings.compress_bytes_min if accepts else _NEVER

    def count(self, durations_ns: Sequence[int]) -> None:
        """Count requests of the route that were answered with status 200, by the time of each."""
        self.total.value += len(durations_ns)
        self.durations_ns.observe_all(durations_ns)


def admitted_head(app: App, exchange: Exchange) -> AdmittedHead | None:
    """What is settled for all requests with the head of this one; None: each has to be asked."""
    route = exchange.route
    if route is None or route.turn_handler is None or route.long_lived or exchange.long_lived:
        return None
    if route.dialect.adds_headers or exchange.method == "HEAD" or exchange.streamed:
        return None
    if b"content-encoding" in exchange.headers:
        return None
    if not app.access.has_keys and not app.access.admits_by_head(exchange.headers):
        return None
    return AdmittedHead(app, exchange, needs_key=app.access.has_keys)
