"""How streams end: by a delete, by expiry, or because nobody inherits from them any more.

Only this file takes streams away.  One with forks is kept for them, unseen; it goes when the last
of them has gone, and so on up to the first that is used otherwise.  What a stop left behind is
collected at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec.structs import replace

from headrace.core.errors import HeadraceError, TopicInUse, TopicNotFound
from headrace.core.runtime import Ticket
from headrace.core.steps import Steps, follow_at_once
from headrace.engine.state import EngineState
from headrace.engine.streams.changes import StreamChanges
from headrace.engine.streams.refusals import deleted_error
from headrace.engine.topics.lifecycle import Deleted, Lifecycle
from headrace.engine.topics.topic import Topic

log = logging.getLogger("headrace.streams")

# Streams that have expired are looked for so often, and so many of them are removed at a time.
SWEEP_MS = 1_000
SWEEP_STREAMS_MAX = 1_000


class StreamRemoval:
    """Removes the streams of one engine."""

    def __init__(self, state: EngineState, lifecycle: Lifecycle, changes: StreamChanges) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._changes = changes
        self._orphans: set[int] = set()  # ids of those that nobody inherits from; still there
        self._asked = False  # a timer looks for what is due
        self._expired = 0  # since the last sweep said so
        self._failures = 0
        self._failure: HeadraceError | None = None
        state.on_topic_deleted(lambda topic: self.collect(topic.parent))

    def start(self) -> None:
        """Watch the streams that there are, and collect what a stop left."""
        for topic in list(self._state.by_id.values()):
            stream = topic.stream
            if stream is None:
                continue
            if not stream.deleted:
                self._state.expiry.watch(topic)
            elif not topic.forks:
                self._orphans.add(topic.id)
        self.look_later()

    def delete(self, topic: Topic, *, if_empty: bool = False) -> Steps[None]:
        """Delete a stream for its user, who is told if there is none, or if it is not empty."""
        yield from settled(self._state, topic)
        self._refuse_absent(topic)
        stream = topic.stream
        assert stream is not None
        if stream.deleted:
            raise deleted_error(topic)
        removed = yield from self._remove(topic, if_empty=if_empty)
        if not removed:
            raise TopicNotFound.named(topic.name)

    def expire(self, topic: Topic) -> Steps[bool]:
        """Remove a stream that has expired; False: it is not there, or not over any more."""
        yield from settled(self._state, topic)
        stream = topic.stream
        if not self._is_there(topic) or stream is None or stream.deleted:
            return False
        if not self._state.expiry.is_over(topic, stream):
            return False
        removed = yield from self._remove(topic)
        return removed

    def collect(self, topic: Topic | None) -> None:
        """Remove a stream that was kept for its forks, if it has none any more."""
        if topic is not None and self._is_orphan(topic):
            self._orphans.add(topic.id)
            self._follow(topic, self._collected(topic))

    def _remove(self, topic: Topic, *, if_empty: bool = False) -> Steps[bool]:
        """Remove a stream, or keep it for its forks alone; False: it was gone already."""
        while self._is_there(topic):
            if topic.forks:
                stream = topic.stream
                assert stream is not None
                if not stream.deleted:
                    yield self._changes.change(topic, replace(stream, deleted=True))
                    self.collect(topic)  # the last fork may have gone meanwhile
                return True
            try:
                deleted: Deleted = yield self._lifecycle.remove(topic, if_empty=if_empty)
            except TopicInUse:
                continue  # it was forked while routers copied what it holds
            if deleted.deleted:
                return True
        return False

    def _collected(self, topic: Topic) -> Steps[bool]:
        yield from settled(self._state, topic)
        removed = False
        if self._is_orphan(topic):
            removed = yield from self._remove(topic)
        self._orphans.discard(topic.id)
        return removed

    def _is_there(self, topic: Topic) -> bool:
        return topic.live and self._state.by_name.get(topic.name) is topic

    def _is_orphan(self, topic: Topic) -> bool:
        stream = topic.stream
        return self._is_there(topic) and stream is not None and stream.deleted and not topic.forks

    def _refuse_absent(self, topic: Topic) -> None:
        if not self._is_there(topic) or topic.stream is None:
            raise TopicNotFound.named(topic.name)

    # Expiry

    def look_later(self) -> None:
        """Sweep in a moment, if there is anything that a sweep could find."""
        if not self._asked and (len(self._state.expiry) or self._orphans):
            self._asked = True
            self._state.runtime.later(SWEEP_MS, self._sweep)

    def _sweep(self) -> None:
        self._asked = False
        state = self._state
        if state.closing:
            return
        self._say_what_the_last_one_did()
        for topic in state.expiry.take_due(state.by_id, SWEEP_STREAMS_MAX):
            self._follow(topic, self.expire(topic), self._count_expired)
        for topic_id in list(self._orphans)[:SWEEP_STREAMS_MAX]:
            orphan = state.by_id.get(topic_id)
            if orphan is not None and self._is_orphan(orphan):
                self._follow(orphan, self._collected(orphan))
            else:
                self._orphans.discard(topic_id)
        self.look_later()

    def _count_expired(self, removed: bool) -> None:
        self._expired += removed

    def _follow(
        self,
        topic: Topic,
        steps: Steps[bool],
        then: Callable[[bool], None] = lambda _removed: None,
    ) -> None:
        """Take steps that nobody waits for; what fails is tried again by the next sweep."""

        def done(ticket: Ticket[bool]) -> None:
            error = ticket.error
            if error is None:
                then(ticket.result())
                return
            self._failures += 1
            if isinstance(error, HeadraceError):
                self._failure = error
            self._state.expiry.put_back(topic)
            self.look_later()

        follow_at_once(self._state.runtime, steps).when_done(done)

    def _say_what_the_last_one_did(self) -> None:
        if self._failures:
            log.warning(
                "%d streams expired; %d could not be removed and stay until the next sweep: %s",
                self._expired, self._failures, self._failure,
            )  # fmt: skip
        elif self._expired:
            log.info("%d streams expired", self._expired)
        self._expired = self._failures = 0
        self._failure = None


def settled(state: EngineState, topic: Topic) -> Steps[None]:
    """Wait until nothing of a stream's state is on its way to the log, whatever becomes of it."""
    while True:
        _, first = state.staged_streams.newest(topic)
        if first is None:
            return
        waiting: Ticket[None] = Ticket(state.runtime)
        first.when_done(lambda _done, waiting=waiting: waiting.resolve(None))  # type: ignore[misc]
        yield waiting
