"""Reading a topic and waiting for its records, as callers ask for it.

Only this file checks what a reader asks for, and brings a topic that routers feed up to date before
it is read.  The reading itself is in `walk.py`.
"""

from __future__ import annotations

from headrace.core.errors import InvalidRequest, TopicNotFound
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import check_seq
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.engine.reading.payload_ranges import PayloadRanges, payload_ranges
from headrace.engine.reading.recent_pages import RecentPages
from headrace.engine.reading.walk import Walk, walk
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic

WAITERS_SWEPT_MIN = 64


class Reader:
    """Reads topics."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._recent = RecentPages()

    @property
    def recent_bytes(self) -> int:
        """Bytes of pages that are kept for others who ask for the same."""
        return self._recent.bytes

    def read(self, name: str, request: ReadRequest) -> Ticket[Page]:
        """Read a page of `name`, if the request makes sense."""
        _check(request)
        return read_topic(self._state, self._state.topic(name), request)

    def consume(self, name: str, request: ReadRequest) -> Page | Ticket[Page]:
        """Read for a consumer: the page, or where that takes a while a ticket of it.

        The numbers of the request are in range: whoever made it has checked them.
        """
        state = self._state
        topic = state.topic(name)
        topic.touch(state.clock.now_ms())
        return read_at_once(state, topic, request, self._recent)

    def payload_ranges(
        self, name: str, request: ReadRequest, sealed_bytes_max: int
    ) -> PayloadRanges | Ticket[PayloadRanges | None] | None:
        """Find the payloads behind a seq in sealed files; None: a page has to be read."""
        state = self._state
        topic = state.topic(name)
        topic.touch(state.clock.now_ms())
        return payload_ranges(state, topic, request, sealed_bytes_max)

    def wait(self, name: str, after_seq: int) -> Ticket[None]:
        """Return a ticket that is done when `name` has a record beyond `after_seq`, or ended."""
        check_seq("after_seq", after_seq)
        topic = self._state.topic(name)
        ticket: Ticket[None] = Ticket(self._state.runtime)
        if name in self._state.routed:
            self._state.drain(name)
        if topic.head > after_seq:
            ticket.resolve(None)
        else:
            _add_waiter(topic, Waiter(topic, after_seq, ticket))
        return ticket


def read_at_once(
    state: EngineState, topic: Topic, request: ReadRequest, recent: RecentPages | None = None
) -> Page | Ticket[Page]:
    """Read a topic after what routers owe it: the page, or where that takes a while a ticket of it.

    Raises what is refused at once; the request is known to be valid.
    """
    if topic.name in state.routed:
        return read_topic(state, topic, request)
    return Walk(state, topic, request, recent).start()


def read_topic(state: EngineState, topic: Topic, request: ReadRequest) -> Ticket[Page]:
    """Read a topic after what routers owe it; the request is known to be valid."""
    name = topic.name
    drained = state.drain(name) if name in state.routed else None
    if drained is None:
        return walk(state, topic, request)
    ticket: Ticket[Page] = Ticket(state.runtime)

    def done(page: Ticket[Page]) -> None:
        if page.error is not None:
            ticket.fail(page.error)
        else:
            ticket.resolve(page.result())

    def read(_: object) -> None:
        if state.by_name.get(name) is not topic:
            ticket.fail(TopicNotFound.named(name))  # deleted while this waited
        else:
            walk(state, topic, request).when_done(done)

    drained.when_done(read)
    return ticket


class Waiter:
    """Wakes a ticket when its topic has a record beyond a seq."""

    __slots__ = ("_after_seq", "_topic", "ticket")

    def __init__(self, topic: Topic, after_seq: int, ticket: Ticket[None]) -> None:
        self._topic = topic
        self._after_seq = after_seq
        self.ticket = ticket

    def __call__(self) -> None:
        """Something has changed."""
        if self.ticket.done or self.ticket.abandoned:
            return
        if self._topic.head > self._after_seq or _has_ended(self._topic):
            self.ticket.resolve(None)
        else:
            _add_waiter(self._topic, self)


def _has_ended(topic: Topic) -> bool:
    """Whether no record will come, because the topic is gone or a stream that was closed."""
    stream = topic.stream
    return not topic.live or (stream is not None and (stream.closed or stream.deleted))


def _add_waiter(topic: Topic, waiter: Waiter) -> None:
    count = len(topic.waiters or ())
    if count >= WAITERS_SWEPT_MIN and count & (count - 1) == 0:
        # Those who gave up are dropped now and then, at a cost that does not grow.
        topic.drop_waiters(lambda wake: isinstance(wake, Waiter) and wake.ticket.abandoned)
    topic.wait(waiter)


def _check(request: ReadRequest) -> None:
    for what in ("from_seq", "limit", "bytes_max", "from_ts", "last", "epoch"):
        value = getattr(request, what)
        if value is not None:
            check_seq(what, value)
    check_start(request)


def check_start(request: ReadRequest) -> None:
    """Refuse a request that says more than once where to begin."""
    starts = (request.from_seq or None, request.from_ts, request.last)
    if len(starts) - starts.count(None) > 1:
        raise InvalidRequest("more than one start", fix="send from_seq, from_ts or last")
