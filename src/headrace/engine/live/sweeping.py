"""Looking at the topics of a pattern one by one, in the order of their names.

Only this file finds what the journal cannot tell a reader: the records of topics that are new to
it, and what was written while it was away for longer than the journal reaches back, or before the
server's last start.  One topic is read at a time, so that a name says how far a sweep has come.  A
sweep is past a topic as soon as it has found it: one that is created before it, meanwhile, is told
of by the journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Generic

from headrace.core.runtime import Ticket
from headrace.engine.live.follower import Subscription, ViewT
from headrace.engine.live.places import Place, Sweep
from headrace.engine.reading.page import Page
from headrace.engine.topics.topic import Topic

if TYPE_CHECKING:
    from headrace.engine.live.hub import LiveHub
    from headrace.engine.live.patterns import PatternReader

# A sweep by time begins so much earlier: a record may be published long after it got its time.
SINCE_SLACK_MS: Final = 60_000


class Sweeper(Generic[ViewT]):
    """The sweeps of one reader."""

    __slots__ = ("_hub", "_is_named", "_reader", "_reading", "_seeking", "given", "sweeps")

    def __init__(
        self, reader: PatternReader[ViewT], hub: LiveHub, is_named: Callable[[str], bool]
    ) -> None:
        self._reader = reader
        self._hub = hub
        self._is_named = is_named
        self.sweeps: deque[Sweep] = deque()
        self.given: dict[int, int] = {}  # cursor by epoch, where the reader knows better
        self._reading: Subscription[ViewT] | None = None
        self._seeking = False

    def add(self, sweeps: Iterable[Sweep]) -> None:
        """Look at these topics."""
        self.sweeps.extend(sweeps)

    def add_since(self, place: Place, prefixes: Sequence[str]) -> None:
        """Look at all topics that were written since the reader was at a place."""
        self.sweeps.clear()  # they are in the place
        since = max(min(place.ms, self._hub.now_ms()) - SINCE_SLACK_MS, 1)
        unfinished = {sweep.prefix: sweep for sweep in reversed(place.sweeps)}
        for prefix in prefixes:
            left = unfinished.get(prefix)
            if left is None:
                self.sweeps.append(Sweep(prefix, since_ms=since))
            elif left.after:
                self.sweeps.append(Sweep(prefix, until=left.after, since_ms=since))
        self.sweeps.extend(place.sweeps)

    def covers(self, name: str) -> bool:
        """Return whether a topic is still to be looked at."""
        return any(sweep.covers(name) for sweep in self.sweeps)

    @property
    def exact(self) -> dict[int, int]:
        """The cursors, by epoch, of topics that the reader did not begin or go on to read."""
        exact = dict(self.given)
        if self._reading is not None:
            exact[self._reading.position.epoch] = self._reading.position.cursor
        return exact

    # Turns

    def look(self) -> bool:
        """Look for the next topic to read; return whether to go on looking."""
        if not self.sweeps or self._reading is not None or self._seeking:
            return False
        sweep = self.sweeps[0]
        for name in self._hub.state.topics.names_after(sweep.after, sweep.prefix):
            if sweep.until and name > sweep.until:
                break
            self.sweeps[0] = sweep = sweep._replace(after=name)
            topic = self._hub.find(name)
            if topic is not None and not self._is_named(name) and self._begin_in(topic, sweep):
                return False
            if self._hub.turns.over:
                return True
        self.sweeps.popleft()
        return bool(self.sweeps)

    def _begin_in(self, topic: Topic, sweep: Sweep) -> bool:
        """Read a topic, if it may have something for the reader."""
        cursor = self.given.get(topic.epoch)
        if cursor is not None or not sweep.since_ms:
            cursor = sweep.from_seq if cursor is None else cursor
            if cursor == topic.head or self._reader.is_reading(topic):
                return False
            self._reading = self._reader.read_from(topic, cursor)
            return True
        if topic.last_write_ms < sweep.since_ms or topic.id in self._reader.pending:
            return False
        self._seeking = True
        # Who resumes meanwhile has to seek it again.
        self.sweeps.appendleft(Sweep(topic.name, until=topic.name, since_ms=sweep.since_ms))
        found = self._hub.engine.read(topic.name, from_ts=sweep.since_ms, limit=1)
        found.when_done(lambda done: self._sought(topic, done))
        return True

    def _sought(self, topic: Topic, done: Ticket[Page]) -> None:
        self._seeking = False
        if self.sweeps and self.sweeps[0].prefix == self.sweeps[0].until == topic.name:
            self.sweeps.popleft()
        cursor = 0  # of one that cannot be read the client is told
        if done.error is None:
            rows = done.result().rows
            cursor = rows[0].seqs[0] - 1 if rows else topic.head
            if cursor <= topic.evict_floor:
                cursor = 0  # what went before may be newer than that time: it is announced
        if cursor != topic.head and topic.live and not self._reader.closed:
            self._reading = self._reader.read_from(topic, cursor)
        self._hub.turns.enqueue(self._reader)

    def left(self, subscription: Subscription[ViewT]) -> None:
        """Go on after a topic that is read, if it was this one."""
        if subscription is self._reading:
            self._reading = None
