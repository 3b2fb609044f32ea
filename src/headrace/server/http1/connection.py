"""HTTP/1.1 on one connection: what asyncio tells of it, and how it is closed.

`reader.py` parses requests, `pipeline.py` hands them over and answers them in order, `timeouts.py`
says what takes too long, and `states.py` what may follow what.  This file owns which protocol a
connection speaks, and how it ends.  It knows no route: `app.py` does.

The hot path is one read, one handler call and one write a request; times are looked at once a
second for all connections, not by a timer for each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

import httptools

from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError, OutOfResources
from headrace.server.app import App, RequestTarget
from headrace.server.http1.answer import Http1Exchange
from headrace.server.http1.heads import KnownHeads
from headrace.server.http1.pipeline import LEFTOVER_BYTES_MAX
from headrace.server.http1.states import (
    ANSWERING_LOST,
    BODY,
    CLIENT_ENDED,
    CLOSE,
    DISCARDING,
    DRAIN,
    HEAD,
    IDLE,
    IS_HTTP1,
    IS_HTTP2,
    LINGER,
    LINGERING,
    MAYBE_HTTP2,
    NOT_UPGRADED,
    OPEN,
    READING_LOST,
    REFUSED,
    TUNNEL,
    UPGRADE_ASKED,
    UPGRADED,
    UPGRADING,
)
from headrace.server.http1.timeouts import TimedPipeline
from headrace.server.http2.connection import PREFACE, Http2Connection
from headrace.server.lingering import Discarder, linger

# What a transport may have unsent without being paused.  An answer is handed to the kernel when it
# is written; what a client leaves untaken of answers up to here is not counted.
SMALL_ANSWER_BYTES = 16 * 1024
# What a TLS connection may have unsent without being paused: more than the end of a handshake.
TLS_UNSENT_BYTES = 16 << 10


def _path_in(url: bytes) -> str:
    """The path of a request line, as far as it was read; empty if it is none of a server's own.

    >>> _path_in(b"/v0/topics?page"), _path_in(b"http://elsewhere/")
    ('/v0/topics', '')
    """
    return url.partition(b"?")[0].decode("latin-1") if url[:1] == b"/" else ""


class Http1Connection(TimedPipeline):
    """One connection, until it turns out to be HTTP/2."""

    __slots__ = (
        "__weakref__",
        "_begun",
        "_discarder",
        "_half_open",
        "_now_ns",
        "_unsent",
    )

    def __init__(self, app: App, heads: KnownHeads) -> None:
        super().__init__(app, heads)
        self._half_open = True  # one side may end before the other; not with TLS
        self._unsent = 0  # bytes of answers, counted when the client stopped taking them
        self._begun = b""  # first bytes, until they tell which protocol it is
        self._discarder = Discarder()
        self._now_ns = app.clock.monotonic_ns

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports are no subclass of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        # Not before: a connection whose handshake fails never hears that it is over.
        self._parser = httptools.HttpRequestParser(self)
        app = self.app
        if len(app.connections) >= app.settings.max_connections:
            app.metrics.rejected("max_connections")
            self.transport.abort()
            return
        if app.state == "draining":
            # It was accepted before the stop, and has come too late to be told.
            self.close()
            return
        app.connections.add(self)
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
        self.reading = READING_LOST[self.reading]
        self.answering = ANSWERING_LOST[self.answering]
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
        self._exchange = None
        self._body = []
        self._layout = None
        self._unread = b""

    def eof_received(self) -> bool:
        # The client has sent all it will, and most that do are gone.  What is in progress is
        # still answered, unless it may take long: then its handler has asked to hear of this.
        self.answering = CLIENT_ENDED[self.answering]
        if self.reading.awaits or not self.queue:
            return False
        return self._half_open and not self.queue[0].may_take_long

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
        self.resume()

    def _forget_unsent(self) -> None:
        self.app.memory.used -= self._unsent
        self._unsent = 0

    def data_received(self, data: bytes) -> None:
        self._reads += 1
        self._until_ns = 0  # a read has a slice of its own, whichever way its requests are taken
        reading = self.reading
        try:
            if reading is IDLE:
                self._take(data)
            elif reading is HEAD or reading is BODY:
                self._feed(data)
            elif reading is TUNNEL:
                self._tunnel(data)
            elif reading is UPGRADING:
                self._leftover += data
                if len(self._leftover) > LEFTOVER_BYTES_MAX:
                    self._pause()
            elif reading is DISCARDING:
                self._discarder.drop(data, self.transport)
            else:
                self._sniff(data)
        except MemoryError as error:
            self._ran_out(error)

    # Which protocol

    def _sniff(self, data: bytes) -> None:
        data = self._begun + data
        start = data[: len(PREFACE)]
        if start == PREFACE:
            self._become_http2(data)
        elif PREFACE.startswith(start) and len(start) < len(PREFACE):
            self._begun = data
            self.reading = MAYBE_HTTP2[self.reading]
        else:
            self.reading = IS_HTTP1[self.reading]
            self._begun = b""
            self._take(data)

    def _become_http2(self, data: bytes) -> None:
        transport = self.transport
        assert transport is not None
        self.reading = IS_HTTP2[self.reading]
        self.app.connections.discard(self)
        self._let_go()
        protocol = Http2Connection(self.app)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data:
            protocol.data_received(data)
        if self.answering is not OPEN:
            protocol.drain()

    # Requests

    def _new_exchange(self, target: RequestTarget, headers: dict[bytes, bytes]) -> Http1Exchange:
        return Http1Exchange(self, target, headers, self._now_ns())

    # Upgrades

    def _upgrading(self, rest: bytes) -> bytes:
        """Take what follows a request for another protocol; return what of it is HTTP anyway."""
        if self.reading is TUNNEL:
            if rest:
                self._tunnel(rest)
            return b""
        if not self.queue or self.queue[-1].ready is not None:
            # It has been answered in the ordinary way.
            self._parser = httptools.HttpRequestParser(self)
            return rest
        self._leftover = rest
        self.reading = UPGRADE_ASKED[self.reading]
        return b""

    def not_upgraded(self) -> None:
        """Read on as HTTP: the request for another protocol has got an ordinary answer."""
        self.reading = NOT_UPGRADED[self.reading]
        rest, self._leftover = self._leftover, b""
        self._parser = httptools.HttpRequestParser(self)
        self.resume()
        if rest and self.answering is OPEN:
            self._feed(rest)

    def open_tunnel(self, exchange: Http1Exchange) -> None:
        """Give what follows the request to the handler that has accepted the other protocol."""
        self.reading = UPGRADED[self.reading]
        rest, self._leftover = self._leftover, b""
        if rest:
            exchange.arrived.append(rest)
            self.app.soon(exchange.hand_over)
        self.resume()

    def _tunnel(self, data: bytes) -> None:
        if self.outlet is not None:
            self.outlet.exchange.piece_arrived(data)

    # Refusals, drain

    def _refuse(self, error: HeadraceError) -> None:
        """Answer what cannot be parsed any further, and close."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._give_budget()
        self._body = []
        exchange = self._exchange
        if exchange is None or (exchange not in self.queue and not exchange.answered):
            # The path, where it is known, decides whose form the refusal has.
            path = _path_in(self._url) if exchange is None else exchange.path
            exchange = self._new_exchange(RequestTarget("", path, ""), {})
            self.queue.append(exchange)
        self._exchange = None
        self.reading = REFUSED[self.reading]
        exchange.keep_alive = False
        exchange.received = True
        exchange.lingers = True
        if exchange.answered:
            self.close()
        else:
            exchange.refuse(error)

    def _ran_out(self, error: MemoryError) -> None:
        """Refuse what is arriving, for which there is no memory, and close."""
        without_frames(error)
        self._body = []
        self.app.ran_out_of_memory()
        if self.reading in REFUSED:
            self._refuse(OutOfResources.told("nothing"))
        else:
            self.abort()

    def linger(self, last: bytes) -> None:
        """Write the last answer, then let the client finish sending before the close."""
        transport = self.transport
        assert transport is not None
        self.answering = LINGER[self.answering]
        if self.answering is LINGERING:
            linger(transport, last)

    def abort(self) -> None:
        """Close at once, so that the client sees that an answer is not whole."""
        if self.transport is not None:
            self.answering = CLOSE[self.answering]
            self.transport.abort()

    def drain(self) -> None:
        """Close when what is in progress has been answered."""
        self.answering = DRAIN[self.answering]
        if not self.queue and not self.reading.awaits:
            self.close()
