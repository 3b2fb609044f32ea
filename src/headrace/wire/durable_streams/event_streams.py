"""Server-sent events of streams: data and where it ends, in pairs, each pair in one write.

Only this file makes these events.  A `data` event has what was appended since the last one: JSON
as an array, text as its lines, anything else in base64.  A `control` event follows it in the same
write, with the next offset, so that a client that is cut off loses at most a whole pair.  A pair is
encoded once for all clients at one place; only a client whose cursor is ahead of the time gets one
of its own.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from headrace.engine.engine import Engine
from headrace.engine.live.follower import Position as LivePosition
from headrace.engine.live.follower import Subscription
from headrace.engine.live.pages import PageOptions, SharedPage
from headrace.engine.scheduling.turns import VISIT_STEP_MS
from headrace.engine.streams.operations import StreamInfo
from headrace.engine.streams.positions import position_of
from headrace.engine.streams.spec import Position
from headrace.engine.streams.state import media_type
from headrace.storage.rows import KIND_JSON
from headrace.wire import sse
from headrace.wire.durable_streams.cursors import current_cursor, next_cursor
from headrace.wire.durable_streams.offsets import offset_text
from headrace.wire.durable_streams.read_answers import DIALECT, joined, lost
from headrace.wire.durable_streams.read_query import ReadQuery
from headrace.wire.exchange import EVENT_STREAM, Exchange, Header
from headrace.wire.live_stream import LiveStream, StreamClient, StreamEncoder
from headrace.wire.server_context import ServerContext

# A stream ends after about this time, so that clients spread over the servers behind a balancer.
EVENTS_MS_MAX: Final = 60_000
# A client that hears nothing for so long is told once more where it is.
KEEP_ALIVE_MS: Final = 15_000
PAGE_RECORDS_MAX: Final = 4_096
_HEADERS: Final[tuple[Header, ...]] = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_BASE64: Final[Header] = (b"stream-sse-data-encoding", b"base64")


class View:
    """How a stream is shown; equal ones are one object, so that what is encoded serves all."""

    __slots__ = ("__weakref__", "is_text", "kind", "options")

    def __init__(self, options: PageOptions, kind: int, *, is_text: bool) -> None:
        self.options = options
        self.kind = kind
        self.is_text = is_text  # else its data is in base64

    def data_event(self, payloads: list[bytes]) -> bytes:
        """Payloads as one event."""
        data = joined(payloads, self.kind)
        if self.is_text:
            return sse.split_event(b"data", data, space=False)
        return b"event: data\ndata:%b\n\n" % b64encode(data)


class EventStreams:
    """The event streams of one server."""

    def __init__(self, context: ServerContext) -> None:
        self.engine = context.engine
        self.open_streams = context.open_streams
        self.now_ms = context.open_streams.hub.now_ms
        # Not more than may be pending, or a slow reader would hold more than that.
        self._options = context.open_streams.hub.page_options(
            PAGE_RECORDS_MAX, context.settings.stream_pending_bytes, ()
        )
        self._views: WeakValueDictionary[tuple[int, bool], View] = WeakValueDictionary()

    def open(self, exchange: Exchange, info: StreamInfo, asked: ReadQuery, after: int) -> None:
        """Answer with the events of a stream, from behind a seq on."""
        view = self._view(info)
        headers = _HEADERS if view.is_text else (*_HEADERS, _BASE64)
        key = exchange.key
        outlet = self.open_streams.limits.admit(key, lambda: exchange.stream(EVENT_STREAM, headers))
        stream = EventStream(self, StreamClient(outlet, key, KEEP_ALIVE_MS))
        try:
            stream.open(LivePosition(info.name, info.epoch, after), view, asked.cursor)
        except BaseException:
            stream.broken()
            raise

    def _view(self, info: StreamInfo) -> View:
        kind, media = info.state.kind, media_type(info.state.content_type)
        is_text = kind == KIND_JSON or media == "application/json" or media.startswith("text/")
        view = self._views.get((kind, is_text))
        if view is None:
            view = self._views[kind, is_text] = View(self._options, kind, is_text=is_text)
        return view


class EventStream(LiveStream[View]):
    """One open stream of events."""

    __slots__ = ("_ends_ms", "_events")

    def __init__(self, streams: EventStreams, client: StreamClient) -> None:
        self._events = events = _Events(streams.engine, streams.now_ms)
        super().__init__(streams.open_streams, events, client)
        self._ends_ms = self._written_ms + EVENTS_MS_MAX

    def open(self, position: LivePosition, view: View, cursor: str) -> None:
        """Read from a position on."""
        alike = view if self._events.begin(cursor) else None
        topic = self._hub.find(position.name)
        self._events.subscription = self.follow(position, view.options, view, topic, alike)
        self.begin()

    def deliver(self, alike: Sequence[Subscription[View]], shared: SharedPage) -> None:
        if lost(shared.page):
            _finish(alike)  # whoever comes back is told that what it asks for is gone
            return
        final = _at_end(alike[0], shared.page.next_from_seq)
        super().deliver(alike, shared)
        if final:
            _finish(alike)

    def topic_closed(self, subscription: Subscription[View]) -> None:
        self.write(self._events.control(subscription, subscription.position.cursor))
        self.finish()

    def told_gone(self, subscription: Subscription[View]) -> None:
        self.finish()

    def told_failed(self, subscription: Subscription[View]) -> None:
        self.finish()

    def ended(self) -> None:
        self._events.subscription = None  # which knows this stream: a circle

    # Time

    def _next_visit(self, now_ms: int) -> int:
        return min(super()._next_visit(now_ms), self._ends_ms)

    def visit(self, now_ms: int) -> int | None:
        if now_ms + VISIT_STEP_MS >= self._ends_ms:
            self.finish()
        due_ms = super().visit(now_ms)
        return None if due_ms is None else min(due_ms, self._ends_ms)


def _finish(alike: Sequence[Subscription[View]]) -> None:
    for one in alike:
        assert isinstance(one.follower, EventStream)
        one.follower.finish()


def _at_end(subscription: Subscription[View], seq: int) -> bool:
    """Whether nothing will ever follow a seq."""
    feed = subscription.feed
    stream = None if feed is None else feed.topic.stream
    return stream is not None and stream.closed and _at_tail(subscription, seq)


def _at_tail(subscription: Subscription[View], seq: int) -> bool:
    feed = subscription.feed
    return feed is not None and seq >= feed.topic.head


def _place(subscription: Subscription[View], seq: int) -> Position:
    """The position behind a seq of the very stream that is followed.

    Its name may lead nowhere by now: a stream that has expired is there until it is removed.
    """
    feed, at = subscription.feed, subscription.position
    return Position(at.epoch, seq) if feed is None else position_of(feed.topic, seq)


class _Events(StreamEncoder[View]):
    """What one stream says."""

    __slots__ = ("_ahead", "_engine", "_now_ms", "subscription")
    dialect = DIALECT

    def __init__(self, engine: Engine, now_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._now_ms = now_ms
        self._ahead = 0  # a cursor that the time has not come to; 0: the client has none such
        self.subscription: Subscription[View] | None = None

    def begin(self, cursor: str) -> bool:
        """Take the cursor that a client sent; return whether all is as for any other client."""
        now_ms = self._now_ms()
        found = next_cursor(now_ms, cursor, self._engine.random)
        self._ahead = found if found > current_cursor(now_ms) else 0
        return not self._ahead

    def page(self, subscription: Subscription[View], shared: SharedPage) -> bytes:
        view, page = subscription.view, shared.page
        seq = page.next_from_seq
        cursor = self._cursor()
        key = (view, cursor, _at_tail(subscription, seq), _at_end(subscription, seq))
        events = shared.encoded.get(key)
        if events is None:
            data = shared.encoded.get(view)
            if data is None:
                payloads = [value for rows in page.rows for value in rows.data]
                data = shared.encoded[view] = view.data_event(payloads) if payloads else b""
            assert isinstance(data, bytes)
            events = shared.encoded[key] = data + self.control(subscription, seq)
        assert isinstance(events, bytes)
        return events

    def control(self, subscription: Subscription[View], seq: int) -> bytes:
        """Return where the client is once it has everything up to a seq."""
        fields = [b'"streamNextOffset":"%b"' % offset_text(_place(subscription, seq))]
        final = _at_end(subscription, seq)
        if not final:
            fields.append(b'"streamCursor":"%d"' % self._cursor())
        if _at_tail(subscription, seq):
            fields.append(b'"upToDate":true')
        if final:
            fields.append(b'"streamClosed":true')
        return b"event: control\ndata:{%b}\n\n" % b",".join(fields)

    def _cursor(self) -> int:
        return max(self._ahead, current_cursor(self._now_ms()))

    def heartbeat(self, now_ms: int) -> bytes:
        subscription = self.subscription
        if subscription is None:
            return b""
        return self.control(subscription, subscription.position.cursor)

    # What the protocol has no words for: the stream ends, and whoever comes back is told.

    def gone(self, subscription: Subscription[View], head_seq: int) -> bytes:
        return b""

    def delayed(self, subscription: Subscription[View], ms_max: int) -> bytes:
        return b""

    def topic_failed(
        self, subscription: Subscription[View], error: BaseException, retry_ms: int
    ) -> bytes:
        return b""

    def error(self, error: BaseException) -> bytes:
        return b""

    def stopping(self) -> bytes:
        return b""
