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
from headrace.metrics.requests import AnswersOf
from headrace.server.turn import TurnGroup
from headrace.wire.exchange import Exchange, Headers

if TYPE_CHECKING:
    from headrace.server.app import App

# Where nothing is ever compressed: longer than any answer.
_NEVER: Final = KIB**5


class AdmittedHead:
    """What is settled for all requests with one head."""

    __slots__ = (
        "_metrics", "compressed_from", "counted", "ends", "group", "lines", "needs_key", "route",
        "total",
    )  # fmt: skip

    def __init__(self, app: App, exchange: Exchange, *, needs_key: bool) -> None:
        route = exchange.route
        assert route is not None
        self.route = route
        self.needs_key = needs_key  # each request has to show one that may do this
        self._metrics = app.metrics
        self.group: TurnGroup = app.turn.group_of(route)
        # What every answer of the dialect carries, as header lines; and that with the blank line.
        self.lines = header_lines(route.dialect.headers)
        self.ends = b"\r\n%b\r\n" % self.lines
        self.counted = app.metrics.answers_of(route, 200)  # of answers with status 200
        self.total = self.counted.total
        # The length from which an answer may have to be compressed.
        accepts = b"accept-encoding" in exchange.headers
        self.compressed_from = app.settings.compress_bytes_min if accepts else _NEVER

    def count(self, durations_ns: Sequence[int]) -> None:
        """Count requests of the route that were answered with status 200, by the time of each."""
        self.counted.add(durations_ns)

    def answers_of(self, status: int) -> AnswersOf:
        """What counts answers of the route that have another status."""
        return self._metrics.answers_of(self.route, status)


def header_lines(headers: Headers) -> bytes:
    """Headers as HTTP/1.1 writes them.

    >>> header_lines([(b"etag", b"1")])
    b'etag: 1\\r\\n'
    """
    if len(headers) == 1:
        lines = b"%b: %b\r\n" % headers[0]
    else:
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    # A value with a line break in it would be another header.
    assert lines.count(b"\n") == len(headers), headers
    return lines


def admitted_head(app: App, exchange: Exchange) -> AdmittedHead | None:
    """What is settled for all requests with the head of this one; None: each has to be asked."""
    route = exchange.route
    if route is None or route.turn_handler is None or route.long_lived or exchange.long_lived:
        return None
    # Which headers an answer gets beside those of its dialect depends on who asks.
    if app.access.adds_headers or exchange.method == "HEAD" or exchange.streamed:
        return None
    if b"content-encoding" in exchange.headers:
        return None
    if not app.access.has_keys and not app.access.admits_by_head(exchange.headers):
        return None
    return AdmittedHead(app, exchange, needs_key=app.access.has_keys)
