"""Answering with server-sent events: to which clients, with which headers, in which limits.

Only this file begins such an answer.  The events themselves are `sse.py`'s and the dialects'.
"""

from __future__ import annotations

from typing import Final

from headrace.core.errors import NotAcceptable
from headrace.wire.exchange import EVENT_STREAM, Exchange, Headers, Key, Outlet
from headrace.wire.stream_limits import StreamLimits

_HEADERS: Final[Headers] = (
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


def check_accepts_events(exchange: Exchange) -> None:
    """Refuse a client that does not accept server-sent events."""
    accept = exchange.headers.get(b"accept", b"")
    if accept and EVENT_STREAM not in accept and b"*/*" not in accept:
        raise NotAcceptable(
            f"Accept is {accept.decode('latin-1')[:80]!r}",
            fix="send `Accept: text/event-stream`",
        )


def begin_events(exchange: Exchange, limits: StreamLimits, key: Key | None) -> Outlet | None:
    """Answer with a stream that counts for `key`, or raise `Throttled`.

    None: it was a HEAD request, and is answered.
    """
    if exchange.method == "HEAD":
        exchange.answer(200, b"", EVENT_STREAM, _HEADERS)
        return None
    return limits.admit(key, lambda: exchange.stream(EVENT_STREAM, _HEADERS))
