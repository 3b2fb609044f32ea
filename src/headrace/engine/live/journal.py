"""Which topics have published, in order: what readers of very many topics are told.

Only this file numbers publishes across topics.  A reader of a pattern keeps nothing for a topic
that is idle: it hears of each publish from here, and a number says where it was in all topics at
once.  An entry is a topic and the head that it had before, 16 bytes.  The journal is kept while
somebody holds it, for as many publishes as `watch_journal_bytes` has room for; a reader that comes
back with an older number, or one of another run, has to look at the topics themselves.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from headrace.engine.scheduling.turns import Job
from headrace.engine.topics.topic import Topic

if TYPE_CHECKING:
    from headrace.engine.state import EngineState

log = logging.getLogger("headrace.live")

ENTRY_BYTES: Final = 16


class PatternListener(Protocol):
    """Hears of the topics whose names begin as it asked."""

    def published(self, topic: Topic, number: int, head: int) -> None:
        """A topic has published, as the publish of this number; `head` was its head before."""

    def deleted(self, topic: Topic) -> None:
        """A topic is gone."""

    def told(self) -> None:
        """Every publish up to the journal's `told_to` has been told."""

    def broken(self) -> None:
        """Give up: a call raised an error."""


class PublishJournal(Job):
    """The publishes of one engine."""

    __slots__ = (
        "_by_prefix",
        "_entries_max",
        "_heads",
        "_holders",
        "_ids",
        "_lengths",
        "_state",
        "number",
        "run",
        "told_to",
    )

    def __init__(self, state: EngineState) -> None:
        super().__init__()
        self._state = state
        self._entries_max = max(state.settings.watch_journal_bytes // ENTRY_BYTES, 1)
        self._ids = array("Q")
        self._heads = array("Q")
        self._holders = 0
        self._by_prefix: dict[str, dict[PatternListener, None]] = {}
        self._lengths: tuple[int, ...] = ()
        self.run = state.random.u32()  # numbers of another run say nothing here
        self.number = 0  # of the newest entry
        self.told_to = 0  # listeners have heard up to here
        state.on_topic_deleted(self._deleted)

    # Holding

    def hold(self) -> None:
        """Keep the journal from now on, until `drop`."""
        self._holders += 1
        if self._holders == 1:
            self._state.totals.publish_to(self)

    def drop(self) -> None:
        """Take back one `hold`; after the last one the past is forgotten."""
        self._holders -= 1
        assert self._holders >= 0
        if not self._holders:
            self._state.totals.publish_to(None)
            del self._ids[:], self._heads[:]
            self.number += 1  # so that no number from before is taken for complete
            self.told_to = self.number

    # Writing

    def note(self, topic_id: int, head: int) -> None:
        """Add a publish of a topic, whose head was `head` before."""
        self._ids.append(topic_id)
        self._heads.append(head)
        self.number += 1
        self._state.turns.enqueue(self)
        if len(self._ids) > self._entries_max:
            told = len(self._ids) - (self.number - self.told_to)
            cut = min(max(len(self._ids) // 2, 1), told)
            del self._ids[:cut], self._heads[:cut]

    @property
    def bytes(self) -> int:
        """What the entries take."""
        return ENTRY_BYTES * len(self._ids)

    # Reading

    def reaches(self, number: int) -> bool:
        """Return whether every entry after this number is still here."""
        return self.number - len(self._ids) <= number <= self.number

    def after(self, number: int) -> Iterator[tuple[int, Topic, int]]:
        """Return (number, topic, head before) of the entries behind a number that were told.

        Topics that are gone are left out.  Nothing may be added while it is iterated.
        """
        by_id = self._state.by_id
        first = self.number - len(self._ids) + 1
        for index in range(number + 1 - first, self.told_to + 1 - first):
            topic = by_id.get(self._ids[index])
            if topic is not None and topic.live:
                yield first + index, topic, self._heads[index]

    def untold(self, prefix: str) -> list[Topic]:
        """Return the topics with this prefix that have published and were not told of yet."""
        by_id, count = self._state.by_id, self.number - self.told_to
        topics = (by_id.get(topic_id) for topic_id in dict.fromkeys(self._ids[-count:]))
        return [t for t in topics if t is not None and t.name.startswith(prefix)] if count else []

    # Telling

    def listen(self, prefix: str, listener: PatternListener) -> None:
        """Tell a listener of topics whose names begin with `prefix`, from `told_to` on."""
        self._by_prefix.setdefault(prefix, {})[listener] = None
        self._lengths = tuple({len(known) for known in self._by_prefix})

    def leave(self, prefix: str, listener: PatternListener) -> None:
        """Take back `listen`, if it was called."""
        listeners = self._by_prefix.get(prefix, {})
        listeners.pop(listener, None)
        if not listeners:
            self._by_prefix.pop(prefix, None)
            self._lengths = tuple({len(known) for known in self._by_prefix})

    def _listeners(self, name: str) -> list[PatternListener]:
        found: list[PatternListener] = []
        for length in self._lengths:
            found += self._by_prefix.get(name[:length], ())
        return found

    def step(self) -> bool:
        """Tell the listeners of what was published, as much as fits into the slice."""
        by_id, turns = self._state.by_id, self._state.turns
        while self.told_to < self.number:
            index = self.told_to - self.number + len(self._ids)
            head, topic = self._heads[index], by_id.get(self._ids[index])
            self.told_to += 1
            if topic is not None:
                for listener in self._listeners(topic.name):
                    try:
                        listener.published(topic, self.told_to, head)
                    except Exception:
                        log.exception("a reader of patterns failed")
                        listener.broken()
            if turns.over:
                break
        for listeners in list(self._by_prefix.values()):
            for listener in list(listeners):
                listener.told()
        return self.told_to < self.number

    def _deleted(self, topic: Topic) -> None:
        for listener in self._listeners(topic.name):
            listener.deleted(topic)
