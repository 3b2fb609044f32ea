"""Which streams subscriptions are linked to: kept in step with streams that come, grow and go.

Only this file listens to the engine, and only while there are subscriptions: without one an append
costs nothing more.  It hears of publishes from the journal that watches of many topics use, after
the writer has been answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from headrace.core.errors import HeadraceError
from headrace.core.steps import Steps, turn_end
from headrace.engine.engine import Engine
from headrace.engine.live.hub import LiveHub
from headrace.engine.streams.spec import Position
from headrace.engine.topics.topic import Topic
from headrace.wire.durable_streams.paths import NAME_PREFIX, path_below_root
from headrace.wire.durable_streams.subscriptions.active import ActiveSubscription
from headrace.wire.durable_streams.subscriptions.state import EXPLICIT, GLOB
from headrace.wire.durable_streams.subscriptions.stream_paths import topic_of

log = logging.getLogger("headrace.subscriptions")

# Names, or links, that are looked at before others get their turn of the loop.
LOOKED_AT_MAX: Final = 1_000
# The same for segments of names that a pattern is compared with: a name has up to 300.
SEGMENTS_LOOKED_AT_MAX: Final = 10_000


class EngineEnds:
    """Where the streams of an engine end; one that has expired or is deleted is none."""

    def __init__(self, engine: Engine) -> None:
        self._streams = engine.streams

    def tail(self, path: str) -> Position | None:
        try:
            return self._streams.info(topic_of(path)).tail
        except HeadraceError:
            return None

    def resolve(self, path: str, at: Position) -> int:
        return self._streams.resolve(topic_of(path), at)


class Links:
    """The subscriptions of one server by the streams that they are linked to.

    `has_news` is called with a subscription that has something new and no wake; `has_room` says
    whether it may be linked to one stream more, and counts that; `count` hears of one that holds
    fewer.
    """

    def __init__(
        self,
        engine: Engine,
        hub: LiveHub,
        ends: EngineEnds,
        has_news: Callable[[ActiveSubscription], None],
        has_room: Callable[[ActiveSubscription, str], bool],
        count: Callable[[ActiveSubscription], None],
    ) -> None:
        self.ends = ends
        self._engine = engine
        self._hub = hub
        self._has_news = has_news
        self._has_room = has_room
        self._count = count
        self._by_path: dict[str, dict[ActiveSubscription, None]] = {}
        # By the first segment of their pattern; "" has those that begin with a wildcard.
        self._globs: dict[str, dict[ActiveSubscription, None]] = {}
        self._served = 0

    # Subscriptions

    def add(self, active: ActiveSubscription) -> Steps[None]:
        """Serve a subscription: link what has come since it was last known, look at everything."""
        if not self._served:
            self._hub.journal.hold()
            self._hub.journal.listen(NAME_PREFIX, self)
            self._hub.follow_names(NAME_PREFIX, self.created)
        self._served += 1
        if active.glob is not None:
            self._globs.setdefault(_first_segment(active), {})[active] = None
        for count, path in enumerate(list(active.state.links)):
            self._by_path.setdefault(path, {})[active] = None
            self._look_at(active, path)
            if count % LOOKED_AT_MAX == LOOKED_AT_MAX - 1:
                yield turn_end(self._engine.runtime)
        for path in (yield from self.matching(active)):
            if path not in active.state.links and not active.gone:
                self._link(active, path)
                active.look_at(self.ends, path)

    def remove(self, active: ActiveSubscription) -> None:
        """Serve a subscription no more."""
        for path in list(active.state.links):
            self.unlinked(active, path)
        if active.glob is not None:
            first = _first_segment(active)
            self._globs[first].pop(active, None)
            if not self._globs[first]:
                del self._globs[first]
        self._served -= 1
        if not self._served:
            self._hub.leave_names(NAME_PREFIX, self.created)
            self._hub.journal.leave(NAME_PREFIX, self)
            self._hub.journal.drop()

    def matching(self, active: ActiveSubscription) -> Steps[list[str]]:
        """Return the streams that the pattern of a subscription matches now."""
        found: list[str] = []
        if active.glob is None:
            return found
        prefix, after, looked_at = topic_of(active.glob.prefix), "", 0
        while True:
            names = list(islice(self._engine.topic_names(prefix, after), LOOKED_AT_MAX))
            for name in names:
                path = path_below_root(name)
                if active.matches(path) and self.ends.tail(path) is not None:
                    found.append(path)
                looked_at += path.count("/") + 1
                if looked_at >= SEGMENTS_LOOKED_AT_MAX:
                    looked_at = 0
                    yield turn_end(self._engine.runtime)
            if len(names) < LOOKED_AT_MAX:
                return found
            after = names[-1]
            yield turn_end(self._engine.runtime)

    def linked(self, active: ActiveSubscription, path: str) -> None:
        """Note that a subscription has a link."""
        self._by_path.setdefault(path, {})[active] = None

    def unlinked(self, active: ActiveSubscription, path: str) -> None:
        """Note that a subscription has a link no more."""
        active.pending.pop(path, None)
        served = self._by_path.get(path)
        if served is not None:
            served.pop(active, None)
            if not served:
                del self._by_path[path]

    def _link(self, active: ActiveSubscription, path: str) -> None:
        """Link a stream that a pattern matches, from its start."""
        if path in active.state.links:
            active.state.link(path, GLOB, None)
        elif self._has_room(active, path):
            active.state.link(path, GLOB, None)
            self.linked(active, path)

    def _look_at(self, active: ActiveSubscription, path: str) -> None:
        """See what has become of a stream while nobody listened."""
        link, tail = active.state.links[path], self.ends.tail(path)
        if tail is None:
            self._stream_gone(active, path)
        elif link.acked is not None and not self._is_of(path, link.acked):
            link.acked = None  # it was deleted, and made again
        active.look_at(self.ends, path)

    def _is_of(self, path: str, acked: Position) -> bool:
        tail = self.ends.tail(path)
        if tail is None or acked.incarnation in (0, tail.incarnation):
            return True
        try:
            self.ends.resolve(path, acked)
        except HeadraceError:
            return False
        return True

    def _stream_gone(self, active: ActiveSubscription, path: str) -> None:
        """Forget a cursor of a stream that is no more; only a link by name stays."""
        state = active.state
        state.unlink(path, GLOB)
        link = state.links.get(path)
        if link is None:
            self.unlinked(active, path)
            # No event says so: streams that come and go would else be counted for ever.
            self._count(active)
        else:
            assert link.kinds == EXPLICIT
            link.acked = None
            active.pending.pop(path, None)

    # What the engine tells

    def created(self, topic: Topic) -> None:
        """A stream is new: link it before anything of it is told."""
        path = path_below_root(topic.name)
        for active in self._matching_globs(path):
            self._link(active, path)

    def _matching_globs(self, path: str) -> Iterator[ActiveSubscription]:
        first = path.partition("/")[0]
        for active in [*self._globs.get(first, ()), *self._globs.get("", ())]:
            if active.matches(path):
                yield active

    def published(self, topic: Topic, number: int, head: int) -> None:
        """A stream has grown; `head` was its head before."""
        path = path_below_root(topic.name)
        if not head:
            self.created(topic)  # its creation may be told after its first records
        for active in list(self._by_path.get(path, ())):
            active.pending[path] = None
            if active.state.wake is None:
                self._has_news(active)

    def deleted(self, topic: Topic) -> None:
        """A stream is gone."""
        path = path_below_root(topic.name)
        for active in list(self._by_path.get(path, ())):
            self._stream_gone(active, path)

    def told(self) -> None:
        """Nothing waits for the end of a round."""

    def broken(self) -> None:
        """Go on: the journal has written what went wrong to the log."""

    def catch_up(self) -> None:
        """Take in what has been published and is still to be told.

        For a caller who has seen his append answered, and asks what is new.
        """
        for topic in self._hub.journal.untold(NAME_PREFIX):
            path = path_below_root(topic.name)
            self.created(topic)
            for active in self._by_path.get(path, ()):
                active.pending[path] = None


def _first_segment(active: ActiveSubscription) -> str:
    assert active.glob is not None
    prefix = active.glob.prefix
    # Text of a whole segment only: `a/**` matches `a`, and then there is no slash.
    return prefix.partition("/")[0]
