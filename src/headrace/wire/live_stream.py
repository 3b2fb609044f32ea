"""A live stream, whatever its protocol: what it reads next, when it may write, when it is too slow.

Only this file turns rounds of the hub into pages that are sent.  Nothing is queued: a page is read
when the transport has room for it, so that a slow reader reads the log at its own pace.  A stream
that has nothing to say beats from time to time; one that takes nothing for
`slow_consumer_timeout_ms` is told so and closed.  How things look is the business of the protocols:
`native_watch_stream.py` and `native_ws.py`.
"""

from __future__ import annotations

from typing import Final

from headrace.core.errors import HeadraceError, Throttled
from headrace.engine.live import UNKNOWN, Feed, Follower, LiveHub, Shared, is_gone
from headrace.engine.scheduling.priority import PRIORITY_MAX, priority_of
from headrace.engine.scheduling.turns import VISIT_STEP_MS
from headrace.engine.topic import Topic
from headrace.wire.exchange import Outlet
from headrace.wire.live_json import View
from headrace.wire.metrics import Metrics


class Place:
    """Where a reader is in one topic."""

    __slots__ = ("coded", "cursor", "epoch", "name")

    def __init__(self, name: str, epoch: int, cursor: int) -> None:
        self.name = name
        self.epoch = epoch
        self.cursor = cursor
        self.coded: bytes | None = None  # its part of an id, until it moves

    def copy(self) -> Place:
        return Place(self.name, self.epoch, self.cursor)

    def move(self, epoch: int, cursor: int) -> None:
        """Be somewhere else."""
        if cursor != self.cursor or epoch != self.epoch:
            self.epoch, self.cursor, self.coded = epoch, cursor, None


class Followed:
    """One topic of a stream."""

    __slots__ = ("feed", "fetching", "first", "place", "shared", "view")

    def __init__(self, place: Place, view: View, feed: Feed | None) -> None:
        self.place = place
        self.view = view
        self.feed = feed  # None: the topic was gone when it was to be followed
        self.first = True  # nothing was read of it on this connection
        self.fetching: tuple[int, int] | None = None  # from which (cursor, epoch)
        self.shared: Shared | None = None  # what was fetched


class Common:
    """What all streams of one API share: the hub, and how long to wait for what."""

    __slots__ = ("hub", "metrics", "slow_timeout_ms")

    def __init__(self, hub: LiveHub, metrics: Metrics, slow_timeout_ms: int) -> None:
        self.hub = hub
        self.metrics = metrics
        self.slow_timeout_ms = slow_timeout_ms


