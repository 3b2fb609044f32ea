"""What an exchange of either transport does alike: answer once, compressed if wanted, or refuse.

Only this file decides how an answer becomes the bytes that a transport sends; `_send` of the two
transports frames them.
"""

from __future__ import annotations

import logging
from typing import Protocol

from headrace.core.errors import HeadraceError
from headrace.server.app import App
from headrace.wire.exchange import JSON, Exchange, Headers
from headrace.wire.metrics import UNROUTED
from headrace.wire.native import dialect_of
from headrace.wire.routes import Route

log = logging.getLogger("headrace.server")


class HasApp(Protocol):
    """A connection, as far as its exchanges need it here."""

    @property
    def app(self) -> App: ...


class ServedExchange(Exchange):
    """A request that came over a socket."""

    _connection: HasApp

    def answer(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        if self.answered:
            log.error("a second answer to %s %s", self.method, self.path)
            return
        self.answered = True
        self._let_go()
        if b"accept-encoding" in self.headers and body:
            app = self._connection.app
            coding = app.coding(self, body)
            if coding is not None:

                def send(packed: bytes | None) -> None:
                    if packed is None or len(packed) >= len(body):
                        self._send(status, body, content_type, headers)
                    else:
                        coded = (b"content-encoding", coding.encode("ascii"))
                        vary = (b"vary", b"accept-encoding")
                        self._send(status, packed, content_type, (*headers, coded, vary))

                app.compress(body, coding, send)
                return
        self._send(status, body, content_type, headers)

    def _let_go(self) -> None:
        """An answer has been decided: what only the request needed may go."""

    def _send(self, status: int, body: bytes, content_type: bytes, headers: Headers) -> None:
        """Frame a whole answer and send it when its turn comes."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        self._connection.app.metrics.failed(error)
        super().fail(error)

    def refuse(self, error: HeadraceError) -> None:
        """Answer a request that is not handed to the application."""
        if self.route is None:
            self.route = Route("", UNROUTED, _unserved, dialect_of(self.path))
        self.on_answered = self._connection.app.finished
        self.fail(error)


def _unserved(_exchange: Exchange) -> None:
    raise AssertionError("nothing is served here")
