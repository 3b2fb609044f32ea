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
    HEADERS_FORM,
    PREFACE,
    HeadReceived,
    Http2State,
    frame_head_at,
)
from headrace.server.http2.headers import Head, Malformed
from headrace.server.http2.limits import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    FREE_HEAD_BYTES,
    FREE_STREAMS,
    GOAWAY,
    HEADERS,
    OVERSIZE_COST,
    STREAM_BYTES,
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
        self._streams_max = settings.http2_streams_max
        self._inbox = b""  # what has been received and not been worked on
        self._begun = False  # the preface has come

    def add(self, data: bytes) -> None:
        """Keep bytes that have arrived for `take_frames`."""
        self._inbox = self._inbox + data if self._inbox else data

    def drop(self) -> None:
        """Forget what has arrived: the connection ends."""
        self._inbox = b""

    def arriving_data(self) -> tuple[int, int]:
        """The stream of a frame of data that is not whole, and how much of it has arrived."""
        inbox = self._inbox
        if len(inbox) < FRAME_HEAD_BYTES or self._counter.in_block:
            return 0, 0
        _, _, kind, _, stream_id = frame_head_at(inbox, 0)
        return (stream_id, len(inbox) - FRAME_HEAD_BYTES) if kind == DATA else (0, 0)

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
        start, size, passed = at, len(data), 0
        done = True
        while size - at >= FRAME_HEAD_BYTES:
            high, low, kind, flags, stream_id = frame_head_at(data, at)
            length = high << 8 | low
            if length > FRAME_BYTES_MAX:
                raise FrameTooLargeError(f"a frame of {length} bytes")
            end = at + FRAME_HEAD_BYTES + length
            if end > size:
                break
            now_ns = clock()
            if at > start and now_ns > until_ns:
                done = False
                break
            after = 0
            if kind == HEADERS and flags & HEADERS_FORM == END_HEADERS and counter.at_rest:
                block = data[at + FRAME_HEAD_BYTES : end]
                after = self._take_head(stream_id, block, data, end, flags, now_ns)
            if after:
                passed += max(0, after - end - FRAME_HEAD_BYTES)
            elif counter.accepts(kind, flags, length):
                for event in self._events(kind, flags, data[at:end]):
                    self._react(event)
            at = after or end
            if self._connection.closing:
                return True
        if passed:
            state.took(passed)
        self._inbox = data[at:] if at < size else b""
        partial = done and (size > at or counter.in_block)
        self._timeouts.note_partial(partial, fresh=at > start and not counter.in_block)
        return done

    def _take_head(
        self, stream_id: int, block: bytes, data: bytes, end: int, flags: int, now_ns: int
    ) -> int:
        """Begin the request whose head is `block`, of a frame that ends at `end`.

        A request that is plain and all there is handed over at once, with its body.  Returns where
        what was taken ends; 0: it is no head of a new request.
        """
        connection, state = self._connection, self._state
        if stream_id <= state.highest_inbound_stream_id or stream_id & 0x80000001 != 1:
            return 0
        head: Head | None
        try:
            head = state.reader.read(block)
        except Malformed:
            head = None
        ended = bool(flags & END_STREAM)
        if head is not None and head.is_plain and self._may_begin():
            body = b"" if ended else _body_at(data, end, stream_id)
            if body is not None and self._is_right(head, len(body)) and connection.may_answer():
                state.open_stream(stream_id, ended=True)
                exchange = Http2Exchange(connection, stream_id, head, now_ns)
                exchange.received = True
                exchange.body = body
                connection.streams[stream_id] = exchange
                connection.app.handle(exchange)
                return end if ended else end + FRAME_HEAD_BYTES + len(body)
        state.open_stream(stream_id, ended=ended)
        self._begin(HeadReceived(stream_id, head, ended))
        return end

    def _is_right(self, head: Head, size: int) -> bool:
        """Whether nothing of a request with this head and `size` bytes of body is to be refused."""
        settings = self._settings
        return (
            (head.length is None or head.length == size)
            and size <= settings.body_bytes_max
            and head.bytes <= min(settings.header_bytes_max, FREE_HEAD_BYTES)
        )

    def _may_begin(self) -> bool:
        """Whether one more stream may begin."""
        connection = self._connection
        return not connection.leaving and len(connection.streams) < self._streams_max

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
        if not self._may_begin():
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM, "refused streams")
            return
        exchange = Http2Exchange(connection, stream_id, head, self._clock())
        connection.streams[stream_id] = exchange
        exchange.received = event.ended
        if head.bytes > settings.header_bytes_max:
            exchange.refuse(headers_too_large(settings.header_bytes_max))
            self._counter.fault("oversized heads", OVERSIZE_COST)
            return
        # A head may be many times what was sent for it, and stays as long as its stream.
        large = head.bytes > FREE_HEAD_BYTES or len(connection.streams) > FREE_STREAMS
        if large and not connection.count_head(exchange, head.bytes + STREAM_BYTES):
            return
        if exchange.route is None:
            head.route, head.params = connection.app.find_route(exchange), exchange.params
        exchange.streamed = takes_stream(exchange) or bool(head.upgrade)
        head.is_plain = _is_plain(exchange)
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
        elif not budget.take_more(len(data), exchange.budgeted):
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


def _body_at(data: bytes, at: int, stream_id: int) -> bytes | None:
    """The body that is a frame of its own at this place, with nothing behind it on its stream."""
    start = at + FRAME_HEAD_BYTES
    if start > len(data):
        return None
    high, low, kind, flags, other_id = frame_head_at(data, at)
    length = high << 8 | low
    if kind != DATA or flags != END_STREAM or other_id != stream_id:
        return None
    end = start + length
    return data[start:end] if end <= len(data) and length <= FRAME_BYTES_MAX else None


def _is_plain(exchange: Http2Exchange) -> bool:
    """Whether nothing is done with a request like this one but to hand it over when it is whole."""
    route = exchange.route
    if route is None or route.handling is not None or exchange.streamed:
        return False
    return b"expect" not in exchange.headers
