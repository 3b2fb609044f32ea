"""HTTP/2 on one connection: many requests at once, each a stream with its own flow control.

`h2` keeps the states (`connection_state.py`), a stream keeps its request and answer (`stream.py`),
`receiving.py` reads frames and `sending.py` writes them.  This file owns the turn: when frames are
read and written, when a handler is called, when a stream has ended, and that a connection that
floods or breaks the protocol is closed.  It knows no route: `app.py` does.

A connection gets at most a millisecond of each turn of the loop, less where others are behind
(`loop_shares.py`), and writes once a turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from headrace.core.error_frames import without_frames
from headrace.core.errors import OutOfResources
from headrace.server.acknowledged import acknowledged_bytes
from headrace.server.http2.connection_state import PREFACE, Http2State
from headrace.server.http2.limits import (
    RESPONSE_SHARE,
    TAKEN_BYTES_MIN,
    Flood,
)
from headrace.server.http2.receiving import Receiver
from headrace.server.http2.sending import Sender
from headrace.server.http2.stream import Http2Exchange
from headrace.server.http2.timeouts import Timeouts
from headrace.server.lingering import Discarder, linger
from headrace.server.refusals import no_memory

if TYPE_CHECKING:
    from headrace.server.app import App

__all__ = ["PREFACE", "Http2Connection"]

log = logging.getLogger("headrace.http2")

_PING_DATA: Final = b"headrace"


class Http2Connection(asyncio.Protocol):
    """One connection: many streams, a turn of the loop at a time."""

    def __init__(self, app: App) -> None:
        settings = app.settings
        self.app = app
        self.now_ms = app.now_ms()  # of the last tick: close enough for time-outs
        self.streams: dict[int, Http2Exchange] = {}
        self.reads = 0
        self.written = 0  # bytes given to the transport
        self._settings = settings
        self.transport: asyncio.Transport | None = None
        self._state = Http2State(settings.http2_streams_max, settings.header_bytes_max)
        self.sender = Sender(self, self._state)
        self._timeouts = Timeouts(self)
        self._receiver = Receiver(self, self._state, self._timeouts)
        self._working = False
        self._turn_asked = False
        self._flush_asked = False
        self._held: deque[Http2Exchange] = deque()  # wait until answers have been taken
        self.leaving = False  # no new streams; close after the last
        self.closing = False  # nothing more is sent or looked at
        self._deaf = False  # nothing more is looked at: something was lost for want of memory
        self._discarder = Discarder()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports are no subclass of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self._settings.stream_pending_bytes)
        self.app.connections.add(self)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.app.connections.discard(self)
        self.closing = True
        self.transport = None
        self._lose_streams()
        self._receiver.let_go()
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
        if self.closing or self._deaf:
            self._discarder.drop(data, self.transport)
            return
        self.reads += 1
        try:
            self._receiver.add(data)
        except MemoryError as error:
            self._ran_out(error)
            return
        if not self._turn_asked:
            self._turn()

    # Receiving

    def _turn(self) -> None:
        """Work on what has been received, for a share of a millisecond."""
        self._turn_asked = False
        if self.closing:
            return
        self._working = True
        try:
            done = self._receiver.take_frames(
                self.app.clock.monotonic_ns() + self.app.shares.slice_ns
            )
        except Flood as error:
            self.app.metrics.rejected("http2_flood")
            self.terminate(error.error_code, str(error))
            return
        except ProtocolError as error:
            self.app.metrics.rejected("malformed")
            self.terminate(error.error_code, str(error))
            return
        except MemoryError as error:
            self._ran_out(error)
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
        elif not self.closing:
            self._turn_asked = True
            self._pause_reading()
            self.app.shares.go_on_later(self._turn, self._waiting)

    def _waiting(self) -> int:
        """Return how many requests wait at least: of frames that are not read one is counted."""
        return len(self._held) + 1

    def _ran_out(self, error: MemoryError) -> None:
        """Refuse what is arriving, for which there is no memory, and close after the last answer.

        Which frame was lost is not known, so nothing that follows it means anything.
        """
        without_frames(error)
        self._receiver.drop()
        self._deaf, self._working = True, False
        self.app.ran_out_of_memory()
        for exchange in list(self.streams.values()):
            if not exchange.received and not exchange.answered:
                exchange.received = True
                exchange.arrived.clear()
                exchange.refuse(OutOfResources.told("nothing"))
        self.drain()
        self.ask_flush()

    def handle(self, exchange: Http2Exchange) -> None:
        """Hand over a request, unless the client does not take the answers that it has."""
        if self.may_answer():
            self._hand_over(exchange)
        else:
            self._held.append(exchange)

    def _hand_over(self, exchange: Http2Exchange) -> None:
        self.app.handle(exchange)

    def may_answer(self) -> bool:
        """Whether the client takes enough of its answers to be given more."""
        sender, bytes_max = self.sender, self._settings.response_memory_bytes_max
        # Heads are framed at once, so what the socket does not take counts too.
        pending = sender.pending_bytes if sender.writable else self.pending_bytes
        if pending > bytes_max // RESPONSE_SHARE:
            return False
        return pending <= TAKEN_BYTES_MIN or self.app.pending_bytes <= bytes_max

    def give_window(self, exchange: Http2Exchange, size: int) -> None:
        """Let the client send `size` bytes of a stream again: its handler has taken as many."""
        lent = min(size, exchange.lent_bytes)
        if lent:
            exchange.lent_bytes -= lent
            exchange.budgeted -= lent
            self.app.budget.give(lent)
        self._state.acknowledge(exchange.stream_id, of_stream=size, of_connection=size - lent)
        self.ask_flush()

    def lend_window(self, exchange: Http2Exchange, size: int) -> None:
        """Let other streams go on although `size` bytes of this one wait for its handler.

        Only its own window stays used up; what it holds counts as memory of request bodies.  When
        there is no more of that, the connection's window stays used up, too.
        """
        if size and self.app.budget.take(size):
            exchange.budgeted += size
            exchange.lent_bytes += size
            self._state.acknowledge(exchange.stream_id, of_stream=0, of_connection=size)
            self.ask_flush()

    # Sending

    def ask_flush(self) -> None:
        """Send at the end of this turn."""
        if not self._working and not self._flush_asked and not self.closing:
            self._flush_asked = True
            self.app.soon(self._flush)

    def _flush(self) -> None:
        """Send what can be sent: one write."""
        self._flush_asked = False
        transport, sender = self.transport, self.sender
        if transport is None or self.closing:
            return
        if sender.is_at_rest and not (self._state.unsent_bytes or self._held or self.leaving):
            return
        until_ns = self.app.clock.monotonic_ns() + self.app.shares.slice_ns
        more = sender.pump(until_ns)
        size, pieces = self._state.unsent_bytes, self._state.take_unsent()
        if pieces and not transport.is_closing():
            self.written += size
            if len(pieces) == 1:
                transport.write(pieces[0])
            else:
                transport.writelines(pieces)
        if self.leaving and not self.streams:
            self.terminate(ErrorCodes.NO_ERROR, "")
            return
        if self._held:
            more = self._let_in(until_ns) or more
        if sender.waiting:
            more = sender.wake(until_ns) or more
        if more and sender.writable and not self._flush_asked and not self.closing:
            self._flush_asked = True
            self.app.shares.go_on_later(self._flush, self._waiting)

    def _let_in(self, until_ns: int) -> bool:
        """Hand over what was held back; return whether some of it still can be."""
        while self._held and self.may_answer():
            exchange = self._held.popleft()
            if not exchange.gone:
                self._hand_over(exchange)
            if self.app.clock.monotonic_ns() > until_ns:
                return True
        return False

    def ping(self) -> None:
        """Ask whether the client is there."""
        self._state.ping(_PING_DATA)

    # The end of a stream

    def sent_all(self, exchange: Http2Exchange) -> None:
        """Close our side of a stream: its answer is out, with its end."""
        exchange.gone = True
        if exchange.received:
            self.forget(exchange)
        elif exchange.upgrade_to and exchange.outlet is not None:
            exchange.ended_ms = self.now_ms  # the other side ends it, or the tick does
        else:
            # The rest of the request is of no use any more (RFC 9113 §8.1).
            self._state.reset_stream(exchange.stream_id, ErrorCodes.NO_ERROR)
            self.forget(exchange)

    def cancel(self, exchange: Http2Exchange, code: int = ErrorCodes.INTERNAL_ERROR) -> None:
        """Give a stream up; its handler hears that the client went."""
        if exchange.stream_id in self.streams:
            self._state.reset_stream(exchange.stream_id, code)
            self.drop(exchange)
            self.ask_flush()

    def drop(self, exchange: Http2Exchange) -> None:
        """Forget a stream that either side has reset, and tell its handler."""
        self.forget(exchange)
        exchange.lost()

    def forget(self, exchange: Http2Exchange) -> None:
        """Give back what a stream holds: it is closed on both sides."""
        if self.streams.pop(exchange.stream_id, None) is None:
            return
        exchange.gone = True
        if exchange.arrived:
            if exchange.streamed:
                held = sum(map(len, exchange.arrived)) - exchange.lent_bytes
                self._state.acknowledge(exchange.stream_id, of_stream=0, of_connection=held)
            exchange.arrived.clear()
        if exchange.budgeted:  # its handler has not got it, or not all of it
            exchange.lent_bytes = 0
            exchange.body = b""
        self._give_budget(exchange)
        if exchange.pending_bytes:
            self.sender.forget(exchange)
        self._state.forget(exchange.stream_id)
        if not self.streams:
            self._timeouts.idle_ms = self.now_ms

    def count_head(self, exchange: Http2Exchange, size: int) -> bool:
        """Count the head of a request until its stream is closed; False: it was refused instead."""
        budget = self.app.budget
        if not budget.take(size):
            self.app.metrics.rejected("request_memory")
            exchange.refuse(no_memory(budget.limit))
            return False
        exchange.head_bytes = size
        return True

    def _give_budget(self, exchange: Http2Exchange) -> None:
        size = exchange.budgeted + exchange.head_bytes
        if size:
            self.app.budget.give(size)
            exchange.budgeted = exchange.head_bytes = 0

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
        if transport is None or self.closing:
            return
        self.closing = True
        self._receiver.drop()
        self._state.close(code, reason)
        linger(transport, b"".join(self._state.take_unsent()))
        self._resume_reading()
        self._lose_streams()

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
        if self.leaving or self.closing:
            return
        self.leaving = True
        self.ask_flush()

    @property
    def pending_bytes(self) -> int:
        """Bytes of answers that the client has not taken."""
        buffered = self.transport.get_write_buffer_size() if self.transport is not None else 0
        return buffered + self.sender.pending_bytes

    @property
    def taken_bytes(self) -> int:
        """How many bytes the client has taken, as far as the kernel tells, or has taken itself."""
        transport = self.transport
        if transport is None:
            return 0
        buffered = transport.get_write_buffer_size()
        return acknowledged_bytes(transport) or self.written - buffered

    def arriving_data(self) -> tuple[int, int]:
        """The stream of a frame of data that is not whole, and how much of it has arrived."""
        return self._receiver.arriving_data()

    @property
    def may_receive(self) -> bool:
        """Whether the client may send data: this side has not let its window be used up."""
        return self._state.inbound_window > 0

    def tick(self, now_ms: int) -> None:
        """Once a second: close or refuse what takes too long."""
        self.now_ms = now_ms
        if self.transport is not None and not self.closing:
            self._timeouts.tick(self.transport, now_ms)
