"""The time-outs of one HTTP/2 connection, and its minimum rates, looked at once a second.

Only this file says when a connection or a stream has taken too long.  It has no timers: it compares
what it sees with what it saw at the last tick.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from h2.errors import ErrorCodes

from headrace.core.pace import Late, Pace
from headrace.server.http2.limits import TUNNEL_LINGER_MS
from headrace.server.http2.stream import Http2Exchange
from headrace.server.refusals import body_late

if TYPE_CHECKING:
    from headrace.server.http2.connection import Http2Connection

NEVER: Final = -1
NO_FRAME: Final = 0


class Timeouts:
    """What the last ticks saw."""

    def __init__(self, connection: Http2Connection) -> None:
        now_ms = connection.now_ms
        self._connection = connection
        self._settings = connection.app.settings
        self._reads_seen = 0
        self._heard_ms = now_ms
        self._pinged_ms = NEVER
        self._taken_seen = 0
        self._taking = Pace()  # of what the socket has for the client
        self.idle_ms = now_ms  # since when there has been no stream
        self._frames_cut = 0  # frames and header blocks that did not come in one read
        self._frame_cut = NO_FRAME  # which of these waits for the rest
        self._arriving = Pace()  # of that

    def note_partial(self, partial: bool, *, fresh: bool) -> None:
        """Note whether part of a frame or header block waits for the rest, and is a new one."""
        if not partial:
            self._frame_cut = NO_FRAME
        elif fresh or self._frame_cut == NO_FRAME:
            self._frames_cut += 1
            self._frame_cut = self._frames_cut

    def tick(self, transport: asyncio.Transport, now_ms: int) -> None:
        """Close or refuse what takes too long, or goes on too slowly."""
        connection, settings = self._connection, self._settings
        rejected = connection.app.metrics.rejected
        if late := self._late_taking(transport, now_ms):
            rejected(f"write_{late}")
            transport.abort()
        elif not self._answers_ping(now_ms):
            rejected("ping_timeout")
            transport.abort()
        elif reason := self._late_frame(now_ms):
            rejected(reason)
            connection.terminate(ErrorCodes.NO_ERROR, "a frame did not arrive in time")
        elif not connection.streams and now_ms - self.idle_ms > settings.idle_timeout_ms:
            connection.terminate(ErrorCodes.NO_ERROR, "idle")
        else:
            for exchange in list(connection.streams.values()):
                self._tick_stream(exchange, now_ms)
            connection.ask_flush()

    def _late_taking(self, transport: asyncio.Transport, now_ms: int) -> Late:
        """Whether the client takes too little of what the socket has for it."""
        connection, settings = self._connection, self._settings
        if not transport.get_write_buffer_size():
            self._taking.rest()
            return ""
        # More to take is no progress; less to take may be, and what was added meanwhile hides it.
        taken = connection.taken_bytes
        if taken != self._taken_seen:
            self._taken_seen = taken
            self._heard_ms, self._pinged_ms = now_ms, NEVER  # a ping is behind all of it
            connection.sender.note_progress()
        allowed_ms = settings.write_timeout_ms
        if connection.sender.waiting:
            # Their handlers close them first, and say why.
            allowed_ms += settings.slow_consumer_timeout_ms
        return self._taking.look(
            "taking", taken, now_ms, allowed_ms, settings.answer_bytes_per_second_min
        )

    def _late_frame(self, now_ms: int) -> str:
        """Why the frame or header block that is arriving is not waited for; empty: it is.

        A frame of data may be long, and is a body's; of all others nothing counts but their end.
        """
        if self._frame_cut == NO_FRAME:
            self._arriving.rest()
            return ""
        settings = self._settings
        per_second_min = settings.body_bytes_per_second_min
        arrived = self._connection.arriving_data()[1] if per_second_min else 0
        allowed_ms = settings.header_timeout_ms
        late = self._arriving.look(self._frame_cut, arrived, now_ms, allowed_ms, per_second_min)
        if not late:
            return ""
        return f"body_{late}" if arrived else "header_timeout"

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
        if exchange.gone:
            if now_ms - exchange.ended_ms > TUNNEL_LINGER_MS:
                connection.cancel(exchange, ErrorCodes.NO_ERROR)
        elif exchange.finishing or (exchange.sized and exchange.pending):
            per_second_min = settings.answer_bytes_per_second_min
            late = _pace_of(exchange).look(
                "answer", exchange.sent_bytes, now_ms, settings.write_timeout_ms, per_second_min
            )
            if late:
                rejected(f"write_{late}")
                connection.cancel(exchange, ErrorCodes.CANCEL)
        elif exchange.received or exchange.streamed or exchange.answered:
            exchange.pace = None  # the handler's time, not the client's
        elif not connection.may_receive:
            exchange.pace = None  # the client waits for us
        else:
            per_second_min = settings.body_bytes_per_second_min
            stream_id, more = connection.arriving_data()
            arrived = exchange.arrived_bytes + (more if stream_id == exchange.stream_id else 0)
            late = _pace_of(exchange).look(
                "body", arrived, now_ms, settings.body_timeout_ms, per_second_min
            )
            if late:
                rejected(f"body_{late}")
                exchange.refuse(body_late(per_second_min))


def _pace_of(exchange: Http2Exchange) -> Pace:
    """What the last ticks saw of a stream; begins now if they did not wait for it."""
    if exchange.pace is None:
        exchange.pace = Pace()
    return exchange.pace
