"""`GET /v0/topics/{topic}/work`: jobs that are pushed to a worker as server-sent events.

Only this file decides what a worker's stream is sent.  A connection holds at most `max` leases; the
next job is claimed and sent the moment there is room for it, by an ack or otherwise, and only while
the client takes what it is sent.  Jobs that it holds when the connection ends can be claimed at
once.
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
from headrace.engine.queues.answers import Claimed, Leased
from headrace.engine.queues.operations import Queues
from headrace.engine.topics.topic import Topic
from headrace.wire import sse
from headrace.wire.event_stream import begin_events, check_accepts_events
from headrace.wire.exchange import Exchange, Key, Outlet
from headrace.wire.live_stream import LiveStream, StreamClient, StreamEncoder
from headrace.wire.native.answers import encode
from headrace.wire.native.append import whole_number
from headrace.wire.native.job_json import jobs_out
from headrace.wire.native.live_json import STOPPING, error_message
from headrace.wire.native.request_checks import check_not_own
from headrace.wire.native.vocabulary import BOXES, TOPICS, Vocabulary
from headrace.wire.open_streams import OpenStreams
from headrace.wire.queries import query_of
from headrace.wire.routes import READ, WRITE, Route

# After an error that passes by itself: a queue with too many jobs out, a full disk.
RETRY_MS: Final = 1_000
QUEUE_GONE: Final = (TopicNotFound, NotAQueue)
GONE_STATUS: Final = 409
_OWN_SITES: Final = (b"same-origin", b"none")
# Jobs that are claimed and sent in one go.  Not all that a worker has room for: jobs that wait in a
# transport are leased already.
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
        self, open_streams: OpenStreams, settings: Settings, heartbeat_ms_min: int
    ) -> None:
        self.open_streams = open_streams
        self.queues = open_streams.hub.engine.queues
        self.heartbeat_ms = min(
            max(settings.heartbeat_ms_default, heartbeat_ms_min), heartbeat_ms_max
        )
        self.bytes_max = settings.stream_pending_bytes
        self._node_bytes_max = settings.node_bytes_max

    def routes(self) -> list[Route]:
        """Return the rows of the route table."""
        return [self._route(TOPICS), self._route(BOXES)]

    def _route(self, vocabulary: Vocabulary) -> Route:
        return Route(
            "GET",
            f"/v0/{vocabulary.plural}/{{{vocabulary.noun}}}/work",
            lambda exchange: self.open(exchange, vocabulary),
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
        topic = self.queues.topic(name)
        outlet = begin_events(exchange, self.open_streams.limits, work.key)
        if outlet is None:
            return
        stream = WorkStream(self, work, topic, outlet)
        try:
            stream.open()
        except BaseException:
            stream.broken()
            raise


def _check_site(exchange: Exchange) -> None:
    """Refuse a web page of another site that asks without saying who it is, as an image does.

    Such a request is harmless where it only reads, and needs no key where the server has none.
    Pages that say who they are have been checked before.
    """
    headers = exchange.headers
    site = headers.get(b"sec-fetch-site", b"none")
    if exchange.key is None and b"origin" not in headers and site not in _OWN_SITES:
        raise Forbidden(
            "a web page of another site may not do this", fix="use EventSource or fetch with CORS"
        )


class WorkEvents(StreamEncoder[None]):
    """What a worker is told beside its jobs; these events have no id."""

    __slots__ = ("_work",)
    dialect = "native"

    def __init__(self, work: Work) -> None:
        self._work = work

    def heartbeat(self, now_ms: int) -> bytes:
        return sse.heartbeat(now_ms)

    def error(self, error: BaseException) -> bytes:
        vocabulary = self._work.vocabulary
        if not isinstance(error, QUEUE_GONE):
            return self._event(error_message(error, vocabulary))
        fields = {
            "code": GONE_STATUS,
            "error": vocabulary.word(error.code),
            vocabulary.noun: self._work.name,
            "message": str(error),
        }
        return self._event(encode(fields)[1:])

    def stopping(self) -> bytes:
        return self._event(STOPPING)

    def _event(self, message: bytes) -> bytes:
        return sse.event(b"error", b"{" + message)


class WorkStream(LiveStream[None]):
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
        super().__init__(
            api.open_streams,
            WorkEvents(work),
            StreamClient(outlet, work.key, api.heartbeat_ms),
        )
        self._api = api
        self._work = work
        self._topic = topic
        self._queues: Queues = api.queues
        self._connection = 0  # 0: none yet, or no longer
        self._claiming = False
        self._again = False  # there may be more by now than the claim under way has seen
        self._retrying = False

    def open(self) -> None:
        """Send the first bytes, and the jobs that are ready."""
        self.write(sse.RETRY)
        self.begin()
        self._connection = self._queues.connect(self._work.name, self._wake)
        self._fill()

    # Jobs

    def room_again(self) -> None:
        super().room_again()
        self._fill()

    def _wake(self) -> bool:
        """Take jobs that the queue may have; return whether there is room for more."""
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
        if done.leased is not None:
            self._send(done.topic, done.leased)
        if self._again or (done.leased is not None and done.ready):
            # Not from here: a claim that is answered at once would come back to this line.
            self._hub.engine.runtime.soon(self._fill)

    def _send(self, topic: str, leased: Leased) -> None:
        name = f'{{"{self._work.vocabulary.noun}":'.encode() + encode(topic) + b","
        events = [
            sse.with_id(b"%d" % job.seq, sse.event(b"job", name + encode(job)[1:]))
            for job in jobs_out(leased)
        ]
        self._metrics.jobs("pushed", len(events))
        self._hub.engine.touch(self._topic)
        self.write(b"".join(events))

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, HeadraceError) and error.retryable:
            self._retrying = True
            self._hub.engine.runtime.later(RETRY_MS, self._retry)
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

    # The end

    def fail(self, error: BaseException) -> None:
        if not self.closed and isinstance(error, QUEUE_GONE):
            self._metrics.watch_dropped("deleted")
        super().fail(error)

    def ended(self) -> None:
        connection, self._connection = self._connection, 0
        if connection:
            self._queues.disconnect(connection)
