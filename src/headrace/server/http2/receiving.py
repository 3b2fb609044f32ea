"""What the client of one HTTP/2 connection sends: frames to requests and their bodies.

Only this file says which frames are read, what each means for its stream, and whether a request is
refused before its handler sees it.  It neither writes nor ends streams: `connection.py` does, and
decides when a handler is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import FrameTooLargeError

from headrace.core.errors import OutOfResources
from headrace.server.http2.connection_state import (
    FRAME_HEAD_BYTES,
    PREFACE,
    HeadReceived,
    Http2State,
)
from headrace.server.http2.limits import (
    FRAME_BYTES_MAX,
    GOAWAY,
    OVERSIZE_COST,
    FrameCounter,
)
from headrace.server.http2.stream import CONTINUE, Http2Exchange
from headrace.server.http2.timeouts import Timeouts
from headrace.server.refusals import bad_expectation, body_too_large, headers_too_large, no_memory
from headrace.wire.routes import takes_stream

if TYPE_CHECKING:
    from headrace.server.http2.connection import Http2Connection


class Receiver:
    """The receiving half of a connection."""

    def __init__(self, connection: Http2Connection, state: Http2State, timeouts: Timeouts) -> None:
        app = connection.app
        settings = app.settings
        self._connection = connection
        self._state = state
        self._timeouts = timeouts
        self._settings = settings
        self._clock = app.clock.monotonic_ns
        self._counter = FrameCounter(
            settings.http2_streams_max, settings.header_bytes_max, app.now_ms
        )
        self._inbox = b""  # what has been received and not been worked on
        self._begun = False  # the preface has come

    def add(self, data: bytes) -> None:
        """Keep bytes that have arrived for `take_frames`."""
        self._inbox = self._inbox + data if self._inbox else data

    def drop(self) -> None:
        """Forget what has arrived: the connection ends."""
        self._inbox = b""

    def let_go(self) -> None:
        """Forget the connection: it is gone, and the two knew each other."""
        self._inbox = b""
        del self._connection, self._timeouts

    # Frames

    def take_frames(self, until_ns: int) -> bool:
        """Take frames until none is left or the turn is over; return whether none is left."""
        clock, state, counter = self._clock, self._state, self._counter
        data, at = self._inbox, 0
        if not self._begun:
            if len(data) < len(PREFACE) and PREFACE.startswith(data):
                return True
            state.receive_data(data[: len(PREFACE)])
            self._begun = True
            at = len(PREFACE)
        start, size = at, len(data)
        done = True
        while size - at >= FRAME_HEAD_BYTES:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if length > FRAME_BYTES_MAX:
                raise FrameTooLargeError(f"a frame of {length} bytes")
            end = at + FRAME_HEAD_BYTES + length
            if end > size:
                break
            if at > start and clock() > until_ns:
                done = False
                break
            if counter.accepts(data[at + 3], data[at + 4], length):
                for event in self._events(data[at + 3], data[at + 4], data[at:end]):
                    self._react(event)
            at = end
            if self._connection.closing:
                return True
        self._inbox = data[at:] if at < size else b""
        partial = done and (size > at or counter.in_block)
        self._timeouts.note_partial(partial, fresh=at > start and not counter.in_block)
        return done

    def _events(self, kind: int, flags: int, frame: bytes) -> list[Event]:
        if self._counter.in_block:
            return self._state.receive_data(frame)
        if kind == GOAWAY:
            # `h2` would send nothing more; but what was asked for is still wanted.
            self._connection.leaving = True
            return []
        return self._state.receive(kind, flags, frame)

    def _react(self, event: Event) -> None:
        """Do what a frame means for its stream."""
        streams, sender = self._connection.streams, self._connection.sender
        if isinstance(event, HeadReceived):
            self._begin(event)
        elif isinstance(event, DataReceived):
            self._take_data(event)
        elif isinstance(event, StreamEnded):
            exchange = streams.get(event.stream_id)
            if exchange is not None:
                self._received(exchange)
        elif isinstance(event, WindowUpdated):
            exchange = streams.get(event.stream_id or 0)
            if exchange is not None:
                sender.queue(exchange)
        elif isinstance(event, RemoteSettingsChanged):
            for exchange in streams.values():
                sender.queue(exchange)
        elif isinstance(event, StreamReset):
            if not event.remote_reset:
                self._counter.fault("faults")
            exchange = streams.get(event.stream_id)
            if exchange is not None:
                self._connection.drop(exchange)

    # Requests

    def _begin(self, event: HeadReceived) -> None:
        """Begin a request: refuse it, wait for its body, or hand it over."""
        head, stream_id, settings = event.head, event.stream_id, self._settings
        connection = self._connection
        if head is None:
            self._reset(stream_id, ErrorCodes.PROTOCOL_ERROR, "malformed requests")
            return
        if connection.leaving or len(connection.streams) >= settings.http2_streams_max:
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM, "refused streams")
            return
        exchange = Http2Exchange(connection, stream_id, head)
        connection.streams[stream_id] = exchange
        exchange.received = event.ended
        if head.bytes > settings.header_bytes_max:
            exchange.refuse(headers_too_large(settings.header_bytes_max))
            self._counter.fault("oversized heads", OVERSIZE_COST)
            return
        connection.app.find_route(exchange)
        exchange.streamed = takes_stream(exchange) or bool(head.upgrade)
        if not event.ended:
            if not exchange.streamed and not exchange.may_send(settings.body_bytes_max):
                return
            if b"expect" in exchange.headers and not self._expect(exchange):
                return
        elif not exchange.streamed:
            self._received(exchange)
        elif exchange.expected_bytes:
            self._malformed(exchange)
            return
        if exchange.streamed:
            connection.handle(exchange)

    def _expect(self, exchange: Http2Exchange) -> bool:
        if exchange.headers[b"expect"].lower() != b"100-continue":
            exchange.refuse(bad_expectation())
            return False
        self._state.send_interim(exchange.stream_id, CONTINUE)
        return True

    def _take_data(self, event: DataReceived) -> None:
        data, cost, state = event.data, event.flow_controlled_length, self._state
        if not data and event.stream_ended is None:
            self._counter.empty_data()
        exchange = self._connection.streams.get(event.stream_id)
        if exchange is None or exchange.gone or (exchange.answered and not exchange.streamed):
            state.acknowledge_received_data(cost, event.stream_id)
            return
        exchange.moved_ms = self._connection.now_ms
        exchange.arrived_bytes += len(data)
        expected = exchange.expected_bytes
        if expected is not None and exchange.arrived_bytes > expected:
            state.acknowledge_received_data(cost, event.stream_id)
            self._malformed(exchange)
        elif exchange.streamed:
            if cost > len(data):  # padding
                state.acknowledge_received_data(cost - len(data), event.stream_id)
            if data:
                exchange.piece_arrived(data)
        else:
            state.acknowledge_received_data(cost, event.stream_id)
            self._keep(exchange, data)

    def _keep(self, exchange: Http2Exchange, data: bytes) -> None:
        """Keep a piece of a body that the handler gets whole."""
        app = self._connection.app
        budget = app.budget
        if exchange.arrived_bytes > self._settings.body_bytes_max:
            exchange.refuse(body_too_large(self._settings.body_bytes_max))
        elif not budget.take(len(data)):
            app.metrics.rejected("request_memory")
            exchange.refuse(no_memory(budget.limit))
        else:
            exchange.budgeted += len(data)
            exchange.arrived.append(data)

    def _received(self, exchange: Http2Exchange) -> None:
        """Hand over a request that has arrived to its end."""
        exchange.received = True
        expected = exchange.expected_bytes
        if exchange.gone:  # and ended by us as well
            self._connection.forget(exchange)
        elif exchange.answered and not exchange.streamed:
            pass  # the answer is on its way
        elif expected is not None and exchange.arrived_bytes != expected:
            self._malformed(exchange)
        elif exchange.streamed:
            exchange.hand_over()
        else:
            arrived = exchange.arrived
            if arrived:
                whole = len(arrived) == 1
                try:
                    exchange.body = arrived[0] if whole else b"".join(arrived)
                except MemoryError:
                    arrived.clear()
                    exchange.refuse(OutOfResources.told("nothing"))
                    return
                arrived.clear()
            self._connection.handle(exchange)

    def _malformed(self, exchange: Http2Exchange) -> None:
        self._connection.cancel(exchange, ErrorCodes.PROTOCOL_ERROR)
        self._counter.fault("malformed requests")

    def _reset(self, stream_id: int, code: int, what: str) -> None:
        """Give up a stream that has no exchange."""
        self._state.reset_stream(stream_id, code)
        self._state.forget(stream_id)
        self._counter.fault(what)
