"""HTTP/2 on one connection: many requests at once, each a stream with its own flow control.

`h2` keeps the states (`http2_connection.py`), a stream keeps its request and answer
(`http2_stream.py`), and what is sent when is in `http2_sending.py`.  This file owns the turn: which
frames are read, when a handler is called, when a stream has ended, and that a connection that
floods or breaks the protocol is closed.  It knows no route: `app.py` does.

A connection gets at most a millisecond of each turn of the loop, and writes once a turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import FrameTooLargeError, ProtocolError

from headrace.server.http2_connection import FRAME_HEAD_BYTES, PREFACE, Connection, HeadReceived
from headrace.server.http2_limits import (
    FRAME_BYTES_MAX,
    GOAWAY,
    LINGER_BYTES_MAX,
    LINGER_MS,
    OVERSIZE_COST,
    RESPONSE_SHARE,
    TURN_NS_MAX,
    Flood,
    FrameCounter,
)
from headrace.server.http2_sending import Sender
from headrace.server.http2_stream import CONTINUE, Http2Exchange
from headrace.server.http2_timeouts import Timeouts
from headrace.server.refusals import bad_expectation, body_too_large, headers_too_large, no_memory

if TYPE_CHECKING:
    from headrace.server.app import App

__all__ = ["PREFACE", "Http2Protocol"]

log = logging.getLogger("headrace.http2")

_PING_DATA: Final = b"headrace"


class Http2Protocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, app: App) -> None:
        settings = app.settings
        self.app = app
        self.now_ms = app.now_ms()  # of the last tick: close enough for time-outs
        self.streams: dict[int, Http2Exchange] = {}
        self.reads = 0
        self.written = 0  # bytes given to the transport
        self._settings = settings
        self.transport: asyncio.Transport | None = None
        self._state = Connection(settings.http2_streams_max, settings.header_bytes_max)
        self._counter = FrameCounter(
            settings.http2_streams_max, settings.header_bytes_max, app.now_ms
        )
        self.sender = Sender(self, self._state)
        self._timeouts = Timeouts(self)
        self._inbox = b""  # what has been received and not been worked on
        self._begun = False  # the preface has come
        self._working = False
        self._turn_asked = False
        self._flush_asked = False
        self._held: deque[Http2Exchange] = deque()  # wait until answers have been taken
        self._leaving = False  # no new streams; close after the last
        self._closing = False  # nothing more is sent or looked at
        self._discarded = 0

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports are no subclass of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self._settings.stream_pending_bytes)
        self.app.connections.add(self)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.app.connections.discard(self)
        self._closing = True
        self.transport = None
        self._inbox = b""
        self._lose_streams()
        self.sender.let_go()
        self._state.let_go()
        del self._timeouts  # all of these knew each other

    def eof_received(self) -> bool:
        # A client that cannot send window updates any more is gone.
        return False

    def pause_writing(self) -> None:
        self.sender.writable = False

    def resume_writing(self) -> None:
        self.sender.writable = True
        self.ask_flush()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            self._discard(data)
            return
        self.reads += 1
        self._inbox = self._inbox + data if self._inbox else data
        if not self._turn_asked:
            self._turn()

    # Receiving

    def _turn(self) -> None:
        """Work on what has been received, for a millisecond at most."""
        self._turn_asked = False
        if self._closing:
            return
        self._working = True
        try:
            done = self._take_frames()
        except Flood as error:
            self.app.metrics.rejected("http2_flood")
            self.terminate(error.error_code, str(error))
            return
        except ProtocolError as error:
            self.app.metrics.rejected("malformed")
            self.terminate(error.error_code, str(error))
            return
        except Exception:
            log.exception("an HTTP/2 connection failed")
            self.terminate(ErrorCodes.INTERNAL_ERROR, "")
            return
        finally:
            self._working = False
        self._flush()
        if done:
            self._resume_reading()
        elif not self._closing:
            self._turn_asked = True
            self._pause_reading()
            self.app.soon(self._turn)

    def _take_frames(self) -> bool:
        """Take frames until there are no more, or the turn is over; whether there are no more."""
        clock, state, counter = self.app.clock.monotonic_ns, self._state, self._counter
        until_ns = clock() + TURN_NS_MAX
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
            if self._closing:
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
            self._leaving = True
            return []
        return self._state.receive(kind, flags, frame)

    def _react(self, event: Event) -> None:
        """What a frame means for its stream."""
        if isinstance(event, HeadReceived):
            self._begin(event)
        elif isinstance(event, DataReceived):
            self._take_data(event)
        elif isinstance(event, StreamEnded):
            exchange = self.streams.get(event.stream_id)
            if exchange is not None:
                self._received(exchange)
        elif isinstance(event, WindowUpdated):
            exchange = self.streams.get(event.stream_id or 0)
            if exchange is not None:
                self.sender.queue(exchange)
        elif isinstance(event, RemoteSettingsChanged):
            for exchange in self.streams.values():
                self.sender.queue(exchange)
        elif isinstance(event, StreamReset):
            if not event.remote_reset:
                self._counter.fault("faults")
            exchange = self.streams.get(event.stream_id)
            if exchange is not None:
                self._drop(exchange)

    def _begin(self, event: HeadReceived) -> None:
        """A request head has arrived."""
        head, stream_id, settings = event.head, event.stream_id, self._settings
        if head is None:
            self._reset(stream_id, ErrorCodes.PROTOCOL_ERROR, "malformed requests")
            return
        if self._leaving or len(self.streams) >= settings.http2_streams_max:
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM, "refused streams")
            return
        exchange = Http2Exchange(self, stream_id, head)
        self.streams[stream_id] = exchange
        exchange.received = event.ended
        if head.bytes > settings.header_bytes_max:
            exchange.refuse(headers_too_large(settings.header_bytes_max))
            self._counter.fault("oversized heads", OVERSIZE_COST)
            return
        route = self.app.route_of(exchange)
        exchange.streamed = bool(head.upgrade) or (route is not None and route.streamed)
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
            self._handle(exchange)

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
        exchange = self.streams.get(event.stream_id)
        if exchange is None or exchange.gone or (exchange.answered and not exchange.streamed):
            state.acknowledge_received_data(cost, event.stream_id)
            return
        exchange.moved_ms = self.now_ms
        exchange.arrived_bytes += len(data)
        expected = exchange.expected_bytes
        if expected is not None and exchange.arrived_bytes > expected:
            state.acknowledge_received_data(cost, event.stream_id)
            self._malformed(exchange)
        elif exchange.streamed:
            exchange.arrived.append((data, cost))
            if event.stream_ended is None:  # else `_received` comes next
                exchange.hand_over()
        else:
            state.acknowledge_received_data(cost, event.stream_id)
            self._keep(exchange, data)

    def _keep(self, exchange: Http2Exchange, data: bytes) -> None:
        """A piece of a body that the handler gets whole."""
        budget = self.app.budget
        if exchange.arrived_bytes > self._settings.body_bytes_max:
            exchange.refuse(body_too_large(self._settings.body_bytes_max))
        elif not budget.take(len(data)):
            self.app.metrics.rejected("request_memory")
            exchange.refuse(no_memory(budget.limit))
        else:
            exchange.budgeted += len(data)
            exchange.arrived.append((data, 0))

    def _received(self, exchange: Http2Exchange) -> None:
        """The client has sent all of a request."""
        exchange.received = True
        expected = exchange.expected_bytes
        if exchange.gone:  # and ended by us as well
            self._forget(exchange)
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
                exchange.body = arrived[0][0] if whole else b"".join([a for a, _ in arrived])
                arrived.clear()
            self._handle(exchange)

    def _handle(self, exchange: Http2Exchange) -> None:
        """Hand over a request, unless the client does not take the answers that it has."""
        if self._may_answer():
            self._give_budget(exchange)
            self.app.handle(exchange)
        else:
            self._held.append(exchange)

    def _may_answer(self) -> bool:
        sender, bytes_max = self.sender, self._settings.response_memory_bytes_max
        # Heads are framed at once, so what the socket does not take counts too.
        pending = sender.pending_bytes if sender.writable else self.pending_bytes
        return pending <= bytes_max // RESPONSE_SHARE and self.app.pending_bytes <= bytes_max

    def give_window(self, exchange: Http2Exchange, cost: int) -> None:
        """What cost so much of the windows has been consumed."""
        self._state.acknowledge_received_data(cost, exchange.stream_id)
        self.ask_flush()

    # Sending

    def ask_flush(self) -> None:
        """Something is to be sent when this turn ends."""
        if not self._working and not self._flush_asked and not self._closing:
            self._flush_asked = True
            self.app.soon(self._flush)

    def _flush(self) -> None:
        """Send what can be sent: one write."""
        self._flush_asked = False
        transport, sender = self.transport, self.sender
        if transport is None or self._closing:
            return
        until_ns = self.app.clock.monotonic_ns() + TURN_NS_MAX
        more = sender.pump(until_ns)
        data = self._state.data_to_send()
        if data and not transport.is_closing():
            self.written += len(data)
            transport.write(data)
        if self._leaving and not self.streams:
            self.terminate(ErrorCodes.NO_ERROR, "")
            return
        if self._held:
            more = self._let_in(until_ns) or more
        if sender.waiting:
            more = sender.wake(until_ns) or more
        if more and sender.writable:
            self.ask_flush()

    def _let_in(self, until_ns: int) -> bool:
        """Hand over what was held back; whether some of it still can be."""
        while self._held and self._may_answer():
            exchange = self._held.popleft()
            if not exchange.gone:
                self._give_budget(exchange)
                self.app.handle(exchange)
            if self.app.clock.monotonic_ns() > until_ns:
                return True
        return False

    def ping(self) -> None:
        """Ask whether the client is there."""
        self._state.ping(_PING_DATA)

    # The end of a stream

    def sent_all(self, exchange: Http2Exchange) -> None:
        """The answer is out, with its end."""
        exchange.gone = True
        if exchange.received:
            self._forget(exchange)
        elif exchange.upgrade_to and exchange.outlet is not None:
            exchange.moved_ms = self.now_ms  # the other side ends it, or the tick does
        else:
            # The rest of the request is of no use any more (RFC 9113 §8.1).
            self._state.reset_stream(exchange.stream_id, ErrorCodes.NO_ERROR)
            self._forget(exchange)

    def cancel(self, exchange: Http2Exchange, code: int = ErrorCodes.INTERNAL_ERROR) -> None:
        """Give a stream up; its handler hears that the client went."""
        if exchange.stream_id in self.streams:
            self._state.reset_stream(exchange.stream_id, code)
            self._drop(exchange)
            self.ask_flush()

    def _malformed(self, exchange: Http2Exchange) -> None:
        self.cancel(exchange, ErrorCodes.PROTOCOL_ERROR)
        self._counter.fault("malformed requests")

    def _reset(self, stream_id: int, code: int, what: str) -> None:
        """Give up a stream that has no exchange."""
        self._state.reset_stream(stream_id, code)
        self._state.forget(stream_id)
        self._counter.fault(what)

    def _drop(self, exchange: Http2Exchange) -> None:
        """A stream was reset, by either side."""
        self._forget(exchange)
        exchange.lost()

    def _forget(self, exchange: Http2Exchange) -> None:
        """A stream is closed on both sides."""
        if self.streams.pop(exchange.stream_id, None) is None:
            return
        exchange.gone = True
        cost = sum(cost for _, cost in exchange.arrived)
        if cost:
            self._state.acknowledge_received_data(cost, exchange.stream_id)
        exchange.arrived.clear()
        self._give_budget(exchange)
        self.sender.forget(exchange)
        self._state.forget(exchange.stream_id)
        if not self.streams:
            self._timeouts.idle_ms = self.now_ms

    def _give_budget(self, exchange: Http2Exchange) -> None:
        if exchange.budgeted:
            self.app.budget.give(exchange.budgeted)
            exchange.budgeted = 0

    def _lose_streams(self) -> None:
        streams = list(self.streams.values())
        self.streams.clear()
        self._held.clear()
        self.sender.close()
        for exchange in streams:
            self._give_budget(exchange)
            self.sender.forget(exchange)
            exchange.lost()

    # The end of a connection

    def terminate(self, code: int, reason: str) -> None:
        """Say why, send nothing more, and let the client finish before the close."""
        transport = self.transport
        if transport is None or self._closing:
            return
        self._closing = True
        self._inbox = b""
        self._state.close(code, reason)
        if not transport.is_closing():
            transport.write(self._state.data_to_send())
            if transport.can_write_eof():
                transport.write_eof()
            self._resume_reading()
        asyncio.get_running_loop().call_later(LINGER_MS / 1_000, transport.abort)
        self._lose_streams()

    def _discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > LINGER_BYTES_MAX and self.transport is not None:
            self.transport.abort()

    def _pause_reading(self) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing() and transport.is_reading():
            transport.pause_reading()

    def _resume_reading(self) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()

    def drain(self) -> None:
        """Take no new streams, and close after the last.

        The GOAWAY comes after the last answer: clients made with `h2` read nothing that follows it.
        """
        if self._leaving or self._closing:
            return
        self._leaving = True
        self.ask_flush()

    @property
    def pending_bytes(self) -> int:
        """Bytes of answers that the client has not taken."""
        buffered = self.transport.get_write_buffer_size() if self.transport is not None else 0
        return buffered + self.sender.pending_bytes

    def tick(self, now_ms: int) -> None:
        """Once a second: close or refuse what takes too long."""
        self.now_ms = now_ms
        if self.transport is not None and not self._closing:
            self._timeouts.tick(self.transport, now_ms)
