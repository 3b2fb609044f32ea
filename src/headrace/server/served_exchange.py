"""An exchange as both transports serve it: answer once, compressed if wanted, or refuse.

Only this file decides how an answer becomes the bytes that a transport sends; `_send` of the two
transports frames them.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError, OutOfResources
from headrace.server.app import App
from headrace.wire.exchange import JSON, Exchange, Headers

log = logging.getLogger("headrace.server")


class HasApp(Protocol):
    """A connection, as far as its exchanges need it here."""

    @property
    def app(self) -> App: ...


class ServedExchange(Exchange):
    """A request that came over a socket."""

    _connection: HasApp
    _failing = False  # it has been failed for want of memory

    def answer(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        if self.answered:
            log.error("a second answer to %s %s", self.method, self.path)
            return
        self.answered = True
        try:
            self._let_go()
            if b"accept-encoding" in self.headers and body:
                app = self._connection.app
                coding = app.coding(self, body)
                if coding is not None:
                    send = partial(self._send_packed, status, body, content_type, headers, coding)
                    app.compress(body, coding, send)
                    return
            self._send(status, body, content_type, headers)
        except MemoryError as error:
            self._not_sent(error)

    def _send_packed(
        self,
        status: int,
        body: bytes,
        content_type: bytes,
        headers: Headers,
        coding: str,
        packed: bytes | None,
    ) -> None:
        """Send an answer in a coding, unless that did not work or made it no smaller."""
        try:
            if packed is None or len(packed) >= len(body):
                self._send(status, body, content_type, headers)
            else:
                coded = (b"content-encoding", coding.encode("ascii"))
                vary = (b"vary", b"accept-encoding")
                self._send(status, packed, content_type, (*headers, coded, vary))
        except MemoryError as error:
            self._not_sent(error)

    def _let_go(self) -> None:
        """Drop what only the request needed: its answer has been decided."""
        self.let_go_body()

    def let_go_body(self) -> None:
        self.body = b""
        if self.budgeted and not self.streamed:  # pieces count until they are taken
            self._connection.app.budget.give(self.budgeted)
            self.budgeted = 0

    def _send(self, status: int, body: bytes, content_type: bytes, headers: Headers) -> None:
        """Frame a whole answer and send it when its turn comes."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        self._connection.app.metrics.failed(error)
        if isinstance(error, MemoryError | OutOfResources):
            self._fail_for_memory(error)
        else:
            super().fail(error)

    # When memory runs out

    def _fail_for_memory(self, error: BaseException) -> None:
        """Say that there was no memory, if there is for that, and close the connection."""
        without_frames(error)
        self.body = b""
        app = self._connection.app
        app.ran_out_of_memory()
        if self._failing:
            self._cut_off()
            return
        self._failing = True
        app.metrics.rejected("out_of_resources")
        try:
            self._end_connection()
            super().fail(error)
        except MemoryError:
            self._cut_off()

    def _not_sent(self, error: MemoryError) -> None:
        """Fail after all, if nothing of the answer has gone out for which there was no memory."""
        without_frames(error)
        if self._unsent:
            self.answered = False
            self.fail(error)
        else:
            self._connection.app.ran_out_of_memory()
            self._cut_off()

    @property
    def _unsent(self) -> bool:
        """Whether the transport has got nothing of the answer."""
        raise NotImplementedError

    def _end_connection(self) -> None:
        """Close the connection after this answer."""
        raise NotImplementedError

    def _cut_off(self) -> None:
        """End the exchange in the middle of its answer, so that the client sees it."""
        raise NotImplementedError

    def refuse(self, error: HeadraceError) -> None:
        """Answer a request that is not handed to the application."""
        app = self._connection.app
        if self.route is None:
            self.route = app.routes.unrouted(self.path)
        self.on_answered = app.finished
        self.fail(error)
