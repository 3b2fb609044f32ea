"""What a watch says, as server-sent events.

Only this file decides what a watcher is told.  For each topic, in the order of their names: a gap,
then records, then `caught-up` whenever the tail is reached.  Every event has the id of where the
session is in all its topics; a heartbeat has none.
"""

from __future__ import annotations

from typing import Final, NamedTuple

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
        view, encoded = session.view, shared.encoded
        lone = len(session.positions) <= 1 and session.place is None
        # All bytes are the same for all sessions of this topic alone, for others all but the ids.
        key = (view, replaced, lone)
        parts = encoded.get(key)
        if parts is None:
            reason = FIRST_READ_REASON if replaced else ""
            parts = _without_ids(page, view, position.cursor, reason)
            if lone:
                parts = self._with_ids(position, page, parts)
            encoded[key] = parts
        elif lone:
            session.move(position, page.epoch, page.next_from_seq)
        if isinstance(parts, bytes):
            return parts
        assert isinstance(parts, _Events)
        return self._with_ids(position, page, parts)

    def _with_ids(self, position: Position, page: Page, parts: _Events) -> bytes:
        """Return events with ids, and move the session's position to the end of the page."""
        tombstone, after, record, caught_up = parts
        session = self._session
        events = b""
        if tombstone:
            session.move(position, page.epoch, after)
            events = sse.with_id(session.id, tombstone)
        session.move(position, page.epoch, page.next_from_seq)
        if not record and not caught_up:
            return events
        id = session.id
        if record:
            events += sse.with_id(id, record)
        if caught_up:
            events += sse.with_id(id, caught_up)
        return events

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


class _Events(NamedTuple):
    """The events of a page without ids, in this order; b"" for one that it does not have."""

    tombstone: bytes
    after_tombstone: int  # the cursor behind it
    record: bytes
    caught_up: bytes


def _without_ids(page: Page, view: View, from_seq: int, reason: str) -> _Events:
    """Return the events of a page without ids."""
    tombstone, after, record, caught_up = live_json.messages_of(page, view, from_seq, reason)
    return _Events(
        tombstone and sse.event(b"tombstone", b"{" + tombstone),
        after,
        record and sse.event(b"record", b"{" + record),
        caught_up and sse.event(b"caught-up", b"{" + caught_up),
    )
