"""How the body of a request of an HTTP/1.1 connection is taken: piece by piece, within bounds.

Only this file says how large a body may be, also with what is around its chunks, and counts it
against the memory that all bodies share.  What a read means, and what comes before and behind the
body, is the business of `reader.py`.
"""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

from headrace.core.errors import HeadraceError
from headrace.server.app import App
from headrace.server.http1.answer import Http1Exchange
from headrace.server.refusals import body_too_large, no_memory
from headrace.server.transport_exchange import FREE_BODY_BYTES

# What may come around each byte of a chunked body: a client may send chunks of one byte, and write
# their sizes with leading zeros.
OVERHEAD_PER_BYTE: Final = 16


class Refused(Exception):
    """Stops the parser; what is wrong is in the connection."""


class BodyReader(asyncio.Protocol):
    """The body that is arriving on a connection."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_body_bytes_max",
        "_body_length",
        "_body_missing",
        "_budgeted",
        "_chunk_bytes",
        "_exchange",
        "_head_bytes",
        "_overhead_bytes_max",
        "_refusal",
        "_wire_bytes",
        "app",
    )

    def __init__(self, app: App) -> None:
        self.app = app
        # Of the head that is arriving; later, what came since the last byte of the body.
        self._head_bytes = 0
        self._wire_bytes = 0  # of all that followed the read with the head: body and what is around
        self._chunk_bytes = 0  # size of the read that is being parsed
        self._exchange: Http1Exchange | None = None  # whose body is arriving
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._body_length = 0  # as the head says; 0: only the parser knows where the body ends
        self._body_missing = 0  # bytes of it that come next and are not parsed
        self._budgeted = 0
        self._refusal: HeadraceError | None = None
        self._body_bytes_max = app.settings.body_bytes_max
        self._overhead_bytes_max = app.settings.chunk_overhead_bytes_max

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        self._head_bytes = -self._chunk_bytes
        self._body_bytes += len(body)
        if exchange.streamed:
            exchange.piece_arrived(body)
            return
        self._body.append(body)
        if self._body_bytes > FREE_BODY_BYTES:
            self._check_body(len(body))

    def _check_body(self, more: int) -> None:
        if self._body_bytes > self._body_bytes_max:
            self._stop(body_too_large(self._body_bytes_max))
        if not self._budgeted and self._exchange is not None:
            self._check_sender(self._exchange)
        if not self.app.budget.take_more(more, self._budgeted):
            self.app.metrics.rejected("request_memory")
            self._stop(no_memory(self.app.budget.limit))
        self._budgeted += more

    def _check_sender(self, exchange: Http1Exchange) -> None:
        try:
            self.app.check_sender(exchange)
        except HeadraceError as error:
            self._stop(error)

    @property
    def _has_too_much_around(self) -> bool:
        """Whether too much came around the bytes of the body: chunk sizes, extensions, trailers."""
        allowed = self._overhead_bytes_max + (1 + OVERHEAD_PER_BYTE) * self._body_bytes
        return self._wire_bytes > allowed

    def _stop(self, error: HeadraceError) -> NoReturn:
        """End the parse of this connection with an error."""
        self._refusal = error
        raise Refused

    def _give_budget(self) -> None:
        if self._budgeted:
            self.app.budget.give(self._budgeted)
            self._budgeted = 0
