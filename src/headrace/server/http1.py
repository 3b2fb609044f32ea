"""HTTP/1.1 on one connection: hand over what was read, answer in order.

`http1_reader.py` reads requests; this file owns that pipelined ones are answered in their order,
that a client who does not read is not read from either, what takes too long, and when a connection
has to be closed.  It knows no route: `app.py` does.

The hot path is one read, one handler call and one write a request; times are looked at once a
second for all connections, not by a timer for each.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice
from typing import cast

import httptools

from headrace.core.errors import HeadraceError, RequestTimeout
from headrace.server.app import App, Target
from headrace.server.http1_answer import Http1Exchange, StreamOutlet
from headrace.server.http1_reader import BODY, HEAD, IDLE, RequestReader
from headrace.server.http2 import PREFACE, Http2Protocol
from headrace.server.refusals import body_late
from headrace.wire.routes import is_read

log = logging.getLogger("headrace.http1")

# Answers up to here are written at the end of the loop's turn, together with those of the other
# connections, which takes 2 µs less of each; what a client leaves untaken of them is not counted.
SMALL_ANSWER_BYTES = 16 * 1024
# After a refusal the rest of the request is read and dropped for so long, so that the client gets
# to see the answer instead of a reset.
LINGER_SECONDS = 1.0
LINGER_BYTES_MAX = 16 << 20
# What is kept of the bytes behind a request that asks for another protocol, until it is answered.
LEFTOVER_BYTES_MAX = 64 * 1024
# What a TLS connection may have unsent without being paused: more than the end of a handshake.
TLS_UNSENT_BYTES = 16 << 10


class Http1Protocol(RequestReader):
    """One connection, until it turns out to be HTTP/2."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.transport: asyncio.Transport | None = None
        self.outlet: StreamOutlet | None = None  # of the answer that goes on
        self.closing = False  # close once the queue is empty
        self._ended = False  # the client has sent all it will
        self._half_open = True  # one side may end before the other; not with TLS
        self.writable = True
        self._writing = 0  # bytes of the answer that is being written
        self._unsent = 0  # bytes of answers, counted when the client stopped taking them
        self._held = 0  # bytes of answers that wait for the ones before them
        self._handing_over = False
        self._paused = False  # no more is read from the client
        self._begun = b""  # first bytes, until they tell which protocol it is
        self._plain = False
        self._discarding = False
        self._discarded = 0
        self._handled = 0  # how many of the queue have been handed over
        self._leftover = b""  # bytes after a request that asks for another protocol
        self._suspended = False  # an upgrade is being decided
        self._pipeline_max = app.settings.pipeline_requests_max
        # Time-outs: reads so far, and what the last ticks saw.
        self._reads = 0
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self._seen_ms = 0
        self._now_ns = app.clock.monotonic_ns

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports are no subclass of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        app = self.app
        if len(app.connections) >= app.settings.max_connections:
            app.metrics.rejected("max_connections")
            self.transport.abort()
            return
        if app.state == "draining":
            # It was accepted before the stop, and has come too late to be told.
            self.transport.close()
            return
        app.connections.add(self)
        self._seen_ms = app.now_ms()
        tls = transport.get_extra_info("ssl_object")
        if tls is None:
            # A larger answer that the kernel does not take at once pauses: it stays in memory
            # whole until its last byte has gone.
            self.transport.set_write_buffer_limits(high=SMALL_ANSWER_BYTES, low=0)
        else:
            # There is more on its way than answers, the end of the handshake first of all, and a
            # pause for that would never end.
            self.transport.set_write_buffer_limits(high=TLS_UNSENT_BYTES)
            self._half_open = False
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            self._become_http2(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self.app.connections.discard(self)
        self._give_budget()
        self._forget_unsent()
        self._release(self._held)
        outlet, self.outlet = self.outlet, None
        queue, self.queue = self.queue, deque()
        if outlet is not None:
            outlet.lost()
        for exchange in queue:
            exchange.lost()
        self._let_go()

    def _let_go(self) -> None:
        # The parser knows its connection: a circle, and circles are collected very rarely here.
        del self._parser
        self._completed = []
        self._exchange = None
        self._body = []
        self._suspended = False
        self._known = ()

    def eof_received(self) -> bool:
        # The other side has sent all it will, and most who do are gone.  What is in progress is
        # still answered, unless it may take long: then its handler has asked to hear of this.
        self.closing = True
        self._ended = True
        if self._phase != IDLE or self.outlet is not None or not self.queue:
            return False
        return self._half_open and self.queue[0].on_abort is None

    def pause_writing(self) -> None:
        self.writable = False
        self._unsent = max(self.pending_bytes, self._writing)
        self.app.memory.used += self._unsent
        self._pause()
        if self.outlet is not None:
            self.outlet.no_room()

    def resume_writing(self) -> None:
        self.writable = True
        self._forget_unsent()
        if self.outlet is not None:
            self.outlet.has_room()
        self._hand_over()
        self._resume()

    def _forget_unsent(self) -> None:
        self.app.memory.used -= self._unsent
        self._unsent = 0

    def data_received(self, data: bytes) -> None:
        self._reads += 1
        if self._plain:
            outlet = self.outlet
            if outlet is not None and outlet.on_data is not None:
                outlet.on_data(data)
            elif self._discarding:
                self._discard(data)
            elif self._suspended:
                self._leftover += data
                if len(self._leftover) > LEFTOVER_BYTES_MAX:
                    self._pause()
            else:
                self._take(data)
        else:
            self._sniff(data)

    # Which protocol

    def _sniff(self, data: bytes) -> None:
        data = self._begun + data
        start = data[: len(PREFACE)]
        if start == PREFACE:
            self._become_http2(data)
        elif PREFACE.startswith(start) and len(start) < len(PREFACE):
            self._begun = data
            self._phase = HEAD
        else:
            self._plain = True
            self._begun = b""
            self._feed(data)

    def _become_http2(self, data: bytes) -> None:
        transport = self.transport
        assert transport is not None
        self.app.connections.discard(self)
        self._let_go()
        protocol = Http2Protocol(self.app)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data:
            protocol.data_received(data)
        if self.closing:
            protocol.drain()

    # Handing over

    def _new_exchange(self, target: Target, headers: dict[bytes, bytes]) -> Http1Exchange:
        return Http1Exchange(self, target, headers, self._now_ns())

    def _hand_over(self) -> None:
        """Give the application what has arrived, at most so many requests at a time.

        None while the client does not take the answers that it has been given.
        """
        queue = self.queue
        if len(queue) == 1 and not self._handled and self.writable and queue[0].whole:
            # Nearly always: one at a time.
            self._handled = 1
            self.app.handle(queue[0])
            return
        if not self._handing_over:
            # An answer given at once calls this again: the one that runs goes on with the next.
            self._handing_over = True
            try:
                self._hand_over_all()
            finally:
                self._handing_over = False
        if len(self.queue) > self._pipeline_max:
            self._pause()

    def _hand_over_all(self) -> None:
        held_max = self.app.settings.stream_pending_bytes
        while self._handled < len(self.queue) and self.writable:
            exchange = self.queue[self._handled]
            if self._handled >= self._pipeline_max or not (exchange.whole or exchange.streamed):
                return
            if self._held > held_max or (self._handled and not self._may_overtake(exchange)):
                return
            self._handled += 1
            if not exchange.answered:  # as one is that was refused while it arrived
                self.app.handle(exchange)

    def _may_overtake(self, exchange: Http1Exchange) -> bool:
        """Whether a request may run beside those before it that have no answer yet.

        Reads may, and appends beside appends, whose order the engine keeps; a read behind a write
        has to see it.
        """
        reads = is_read(exchange.route)
        return not any(
            before.ready is None
            and before.route is not exchange.route
            and not (reads and is_read(before.route))
            for before in islice(self.queue, self._handled)
        )

    def _hold(self, exchange: Http1Exchange) -> None:
        """Count an answer that others have to go before."""
        assert exchange.ready is not None
        exchange.held = len(exchange.ready)
        self._held += exchange.held
        self.app.memory.used += exchange.held

    def _release(self, held: int) -> None:
        self._held -= held
        self.app.memory.used -= held

    def answered(self, exchange: Http1Exchange) -> None:
        """An answer is ready: write it and those behind it, in order."""
        queue, transport = self.queue, self.transport
        if not queue or queue[0] is not exchange or transport is None:
            if queue:
                self._hold(exchange)
            return
        if len(queue) == 1 and exchange.keep_alive and not self._suspended:
            ready_bytes = exchange.ready
            assert ready_bytes is not None
            queue.popleft()
            self._handled -= 1
            self._writing = len(ready_bytes)
            transport.write(ready_bytes)
            if self._paused:
                self._resume()
            return
        ready = []
        while queue and queue[0].ready is not None:
            done = queue.popleft()
            self._handled -= 1
            assert done.ready is not None
            ready.append(done.ready)
            self._release(done.held)
            if not done.keep_alive or (self.closing and not queue):
                self._finish(ready, lingers=done.lingers)
                return
        joined = ready[0] if len(ready) == 1 else b"".join(ready)
        self._writing = len(joined)
        transport.write(joined)
        if queue:
            self._go_on()
        else:
            self._resume()
        if self._suspended and (not queue or queue[-1].ready is not None):
            self._not_upgraded()

    def _go_on(self) -> None:
        """The first of the queue is another one now."""
        first, transport = self.queue[0], self.transport
        if self._ended and transport is not None and (first.on_abort or first.outlet):
            transport.close()  # as `eof_received` says
            return
        if first.wants_continue and not first.whole:
            first.send_continue()
        if first.outlet is not None and self.outlet is None:
            self.outlet = first.outlet
            first.outlet.begin()
        self._hand_over()
        self._resume()

    def streaming_ended(self, exchange: Http1Exchange) -> None:
        """The answer that went on has ended."""
        self.outlet = None
        if self.queue and self.queue[0] is exchange:
            self.queue.popleft()
            self._handled -= 1
        if not exchange.keep_alive or (self.closing and not self.queue):
            self._finish([])
        elif self.queue:
            first = self.queue[0]
            if first.ready is None:
                self._go_on()
                return
            self._release(first.held)
            first.held = 0
            if self.closing and len(self.queue) == 1:
                first.keep_alive = False  # although it does not say so
            self.answered(first)
        else:
            self.stay()
            self._resume()

    def _finish(self, last: list[bytes], *, lingers: bool = False) -> None:
        """Write the last answer and close."""
        transport = self.transport
        assert transport is not None
        queue, self.queue = self.queue, deque()
        self._handled = 0
        for exchange in queue:
            exchange.lost()
        if lingers:
            self.linger(b"".join(last))
            return
        if last:
            transport.write(b"".join(last))
        transport.close()

    # Upgrades

    def _upgrading(self, rest: bytes) -> bytes:
        """A request asked for another protocol; what follows it may not be HTTP."""
        outlet = self.outlet
        if outlet is not None and outlet.on_data is not None:
            if rest:
                outlet.on_data(rest)
            return b""
        if not self.queue or self.queue[-1].ready is not None:
            # It has been answered in the ordinary way.
            self._parser = httptools.HttpRequestParser(self)
            return rest
        self._leftover = rest
        self._suspended = True
        return b""

    def _not_upgraded(self) -> None:
        """The answer was an ordinary one, so what follows is HTTP again."""
        rest = self.take_leftover()
        self._parser = httptools.HttpRequestParser(self)
        if rest and not self.closing:
            self._feed(rest)

    def take_leftover(self) -> bytes:
        """What arrived after the request that a tunnel was made of."""
        self._suspended = False
        rest, self._leftover = self._leftover, b""
        self._resume()
        return rest

    def stay(self) -> None:
        """The answer goes on, but is no tunnel: what follows the request is HTTP."""
        if self._suspended:
            self._not_upgraded()

    # Refusals, time-outs, drain

    def _refuse(self, error: HeadraceError) -> None:
        """Answer what cannot be parsed any further, and close."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._give_budget()
        self._body = []
        exchange = self._exchange
        if exchange is None or exchange not in self.queue:
            exchange = self._new_exchange(Target("", "", ""), {})
            self.queue.append(exchange)
        self._exchange = None
        self._phase = IDLE
        self._plain = True
        self._discarding = True
        exchange.keep_alive = False
        exchange.whole = True
        exchange.lingers = True
        if exchange.answered:
            transport.close()
        else:
            exchange.refuse(error)

    def linger(self, last: bytes) -> None:
        """Write the last answer, then let the client finish sending before the close."""
        transport = self.transport
        assert transport is not None
        transport.write(last)
        if transport.can_write_eof():
            transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, transport.abort)

    def _discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > LINGER_BYTES_MAX and self.transport is not None:
            self.transport.abort()

    def _pause(self) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing() and not self._paused:
            self._paused = True
            transport.pause_reading()

    def _resume(self) -> None:
        transport = self.transport
        if not self._paused or transport is None or transport.is_closing():
            return
        if (
            self.writable
            and len(self.queue) <= self._pipeline_max
            and len(self._leftover) <= LEFTOVER_BYTES_MAX
        ):
            self._paused = False
            transport.resume_reading()

    @property
    def pending_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def tick(self, now_ms: int) -> None:
        """Close or refuse what takes too long; a change since the last tick is progress."""
        pending = self.pending_bytes
        seen = (self._reads if self._phase != HEAD else -1, self._phase, pending)
        if seen != self._seen:
            self._seen, self._seen_ms = seen, now_ms
            return
        age_ms = now_ms - self._seen_ms
        settings, transport = self.app.settings, self.transport
        if transport is None:
            return
        if pending:
            if self.outlet is None and age_ms > settings.write_timeout_ms:
                self.app.metrics.rejected("write_timeout")
                transport.abort()
        elif self._paused:
            self._seen_ms = now_ms  # it is not the client who lets us wait
        elif self._phase == HEAD:
            if age_ms > settings.header_timeout_ms:
                late = RequestTimeout("the headers did not arrive in time", fix="send them faster")
                self._time_out(late, "header_timeout")
        elif self._phase == BODY:
            if age_ms > settings.body_timeout_ms and self.writable:
                self._time_out(body_late(), "body_timeout")
        elif not self.queue and age_ms > settings.idle_timeout_ms:
            transport.close()

    def _time_out(self, error: RequestTimeout, reason: str) -> None:
        self.app.metrics.rejected(reason)
        self._refuse(error)

    def drain(self) -> None:
        """Close when what is in progress has been answered."""
        self.closing = True
        if not self.queue and self._phase == IDLE and self.transport is not None:
            self.transport.close()
