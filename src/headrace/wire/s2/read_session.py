"""Reads that go on: sessions of frames and streams of events, from a seq_num to a limit or forever.

The rules this file owns.  A read is given batches until one of its limits is met, or until it is at
the tail; there it ends, or it follows: then it is told the tail at once and again whenever it has
heard nothing for a random while, and ends when no record has come for as long as it was to wait.  A
reader that falls behind holds its place, not a queue (`wire/live_stream.py`).  Whoever reads with a
token that ends meanwhile is told so instead of the next record or heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from headrace.core.clock import Random
from headrace.core.errors import HeadraceError
from headrace.engine.live.follower import Position as LivePosition
from headrace.engine.live.follower import Subscription
from headrace.engine.live.pages import PageOptions, SharedPage
from headrace.engine.reading.page import Page
from headrace.wire.exchange import EVENT_STREAM, Exchange, Key
from headrace.wire.failures import told
from headrace.wire.live_stream import LiveStream, StreamClient, StreamEncoder
from headrace.wire.s2 import sse_records
from headrace.wire.s2.catalog.streams import OpenStream
from headrace.wire.s2.ciphers import RecordCipher
from headrace.wire.s2.data_requests import DIALECT, DataRequests
from headrace.wire.s2.errors import server_draining
from headrace.wire.s2.frames import (
    CONTENT_TYPE,
    Compression,
    frame,
    frame_of_parts,
    session_compression,
    terminal_frame,
)
from headrace.wire.s2.protobuf import encode_read_batch, read_batch_parts
from headrace.wire.s2.read_batches import ReadLimits, batch_of_page, divided, with_tail
from headrace.wire.s2.read_query import ReadQuery
from headrace.wire.s2.records import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, Position, ReadBatch
from headrace.wire.s2.records import heartbeat as heartbeat_batch
from headrace.wire.s2.sessions import SESSION_HEADERS
from headrace.wire.s2.sse_records import EventId

# How long a follower hears nothing: random, so that many do not hear of it at once, and less than
# the 20 seconds after which clients give up.
HEARTBEAT_MS_MIN: Final = 5_000
HEARTBEAT_MS_MAX: Final = 15_000

_WHAT: Final = "a read session"  # in the log


class Form:
    """How a read is told things, as bytes."""

    __slots__ = ()
    done = b""  # after all else, where the read ended by itself

    def batch(self, batch: ReadBatch, metered: int) -> bytes:
        """Return records."""
        raise NotImplementedError

    def tail(self, tail: Position, now_ms: int) -> bytes:
        """Return that the read is alive, and where the stream ends."""
        raise NotImplementedError

    def error(self, error: HeadraceError) -> bytes:
        """Return why the read ends."""
        raise NotImplementedError

    @property
    def shared_as(self) -> object:
        """What forms have in common that put a batch into the same bytes; None: no other does."""
        return None


class Frames(Form):
    """Frames of a session."""

    __slots__ = ("_compression",)

    def __init__(self, compression: Compression | None) -> None:
        self._compression = compression

    def batch(self, batch: ReadBatch, metered: int) -> bytes:
        return frame_of_parts(read_batch_parts(batch), self._compression)

    def tail(self, tail: Position, now_ms: int) -> bytes:
        return frame(encode_read_batch(heartbeat_batch(tail)))

    def error(self, error: HeadraceError) -> bytes:
        return terminal_frame(error)

    @property
    def shared_as(self) -> object:
        return (Frames, self._compression)


class Events(Form):
    """Events, whose ids count what was delivered since the read began, also before a resume."""

    __slots__ = ("_base64", "_count", "_metered")
    done = sse_records.DONE

    def __init__(self, base64: bool, delivered: tuple[int, int]) -> None:
        self._base64 = base64
        self._count, self._metered = delivered

    def batch(self, batch: ReadBatch, metered: int) -> bytes:
        self._count += len(batch)
        self._metered += metered
        id = EventId(batch.last_seq_num, self._count, self._metered)
        return sse_records.batch_event(batch, id, self._base64)

    def tail(self, tail: Position, now_ms: int) -> bytes:
        return sse_records.ping_event(now_ms, tail)

    def error(self, error: HeadraceError) -> bytes:
        return sse_records.error_event(error)


class _Encoded(NamedTuple):
    """What a read is given of a page."""

    records: int
    metered: int
    data: bytes


class Reading(NamedTuple):
    """A read that goes on, of a stream that is there."""

    exchange: Exchange
    opened: OpenStream
    asked: ReadQuery
    cipher: RecordCipher | None
    form: Form


class ReadSessions:
    """The reads of one server that go on."""

    def __init__(self, data: DataRequests) -> None:
        self.data = data
        self.open_streams = data.context.open_streams
        self.random: Random = data.engine.random
        # Not more than may be pending, or a slow reader would hold more than that.
        self._bytes_max = min(data.context.settings.stream_pending_bytes, BATCH_BYTES_MAX)

    def open_session(
        self,
        exchange: Exchange,
        opened: OpenStream,
        asked: ReadQuery,
        cipher: RecordCipher | None,
        start: int | None,
    ) -> None:
        """Answer with a session, from a seq_num on; None: it may take nothing."""
        form = Frames(session_compression(exchange.headers.get(b"accept-encoding", b"")))
        reading = Reading(exchange, opened, asked, cipher, form)
        exchange.on_body = _drop
        self._open(ReadSession, reading, CONTENT_TYPE, start)

    def open_events(
        self,
        exchange: Exchange,
        opened: OpenStream,
        asked: ReadQuery,
        cipher: RecordCipher | None,
        base64: bool,
        start: int | None,
    ) -> None:
        """Answer with events, from a seq_num on; None: it may take nothing."""
        form = Events(base64, asked.delivered)
        reading = Reading(exchange, opened, asked, cipher, form)
        self._open(EventRead, reading, EVENT_STREAM, start)

    def _open(
        self,
        kind: Callable[[ReadSessions, Reading, StreamClient], LiveRead],
        reading: Reading,
        content_type: bytes,
        start: int | None,
    ) -> None:
        exchange = reading.exchange
        if start is None:
            outlet = exchange.stream(content_type, SESSION_HEADERS)
            outlet.write(reading.form.done)
            outlet.close()
            return
        key: Key | None = exchange.key
        outlet = self.open_streams.limits.admit(
            key, lambda: exchange.stream(content_type, SESSION_HEADERS)
        )
        read = kind(self, reading, StreamClient(outlet, key, self.heartbeat_ms()))
        try:
            read.open(start, self._options(reading.asked))
        except BaseException:
            read.broken()
            raise

    def _options(self, asked: ReadQuery) -> PageOptions:
        limit = BATCH_RECORDS_MAX
        if asked.count is not None:
            limit = min(limit, asked.count)
        return self.open_streams.hub.page_options(limit, self._bytes_max, ())

    def heartbeat_ms(self) -> int:
        """How long a follower is to hear nothing before it is told the tail."""
        return HEARTBEAT_MS_MIN + self.random.u32() % (HEARTBEAT_MS_MAX - HEARTBEAT_MS_MIN + 1)


def _drop(_piece: bytes) -> None:
    """A read has no body: what a client sends as one is taken and dropped."""


class LiveRead(LiveStream[Form]):
    """One read that goes on."""

    __slots__ = ("_following", "_idle_since_ms", "_limits", "_reading", "_sessions")

    def __init__(self, sessions: ReadSessions, reading: Reading, client: StreamClient) -> None:
        self._sessions = sessions
        self._reading = reading
        self._limits = ReadLimits(reading.asked)
        self._following = False  # it is at the tail, and waits for more
        super().__init__(sessions.open_streams, _Words(reading.form), client)
        self._idle_since_ms = self._written_ms  # when it was given its last record, or began

    def open(self, start: int, options: PageOptions) -> None:
        """Read from a seq_num on."""
        info, form = self._reading.opened.info, self._reading.form
        topic = self._hub.find(info.name)
        self.follow(LivePosition(info.name, info.epoch, start), options, form, topic)
        self.begin()

    # Records

    def deliver(self, alike: Sequence[Subscription[Form]], shared: SharedPage) -> None:
        (subscription,) = alike
        page = shared.page
        try:
            if page.epoch != subscription.position.epoch:
                raise self._sessions.data.gone(page.topic)
            self._sessions.data.check_caller(self._reading.exchange)
            count, metered, data = self._encode(page, shared)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
            self.fail(told(error, _WHAT))
            return
        if data:
            self.write(data)
            self._idle_since_ms = self._written_ms
            self._sessions.data.count_read(page.topic, metered, streaming=True)
        self._metrics.delivered(DIALECT, count, page.lag)
        if self._limits.are_met:
            self._end_read()
        elif page.next_from_seq == page.head_seq:
            self._reached_tail()
        else:
            self._following = False

    def _encode(self, page: Page, shared: SharedPage) -> _Encoded:
        """How many records of a page the read takes, their metered bytes, and these as bytes."""
        cipher, form, limits = self._reading.cipher, self._reading.form, self._limits
        share = form.shared_as if cipher is None and limits.is_unbounded else None
        if share is not None:
            known = shared.encoded.get(share)
            if known is not None:
                assert isinstance(known, _Encoded)
                return known
        batch = batch_of_page(page, cipher)
        if not len(batch):
            return _Encoded(0, 0, b"")
        taken, metered = limits.take(batch)
        if len(taken) == len(batch):
            with_tail(taken, page, self._tail)
        parts = divided(taken)
        if len(parts) == 1:
            data = form.batch(taken, metered)
        else:
            data = b"".join([form.batch(part, part.metered) for part in parts])
        encoded = _Encoded(len(taken), metered, data)
        if share is not None:
            shared.encoded[share] = encoded
        return encoded

    def _tail(self) -> Position:
        return self._sessions.data.tail(self._reading.opened.topic)

    # The tail

    def _reached_tail(self) -> None:
        if not self._reading.asked.waits:
            self._end_read()
        elif not self._following:
            self._following = True
            self.send_heartbeat()

    def send_heartbeat(self) -> None:
        self._heartbeat_ms = self._sessions.heartbeat_ms()
        try:
            self._sessions.data.check_caller(self._reading.exchange)
            tail = self._tail() if self._following else None
        except HeadraceError as error:
            self.fail(error)
            return
        if tail is None:
            self.write(b"")  # the tail would say that there is nothing left to read
        else:
            self.write(self._reading.form.tail(tail, self._hub.now_ms()))

    def _end_read(self) -> None:
        """End a read that has all it asked for, or that waited in vain."""
        if not self.closed:
            self.write(self._reading.form.done)
            self.finish()

    # Time

    @property
    def _wait_ms(self) -> int | None:
        wait = self._reading.asked.wait
        return None if wait is None else wait * 1000

    def _next_visit(self, now_ms: int) -> int:
        due_ms, wait_ms = super()._next_visit(now_ms), self._wait_ms
        return due_ms if wait_ms is None else min(due_ms, now_ms + wait_ms)

    def visit(self, now_ms: int) -> int | None:
        wait_ms = self._wait_ms
        if wait_ms is None or not self._following or self.backlog or self.closed:
            return super().visit(now_ms)
        ends_ms = self._idle_since_ms + wait_ms
        if now_ms >= ends_ms:
            self._end_read()
            return None
        due_ms = super().visit(now_ms)
        return None if due_ms is None else min(due_ms, ends_ms)

    # The end of the stream

    def topic_gone(self, subscription: Subscription[Form], head_seq: int) -> None:
        self.fail(self._sessions.data.gone(subscription.position.name))

    def topic_failed(self, subscription: Subscription[Form], error: BaseException) -> None:
        if not self.closed:
            self._metrics.failed(error)
            self.fail(told(error, _WHAT))


class ReadSession(LiveRead):
    """One session of frames."""

    __slots__ = ()
    kind = "session"


class EventRead(LiveRead):
    """One stream of events."""

    __slots__ = ()
    kind = "sse"


class _Words(StreamEncoder[Form]):
    """What a read says that is not about records."""

    __slots__ = ("_form",)
    dialect = DIALECT

    def __init__(self, form: Form) -> None:
        self._form = form

    def delayed(self, subscription: Subscription[Form], ms_max: int) -> bytes:
        return b""

    def error(self, error: BaseException) -> bytes:
        return self._form.error(told(error, _WHAT))

    def stopping(self) -> bytes:
        return self._form.error(server_draining("the server is stopping"))
