"""One open stream of a watch, as server-sent events.

Only this file decides what a watcher is told.  For each topic, in the order of their names: a gap,
then records, then `caught-up` whenever the tail is reached.  Every event has the id of where the
session is in all its topics; a heartbeat has none.  The stream ends with the last of its topics,
unless it follows a pattern.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.errors import InvalidRequest
from headrace.engine.live import Shared
from headrace.engine.reading import Page
from headrace.engine.topic import Topic
from headrace.wire import sse
from headrace.wire.exchange import Outlet
from headrace.wire.live_json import (
    View,
    deleted_message,
    error_message,
    messages_of,
    paced_message,
)
from headrace.wire.live_stream import Followed, LiveStream, Place
from headrace.wire.native_watch_session import FOLLOWED_TOPICS_MAX, Session

if TYPE_CHECKING:
    from headrace.wire.native_watch import WatchApi

FIRST_READ_REASON: Final = "from_seq_too_old"


class WatchStream(LiveStream):
    """One open stream."""

    __slots__ = ("_api", "_session")

    def __init__(self, api: WatchApi, session: Session, outlet: Outlet) -> None:
        super().__init__(api.common, outlet)
        self._api = api
        self._session = session

    def open(self) -> None:
        """Send the first bytes, and read on from the session's cursors."""
        hub, session = self._common.hub, self._session
        self.write(sse.RETRY)
        for place in session.places.values():
            self.follow(place, session.view, hub.find(place.name))
        for prefix in session.prefixes:
            hub.follow_names(prefix, self._created)
        self.begin()
        for prefix in session.prefixes:
            self._find_missed(prefix)
        self._finish_if_empty()

    @property
    def beat_ms(self) -> int:
        return self._session.heartbeat_ms

    # Topics of a pattern

    def _find_missed(self, prefix: str) -> None:
        """Follow topics that were created while the session had no stream."""
        for name in self._api.names(prefix):
            if self.closed:
                return
            topic = self._common.hub.find(name)
            if topic is not None and name not in self._session.places:
                self._created(topic)

    def _created(self, topic: Topic) -> None:
        if self.closed:
            return
        session = self._session
        place = session.places.get(topic.name)
        if place is None:
            if len(session.places) >= FOLLOWED_TOPICS_MAX:
                self._api.forget(session)
                self.fail(_too_many())
                return
            place = session.add(topic)
        # What is gone and not yet told is in the backlog only; telling it finds the new topic.
        if all(
            followed.place is not place for followed in (*self._followed.values(), *self._backlog)
        ):
            self.follow(place, session.view, topic)

    # Events

    def send_page(self, followed: Followed, shared: Shared) -> None:
        session, place = self._session, followed.place
        replaced = followed.first and shared.page.tombstone is not None
        if len(session.places) > 1:
            data = self._events(place, shared, replaced)
        else:
            # The whole of it is the same for all sessions of this topic alone.
            key = (session.view, replaced)
            cached = shared.encoded.get(key)
            if cached is None:
                cached = shared.encoded[key] = self._events(place, shared, replaced)
            assert isinstance(cached, bytes)
            data = cached
        session.move(place, shared.page.epoch, shared.page.next_from_seq)
        if data:
            self.write(data)

    def _events(self, place: Place, shared: Shared, replaced: bool) -> bytes:
        """What a page is, with ids; the part that does not depend on the session is shared."""
        view, page = self._session.view, shared.page
        key = (view, replaced, "events")
        parts = shared.encoded.get(key)
        if parts is None:
            reason = FIRST_READ_REASON if replaced else ""
            parts = shared.encoded[key] = _unnumbered(page, view, place.cursor, reason)
        assert isinstance(parts, tuple)
        tombstone, after, record, caught_up = parts
        session = self._session
        events = []
        if tombstone:
            session.move(place, page.epoch, after)
            events.append(sse.with_id(session.id, tombstone))
        session.move(place, page.epoch, page.next_from_seq)
        if record or caught_up:
            id = session.id
            events += [sse.with_id(id, event) for event in (record, caught_up) if event]
        return b"".join(events)

    def send_gone(self, followed: Followed, head_seq: int) -> None:
        session, place = self._session, followed.place
        vocabulary = session.view.vocabulary
        told = deleted_message(place.name, head_seq, vocabulary)
        event = sse.event(vocabulary.word("topic-deleted").encode(), b"{" + told)
        session.remove(place)
        # Its id is without the topic: so a client that comes back with it has heard of the end.
        self.write(sse.with_id(session.id, event))
        if session.prefixes and place.name.startswith(session.prefixes):
            # A topic that has taken the name already was not noticed while the old one was here.
            topic = self._common.hub.find(place.name)
            if topic is not None:
                self._created(topic)
        self._finish_if_empty()

    def send_paced(self, followed: Followed, ms_max: int) -> None:
        session = self._session
        told = paced_message(followed.place.name, ms_max, session.view.vocabulary)
        self.write(sse.with_id(session.id, sse.event(b"error", b"{" + told)))

    def _finish_if_empty(self) -> None:
        if not self.closed and not (self._followed or self._backlog or self._session.prefixes):
            self._api.forget(self._session)
            self._common.metrics.watch_dropped("deleted")
            self.finish()

    def send_beat(self) -> None:
        self.write(sse.heartbeat(self._common.hub.engine.core.clock.now_ms()))

    # The end

    def fail(self, error: BaseException) -> None:
        if not self.closed:
            told = error_message(error, self._session.view.vocabulary)
            self.say_error(told)

    def say_error(self, told: bytes) -> None:
        """Send an `error` event, and end; the session stays."""
        self.write(sse.with_id(self._session.id, sse.event(b"error", b"{" + told)))
        self.finish()

    def ended(self) -> None:
        for prefix in self._session.prefixes:
            self._common.hub.leave_names(prefix, self._created)
        self._api.closed(self, self._session)


def _unnumbered(
    page: Page, view: View, from_seq: int, reason: str
) -> tuple[bytes, int, bytes, bytes]:
    """The events of a page without ids, and the cursor after the first of them."""
    messages = messages_of(page, view, from_seq, reason)
    return (
        messages.tombstone and sse.event(b"tombstone", b"{" + messages.tombstone),
        messages.after_tombstone,
        messages.record and sse.event(b"record", b"{" + messages.record),
        messages.caught_up and sse.event(b"caught-up", b"{" + messages.caught_up),
    )


def _too_many() -> InvalidRequest:
    return InvalidRequest(
        f"the patterns of this watch match more than {FOLLOWED_TOPICS_MAX} topics",
        fix="watch a narrower pattern",
    )
