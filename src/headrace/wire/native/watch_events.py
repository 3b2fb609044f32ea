"""What a watch says, as server-sent events.

Only this file decides what a watcher is told.  For each topic, in the order of their names: a gap,
then records, then `caught-up` whenever the tail is reached.  Every event has the id of where the
session is in all its topics; a heartbeat has none.
"""

from __future__ import annotations

from typing import Final

from headrace.engine.live.follower import Position, Subscription
from headrace.engine.live.pages import SharedPage
from headrace.engine.reading.page import Page
from headrace.wire import sse
from headrace.wire.live_stream import StreamEncoder
from headrace.wire.native import live_json
from headrace.wire.native.live_json import View
from headrace.wire.native.watch_session import Session

FIRST_READ_REASON: Final = "from_seq_too_old"


class WatchEvents(StreamEncoder[View]):
    """The events of one stream of a session; the session's positions move with them."""

    __slots__ = ("_session",)
    dialect = "native"

    def __init__(self, session: Session) -> None:
        self._session = session

    def page(self, subscription: Subscription[View], shared: SharedPage) -> bytes:
        session, position, page = self._session, subscription.position, shared.page
        replaced = subscription.first and page.tombstone is not None
        if len(session.positions) > 1 or session.place is not None:
            data = self._events(position, shared, replaced)
        else:
            # Its bytes are the same for all sessions of this topic alone.
            key = (session.view, replaced)
            cached = shared.encoded.get(key)
            if cached is None:
                cached = shared.encoded[key] = self._events(position, shared, replaced)
            assert isinstance(cached, bytes)
            data = cached
        session.move(position, page.epoch, page.next_from_seq)
        return data

    def _events(self, position: Position, shared: SharedPage, replaced: bool) -> bytes:
        """Return a page with ids; the part that does not depend on the session is shared."""
        view, page = self._session.view, shared.page
        key = (view, replaced, "events")
        parts = shared.encoded.get(key)
        if parts is None:
            reason = FIRST_READ_REASON if replaced else ""
            parts = shared.encoded[key] = _without_ids(page, view, position.cursor, reason)
        assert isinstance(parts, tuple)
        tombstone, after, record, caught_up = parts
        session = self._session
        events = []
        if tombstone:
            session.move(position, page.epoch, after)
            events.append(sse.with_id(session.id, tombstone))
        session.move(position, page.epoch, page.next_from_seq)
        if record or caught_up:
            id = session.id
            events += [sse.with_id(id, event) for event in (record, caught_up) if event]
        return b"".join(events)

    def gone(self, subscription: Subscription[View], head_seq: int) -> bytes:
        session, position = self._session, subscription.position
        vocabulary = session.view.vocabulary
        message = live_json.deleted_message(position.name, head_seq, vocabulary)
        event = sse.event(vocabulary.word("topic-deleted").encode(), b"{" + message)
        # The id is without the topic: a client that comes back with it has heard of the end.
        session.remove(position)
        return sse.with_id(session.id, event)

    def delayed(self, subscription: Subscription[View], ms_max: int) -> bytes:
        vocabulary = self._session.view.vocabulary
        return self._error(
            live_json.delayed_message(subscription.position.name, ms_max, vocabulary)
        )

    def topic_failed(
        self, subscription: Subscription[View], error: BaseException, retry_ms: int
    ) -> bytes:
        # The id keeps the topic where it is: a client that comes back reads on from there.
        position, vocabulary = subscription.position, self._session.view.vocabulary
        return self._error(
            live_json.failed_message(position.name, position.cursor, error, retry_ms, vocabulary)
        )

    def heartbeat(self, now_ms: int) -> bytes:
        return sse.heartbeat(now_ms)

    def error(self, error: BaseException) -> bytes:
        return self._error(live_json.error_message(error, self._session.view.vocabulary))

    def stopping(self) -> bytes:
        return self._error(live_json.STOPPING)

    def _error(self, message: bytes) -> bytes:
        return sse.with_id(self._session.id, sse.event(b"error", b"{" + message))


def _without_ids(
    page: Page, view: View, from_seq: int, reason: str
) -> tuple[bytes, int, bytes, bytes]:
    """Return the events of a page without ids, and the cursor after the first of them."""
    messages = live_json.messages_of(page, view, from_seq, reason)
    return (
        messages.tombstone and sse.event(b"tombstone", b"{" + messages.tombstone),
        messages.after_tombstone,
        messages.record and sse.event(b"record", b"{" + messages.record),
        messages.caught_up and sse.event(b"caught-up", b"{" + messages.caught_up),
    )
