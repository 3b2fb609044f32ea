"""The order of one HTTP/1.1 connection: which request is handed over when, and answered when.

Only this file moves the queue of requests.  Pipelined requests are answered in their order, and run
beside each other only where that makes no difference; a client that does not take its answers gets
no more, and is not read from either.  It neither parses (`reader.py`) nor watches the clock
(`connection.py`).
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from headrace.server.admitted_heads import admitted_head
from headrace.server.app import App
from headrace.server.http1.answer import Http1Exchange
from headrace.server.http1.heads import KnownHead, KnownHeads
from headrace.server.http1.known_requests import KnownRequests
from headrace.server.http1.outlet import Http1Outlet
from headrace.server.http1.states import CLOSE, HALF_CLOSED, OPEN, UPGRADING, State
from headrace.wire.routes import is_read

# What is kept of the bytes behind a request that asks for another protocol, until it is answered.
LEFTOVER_BYTES_MAX = 64 * 1024
# Requests that wait for those before them: beyond this, no more is read from the client.
WAITING_BYTES_MAX = 64 * 1024


class Pipeline(KnownRequests):
    """The requests of a connection that have been read and not been answered."""

    __slots__ = (
        "_behind",
        "_handing_over",
        "_handled",
        "_held",
        "_leftover",
        "_paused",
        "_pipeline_max",
        "_until_ns",
        "_waiting_bodies",
        "_writing",
        "answering",
        "outlet",
        "writable",
    )

    def __init__(self, app: App, heads: KnownHeads) -> None:
        super().__init__(app, heads)
        self.answering: State = OPEN
        self.outlet: Http1Outlet | None = None  # of the answer that goes on
        self.writable = True
        self._writing = 0  # bytes of the answer that is being written
        self._held = 0  # bytes of answers that wait for the ones before them
        self._behind = False  # the next turn of the loop goes on with the queue
        self._handing_over = False
        self._handled = 0  # how many of the queue have been handed over
        self._until_ns = 0  # how long the requests of this read may take; 0: none has begun
        self._paused = False  # no more is read from the client
        self._waiting_bodies: set[Http1Exchange] = set()  # their handlers want no more for now
        self._leftover = b""  # bytes after a request that asks for another protocol
        self._pipeline_max = app.settings.pipeline_requests_max

    # What the rest of the connection does

    def linger(self, last: bytes) -> None:
        """Write the last answer, then let the client finish sending before the close."""
        raise NotImplementedError

    def not_upgraded(self) -> None:
        """Read on as HTTP: the request for another protocol has got an ordinary answer."""
        raise NotImplementedError

    # Handing over

    def _take_known(self, known: KnownHead, headers: dict[bytes, bytes], body: bytes) -> None:
        self._attempts = 0
        app, queue = self.app, self.queue
        target, memo, now = known.target, known.memo, app.now_ns()
        exchange = Http1Exchange(self, target, headers, now, body, memo)  # type: ignore[arg-type]
        exchange.received = True
        admitted = known.admitted
        if admitted is None:
            admitted = known.admitted = admitted_head(app, exchange)
        exchange.admitted = admitted
        queue.append(exchange)
        if admitted is not None and len(queue) == 1 and self.writable:
            # Nearly always: the only one.
            self._handled = 1
            app.handle_admitted(exchange, admitted)
        else:
            self._hand_over()

    def _received(self, exchange: Http1Exchange) -> None:
        exchange.received = True
        if not exchange.streamed:
            self._hand_over()
            return
        exchange.hand_over()
        if not exchange.keep_alive and exchange not in self.queue:
            self.close()  # the last one, which was answered before all of it was here

    def _hand_over(self) -> None:
        """Give the application what has arrived, at most `pipeline_requests_max` at a time.

        None while the client does not take the answers that it has been given.
        """
        queue = self.queue
        if len(queue) == 1 and not self._handled and self.writable and queue[0].received:
            # Nearly always: one at a time.
            if self._has_time():
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
        if len(self.queue) > self._pipeline_max or self._much_waits():
            self._pause()

    def _much_waits(self) -> bool:
        """Whether the requests that are not handed over yet hold much."""
        queue, handled = self.queue, self._handled
        if len(queue) <= handled:
            return False  # nearly always: none waits
        return sum(map(_size_of, islice(queue, handled, None))) > WAITING_BYTES_MAX

    def _hand_over_all(self) -> None:
        held_max = self.app.settings.stream_pending_bytes
        while self._handled < len(self.queue) and self.writable:
            exchange = self.queue[self._handled]
            if self._handled >= self._pipeline_max or not (exchange.received or exchange.streamed):
                return
            if self._held > held_max or (self._handled and not self._may_overtake(exchange)):
                return
            if not self._has_time():
                return
            behind = self._handled > 0
            self._handled += 1
            if exchange.admitted is not None:
                self.app.handle_admitted(exchange, exchange.admitted)
            elif not exchange.answered:  # as one is that was refused while it arrived
                self.app.handle(exchange)
            if behind and is_read(exchange.route):
                # Reads have large answers: each is counted before the next one is handed over.
                self.app.turn.run()

    def _has_time(self) -> bool:
        """Whether one more request may be handed over in this turn; else the next one goes on.

        What one read brings may be a hundred requests, each of which takes a while.
        """
        if self._behind:
            return False
        shares, now_ns = self.app.shares, self.app.now_ns()
        if not self._until_ns:
            self._until_ns = now_ns + shares.slice_ns
        elif now_ns > self._until_ns:
            self._behind = True
            shares.go_on_later(self._catch_up, self._waiting)
            return False
        return True

    def _waiting(self) -> int:
        """Return how many requests are not handed over yet."""
        return len(self.queue) - self._handled

    def _catch_up(self) -> None:
        """Go on with the requests that this connection had no time for."""
        self._behind = False
        self._until_ns = 0
        self._hand_over()

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

    def answered_alone(self, ready: bytes) -> None:
        """Write the answer to the only request there is, after which the connection stays."""
        transport = self.transport
        assert transport is not None
        self.queue.popleft()
        self._handled = 0
        self._writing = len(ready)
        transport.write(ready)
        if self._paused:
            self.resume()

    def answered(self, exchange: Http1Exchange) -> None:
        """Write an answer that is ready, and those behind it that are, in order."""
        queue, transport = self.queue, self.transport
        if not queue or queue[0] is not exchange or transport is None:
            if queue:
                self._hold(exchange)
            return
        if len(queue) == 1 and exchange.keep_alive and self.reading is not UPGRADING:
            assert exchange.ready is not None
            self.answered_alone(exchange.ready)
            return
        ready = []
        while queue and queue[0].ready is not None:
            done = queue.popleft()
            self._handled -= 1
            assert done.ready is not None
            ready.append(done.ready)
            self._release(done.held)
            if not done.keep_alive or (self.answering is not OPEN and not queue):
                self._finish(ready, lingers=done.lingers)
                return
        joined = ready[0] if len(ready) == 1 else b"".join(ready)
        self._writing = len(joined)
        transport.write(joined)
        if queue:
            self._go_on()
        else:
            self.resume()
        if self.reading is UPGRADING and (not queue or queue[-1].ready is not None):
            self.not_upgraded()

    def _go_on(self) -> None:
        """Begin with the request that is now the first of the queue."""
        first = self.queue[0]
        if self.answering is HALF_CLOSED and first.may_take_long:
            self.close()
            return
        if first.wants_continue and not first.received:
            first.send_continue()
        if first.outlet is not None and self.outlet is None:
            self.outlet = first.outlet
            first.outlet.begin()
        self._hand_over()
        self.resume()

    def leave_ended(self) -> None:
        """Close if the client has sent all it will, and the answer that is due may take long."""
        if self.answering is HALF_CLOSED and self.queue and self.queue[0].may_take_long:
            self.close()

    def streaming_ended(self, exchange: Http1Exchange) -> None:
        """Go on with the next request: the answer that went on has ended."""
        self.outlet = None
        if self.queue and self.queue[0] is exchange:
            self.queue.popleft()
            self._handled -= 1
        if not exchange.keep_alive or (self.answering is not OPEN and not self.queue):
            self._finish([])
        elif self.queue:
            first = self.queue[0]
            if first.ready is None:
                self._go_on()
                return
            self._release(first.held)
            first.held = 0
            if self.answering is not OPEN and len(self.queue) == 1:
                first.keep_alive = False  # although it does not say so
            self.answered(first)
        else:
            self.stay()
            self.resume()

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
        self.close()

    def close(self) -> None:
        """Close after what has been written."""
        self.answering = CLOSE[self.answering]
        if self.transport is not None:
            self.transport.close()

    # Reading or not

    def stay(self) -> None:
        """Read on as HTTP: the answer goes on, but is no tunnel."""
        if self.reading is UPGRADING:
            self.not_upgraded()

    def body_waits(self, exchange: Http1Exchange) -> None:
        """Stop reading until a handler wants more of its body.

        What the present read still holds goes on to the handlers: no more than that is kept.
        """
        self._waiting_bodies.add(exchange)
        self._pause()

    def body_flows(self, exchange: Http1Exchange) -> None:
        """Read on, as far as this body is concerned."""
        self._waiting_bodies.discard(exchange)
        self.resume()

    def _pause(self) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing() and not self._paused:
            self._paused = True
            transport.pause_reading()

    def resume(self) -> None:
        """Read from the client again, unless there is still a reason not to."""
        transport = self.transport
        if not self._paused or transport is None or transport.is_closing():
            return
        if (
            self.writable
            and not self._waiting_bodies
            and len(self.queue) <= self._pipeline_max
            and not self._much_waits()
            and len(self._leftover) <= LEFTOVER_BYTES_MAX
        ):
            self._paused = False
            transport.resume_reading()


def _size_of(exchange: Http1Exchange) -> int:
    """What a request that waits holds: its body, and what its head says."""
    return len(exchange.body) + len(exchange.path) + sum(map(len, exchange.headers.values()))
