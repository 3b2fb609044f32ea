"""Heads that repeat: how a connection's last requests began, so that the next need not be parsed.

A client that keeps its connection sends the same request line and headers again and again, or two
in turn, as a worker claims and acknowledges; only the length of the body differs.  What a parser
makes of a head is a function of its bytes, so a head with the same bytes around the digits of its
Content-Length means the same.  Only this file decides which heads may be taken that way; everything
else goes through the parser.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from headrace.server.app import Target
from headrace.wire.metrics import UNROUTED

if TYPE_CHECKING:
    from headrace.server.http1_answer import Http1Exchange

HEAD_BYTES_MAX: Final = 4 * 1024
LENGTH_DIGITS_MAX: Final = 7
# How many different heads a connection remembers.
HEADS_MAX: Final = 2
# Heads of a connection that are remembered in vain before no more are.
ATTEMPTS_MAX: Final = 4
# What changes how a request is read, or what may come after it.
_UNSTEADY: Final = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
_KEEP_ALIVE: Final = b"keep-alive"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?([0-9]{1,7})\r\n", re.IGNORECASE)


class KnownHead:
    """A head around the digits of its Content-Length, and what it means."""

    __slots__ = ("_after", "_before", "_body_after", "_digits", "_headers", "_start", "target")

    def __init__(
        self,
        before: bytes,
        digits: bytes,
        after: bytes,  # to the blank line, included
        target: Target,
        headers: dict[bytes, bytes],
    ) -> None:
        self._before = before
        self._start = len(before)
        self._digits = digits
        self._after = after
        self._body_after = len(after)
        self._headers = headers
        self.target = target

    def take(self, data: bytes) -> tuple[dict[bytes, bytes], bytes] | None:
        """Headers and body, if `data` is one whole request that begins like this one."""
        if not data.startswith(self._before):
            return None
        start = self._start
        end = data.find(b"\r", start, start + LENGTH_DIGITS_MAX + 1)
        if end < 0 or not data.startswith(self._after, end):
            return None
        digits, body = data[start:end], data[end + self._body_after :]
        # Bytes that are digits are ASCII digits.
        if not digits.isdigit() or len(body) != int(digits):
            return None
        if digits == self._digits:
            return self._headers, body
        return {**self._headers, b"content-length": digits}, body


def known_head(data: bytes, exchange: Http1Exchange) -> KnownHead | None:
    """What to remember of a request that was all of `data`; None if such must be parsed."""
    headers, route = exchange.headers, exchange.route
    if route is None or route.streamed or not exchange.modern or not exchange.keep_alive:
        return None
    if route.template == UNROUTED:
        return None  # what is wrong with it has to be found anew
    if not _UNSTEADY.isdisjoint(headers):
        return None
    if headers.get(b"connection", _KEEP_ALIVE).lower() != _KEEP_ALIVE:
        return None
    end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
    found = _LENGTH.search(data, 0, end + 2) if end >= 0 else None
    if found is None or end + 4 + int(found[1]) != len(data):
        return None
    target = Target(exchange.method, exchange.path, exchange.query, route, exchange.params)
    return KnownHead(
        data[: found.start(1)], found[1], data[found.end(1) : end + 4], target, headers
    )