class LiveStream(Follower):
    """One open stream."""

    __slots__ = (
        "_backlog",
        "_beat_due",
        "_common",
        "_followed",
        "_outlet",
        "_written_ms",
        "closed",
    )

    def __init__(self, common: Common, outlet: Outlet) -> None:
        super().__init__()
        self._common = common
        self._outlet = outlet
        self._followed: dict[Feed, Followed] = {}
        self._backlog: dict[Followed, None] = {}  # what may have something to send
        self._beat_due = False
        self._written_ms = common.hub.turns.now_ms
        self.closed = False

    # What a protocol adds

    @property
    def beat_ms(self) -> int:
        """How long a stream may be silent."""
        raise NotImplementedError

    def send_page(self, followed: Followed, shared: Shared) -> None:
        """Send a page; the place is moved to its end afterwards, at the latest."""
        raise NotImplementedError

    def send_gone(self, followed: Followed, head_seq: int) -> None:
        """A topic is gone, and not followed any more."""
        raise NotImplementedError

    def send_paced(self, followed: Followed, ms_max: int) -> None:
        """Say that what is new in a topic is held back, for so long at most."""
        raise NotImplementedError

    def send_beat(self) -> None:
        """Say that the stream is alive."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Say why the stream ends, and end it."""
        raise NotImplementedError

    def ended(self) -> None:
        """The stream has ended: give back what it held."""
        raise NotImplementedError

    # Beginning

    def begin(self) -> None:
        """Wait for room and for the client to go."""
        outlet, hub = self._outlet, self._common.hub
        outlet.on_closed = self.end
        outlet.on_room = self._room
        hub.turns.enqueue(self)
        hub.visits.add(self, self._next_visit(self._written_ms))

    def follow(self, place: Place, view: View, topic: Topic | None) -> Followed:
        """Read on in a topic from a place."""
        feed = None
        if topic is not None:
            feed = self._common.hub.follow(topic, self, strong=view.wishes.strong)
        followed = Followed(place, view, feed)
        if feed is not None:
            self._followed[feed] = followed
        self._backlog[followed] = None
        self._common.hub.turns.enqueue(self)
        return followed

    def leave(self, followed: Followed) -> None:
        """Read no further in a topic."""
        self._backlog.pop(followed, None)
        feed = followed.feed
        if feed is not None and self._followed.pop(feed, None) is not None:
            feed.remove(self, followed.view.wishes.strong)

    # Turns

    @property
    def priority(self) -> int:
        # What it lags behind is read at the pace of its reader, and never held back: only what is
        # new can be.
        core = self._common.hub.engine.core
        for followed in self._backlog:
            if followed.feed is not None and not self._beat_due:
                return max(priority_of(followed.feed.topic, core.clock.now_ms()), 0)
        return PRIORITY_MAX

    def paced(self, feed: Feed, ms_max: int) -> None:
        followed = self._followed.get(feed)
        if followed is None or not self._outlet.room or followed.place.cursor >= feed.topic.head:
            return  # nothing waits for it
        self._common.metrics.watch_paced()
        self.send_paced(followed, ms_max)

    def _room(self) -> None:
        if self._backlog or self._beat_due:
            self._common.hub.turns.enqueue(self)

    def arrived(self, feed: Feed) -> None:
        followed = self._followed.get(feed)
        if followed is None:
            return
        if self._backlog or not self._outlet.room or not self._deliver(followed):
            self._backlog[followed] = None
            self._common.hub.turns.enqueue(self)

    def step(self) -> bool:
        if self.closed or not self._outlet.room:
            return False
        if self._beat_due:
            self._beat_due = False
            self.send_beat()
        for followed in self._backlog:
            if followed.fetching is None or followed.shared is not None:
                break
        else:
            return False
        if self._deliver(followed):
            self._backlog.pop(followed, None)
        return bool(self._backlog) and not self.closed

    def fetched(self, feed: Feed, shared: Shared | None, error: BaseException | None) -> None:
        followed = self._followed.get(feed)
        if followed is None or followed.fetching is None:
            return
        followed.shared = shared
        if shared is None:
            followed.fetching = None
            if error is not None and not is_gone(error):
                self.fail(error)
        self._common.hub.turns.enqueue(self)

    # Delivery

    def _deliver(self, followed: Followed) -> bool:
        """Send the next page of a topic; whether there is nothing more to send now."""
        feed, place, wishes = followed.feed, followed.place, followed.view.wishes
        if feed is None or not feed.topic.live:
            self._gone(followed)
            return True
        topic = feed.topic
        if wishes.strong and feed.sync_refusal is not None:
            self.fail(feed.sync_refusal)
            return True
        end = feed.end(wishes)
        same = place.epoch == topic.epoch
        if same and place.cursor == end and not followed.first:
            return True
        if wishes.strong and (end == UNKNOWN or (same and end < place.cursor <= topic.head)):
            return True  # nothing that is on disk; there will be a round when more is
        shared = self._page(followed, feed)
        if shared is None:
            return followed.fetching is None
        page = shared.page
        if page.epoch != topic.epoch:
            return True  # another topic has the name: that ours is gone will be heard soon
        self.send_page(followed, shared)
        cursor = page.next_from_seq
        self._common.metrics.delivered("native", shared.count, page.head_seq - cursor)
        place.move(page.epoch, cursor)
        followed.first = False
        return cursor == feed.end(wishes)

    def _page(self, followed: Followed, feed: Feed) -> Shared | None:
        """The next page; None when it has to be fetched, or cannot be had."""
        place = followed.place
        here = (place.cursor, place.epoch)
        if followed.fetching is not None:
            shared, followed.shared = followed.shared, None
            fetched_at, followed.fetching = followed.fetching, None
            # Not a page of where it was before it moved.
            if shared is not None and fetched_at == here:
                return shared
        try:
            shared = feed.read(place.cursor, place.epoch, followed.view.wishes, self)
        except (HeadraceError, OSError) as error:
            if not is_gone(error):
                self.fail(error)
            return None
        if shared is None:
            followed.fetching = here
            self._backlog[followed] = None
        return shared

    def _gone(self, followed: Followed) -> None:
        feed = followed.feed
        head_seq = followed.place.cursor if feed is None else feed.topic.head
        self.leave(followed)
        self.send_gone(followed, head_seq)

    def write(self, data: bytes) -> None:
        """Write bytes of the protocol."""
        turns = self._common.hub.turns
        turns.wrote()
        self._written_ms = turns.started_ms
        self._beat_due = False
        self._outlet.write(data)

    # Time

    def _next_visit(self, now_ms: int) -> int:
        return now_ms + min(self.beat_ms, self._common.slow_timeout_ms)

    def visit(self, now_ms: int) -> int | None:
        if self.closed:
            return None
        timeout_ms, stuck_ms = self._common.slow_timeout_ms, self._outlet.stuck_ms
        if stuck_ms >= timeout_ms:
            self._common.metrics.watch_dropped("slow_consumer")
            self.fail(too_slow(timeout_ms))
            return None
        if not self._outlet.room:
            return now_ms + min(timeout_ms - stuck_ms + VISIT_STEP_MS, self.beat_ms)
        due_ms = self._written_ms + self.beat_ms
        if due_ms - VISIT_STEP_MS <= now_ms:
            self._beat_due = True
            self._common.hub.turns.enqueue(self)
            return self._next_visit(now_ms)
        return min(due_ms, self._next_visit(now_ms))

    # The end

    def finish(self) -> None:
        """End the stream after what was written."""
        if not self.closed:
            self._outlet.close()
            self.end()

    def broken(self) -> None:
        self.finish()

    def end(self) -> None:
        """Leave nothing behind; the transport is closed or about to be."""
        if self.closed:
            return
        self.closed = True
        for followed in list(self._followed.values()):
            self.leave(followed)
        self._backlog.clear()
        outlet, self._outlet = self._outlet, NO_OUTLET
        outlet.on_closed = outlet.on_room = outlet.on_data = None
        self.ended()


class _NoOutlet(Outlet):
    """Stands for a transport that was let go of."""

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
    """Why a stream that is not read is closed."""
    return Throttled(
        f"the stream was not read for {timeout_ms} ms",
        fix="read faster, or ask for less; reconnect to go on where it stopped",
    )
