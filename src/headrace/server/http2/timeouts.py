"""The time-outs of one HTTP/2 connection, looked at once a second.

Only this file says when a connection or a stream has taken too long.  It has no timers: it compares
what it sees with what it saw at the last tick.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from h2.errors import ErrorCodes

from headrace.server.acknowledged import acknowledged_bytes
from headrace.server.http2.limits import TUNNEL_LINGER_MS
from headrace.server.http2.stream import Http2Exchange
from headrace.server.refusals import body_late

if TYPE_CHECKING:
    from headrace.server.http2.connection import Http2Connection

NEVER: Final = -1


class Timeouts:
    """What the last ticks saw."""

    def __init__(self, connection: Http2Connection) -> None:
        now_ms = connection.now_ms
        self._connection = connection
        self._settings = connection.app.settings
        self._reads_seen = 0
        self._heard_ms = now_ms
        self._pinged_ms = NEVER
        self._taken_seen = (0, 0)
        self._buffer_ms = now_ms
        self.idle_ms = now_ms  # since when there has been no stream
        self._partial_ms = NEVER  # since when part of a frame or header block has been there

    def note_partial(self, partial: bool, *, fresh: bool) -> None:
        """Note whether part of a frame or header block waits for the rest, and is a new one."""
        if not partial:
            self._partial_ms = NEVER
        elif fresh or self._partial_ms == NEVER:
            self._partial_ms = self._connection.now_ms

    def tick(self, transport: asyncio.Transport, now_ms: int) -> None:
        """Close or refuse what takes too long."""
        connection, settings = self._connection, self._settings
        rejected = connection.app.metrics.rejected
        if self._stuck(transport, now_ms):
            rejected("write_timeout")
            transport.abort()
        elif not self._answers_ping(now_ms):
            rejected("ping_timeout")
            transport.abort()
        elif self._partial_ms != NEVER and now_ms - self._partial_ms > settings.header_timeout_ms:
            rejected("header_timeout")
            connection.terminate(ErrorCodes.NO_ERROR, "a frame did not arrive in time")
        elif not connection.streams and now_ms - self.idle_ms > settings.idle_timeout_ms:
            connection.terminate(ErrorCodes.NO_ERROR, "idle")
        else:
            for exchange in list(connection.streams.values()):
                self._tick_stream(exchange, now_ms)
            connection.ask_flush()

    def _stuck(self, transport: asyncio.Transport, now_ms: int) -> bool:
        """Whether the client takes nothing of what the socket has for it."""
        buffered = transport.get_write_buffer_size()
        # More to take is no progress; less to take may be, and what was added meanwhile hides it.
        acknowledged = acknowledged_bytes(transport) if buffered else 0
        taken = (self._connection.written - buffered, acknowledged)
        if taken != self._taken_seen or not buffered:
            self._taken_seen, self._buffer_ms = taken, now_ms
            if buffered:
                self._heard_ms, self._pinged_ms = now_ms, NEVER  # a ping is behind all of it
                self._connection.sender.note_progress(now_ms)
            return False
        allowed_ms = self._settings.write_timeout_ms
        if self._connection.sender.waiting:
            # Their handlers close them first, and say why.
            allowed_ms += self._settings.slow_consumer_timeout_ms
        return now_ms - self._buffer_ms > allowed_ms

    def _answers_ping(self, now_ms: int) -> bool:
        """Whether the client is there; asks it after a time of silence."""
        connection, ping_ms = self._connection, self._settings.http2_ping_ms
        if connection.reads != self._reads_seen or not connection.streams:
            self._reads_seen, self._heard_ms, self._pinged_ms = connection.reads, now_ms, NEVER
        elif self._pinged_ms != NEVER:
            return now_ms - self._pinged_ms <= ping_ms
        elif now_ms - self._heard_ms >= ping_ms:
            self._pinged_ms = now_ms
            connection.ping()
        return True

    def _tick_stream(self, exchange: Http2Exchange, now_ms: int) -> None:
        connection, settings = self._connection, self._settings
        rejected = connection.app.metrics.rejected
        age_ms = now_ms - exchange.moved_ms
        if exchange.gone:
            if age_ms > TUNNEL_LINGER_MS:
                connection.cancel(exchange, ErrorCodes.NO_ERROR)
        elif exchange.finishing or (exchange.sized and exchange.pending):
            if age_ms > settings.write_timeout_ms:
                rejected("write_timeout")
                connection.cancel(exchange, ErrorCodes.CANCEL)
        elif exchange.received or exchange.streamed or exchange.answered:
            pass  # the handler's time, not the client's
        elif age_ms > settings.body_timeout_ms:
            rejected("body_timeout")
            exchange.refuse(body_late())
