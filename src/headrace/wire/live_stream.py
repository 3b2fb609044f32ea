"""A live stream of any dialect: when it writes, beats, and is closed because it is too slow.

Only this file connects followers of topics to transports.  The engine hands a stream its next page
(`engine/live/`); the stream has its dialect's `StreamEncoder` turn the page into bytes, and writes
them.  Nothing is queued: while the transport has no room the stream takes no page, so that a slow
client reads the log at its own pace.  A stream with nothing to say sends heartbeats; one that takes
nothing for `slow_consumer_timeout_ms` is told so and closed.  A topic that cannot be read is told
and left, and the stream goes on with the others; if the reason passes by itself, the topic is tried
again every `RETRY_MS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, cast

from headrace.core.errors import HeadraceError, Throttled
from headrace.engine.live.follower import Follower, Subscription, ViewT
from headrace.engine.live.pages import SharedPage
from headrace.engine.scheduling.priority import PRIORITY_MAX
from headrace.engine.scheduling.turns import VISIT_STEP_MS
from headrace.wire.exchange import Key, Outlet
from headrace.wire.open_streams import OpenStreams

# How long until a topic is tried again that could not be read, for a reason that passes by itself.
RETRY_MS: Final = 5_000


class StreamEncoder(Generic[ViewT]):
    """What a dialect's streams say, as bytes of its protocol; b"" says nothing.

    A stream has an encoder of its own, so an encoder may know where its client is.  What is the
    same for all streams at one place belongs into `SharedPage.encoded`, so that it is made once.
    Where all of it is the same, subscriptions are `alike`: one stream's encoder is asked for all.
    """

    __slots__ = ()
    dialect: str  # its name in metrics

    def page(self, subscription: Subscription[ViewT], shared: SharedPage) -> bytes:
        """Return a page: what was lost before it, its records, and whether it reaches the tail.

        The position is still the one that the page was read from.
        """
        raise NotImplementedError

    def gone(self, subscription: Subscription[ViewT], head_seq: int) -> bytes:
        """Return that a topic was deleted."""
        raise NotImplementedError

    def delayed(self, subscription: Subscription[ViewT], ms_max: int) -> bytes:
        """Return that new records of a topic are held back for at most `ms_max`."""
        raise NotImplementedError

    def topic_failed(
        self, subscription: Subscription[ViewT], error: BaseException, retry_ms: int
    ) -> bytes:
        """Return why a topic cannot be read; it is tried again after `retry_ms`, 0: not at all."""
        raise NotImplementedError

    def heartbeat(self, now_ms: int) -> bytes:
        """Return that the stream is alive."""
        raise NotImplementedError

    def error(self, error: BaseException) -> bytes:
        """Return why the stream ends."""
        raise NotImplementedError

    def stopping(self) -> bytes:
        """Return that the stream ends because the server stops."""
        raise NotImplementedError


class StreamClient(NamedTuple):
    """Whose a stream is: where its bytes go, its key, and how long it may hear nothing."""

    outlet: Outlet
    key: Key | None
    heartbeat_ms: int


class LiveStream(Follower[ViewT]):
    """One open stream."""

    __slots__ = (
        "_encoder",
        "_heartbeat_due",
        "_heartbeat_ms",
        "_metrics",
        "_outlet",
        "_retry_asked",
        "_streams",
        "_written_ms",
        "closed",
        "key",
        "retrying",
    )
    kind = "sse"  # in metrics

    def __init__(
        self, streams: OpenStreams, encoder: StreamEncoder[ViewT], client: StreamClient
    ) -> None:
        super().__init__(streams.hub)
        self.key = client.key
        self.closed = False
        self.retrying: dict[Subscription[ViewT], None] = {}  # left, and to be tried again
        self._retry_asked = False
        self._streams = streams
        self._metrics = streams.metrics
        self._encoder = encoder
        self._outlet = client.outlet
        self._heartbeat_ms = client.heartbeat_ms
        self._heartbeat_due = False
        self._written_ms = streams.hub.turns.now_ms
        streams.opened(self)

    # What a dialect adds

    def told_gone(self, subscription: Subscription[ViewT]) -> None:
        """The client was told that a topic is gone."""

    def told_failed(self, subscription: Subscription[ViewT]) -> None:
        """The client was told that a topic cannot be read, and is not tried again."""

    def ended(self) -> None:
        """The stream has ended: give back what else it held."""

    # Beginning

    def begin(self) -> None:
        """Wait for room and for the client to go."""
        outlet, hub = self._outlet, self._hub
        outlet.on_closed = self.end
        outlet.on_room = self.room_again
        hub.turns.enqueue(self)
        hub.visits.add(self, self._next_visit(self._written_ms))

    # What the engine hands over

    @property
    def ready(self) -> bool:
        return self._outlet.room

    def deliver(self, alike: Sequence[Subscription[ViewT]], shared: SharedPage) -> None:
        data = self._encoder.page(alike[0], shared)
        if data and len(alike) == 1:
            self.write(data)
        elif data:
            # Those alike are streams of one class.
            streams = cast("list[LiveStream[ViewT]]", [one.follower for one in alike])
            self._write_to_all(streams, data)
        page = shared.page
        self._metrics.delivered(self._encoder.dialect, page.count, page.lag, len(alike))

    def _write_to_all(self, streams: Sequence[LiveStream[ViewT]], data: bytes) -> None:
        """Write the same bytes to streams of the same kind, all of which are ready."""
        turns = self._hub.turns
        now_ms = turns.started_ms
        for stream in streams:
            stream._written_ms = now_ms
            stream._heartbeat_due = False
        outlets = [stream._outlet for stream in streams]
        turns.wrote(sum([outlet.writes_later for outlet in outlets]))
        self._streams.write_to_all(outlets, data)

    def topic_gone(self, subscription: Subscription[ViewT], head_seq: int) -> None:
        self.write(self._encoder.gone(subscription, head_seq))
        self.told_gone(subscription)

    def topic_delayed(self, subscription: Subscription[ViewT], ms_max: int) -> None:
        self._metrics.watch_paced()
        self.write(self._encoder.delayed(subscription, ms_max))

    def topic_failed(self, subscription: Subscription[ViewT], error: BaseException) -> None:
        if self.closed:
            return
        self._metrics.failed(error)
        passes = isinstance(error, HeadraceError) and error.retryable
        self.write(self._encoder.topic_failed(subscription, error, RETRY_MS if passes else 0))
        if not passes:
            self.told_failed(subscription)
            return
        self.retrying[subscription] = None
        if not self._retry_asked:
            self._retry_asked = True
            self._hub.engine.runtime.later(RETRY_MS, self._retry)

    def _retry(self) -> None:
        """Try the topics again that could not be read."""
        self._retry_asked = False
        failed, self.retrying = self.retrying, {}
        for subscription in failed:
            self.follow_again(subscription)

    def leave(self, subscription: Subscription[ViewT]) -> None:
        self.retrying.pop(subscription, None)
        super().leave(subscription)

    def leave_all(self) -> None:
        super().leave_all()
        self.retrying.clear()

    # Turns

    @property
    def priority(self) -> int:
        return PRIORITY_MAX if self._heartbeat_due else super().priority

    def room_again(self) -> None:
        """Go on: the transport has room again."""
        if self.backlog or self._heartbeat_due:
            self._hub.turns.enqueue(self)

    def step(self) -> bool:
        if self._heartbeat_due and self._outlet.room:
            self._heartbeat_due = False
            self.send_heartbeat()
        return super().step()

    def send_heartbeat(self) -> None:
        """Say that the stream is alive."""
        self.write(self._encoder.heartbeat(self._hub.now_ms()))

    def write(self, data: bytes) -> None:
        """Write bytes of the protocol."""
        turns, outlet = self._hub.turns, self._outlet
        if outlet.writes_later:
            turns.wrote()
        self._written_ms = turns.started_ms
        self._heartbeat_due = False
        outlet.write(data)

    # Time

    def _next_visit(self, now_ms: int) -> int:
        return now_ms + min(self._heartbeat_ms, self._streams.slow_timeout_ms)

    def visit(self, now_ms: int) -> int | None:
        if self.closed:
            return None
        timeout_ms, stuck_ms = self._streams.slow_timeout_ms, self._outlet.stuck_ms
        if stuck_ms >= timeout_ms:
            self._metrics.watch_dropped("slow_consumer")
            self.fail(too_slow(timeout_ms))
            return None
        if not self._outlet.room:
            return now_ms + min(timeout_ms - stuck_ms + VISIT_STEP_MS, self._heartbeat_ms)
        due_ms = self._written_ms + self._heartbeat_ms
        if due_ms - VISIT_STEP_MS <= now_ms:
            self._heartbeat_due = True
            self._hub.turns.enqueue(self)
            return self._next_visit(now_ms)
        return min(due_ms, self._next_visit(now_ms))

    # The end

    def fail(self, error: BaseException) -> None:
        """Say why the stream ends, and end it."""
        if not self.closed:
            self.write(self._encoder.error(error))
            self.finish()

    def stop(self) -> None:
        """Say that the server stops, and end the stream."""
        if not self.closed:
            self._metrics.watch_dropped("shutdown")
            self.write(self._encoder.stopping())
            self.finish()

    def finish(self) -> None:
        """End the stream after what was written."""
        if not self.closed:
            self._outlet.close()
            self.end()

    def broken(self) -> None:
        self.finish()

    def end(self) -> None:
        """Let go of everything; the transport is closed or about to be."""
        if self.closed:
            return
        self.closed = True
        self.leave_all()
        outlet, self._outlet = self._outlet, NO_OUTLET
        outlet.on_closed = outlet.on_room = outlet.on_data = None
        self._streams.closed(self)
        self.ended()


class _NoOutlet(Outlet):
    """Stands for the transport of a stream that has ended."""

    __slots__ = ()

    @property
    def room(self) -> bool:
        return False

    @property
    def stuck_ms(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


NO_OUTLET: Final = _NoOutlet()


def too_slow(timeout_ms: int) -> HeadraceError:
    """Return why a stream that is not read is closed."""
    return Throttled(
        f"the stream was not read for {timeout_ms} ms",
        fix="read faster, or ask for less; reconnect to go on where it stopped",
    )
