"""`GET` of a stream: what is there from an offset on, at once or when there is something.

A read looks the stream up, begins its idle time anew, and is then one of three: a catch-up, which
is answered with as much as one answer may have; a long poll, which is the same unless it is at the
tail, where it waits (`stream_polls.py`); or an event stream (`event_streams.py`).

Bodies are never compressed: what a stream holds is sent as the bytes that were appended, from
sealed files without a copy in this process.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError, OffsetGone
from headrace.core.runtime import Ticket
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.engine.reading.payload_ranges import PayloadRanges
from headrace.engine.streams.operations import StreamInfo
from headrace.engine.streams.spec import Position
from headrace.storage.rows import KIND_BYTES
from headrace.wire.durable_streams import read_answers
from headrace.wire.durable_streams.cursors import next_cursor
from headrace.wire.durable_streams.event_streams import EventStreams
from headrace.wire.durable_streams.offsets import NOW, ZERO
from headrace.wire.durable_streams.paths import TEMPLATE, stream_name
from headrace.wire.durable_streams.read_answers import DIALECT, NO_STORE, Extent, lost
from headrace.wire.durable_streams.read_query import (
    Live,
    ReadQuery,
    asks_for_events,
    parse_query,
)
from headrace.wire.durable_streams.stream_polls import StreamPoll
from headrace.wire.exchange import Exchange, Header, Part
from headrace.wire.failures import answering
from headrace.wire.routes import READ, Handling, PathRest, Route
from headrace.wire.server_context import ServerContext

# What one answer has of records in memory, or of JSON: these are held until they are sent.
MEMORY_BYTES_MAX: Final = 4 << 20
MEMORY_RECORDS_MAX: Final = 16_384
# What one answer has of ranges of sealed files, which hold no memory.
SEALED_BYTES_MAX: Final = 32 << 20


def read_routes(context: ServerContext) -> list[Route]:
    """The rows of the route table for reads of streams."""
    return [
        Route(
            "GET",
            TEMPLATE,
            Reads(context).get,
            frozenset({READ}),
            "Read a stream from an offset on",
            query=("offset", "live", "cursor"),
            handling=_handling,
        )
    ]


def _handling(exchange: Exchange) -> Handling:
    return Handling(long_lived=asks_for_events(exchange.query))


class Reads:
    """Reads of the streams of one server."""

    def __init__(self, context: ServerContext) -> None:
        self.engine = context.engine
        self.polls = context.polls
        self.long_poll_ms = context.settings.ds_long_poll_ms
        self._streams = context.engine.streams
        self._memory = context.memory
        self._metrics = context.metrics
        self._now_ns = context.engine.runtime.clock.monotonic_ns
        self._now_ms = context.open_streams.hub.now_ms
        self._events = EventStreams(context)

    def get(self, exchange: Exchange) -> None:
        """Answer a read, now or later."""
        asked = parse_query(exchange.query)
        (path,) = exchange.params
        assert isinstance(path, PathRest)
        name = stream_name(path)
        info = self._streams.info(name)
        after = self._start(info, asked)
        self._streams.touch(name)
        if asked.live is Live.SSE:
            self._events.open(exchange, info, asked, after)
        elif asked.live is Live.LONG_POLL and after >= info.head_seq:
            if info.state.closed:
                self.answer_idle(exchange, info, asked)
            else:
                request = self.request(info, after)
                StreamPoll(self, exchange, info, asked, request).read()
        elif asked.offset is NOW:
            self._answer_now(exchange, info)
        else:
            self._read(exchange, info, asked, after)

    def _start(self, info: StreamInfo, asked: ReadQuery) -> int:
        """The seq that a read begins behind."""
        offset = asked.offset
        if isinstance(offset, Position) and offset != ZERO:
            return self._streams.resolve(info.name, offset)
        return info.head_seq if offset is NOW else info.earliest_seq - 1

    # Reading

    def request(self, info: StreamInfo, after: int) -> ReadRequest:
        """The read of a page of records that are put together in memory."""
        bytes_max = self._memory.fit(MEMORY_BYTES_MAX)
        return ReadRequest(after, MEMORY_RECORDS_MAX, bytes_max, epoch=info.epoch)

    def _read(self, exchange: Exchange, info: StreamInfo, asked: ReadQuery, after: int) -> None:
        if self._has_all(exchange, info, asked, after):
            return
        if info.state.kind == KIND_BYTES and after < info.head_seq:
            request = self.request(info, after)
            found = self.engine.payload_ranges(info.name, request, SEALED_BYTES_MAX)
            if isinstance(found, Ticket):
                answer = partial(self._ranges_found, exchange, info, asked, after)
                found.when_done(answering(exchange, answer))
                return
            if found is not None:
                self._answer_ranges(exchange, info, asked, after, found)
                return
        self._read_page(exchange, info, asked, after)

    def _ranges_found(
        self,
        exchange: Exchange,
        info: StreamInfo,
        asked: ReadQuery,
        after: int,
        ticket: Ticket[PayloadRanges | None],
    ) -> None:
        if ticket.error is not None:
            if not exchange.answered:
                exchange.fail(ticket.error)
            return
        found = ticket.result()
        if exchange.answered:
            return
        if found is not None:
            self._answer_ranges(exchange, info, asked, after, found)
        else:
            self._read_page(exchange, info, asked, after)

    def _answer_ranges(
        self,
        exchange: Exchange,
        info: StreamInfo,
        asked: ReadQuery,
        after: int,
        found: PayloadRanges,
    ) -> None:
        now = self.still(info)
        extent = Extent(after, found.next_seq, now.head_seq, now.state.closed, found.sealed)
        self._answer(exchange, now, asked, extent, found.parts)
        self._count(exchange, "hot", found.count)

    def _read_page(
        self, exchange: Exchange, info: StreamInfo, asked: ReadQuery, after: int
    ) -> None:
        def answer(ticket: Ticket[Page]) -> None:
            if ticket.error is not None:
                if not exchange.answered:
                    exchange.fail(ticket.error)
            elif not exchange.answered:
                self.answer_page(exchange, info, asked, after, ticket.result())

        found = self.engine.consume(info.name, self.request(info, after))
        if isinstance(found, Ticket):
            found.when_done(answering(exchange, answer))
        else:
            self.answer_page(exchange, info, asked, after, found)

    def still(self, info: StreamInfo) -> StreamInfo:
        """The stream as it is now, if it is the one that was looked up."""
        now = self._streams.info(info.name)
        if now.epoch != info.epoch:
            raise gone(info.name)
        return now

    def why_gone(self, info: StreamInfo) -> HeadraceError | None:
        """Why the stream that was looked up cannot be read any more, as any read is told.

        To the engine a stream that is kept for its forks, and one that is another by now, are
        both not there.
        """
        try:
            self.still(info)
        except HeadraceError as error:
            return without_frames(error)
        return None

    # Answers

    def answer_page(
        self, exchange: Exchange, info: StreamInfo, asked: ReadQuery, after: int, page: Page
    ) -> None:
        """Answer with a page of records."""
        if lost(page):
            raise gone(info.name)
        now = self.still(info)
        topic = self.engine.find(info.name)
        sealed = topic is not None and topic.sealed_to >= page.next_from_seq
        extent = Extent(after, page.next_from_seq, now.head_seq, now.state.closed, sealed)
        body = read_answers.body_of(page, info.state.kind)
        self._answer(exchange, now, asked, extent, [body])
        self._count(exchange, "lake" if page.lake else "cold" if page.cold else "hot", page.count)

    def _answer(
        self,
        exchange: Exchange,
        info: StreamInfo,
        asked: ReadQuery,
        extent: Extent,
        parts: list[Part],
    ) -> None:
        """Answer with what was read, or say that the client has it."""
        tag = read_answers.etag(info.epoch, extent)
        headers = self._headers(exchange, info, asked, extent, tag)
        known = exchange.headers.get(b"if-none-match")
        content_type = read_answers.content_type(info)
        if known is not None and read_answers.matches(known, tag):
            exchange.answer(304, b"", content_type, headers)
        else:
            exchange.answer_parts(200, parts, content_type, headers)

    def _has_all(self, exchange: Exchange, info: StreamInfo, asked: ReadQuery, after: int) -> bool:
        """Answer a client that has everything up to the tail; False: it has not, or not said so.

        A tag that names this extent was given for these bytes: nothing has to be read for it.
        """
        known = exchange.headers.get(b"if-none-match")
        if known is None:
            return False
        extent = Extent(after, info.head_seq, info.head_seq, info.state.closed)
        tag = read_answers.etag(info.epoch, extent)
        if not read_answers.matches(known, tag):
            return False
        headers = self._headers(exchange, info, asked, extent, tag)
        exchange.answer(304, b"", read_answers.content_type(info), headers)
        return True

    def _headers(
        self,
        exchange: Exchange,
        info: StreamInfo,
        asked: ReadQuery,
        extent: Extent,
        tag: bytes,
    ) -> list[Header]:
        headers = read_answers.place(self._streams.position(info.name, extent.next), extent)
        private = exchange.key is not None
        headers.append(read_answers.caching(asked.offset, info.epoch, extent, private=private))
        headers.append((b"etag", tag))
        if asked.live is not Live.NO and not extent.final:
            headers.append(self.cursor(asked))
        return headers

    def _answer_now(self, exchange: Exchange, info: StreamInfo) -> None:
        """Answer a read from the tail on with where that is."""
        extent = Extent(info.head_seq, info.head_seq, info.head_seq, info.state.closed)
        headers = [*read_answers.place(info.tail, extent), NO_STORE]
        body = read_answers.empty_body(info.state.kind)
        exchange.answer(200, body, read_answers.content_type(info), headers)

    def answer_idle(self, exchange: Exchange, info: StreamInfo, asked: ReadQuery) -> None:
        """Answer a long poll at the tail that there is nothing, yet or ever."""
        extent = Extent(info.head_seq, info.head_seq, info.head_seq, info.state.closed)
        headers = [*read_answers.place(info.tail, extent), NO_STORE]
        if not extent.closed:
            headers.append(self.cursor(asked))
        exchange.answer(204, b"", read_answers.content_type(info), headers)

    def cursor(self, asked: ReadQuery) -> Header:
        """The cursor of an answer."""
        cursor = next_cursor(self._now_ms(), asked.cursor, self.engine.random)
        return (b"stream-cursor", b"%d" % cursor)

    def _count(self, exchange: Exchange, tier: str, records: int) -> None:
        self._metrics.read_all(DIALECT, tier, ((records, self._now_ns() - exchange.started_ns),))


def gone(name: str) -> OffsetGone:
    """Return why a read that had begun cannot go on."""
    return OffsetGone(
        f"what {name!r} had from this offset on is gone",
        fix="read from offset=-1",
        detail={"topic": name},
    )
