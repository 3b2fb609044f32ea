"""One open stream of a watch: which topics it follows, and when it ends.

Only this file adds the topics of a pattern to a session.  The stream ends with the last of its
topics that can be read, unless it follows a pattern.  What it says is in `watch_events.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.engine.live.follower import Subscription
from headrace.engine.live.patterns import PatternPosition, PatternReader
from headrace.engine.live.places import Place, Sweep
from headrace.engine.topics.topic import Topic
from headrace.wire import sse
from headrace.wire.exchange import Outlet
from headrace.wire.live_stream import LiveStream, StreamClient
from headrace.wire.native.live_json import View
from headrace.wire.native.watch_events import WatchEvents
from headrace.wire.native.watch_session import FOLLOWED_TOPICS_MAX, Session, WatchPosition

if TYPE_CHECKING:
    from headrace.wire.native.watch import WatchApi


class WatchStream(LiveStream[View]):
    """One open stream."""

    __slots__ = ("_api", "_session")

    def __init__(self, api: WatchApi, session: Session, outlet: Outlet) -> None:
        super().__init__(
            api.open_streams,
            WatchEvents(session),
            StreamClient(outlet, session.key, session.heartbeat_ms),
        )
        self._api = api
        self._session = session

    def open(self) -> None:
        """Send the first bytes, and read on from the session's positions."""
        hub, session = self._hub, self._session
        self.write(sse.RETRY)
        for position in session.positions.values():
            self._follow(position, hub.find(position.name))
        self.begin()
        if session.place is not None:
            self._read_patterns(session.place)
        else:
            for prefix in session.prefixes:
                hub.follow_names(prefix, self._created)
            self._find_missed()
        self._finish_if_empty()

    def _follow(self, position: WatchPosition, topic: Topic | None) -> None:
        session, view = self._session, self._session.view
        self.follow(position, view.options, view, topic, view.of_events if session.lone else None)

    # Topics of a pattern

    def _find_missed(self) -> None:
        """Follow topics that were created while the session had no stream."""
        session = self._session
        for at, prefix in enumerate(session.prefixes):
            before = ""
            for name in self._api.names(prefix):
                topic = self._hub.find(name)
                if topic is not None and name not in session.positions:
                    if len(session.positions) >= FOLLOWED_TOPICS_MAX:
                        self._widen(Sweep(prefix, before), *map(Sweep, session.prefixes[at + 1 :]))
                        return
                    self._created(topic)
                before = name

    def _widen(self, *sweeps: Sweep) -> None:
        """Follow the topics of the patterns together: they are too many to follow one by one."""
        session = self._session
        for prefix in session.prefixes:
            self._hub.leave_names(prefix, self._created)
        reader = self._read_patterns(session.widen(sweeps))
        for subscription in list(self.subscriptions):
            name = subscription.position.name
            if name not in session.named:
                subscription.pattern = reader
                if subscription not in self.backlog:
                    reader.rested(subscription)

    def _read_patterns(self, place: Place) -> PatternReader[View]:
        session, view = self._session, self._session.view
        # A prefix of another one matches all that the longer one does.
        prefixes = [
            one
            for one in session.prefixes
            if not any(one != other and one.startswith(other) for other in session.prefixes)
        ]
        reader = session.reader = PatternReader(
            self._hub,
            self,
            prefixes,
            view.options,
            view,
            lambda name: name in session.positions,
            session.hold,
            session.released,
        )
        reader.begin(place)
        return reader

    def _created(self, topic: Topic) -> None:
        if self.closed:
            return
        session = self._session
        position = session.positions.get(topic.name)
        if position is None:
            if session.place is not None:
                return  # its reader hears of it
            if len(session.positions) >= FOLLOWED_TOPICS_MAX:
                unread = (Sweep(topic.name, until=topic.name),) if topic.head else ()
                self._widen(*unread)
                return
            # Nobody can follow it yet, so that the many others need not be looked through.
            self._follow(session.add(topic), topic)
            return
        # A topic that is gone and not yet told is in the backlog; telling it finds the new one.
        followed = (*self.subscriptions, *self.backlog, *self.retrying)
        if all(subscription.position is not position for subscription in followed):
            self._follow(position, topic)

    # The end

    def told_gone(self, subscription: Subscription[View]) -> None:
        session, name = self._session, subscription.position.name
        if isinstance(subscription.position, PatternPosition):
            assert session.reader is not None
            session.reader.ended(subscription, failed=False)
        elif session.prefixes and name.startswith(session.prefixes):
            # A topic that has taken the name already was not noticed while the old one was here.
            topic = self._hub.find(name)
            if topic is not None:
                self._created(topic)
        self._finish_if_empty()

    def told_failed(self, subscription: Subscription[View]) -> None:
        if isinstance(subscription.position, PatternPosition):
            assert self._session.reader is not None
            self._session.reader.ended(subscription, failed=True)
        self._finish_if_empty()

    def _finish_if_empty(self) -> None:
        session = self._session
        followed = self.subscriptions or self.backlog or self.retrying or session.prefixes
        if self.closed or followed:
            return
        if session.positions:
            self._metrics.watch_dropped("unreadable")  # it can be resumed
        else:
            self._api.forget(session)
            self._metrics.watch_dropped("deleted")
        self.finish()

    def ended(self) -> None:
        session = self._session
        if session.place is None:
            for prefix in session.prefixes:
                self._hub.leave_names(prefix, self._created)
        session.rest()
        self._api.closed(session, self)
