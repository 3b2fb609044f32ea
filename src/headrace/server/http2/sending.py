"""What the streams of one HTTP/2 connection have to send, and whose turn it is.

Only this file says what data is framed: as much as the windows of stream and connection and the
socket take, a frame of each stream in turn, or many of a stream that is alone.  What does not go
out stays with its stream, as the handler made it, and is counted here.  It neither writes to the
socket nor ends streams: `connection.py` does.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from h2.errors import ErrorCodes

from headrace.server.http2.connection_state import Http2State
from headrace.server.http2.limits import BATCH_BYTES_MAX, CONNECTION_PENDING_BYTES_MAX
from headrace.server.http2.outlet import Http2Outlet
from headrace.server.http2.stream import Http2Exchange

if TYPE_CHECKING:
    from headrace.server.http2.connection import Http2Connection

log = logging.getLogger("headrace.http2")


class Sender:
    """The sending half of a connection."""

    def __init__(self, connection: Http2Connection, state: Http2State) -> None:
        settings = connection.app.settings
        self._connection = connection
        self._state = state
        self._clock = connection.app.clock.monotonic_ns
        self._response_bytes_max = settings.response_memory_bytes_max
        self._ready: deque[Http2Exchange] = deque()  # have something to send
        self._outlet_bytes = 0  # pending of answers that go on
        self.pending_bytes = 0  # of all answers, not framed yet
        self.stream_pending_bytes = settings.stream_pending_bytes
        self.waiting: dict[Http2Outlet, None] = {}  # outlets without room, in order
        self.writable = True  # the socket takes more

    @property
    def full(self) -> bool:
        """Whether no stream may add to what waits for the client."""
        return not self.writable or self._outlet_bytes >= CONNECTION_PENDING_BYTES_MAX

    @property
    def is_at_rest(self) -> bool:
        """Whether there is nothing to frame, and nobody waits for room."""
        return not self._ready and not self.waiting

    # What streams call

    def begin_answer(self, exchange: Http2Exchange, block: bytes, body: bytes) -> None:
        """Send a head and a body after it."""
        connection, state = self._connection, self._state
        # One that waits must not be passed by all that come after it.
        at_once = not self._ready and self.writable and state.unsent_bytes < BATCH_BYTES_MAX
        if at_once and body and state.send_whole(exchange.stream_id, block, body):
            connection.forget(exchange)
            connection.ask_flush()
            return
        state.send_head(exchange.stream_id, block, end=not body)
        if not body:
            connection.sent_all(exchange)
        elif self.pending_bytes and self.pending_bytes + len(body) > self._response_bytes_max:
            connection.app.metrics.rejected("response_memory")
            connection.cancel(exchange, ErrorCodes.ENHANCE_YOUR_CALM)
        else:
            exchange.finishing = True
            self._pend(exchange, body)
        connection.ask_flush()

    def begin_stream(self, exchange: Http2Exchange, block: bytes) -> None:
        """Send the head of an answer that goes on."""
        self._state.send_head(exchange.stream_id, block, end=False)
        self._connection.ask_flush()

    def send(self, exchange: Http2Exchange, data: bytes) -> None:
        """Send a piece of an answer that goes on."""
        if not exchange.gone:
            self._outlet_bytes += len(data)
            self._pend(exchange, data)
            self._connection.ask_flush()

    def finish(self, exchange: Http2Exchange) -> None:
        """End an answer that went on."""
        if exchange.gone:
            return
        exchange.finishing = True
        if not exchange.pending:
            self._state.send_piece(exchange.stream_id, b"", end=True)
            self._connection.sent_all(exchange)
        self._connection.ask_flush()

    def forget(self, exchange: Http2Exchange) -> None:
        """Drop what a stream still has to send."""
        self._count(exchange, -exchange.pending_bytes)
        exchange.pending = None

    # The turn

    def queue(self, exchange: Http2Exchange) -> None:
        """Let a stream send in its turn."""
        if not exchange.queued and exchange.pending:
            exchange.queued = True
            self._ready.append(exchange)

    def _pend(self, exchange: Http2Exchange, data: bytes) -> None:
        if exchange.pending is None:
            exchange.pending = deque()
        exchange.pending.append(data)
        exchange.pending_bytes += len(data)
        self.pending_bytes += len(data)
        self.queue(exchange)

    def _count(self, exchange: Http2Exchange, change: int) -> None:
        exchange.pending_bytes += change
        self.pending_bytes += change
        if exchange.outlet is not None:
            self._outlet_bytes += change
        assert min(exchange.pending_bytes, self.pending_bytes, self._outlet_bytes) >= 0

    def pump(self, until_ns: int) -> bool:
        """Frame what the windows allow, each stream in its turn; return whether there is more."""
        ready, state = self._ready, self._state
        while ready and self.writable:
            exchange = ready.popleft()
            exchange.queued = False
            if exchange.gone or not exchange.pending:
                continue
            sendable = state.sendable(exchange.stream_id)
            if sendable > 0:
                most = state.max_outbound_frame_size if ready else BATCH_BYTES_MAX
                self._send_piece(exchange, min(sendable, most))
            elif state.outbound_flow_control_window <= 0:
                exchange.queued = True
                ready.appendleft(exchange)
                return False
            if state.unsent_bytes >= BATCH_BYTES_MAX or self._clock() > until_ns:
                return bool(ready)
        return False

    def _send_piece(self, exchange: Http2Exchange, sendable: int) -> None:
        pending = exchange.pending
        assert pending is not None
        piece = pending.popleft()
        if len(piece) > sendable:
            view = memoryview(piece)
            pending.appendleft(view[sendable:])
            piece = view[:sendable]
        elif pending:
            parts, size = [piece], len(piece)
            while pending and size + len(pending[0]) <= sendable:
                size += len(pending[0])
                parts.append(pending.popleft())
            piece = b"".join(parts)
        self._count(exchange, -len(piece))
        exchange.sent_bytes += len(piece)
        end = exchange.finishing and not pending
        self._state.send_piece(exchange.stream_id, piece, end=end)
        if end:
            self._connection.sent_all(exchange)
        else:
            self.queue(exchange)

    def note_progress(self) -> None:
        """Note that the client takes bytes: streams that only wait for the socket are not stuck."""
        if not self.writable:
            for exchange in self._ready:
                if not exchange.gone and self._state.sendable(exchange.stream_id) > 0:
                    exchange.pace = None

    def wake(self, until_ns: int) -> bool:
        """Tell handlers that there is room again; return whether some have not been told."""
        for outlet in list(self.waiting):
            if self.full:
                return False
            try:
                outlet.has_room()
            except Exception:
                log.exception("a stream failed to go on")
            if self._clock() > until_ns:
                return bool(self.waiting)
        return False

    def close(self) -> None:
        self._ready.clear()
        self.waiting.clear()

    def let_go(self) -> None:
        """Forget the connection and every stream: it is gone."""
        self.close()
        del self._connection
