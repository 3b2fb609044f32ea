"""`GET /v1/streams/{stream}/records`: a batch of records, or a session, or events.

Only this file decides where a read begins, in the order of the checks that clients rely on: a read
that may take nothing is answered before its start is looked at.  A call with `wait` that finds
nothing waits for the first records (`wire/long_poll.py`); reads that go on are in
`read_session.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from headrace.core.runtime import Ticket
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.wire.exchange import JSON, Exchange
from headrace.wire.failures import answering
from headrace.wire.long_poll import LongPoll
from headrace.wire.s2 import json_records, protobuf
from headrace.wire.s2.catalog.streams import OpenStream
from headrace.wire.s2.ciphers import RecordCipher
from headrace.wire.s2.data_requests import (
    DIALECT,
    DataRequests,
    is_session,
    tail_of,
    wants_events,
    wants_protobuf,
)
from headrace.wire.s2.read_batches import ReadLimits, batch_of_page, with_tail
from headrace.wire.s2.read_query import ReadQuery, parse_query
from headrace.wire.s2.read_session import ReadSessions
from headrace.wire.s2.records import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, ReadBatch


class _Read(NamedTuple):
    """A read of a stream that is there."""

    opened: OpenStream
    asked: ReadQuery
    cipher: RecordCipher | None


class ReadApi:
    """Reads of streams."""

    def __init__(self, data: DataRequests) -> None:
        self.data = data
        self.engine = data.engine
        self.context = data.context
        self._sessions = ReadSessions(data)
        self._now_ns = data.engine.runtime.clock.monotonic_ns

    def get(self, exchange: Exchange) -> None:
        """Answer a read, now or later."""
        target = self.data.target(exchange)
        target.caller.allow("read", target.basin, target.stream)
        asked = parse_query(exchange.query)
        session, events = is_session(exchange), wants_events(exchange)
        base64 = False
        if events and not session:
            last_event_id = exchange.headers.get(b"last-event-id")
            if last_event_id is not None:
                asked = asked.resumed(last_event_id.decode("latin-1"))
        elif not session:
            asked = asked.as_unary()
        if not session:
            base64 = json_records.is_base64(exchange.headers.get(b"s2-format"))

        def begin(opened: OpenStream) -> None:
            read = _Read(opened, asked, self.data.cipher(exchange, opened))
            if session:
                self._begin(exchange, read, partial(self._sessions.open_session, exchange, *read))
            elif events:
                then = partial(self._sessions.open_events, exchange, *read, base64)
                self._begin(exchange, read, then)
            else:
                self._begin(exchange, read, partial(self._call, exchange, read, base64))

        self.data.open(exchange, "read", target, begin)

    def _begin(self, exchange: Exchange, read: _Read, then: Callable[[int | None], None]) -> None:
        """Find the seq_num that a read begins at, and go on; None: it may take nothing."""
        asked, topic = read.asked, read.opened.topic
        if asked.is_spent:
            then(None)
            return
        start = asked.start(tail_of(read.opened))
        if start is not None:
            then(start)
            return
        assert asked.timestamp is not None

        def found(ticket: Ticket[int]) -> None:
            if exchange.answered:
                return
            if ticket.error is not None:
                raise ticket.error
            start = ticket.result() - 1
            asked.check_start(start, self.data.tail(topic))
            then(start)

        self.engine.streams.seek_ts(topic, asked.timestamp).when_done(answering(exchange, found))

    # Calls

    def _call(self, exchange: Exchange, read: _Read, base64: bool, start: int | None) -> None:
        if start is None:
            self.answer(exchange, read.opened.topic, ReadBatch((), (), ()), base64)
        else:
            _Call(self, exchange, read, start, base64).read()

    def answer(
        self, exchange: Exchange, topic: str, batch: ReadBatch, base64: bool, tier: str = "hot"
    ) -> None:
        """Answer a call with a batch."""
        if wants_protobuf(exchange):
            exchange.answer(200, protobuf.encode_read_batch(batch), protobuf.CONTENT_TYPE)
        else:
            exchange.answer(200, json_records.encode_read_batch(batch, base64), JSON)
        taken_ns = self._now_ns() - exchange.started_ns
        self.data.metrics.read(DIALECT, len(batch), taken_ns, tier)
        self.data.count_read(topic, batch.metered, streaming=False)


class _Call(LongPoll):
    """A read that is answered with one batch."""

    __slots__ = ("_api", "_base64", "_reading")

    def __init__(
        self, api: ReadApi, exchange: Exchange, read: _Read, start: int, base64: bool
    ) -> None:
        asked, opened = read.asked, read.opened
        assert asked.count is not None and asked.bytes is not None
        request = ReadRequest(
            start,
            min(asked.count, BATCH_RECORDS_MAX),
            api.context.memory.fit(min(asked.bytes, BATCH_BYTES_MAX)),
            epoch=opened.info.epoch,
        )
        wait_ms = (asked.wait or 0) * 1000
        super().__init__(api.context.polls, exchange, opened.topic, request, wait_ms)
        self._api = api
        self._reading = read
        self._base64 = base64

    def is_idle(self, page: Page) -> bool:
        return not page.count

    def answer(self, page: Page) -> None:
        try:
            self._answer(page)
        except Exception as error:  # noqa: BLE001 - also when a deadline brought it here
            self._exchange.fail(error)

    def _answer(self, page: Page) -> None:
        api, (opened, asked, cipher) = self._api, self._reading
        if self._deadline is not None:  # it has waited: a token may have ended meanwhile
            api.data.check_caller(self._exchange)
        if page.epoch != opened.info.epoch:
            raise api.data.gone(opened.topic)
        batch = batch_of_page(page, cipher)
        taken = ReadLimits(asked).take_some(batch)
        if len(taken) == len(batch):
            with_tail(taken, page, lambda: api.data.tail(opened.topic))
        tier = "lake" if page.lake else "cold" if page.cold else "hot"
        api.answer(self._exchange, opened.topic, taken, self._base64, tier)
