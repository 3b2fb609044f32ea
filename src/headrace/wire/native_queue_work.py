"""`GET /v0/topics/{topic}/work`: jobs that are pushed to a worker as server-sent events.

Only this file decides what a worker's stream is sent.  A connection holds at most `max` leases; the
next job is claimed and sent the moment there is room for it, by an ack or otherwise, and only while
the client takes what it is sent.  What it holds when the connection ends can be claimed at once.
Refusals, in this order: `Accept`, the query, the topic, too many streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.core.errors import (
    Forbidden,
    HeadraceError,
    InvalidRequest,
    NotAQueue,
    TopicNotFound,
)
from headrace.core.limits import claims_per_request_max, heartbeat_ms_max, seq_max
from headrace.core.runtime import Ticket
from headrace.core.settings import Settings
from headrace.engine.queues.answers import Claimed
from headrace.engine.queues.queueing import Queues
from headrace.engine.topic import Topic
from headrace.wire import sse
from headrace.wire.exchange import EVENT_STREAM, Exchange, Key, Outlet
from headrace.wire.live_json import error_message
from headrace.wire.live_stream import Common, LiveStream
from headrace.wire.native import BOXES, TOPICS, Vocabulary, check_not_own, encode, query_of
from headrace.wire.native_append import whole_number
from headrace.wire.native_queue import job_out
from headrace.wire.native_watch import STREAM_HEADERS, check_accepts_events
from headrace.wire.routes import READ, WRITE, Route
from headrace.wire.slots import StreamSlots

# After an error that passes by itself: a queue with too many jobs out, a full disk.
RETRY_MS: Final = 1_000
GONE_STATUS: Final = 409
_OWN_SITES: Final = (b"same-origin", b"none")
# Claimed and sent in one go: not all at once that a worker with much room may have, because what
# waits in a transport is leased already.
STEP_JOBS_MAX: Final = 64


class Work:
    """What a worker asks for."""

    __slots__ = ("key", "lease_ms", "most", "name", "node", "vocabulary")

    def __init__(
        self,
        name: str,
        query: Mapping[str, str],
        key: Key | None,
        vocabulary: Vocabulary,
        node_bytes_max: int,
    ) -> None:
        self.name = name
        self.key = key
        self.vocabulary = vocabulary
        self.node = query.get("node", "")
        length = len(self.node.encode(errors="replace"))
        if not 1 <= length <= node_bytes_max:
            raise InvalidRequest(
                f"node has {length} bytes", fix=f"send `?node=` with 1 to {node_bytes_max}"
            )
        most = whole_number("max", query["max"]) if "max" in query else 1
        self.most = min(max(most, 1), claims_per_request_max)
        self.lease_ms: int | None = None  # the topic's
        if "lease_ms" in query:
            self.lease_ms = min(whole_number("lease_ms", query["lease_ms"]), seq_max)


class WorkApi:
    """The streams of all workers of one engine."""

    def __init__(
        self, common: Common, settings: Settings, slots: StreamSlots, heartbeat_ms_min: int
    ) -> None:
        self.common = common
        self.streams: dict[WorkStream, None] = {}
        self.beat_ms = min(max(settings.heartbeat_ms_default, heartbeat_ms_min), heartbeat_ms_max)
        self.bytes_max = settings.stream_pending_bytes
        self._node_bytes_max = settings.node_bytes_max
        self._slots = slots

    def routes(self) -> list[Route]:
        """The rows of the route table."""
        return [self._route(TOPICS), self._route(BOXES)]

    def _route(self, vocabulary: Vocabulary) -> Route:
        return Route(
            "GET",
            f"/v0/{vocabulary.plural}/{{{vocabulary.noun}}}/work",
            lambda exchange: self.open(exchange, vocabulary),
            vocabulary,
            frozenset({READ, WRITE}),
            "Jobs of a queue as they come, as server-sent events",
            query=("node", "max", "lease_ms", "token"),
            token_query=True,
            long_lived=True,
            hidden=vocabulary is not TOPICS,
        )

    def open(self, exchange: Exchange, vocabulary: Vocabulary) -> None:
        """Begin to push jobs."""
        _check_site(exchange)
        check_accepts_events(exchange)
        name, query = exchange.params[0], query_of(exchange)
        work = Work(name, query, exchange.key, vocabulary, self._node_bytes_max)
        check_not_own(name)
        topic = self.common.hub.engine.queues.topic(name)
        if exchange.method == "HEAD":
            exchange.answer(200, b"", EVENT_STREAM, STREAM_HEADERS)
            return
        self._slots.take(work.key)
        try:
            outlet = exchange.stream(EVENT_STREAM, STREAM_HEADERS)
        except BaseException:
            self._slots.release(work.key)
            raise
        stream = WorkStream(self, work, topic, outlet)
        self.streams[stream] = None
        try:
            stream.open()
        except BaseException:
            stream.broken()
            raise

    def closed(self, stream: WorkStream, work: Work) -> None:
        """A stream has ended."""
        del self.streams[stream]
        self._slots.release(work.key)


def _check_site(exchange: Exchange) -> None:
    """Refuse a web page of another site that asks without saying who it is, as an image does.

    Such a request is harmless where it only reads, and needs no key where there are none.  Pages
    that say who they are have been checked before.
    """
    headers = exchange.headers
    site = headers.get(b"sec-fetch-site", b"none")
    if exchange.key is None and b"origin" not in headers and site not in _OWN_SITES:
        raise Forbidden(
            "a web page of another site may not do this", fix="use EventSource or fetch with CORS"
        )


class WorkStream(LiveStream):
    """The stream of one worker.  It follows no topic: the queue wakes it."""

    __slots__ = (
        "_again",
        "_api",
        "_claiming",
        "_connection",
        "_queues",
        "_retrying",
        "_topic",
        "_work",
    )

    def __init__(self, api: WorkApi, work: Work, topic: Topic, outlet: Outlet) -> None:
        super().__init__(api.common, outlet)
        self._api = api
        self._work = work
        self._topic = topic
        self._queues: Queues = api.common.hub.engine.queues
        self._connection = 0  # 0: none yet, or no longer
        self._claiming = False
        self._again = False  # there may be more by now than the claim under way has seen
        self._retrying = False

    def open(self) -> None:
        """Send the first bytes, and what there is."""
        self.write(sse.RETRY)
        self.begin()
        self._connection = self._queues.connect(self._work.name, self._wake)
        self._fill()

    @property
    def beat_ms(self) -> int:
        return self._api.beat_ms

    # Jobs

    def _room(self) -> None:
        super()._room()
        self._fill()

    def _wake(self) -> bool:
        """The queue may have something: take what there is room for; whether there is for more."""
        self._fill()
        return not self.closed and self._free > 0

    @property
    def _free(self) -> int:
        return self._work.most - self._queues.held_by(self._connection)

    def _fill(self) -> None:
        """Claim as many jobs as the connection may still hold, unless the client is behind."""
        if not self._topic.live:
            # Another one may have its name by now.
            self.fail(TopicNotFound.named(self._work.name))
            return
        if self.closed or self._retrying or not self._outlet.room:
            return
        if self._claiming:
            self._again = True
            return
        free = min(self._free, STEP_JOBS_MAX)
        if free <= 0:
            return
        work = self._work
        self._claiming, self._again = True, False
        ticket = self._queues.claim(
            work.name,
            work.node,
            free,
            work.lease_ms,
            connection=self._connection,
            bytes_max=self._api.bytes_max,
        )
        ticket.when_done(self._claimed)

    def _claimed(self, ticket: Ticket[Claimed]) -> None:
        self._claiming = False
        if self.closed:
            return  # what it got was given back when the connection ended
        error = ticket.error
        if error is not None:
            self._failed(error)
            return
        done = ticket.result()
        if done.jobs:
            self._send(done)
        if self._again or (done.jobs and done.ready):
            # Not from here: a claim that is answered at once would come back to this line.
            self._common.hub.engine.runtime.soon(self._fill)

    def _send(self, done: Claimed) -> None:
        name = f'{{"{self._work.vocabulary.noun}":'.encode() + encode(done.topic) + b","
        events = [
            sse.with_id(b"%d" % job.seq, sse.event(b"job", name + encode(job_out(job))[1:]))
            for job in done.jobs
        ]
        self._common.metrics.jobs("pushed", len(events))
        self._common.hub.engine.touch(self._topic)
        self.write(b"".join(events))

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, HeadraceError) and error.retryable:
            self._retrying = True
            self._common.hub.engine.runtime.later(RETRY_MS, self._retry)
        else:
            self.fail(error)

    def _retry(self) -> None:
        self._retrying = False
        self._fill()

    # Time

    def visit(self, now_ms: int) -> int | None:
        next_ms = super().visit(now_ms)
        if next_ms is not None:
            self._fill()  # jobs that it held may have been deleted
        return next_ms

    def send_beat(self) -> None:
        self.write(sse.heartbeat(self._common.hub.engine.core.clock.now_ms()))

    # The end

    def fail(self, error: BaseException) -> None:
        if self.closed:
            return
        vocabulary = self._work.vocabulary
        if isinstance(error, TopicNotFound | NotAQueue):
            told = {
                "code": GONE_STATUS,
                "error": vocabulary.word(error.code),
                vocabulary.noun: self._work.name,
                "message": str(error),
            }
            self._common.metrics.watch_dropped("deleted")
            self.say_error(encode(told)[1:])
        else:
            self.say_error(error_message(error, vocabulary))

    def say_error(self, told: bytes) -> None:
        """Send an `error` event, and end."""
        self.write(sse.event(b"error", b"{" + told))
        self.finish()

    def ended(self) -> None:
        connection, self._connection = self._connection, 0
        if connection:
            self._queues.disconnect(connection)
        self._api.closed(self, self._work)
