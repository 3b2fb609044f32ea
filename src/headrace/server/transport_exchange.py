"""What the exchanges of both transports do alike: pieces of a body, the end, a client that left.

Only this file decides when a piece of a streamed body reaches its handler: in order, never while
the handler has paused it, never before the handler has said where it wants it, and never after the
answer is complete.  What has arrived and is not wanted yet waits here; the transport hears of it
(`_body_waits`, `_body_flows`, `_piece_taken`) and makes the client wait in its own way, so that
what waits stays small.  An answer of parts is sent by `parts.py`, the same way over both.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.server.parts import SMALL_PARTS_BYTES, PartsSender, close_files, parts_length
from headrace.server.served_exchange import ServedExchange
from headrace.server.transport_outlet import TransportOutlet
from headrace.wire.exchange import JSON, Headers, Part

if TYPE_CHECKING:
    from headrace.server.admitted_heads import AdmittedHead

log = logging.getLogger("headrace.server")

OnBody = Callable[[bytes], None]

# Bodies up to here are taken before it is known whether their sender may send them; over HTTP/1.1
# they are not counted against the bytes that all arriving bodies share either.
FREE_BODY_BYTES: Final = 64 * 1024
# Answers of these have no body, and no length.
BODILESS: Final = frozenset({204, 304})
# Pieces that wait are put together up to here: a client may send them byte by byte.
KEPT_PIECE_BYTES: Final = 4 * 1024


class TransportExchange(ServedExchange):
    """A request of a connection; `arrived` exists when the body is taken in pieces."""

    # Most requests never set these.
    admitted: AdmittedHead | None = None  # what its head has settled
    arrived: deque[bytes]  # of the body, not handed over yet
    received = False  # the client has sent all of the request
    _body_dropped = False  # the rest is not wanted
    _body_paused = False
    _on_body: OnBody | None = None

    # The body

    @property
    def on_body(self) -> OnBody | None:
        return self._on_body

    @on_body.setter
    def on_body(self, callback: OnBody | None) -> None:
        self._on_body = callback
        if callback is not None and self._takes_pieces and (self.arrived or self.received):
            # Not now: the handler that sets it has not finished.
            self._connection.app.soon(self.hand_over)

    @property
    def _takes_pieces(self) -> bool:
        return self.streamed

    def pause_body(self) -> None:
        if self._takes_pieces and not self._body_dropped and not self._body_paused:
            self._body_paused = True
            if not self.received:
                self._body_waits(0)

    def resume_body(self) -> None:
        if self._body_paused:
            self._body_paused = False
            # Not now: the handler that resumes may be inside `on_body`.
            self._connection.app.soon(self.hand_over)

    def piece_arrived(self, piece: bytes) -> None:
        """Hand over a piece, or keep it until it is wanted."""
        self._connection.app.passing_bytes += len(piece)
        if self._body_dropped:
            self._piece_taken(len(piece))
            return
        callback = None if self.arrived or self._body_paused else self._receiver()
        if callback is None:
            arrived = self.arrived
            if arrived and len(arrived[-1]) + len(piece) <= KEPT_PIECE_BYTES:
                arrived[-1] += piece
            else:
                arrived.append(piece)
            self._body_waits(len(piece))
        else:
            self._piece_taken(len(piece))
            self._call(callback, piece)

    def hand_over(self) -> None:
        """Give the handler what has arrived, and the end after the last piece."""
        while not self._body_paused and not self._body_dropped:
            callback = self._receiver()
            if callback is None or not (self.arrived or self.received):
                break
            if self.arrived:
                piece = self.arrived.popleft()
                self._piece_taken(len(piece))
                self._call(callback, piece)
            else:
                self._drop_receiver()
                self._call(callback, b"")
        if not self._body_paused and not self.arrived:
            self._body_flows()

    def drop_body(self) -> None:
        """Take what is left of the body without telling the handler."""
        self._body_dropped = True
        self._body_paused = False
        self._on_body = None
        while self.arrived:
            self._piece_taken(len(self.arrived.popleft()))
        self._body_flows()

    def _receiver(self) -> OnBody | None:
        """The callback that gets the next piece; None while there is none."""
        return self._on_body

    def _drop_receiver(self) -> None:
        self._on_body = None

    def _call(self, callback: OnBody, piece: bytes) -> None:
        try:
            callback(piece)
        except Exception as error:  # one handler's fault must not end the others
            if self.answered:
                log.exception("%s %s failed on its body", self.method, self.path)
                self._cut_off()
            else:
                self.fail(error)

    # What a transport does about it

    def _body_waits(self, size: int) -> None:
        """Make the client wait: `size` bytes were kept, or (0) the handler wants no more."""

    def _body_flows(self) -> None:
        """Let the client go on: everything that had arrived is taken."""

    def _piece_taken(self, size: int) -> None:
        """Let the client send as many bytes again."""

    # Answers of parts

    def answer_parts(
        self, status: int, parts: Sequence[Part], content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        if self.answered:
            close_files(parts)
            log.error("a second answer to %s %s", self.method, self.path)
            return
        length = parts_length(parts)
        small = [part for part in parts if isinstance(part, bytes)]
        if not length or (len(small) == len(parts) and length <= SMALL_PARTS_BYTES):
            close_files(parts)
            self.answered = True
            self._let_go()
            self._send(status, b"".join(small), content_type, headers)
            return
        try:
            self._let_go()
            outlet = self._open_sized(status, length, content_type, headers)
        except BaseException:
            close_files(parts)
            raise
        if self.method == "HEAD":
            close_files(parts)  # the head is all that is sent
        else:
            PartsSender(self._connection.app, outlet, parts, self.path).start()

    def _open_sized(
        self, status: int, length: int, content_type: bytes, headers: Headers
    ) -> TransportOutlet:
        """Answer with a head that tells the length, and a body that follows."""
        raise NotImplementedError

    # The end

    def end(self, status: int) -> None:
        """Tell the application that the exchange is over, once."""
        callback, self.on_answered = self.on_answered, None
        if callback is not None:
            callback(self, status)

    def abandon(self) -> None:
        """End an exchange without an answer: tell its handler that the client left."""
        self.answered = True
        self.let_go_body()
        callback, self.on_abort = self.on_abort, None
        try:
            if callback is not None:
                callback()
        except Exception:  # there may be others behind this one
            log.exception("%s %s failed when its client left", self.method, self.path)
        finally:
            self.end(0)
