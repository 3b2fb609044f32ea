"""The second reading of the log: topics that did not delay the start come back, step by step.

Only this file ends the wait of a topic (F0b): once its last entry is applied, its loss, if there is
one, is shown, its head is final, and requests are taken.  The log is read in a lane, a megabyte at
a time; the loop is held for milliseconds; what outgrows its bound in memory is sealed on the way.
Until all are back no checkpoint runs, because the log it would cut is still to be read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from headrace.core.steps import Steps, in_lane, turn_end
from headrace.engine.recovery.log_replay import LogReplay
from headrace.engine.recovery.memory_topics import Entry, Place
from headrace.engine.removal import retention
from headrace.engine.state import EngineState
from headrace.storage.wal.frame import entry_topic

log = logging.getLogger("headrace.recovery")

LANE = "recover"
SLICE_NS = 2_000_000  # how long the loop may be held at a time
READ_BYTES = 1 << 20  # in one go

Batch = tuple[Place, list[Entry]]


class SecondReading:
    """Brings the topics back that the start did not wait for."""

    def __init__(self, state: EngineState, replay: LogReplay) -> None:
        self._state = state
        self._replay = replay
        self._memory = replay.memory
        self._total = self._memory.batches_total
        self._done = 0
        self._all = set(self._memory.ids)
        self._batches: Iterator[Batch] = self._memory.batches()

    @property
    def progress(self) -> float:
        """How far it is, from 0 to 1."""
        return self._done / self._total if self._total and self._memory.ids else 1.0

    def run(self) -> None:
        """All of it, now, before the engine is ready."""
        for place, entries in self._batches:
            self._apply(place, entries)

    def begin(self) -> None:
        """Let requests to the topics that wait be refused until they are back."""
        by_id = self._state.by_id
        self._state.loading.begin([by_id[i].name for i in self._memory.ids], lambda: self.progress)
        self._replay.seals_midway = False

    def steps(self, done: Callable[[], None]) -> Steps[None]:
        """The same beside requests; `done` is called once all are back."""
        state = self._state
        try:
            while self._memory.ids:
                batches: list[Batch] = yield in_lane(state.runtime, LANE, self._read)
                if not batches:
                    break
                started = state.clock.monotonic_ns()
                for place, entries in batches:
                    if state.closing:
                        return  # the next start reads the log again
                    self._apply(place, entries)
                    if state.clock.monotonic_ns() - started > SLICE_NS:
                        yield turn_end(state.runtime)
                        started = state.clock.monotonic_ns()
                grown = state.totals.unsealed_bytes > state.settings.replay_memory_bytes
                if grown and self._memory.ids:  # once all are back a checkpoint may run
                    yield from self._replay.seal_steps(self._all)
        except Exception as error:
            log.exception("topics of class memory did not come back: %s", error)
            state.loading.fail(str(error))
            return
        done()

    def _read(self) -> list[Batch]:
        """Off the loop: the next batches."""
        batches: list[Batch] = []
        size = 0
        for batch in self._batches:
            batches.append(batch)
            size += sum(len(entry) for _, entry in batch[1])
            if size >= READ_BYTES:
                break
        return batches

    def _apply(self, place: Place, entries: list[Entry]) -> None:
        memory, ended = self._memory, set()
        for kind, entry in entries:
            topic_id = entry_topic(entry)
            waiting = memory.get(topic_id)
            if waiting is None:
                continue
            self._replay.apply_now(kind, entry)
            if waiting.last == place:
                ended.add(topic_id)
        self._done += 1
        for topic_id in ended:
            self._end(topic_id)

    def _end(self, topic_id: int) -> None:
        """A topic is whole again: show what it lost, and serve it."""
        state = self._state
        topic, waiting = state.by_id[topic_id], self._memory.get(topic_id)
        assert waiting is not None
        self._memory.forget(topic_id)
        # Seqs up to here were given out, whatever is stored of them.
        self._replay.given_out(topic, max(waiting.head, waiting.gap_to))
        topic.begin_serving()
        state.drop_dead_blocks(topic)
        topic.recount()
        retention.enforce(state, topic)
        state.loading.end(topic.name)
