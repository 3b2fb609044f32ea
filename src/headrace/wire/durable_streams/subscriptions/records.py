"""The records of subscriptions: their events, in the server's own topic `_subscriptions`.

The rules this file owns.  A record holds events of the subscription that its tag names; it is of
class fsync, so what is answered is on disk.  All that is known of a subscription, written anew, is
a *draft*: records from `created` to `standing`, of which nothing counts before the last one is
there, however many appends they take.  When the events since then have grown to more than the draft
itself, the next draft is written, and what came before is deleted; a crash in between leaves both,
and the newer counts.  So the topic holds at most a few times what the subscriptions hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from headrace.core.errors import UnsupportedFormat
from headrace.core.steps import Steps
from headrace.engine.appending.pending_append import Appended
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.topics.config import TopicConfig
from headrace.storage.block import Batch, Record
from headrace.wire.durable_streams.subscriptions.state import (
    Created,
    Deleted,
    Event,
    Linked,
    Standing,
    Subscription,
    cursor_text,
)

TOPIC: Final = "_subscriptions"
PAGE_RECORDS: Final = 1_000
# Events of a subscription that are kept at least before they are summed up.
EVENTS_BYTES_MIN: Final = 16 << 10
# How many times what the subscription itself takes, otherwise.
EVENTS_SHARE: Final = 2
# Links in one record of a draft: with the longest paths still less than `record_bytes_max`.
LINKS_PER_RECORD: Final = 500

_CONFIG: Final = TopicConfig(durability="fsync")


class StoredEvents(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a record.  On disk: new fields have a default."""

    events: list[Event]
    draft: bool = False  # they are part of what the subscription is written anew as


_DECODER: Final = msgspec.json.Decoder(StoredEvents)


class StoredSize:
    """What the records of a subscription take, so that it is known when to sum them up."""

    __slots__ = ("draft_bytes", "events_bytes")

    def __init__(self) -> None:
        self.draft_bytes = 0
        self.events_bytes = 0

    @property
    def is_large(self) -> bool:
        """Whether it is time for another draft."""
        return self.events_bytes > max(EVENTS_BYTES_MIN, EVENTS_SHARE * self.draft_bytes)


class SubscriptionRecords:
    """The records of all subscriptions of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def exist(self) -> bool:
        """Whether there ever was a subscription."""
        return self._engine.find(TOPIC) is not None

    def load(self) -> Steps[dict[str, tuple[Subscription, StoredSize]]]:
        """Return every subscription by id, after a start; finish deletes that a crash cut short."""
        found = _Loaded()
        cursor = 0
        while self.exist:
            page: Page = yield self._engine.read(TOPIC, cursor, limit=PAGE_RECORDS)
            for record in page.records:
                found.take(record)
            if page.caught_up:
                break
            cursor = page.next_from_seq
        for id, seq in found.deleted.items():
            yield from self.forget(id, seq + 1)
        return {id: (known, found.sizes[id]) for id, known in found.subscriptions.items()}

    def append(self, id: str, size: StoredSize, events: Sequence[Event]) -> Steps[int]:
        """Keep events of a subscription; return the seq of their record."""
        payload = msgspec.json.encode(StoredEvents(list(events)))
        appended = yield from self._append(id, payload)
        size.events_bytes += len(payload)
        assert appended.last_seq is not None
        return appended.last_seq

    def rewrite(self, known: Subscription, size: StoredSize) -> Steps[None]:
        """Keep all of a subscription anew, and delete what was kept of it before."""
        first_seq = 0
        draft_bytes = 0
        for events in _draft_of(known):
            payload = msgspec.json.encode(StoredEvents(events, draft=True))
            appended = yield from self._append(known.id, payload)
            draft_bytes += len(payload)
            first_seq = first_seq or appended.last_seq or 0
        size.draft_bytes, size.events_bytes = draft_bytes, 0
        yield from self.forget(known.id, first_seq)

    def forget(self, id: str, before_seq: int) -> Steps[None]:
        """Delete the records of a subscription below a seq."""
        yield self._engine.delete(TOPIC, before_seq=before_seq, match=TagMatch(id))

    def _append(self, id: str, payload: bytes) -> Steps[Appended]:
        appended: Appended = yield self._engine.append(
            TOPIC, Batch([payload], tags=[id]), config=_CONFIG, disable_backpressure=True
        )
        return appended


def _draft_of(known: Subscription) -> Iterator[list[Event]]:
    """The events that a subscription can be made of, in the portions of records."""
    yield [Created(known.config, known.life, known.created_ms, known.origin)]
    portion: list[tuple[str, int, str]] = []
    for path, link in list(known.links.items()):
        portion.append((path, link.kinds, cursor_text(link.acked)))
        if len(portion) == LINKS_PER_RECORD:
            yield [Linked(portion)]
            portion = []
    rest: list[Event] = [Linked(portion)] if portion else []
    yield [*rest, Standing(known.generation, known.wake, known.failures, known.next_attempt_ms)]


class _Loaded:
    """What records add up to."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self.sizes: dict[str, StoredSize] = {}
        self.deleted: dict[str, int] = {}  # the seqs of their ends
        self._drafts: dict[str, tuple[Subscription, StoredSize]] = {}

    def take(self, record: Record) -> None:
        id, stored = record.tag, _decoded(record)
        if id is None:
            raise _unreadable(record, "it does not say of what it is")
        for event in stored.events:
            if isinstance(event, Deleted):
                self._drafts.pop(id, None)
                self.subscriptions.pop(id, None)
                self.deleted[id] = record.seq
            elif stored.draft:
                self._take_draft(id, event, record)
            else:
                known = self.subscriptions.get(id)
                if known is None:
                    raise _unreadable(record, "its subscription is not known")
                known.apply(event)
        size = self._drafts[id][1] if id in self._drafts else self.sizes.get(id)
        if size is None:
            return
        if stored.draft:
            size.draft_bytes += len(record.data)
        else:
            size.events_bytes += len(record.data)

    def _take_draft(self, id: str, event: Event, record: Record) -> None:
        if isinstance(event, Created):
            self._drafts[id] = (Subscription(id, event), StoredSize())
            return
        if id not in self._drafts:
            raise _unreadable(record, "it goes on with what nothing began")
        known, size = self._drafts[id]
        known.apply(event)
        if isinstance(event, Standing):
            del self._drafts[id]
            self.subscriptions[id], self.sizes[id] = known, size


def _decoded(record: Record) -> StoredEvents:
    try:
        return _DECODER.decode(record.data)
    except msgspec.MsgspecError as error:
        raise _unreadable(record, str(error)) from None


def _unreadable(record: Record, why: str) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"record {record.seq} of {TOPIC!r} cannot be read: {why}",
        fix="start the version of headrace that wrote it",
    )
