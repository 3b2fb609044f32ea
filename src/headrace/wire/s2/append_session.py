"""Append sessions: a request whose body is frames of inputs, answered with a frame for each ack.

The rules this file owns.  Inputs are put to the engine in their order, without waiting for those
before them to be stored, and acknowledged in their order.  The first that is refused ends the
session: those behind it are dropped, those before it are acknowledged first, and then a terminal
frame tells why.  The same goes for a frame that cannot be read, and for a server that stops.
A client that does not take its acks, or that sends more than may be held (`sessions.py`), is not
read from meanwhile, and one that takes too few of them for long is closed.  A session without
inputs lasts, but a frame that has begun has to go on, at the slowest rate of a body.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.core.errors import HeadraceError, RequestTimeout
from headrace.core.pace import Pace
from headrace.engine.appending.pending_append import PendingAppend
from headrace.wire.exchange import Exchange, Key, Outlet
from headrace.wire.failures import told
from headrace.wire.live_stream import too_slow
from headrace.wire.s2.append import (
    ack_for,
    allow_append,
    allow_session,
    count_append,
    pending_append,
)
from headrace.wire.s2.catalog.streams import OpenStream
from headrace.wire.s2.ciphers import RecordCipher
from headrace.wire.s2.data_requests import DataRequests, Target
from headrace.wire.s2.errors import server_draining, unavailable
from headrace.wire.s2.frames import CONTENT_TYPE, FrameDecoder, frame, terminal_frame
from headrace.wire.s2.protobuf import encode_append_ack
from headrace.wire.s2.protobuf_input import decode_append_input
from headrace.wire.s2.records import AppendInput, validate
from headrace.wire.s2.sessions import (
    SESSION_BYTES_MAX,
    SESSION_HEADERS,
    SESSION_INPUTS_MAX,
    SessionBytes,
)
from headrace.wire.s2.stream_own import decode_own

_WHAT: Final = "an append session"  # in the log
DRAINING: Final = "server_draining"


class _Input:
    """An input that is on its way."""

    __slots__ = ("metered", "session", "started_ns")

    def __init__(self, session: AppendSession, metered: int, started_ns: int) -> None:
        self.session = session
        self.metered = metered
        self.started_ns = started_ns


class AppendSessions:
    """The append sessions of one server."""

    def __init__(self, data: DataRequests) -> None:
        self.data = data
        self.engine = data.engine
        self.open_streams = data.context.open_streams
        self.bytes = SessionBytes()
        self.now_ns = data.engine.runtime.clock.monotonic_ns
        self.open_now: dict[AppendSession, None] = {}

    def open(self, exchange: Exchange) -> None:
        """Answer a request for a session, now or when its stream is there."""
        target = self.data.target(exchange)
        allow_session(target)

        def begin(opened: OpenStream) -> None:
            cipher = self.data.cipher(exchange, opened)
            key = exchange.key
            outlet = self.open_streams.limits.admit(
                key, lambda: exchange.stream(CONTENT_TYPE, SESSION_HEADERS)
            )
            AppendSession(self, exchange, outlet, target, opened, cipher)

        self.data.open(exchange, "append", target, begin)

    def tick(self, now_ms: int) -> None:
        """Once a second: end sessions that leave a frame unfinished, or do not take their acks."""
        for session in list(self.open_now):
            session.check_frame(now_ms)
            session.check_acks()

    def append(self, pending: PendingAppend) -> bool:
        """Put an input to the engine; return whether it was taken, and not refused."""
        self.engine.append_all((pending,), self._answer)
        return pending.block is not None

    def _answer(self, appends: Sequence[PendingAppend]) -> None:
        """Tell sessions of inputs that are done."""
        for session in dict.fromkeys([pending.caller.session for pending in appends]):
            session.settle()


class AppendSession:
    """One open session."""

    __slots__ = (
        "_arriving", "_cipher", "_closed", "_decoder", "_end", "_ended", "_exchange", "_held",
        "_in_flight", "_opened", "_outlet", "_partial", "_paused", "_payloads", "_sessions",
        "_target", "key",
    )  # fmt: skip
    kind = "session"  # in metrics

    def __init__(
        self,
        sessions: AppendSessions,
        exchange: Exchange,
        outlet: Outlet,
        target: Target,
        opened: OpenStream,
        cipher: RecordCipher | None,
    ) -> None:
        self.key: Key | None = exchange.key
        self._sessions = sessions
        self._exchange = exchange
        self._outlet = outlet
        self._target = target
        self._opened = opened
        self._cipher = cipher
        self._decoder = FrameDecoder()
        self._payloads: Iterator[bytes] = iter(())  # of the piece that is being taken
        self._in_flight: deque[PendingAppend] = deque()  # not acknowledged, in order
        self._held = 0  # metered bytes of these
        self._partial = 0  # bytes of a frame that is not complete, as they are counted
        self._arriving = Pace()  # of that frame, as ticks see it
        self._paused = False
        self._ended = False  # no input is taken any more
        self._end: HeadraceError | None = None  # why, once the inputs before that are acknowledged
        self._closed = False
        sessions.open_streams.opened(self)
        sessions.open_now[self] = None
        outlet.on_closed = self._leave
        outlet.on_room = self._go_on
        exchange.on_body = self._take

    # What the client sends

    def _take(self, piece: bytes) -> None:
        """Take a piece of the body; an empty one is its end."""
        if self._ended:
            return
        if piece:
            self._payloads = self._decoder.take(piece)
            self._go_on()
            return
        self._decoder.end()
        self._finish(self._decoder.error)

    def _go_on(self) -> None:
        """Put inputs to the engine until there are none, or no room for more."""
        try:
            while not self._ended:
                if not self._has_room():
                    self._pause()
                    return
                payload = next(self._payloads, None)
                if payload is None:
                    break
                self._append(payload)
            if not self._ended:
                buffered = self._decoder.buffered
                self._sessions.bytes.frame_grew(self._partial, buffered)
                self._partial = buffered  # now it is counted: a refusal would not have been
                if self._decoder.error is not None:
                    raise self._decoder.error
                self._resume()
        except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
            self._finish(told(error, _WHAT))

    def _append(self, payload: bytes) -> None:
        sessions = self._sessions
        started_ns = sessions.now_ns()
        given = decode_append_input(payload)
        validate(given)
        sessions.data.check_caller(self._exchange)
        allow_append(self._target, given.commands, len(given.bodies))
        pending = self._pending(given)
        pending.caller = _Input(self, given.metered, started_ns)
        self._in_flight.append(pending)
        self._held += given.metered
        sessions.bytes.take(given.metered)
        if not sessions.append(pending):
            # What is behind an input that is refused must not be stored.
            self._ended = True
            self._payloads = iter(())

    def _pending(self, given: AppendInput) -> PendingAppend:
        sessions, opened = self._sessions, self._opened
        topic = sessions.engine.find(opened.topic)
        own = opened.own
        if topic is not None and topic.stream is not None:
            if topic.epoch != opened.info.epoch:
                raise unavailable("the stream of this session was deleted")
            own = decode_own(topic.stream.own)  # it may have been configured anew
        return pending_append(sessions.data, opened.topic, own, given, self._cipher)

    def check_frame(self, now_ms: int) -> None:
        """End the session if a frame has begun and does not go on, or goes on too slowly."""
        if not self._partial or self._paused:
            self._arriving.rest()  # nothing is awaited, or the server does not take it
            return
        data, decoder = self._sessions.data, self._decoder
        allowed_ms = data.context.settings.body_timeout_ms
        per_second_min = data.context.settings.body_bytes_per_second_min
        late = self._arriving.look(
            decoder.frames, decoder.buffered, now_ms, allowed_ms, per_second_min
        )
        if late:
            data.metrics.rejected(f"frame_{late}")
            self._finish(
                RequestTimeout("the rest of a frame did not arrive in time", fix="send it faster")
            )

    def check_acks(self) -> None:
        """End the session if its client has taken too few of its acks for too long."""
        timeout_ms = self._sessions.open_streams.slow_timeout_ms
        if not self._ended and not self._outlet.room and self._outlet.stuck_ms >= timeout_ms:
            self._sessions.data.metrics.watch_dropped("slow_consumer")
            self._finish(too_slow(timeout_ms))

    # Room

    def _has_room(self) -> bool:
        return (
            self._held < SESSION_BYTES_MAX
            and len(self._in_flight) < SESSION_INPUTS_MAX
            and not self._sessions.bytes.is_full
            and self._outlet.room
        )

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._exchange.pause_body()
        if self._sessions.bytes.is_full:
            self._sessions.bytes.wait(self)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._exchange.resume_body()

    def room_again(self) -> None:
        """Go on when this turn of the loop ends: there may be room."""
        # Not now: the engine is telling of appends that are done.
        self._sessions.engine.runtime.soon(self._go_on)

    # What the client is told

    def settle(self) -> None:
        """Acknowledge the inputs that are stored, and end where one was refused."""
        in_flight, sessions = self._in_flight, self._sessions
        acks: list[bytes] = []
        given_back = 0
        while in_flight and in_flight[0].done:
            pending = in_flight.popleft()
            caller: _Input = pending.caller
            given_back += caller.metered
            if pending.error is not None:
                self._end = told(pending.error, _WHAT)
                self._ended = True
                given_back += sum([left.caller.metered for left in in_flight])
                in_flight.clear()
                break
            acks.append(frame(encode_append_ack(ack_for(pending)), reconnect=self._stops))
            ns = sessions.now_ns() - caller.started_ns
            count_append(sessions.data, pending, caller.metered, ns)
        self._held -= given_back
        if acks and not self._closed:
            self._outlet.write(b"".join(acks))
        if self._ended and not in_flight:
            self._close()
        elif self._paused and not self._closed:
            self.room_again()
        sessions.bytes.give(given_back)

    def _finish(self, error: HeadraceError | None) -> None:
        """Take nothing more, and end once what is in flight is acknowledged."""
        if self._ended:
            return
        self._ended = True
        self._end = error
        self._payloads = iter(())
        self._resume()  # what the client still sends is taken, and dropped
        if not self._in_flight:
            self._close()

    def stop(self) -> None:
        """End the session, because the server stops; what was not acknowledged was not taken."""
        self._finish(server_draining("the server is stopping"))

    @property
    def _stops(self) -> bool:
        """Whether it ends because the server stops."""
        return self._end is not None and self._end.code == DRAINING

    def _close(self) -> None:
        if self._closed:
            return
        if self._end is not None:
            self._outlet.write(terminal_frame(self._end))
        self._outlet.close()
        self._let_go()

    def _leave(self) -> None:
        """The client left: what is in flight is stored all the same, and nobody hears of it."""
        if not self._closed:
            self._ended = True
            self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        self._outlet.on_closed = self._outlet.on_room = None
        self._exchange.on_body = None
        self._payloads = iter(())
        self._sessions.bytes.forget(self)
        self._sessions.bytes.frame_grew(self._partial, 0)
        self._partial = 0
        del self._sessions.open_now[self]
        self._sessions.open_streams.closed(self)
