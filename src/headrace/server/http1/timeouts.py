"""The time-outs of one HTTP/1.1 connection, and its minimum rates, looked at once a second.

Only this file says when a request or an answer has taken too long.  It has no timers: it compares
what it sees with what it saw at the last tick.
"""

from __future__ import annotations

import select

from headrace.core.errors import RequestTimeout
from headrace.core.pace import Late, Pace
from headrace.server.acknowledged import acknowledged_bytes
from headrace.server.app import App
from headrace.server.http1.heads import KnownHeads
from headrace.server.http1.pipeline import Pipeline
from headrace.server.refusals import body_late


class TimedPipeline(Pipeline):
    """The requests of a connection, each of which has to go on."""

    __slots__ = ("_arriving", "_taking")

    def __init__(self, app: App, heads: KnownHeads) -> None:
        super().__init__(app, heads)
        # What the last ticks saw of the request that arrives, and of the answers that go.
        self._arriving = Pace()
        self._taking = Pace()

    # What the rest of the connection does

    def abort(self) -> None:
        """Close at once, so that the client sees that an answer is not whole."""
        raise NotImplementedError

    # Time

    @property
    def pending_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def tick(self, now_ms: int) -> None:
        """Close or refuse what takes too long, or goes on too slowly."""
        transport = self.transport
        if transport is None:
            return
        if self._paused and self._was_reset():
            self.abort()
            return
        outlet = self.outlet
        pending = self.pending_bytes or int(outlet is not None and outlet.waits_for_room)
        if pending and (outlet is None or outlet.sized):
            taken = acknowledged_bytes(transport)
            late = self._late_taking(pending, taken, now_ms)
            if late:
                self.app.metrics.rejected(f"write_{late}")
                transport.abort()
                return
        else:
            self._taking.rest()
        if self._paused or transport.is_closing():
            self._arriving.rest()  # the client waits for us
        else:
            self._look_at_request(pending, now_ms)

    def _late_taking(self, pending: int, taken: int, now_ms: int) -> Late:
        """Whether the client takes too little of the answers that wait for it."""
        settings = self.app.settings
        # Where it is not known what was taken, any change of what waits is progress.
        return self._taking.look(
            0 if taken else pending,
            taken,
            now_ms,
            settings.write_timeout_ms,
            settings.answer_bytes_per_second_min,
        )

    def _look_at_request(self, pending: int, now_ms: int) -> None:
        """Refuse the request that is arriving too slowly, or close a connection at rest."""
        settings, arriving, awaits = self.app.settings, self._arriving, self.reading.awaits
        if awaits == "head":
            # Of a head nothing counts but its end.
            if arriving.look(("head", self._cut_heads), 0, now_ms, settings.header_timeout_ms):
                late = RequestTimeout("the headers did not arrive in time", fix="send them faster")
                self._time_out(late, "header_timeout")
        elif awaits == "body":
            self._look_at_body(now_ms)
        elif self.queue or pending:
            arriving.rest()
        elif arriving.look(("", self._reads), 0, now_ms, settings.idle_timeout_ms):
            self.close()

    def _look_at_body(self, now_ms: int) -> None:
        settings, exchange = self.app.settings, self._exchange
        if exchange is None or exchange.outlet is not None or exchange.wants_continue:
            # A session, whose client sends when it has something, or one that has not been asked.
            self._arriving.rest()
            return
        per_second_min = settings.body_bytes_per_second_min
        late = self._arriving.look(
            ("body", exchange.started_ns),
            self._body_bytes,
            now_ms,
            settings.body_timeout_ms,
            per_second_min,
        )
        if late:
            self._time_out(body_late(per_second_min), f"body_{late}")

    def _was_reset(self) -> bool:
        """Whether the client has reset a connection that is not read, so that no read tells."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        socket = transport.get_extra_info("socket")
        if socket is None:
            return False  # no transport of the network
        poll = select.poll()
        poll.register(socket.fileno(), 0)  # errors are always reported
        return bool(poll.poll(0))

    def _time_out(self, error: RequestTimeout, reason: str) -> None:
        self.app.metrics.rejected(reason)
        self._refuse(error)
