"""Trims of streams: records that a writer no longer wants go a while after it said so.

Only this file deletes what a stream's `trim_to` names.  That is durable with the append that
brought it; the records go later, silently, so that a reader who follows the stream still gets them.
What a stop left undone is done after the next start.
"""

from __future__ import annotations

import logging

from headrace.api.records import DeleteResult
from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.engine.removal.deleting import Deleter
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic

log = logging.getLogger("headrace.streams")

# So long after a trim is stored the records that it names are deleted.
TRIM_DELAY_MS = 2_000
# Streams that are trimmed at a time; the others follow in a moment.
TRIMS_PER_SWEEP_MAX = 1_000


class StreamTrims:
    """The trims of one engine that are still to be done."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._deleter = Deleter(state)
        # When, and up to which seq, by the id of a topic; the first is due first.
        self._due: dict[int, tuple[int, int]] = {}
        self._asked = False  # a timer looks for what is due
        self._failure: BaseException | None = None  # of the last sweep

    def __len__(self) -> int:
        return len(self._due)

    def start(self) -> None:
        """Take up what a stop left undone."""
        for topic in self._state.by_id.values():
            if topic.stream is not None and topic.stream.trim_to > topic.base:
                self.look_at(topic)
        if self._state.loading:
            self._state.loading.when_done(self.start)

    def look_at(self, topic: Topic) -> None:
        """Have a stream trimmed in a while, as its state says now."""
        stream = topic.stream
        if stream is None or stream.trim_to <= topic.base or topic.id in self._due:
            return
        self._due[topic.id] = self._state.clock.now_ms() + TRIM_DELAY_MS, stream.trim_to
        self._look_later()

    def _look_later(self) -> None:
        if self._asked or not self._due:
            return
        self._asked = True
        due_ms, _ = next(iter(self._due.values()))
        self._state.runtime.later(max(due_ms - self._state.clock.now_ms(), 1), self._sweep)

    def _sweep(self) -> None:
        self._asked = False
        state = self._state
        if state.closing:
            return
        if self._failure is not None:
            log.warning("trimmed records of streams stay for now: %s", self._failure)
            self._failure = None
        now = state.clock.now_ms()
        for topic_id, (due_ms, to) in list(self._due.items())[:TRIMS_PER_SWEEP_MAX]:
            if due_ms > now:
                break
            del self._due[topic_id]
            topic = state.by_id.get(topic_id)
            if topic is not None and topic.live:
                self._trim(topic, to)
        self._look_later()

    def _trim(self, topic: Topic, to: int) -> None:
        def done(ticket: Ticket[DeleteResult]) -> None:
            if ticket.error is not None:
                self._failure = ticket.error
            self.look_at(topic)  # there may be more by now, or all of it again

        try:
            self._deleter.trim(topic, to).when_done(done)
        except HeadraceError as error:
            self._failure = without_frames(error)
            self.look_at(topic)
