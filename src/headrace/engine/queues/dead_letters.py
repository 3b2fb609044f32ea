"""Dead letters: which jobs leave a queue for its dead letter topic, and which go back on request.

Only this file decides what is moved when; `dead_letter_move.py` moves.  One move of a topic at a
time, and after a refusal of the dead letter topic none for a while, unless it has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.core.steps import Line, Steps, follow_at_once
from headrace.engine.appending.append import Appender
from headrace.engine.queues.dead_letter_meta import source_of
from headrace.engine.queues.dead_letter_move import (
    MOVE_BYTES_MAX,
    NEW_MOVE,
    RETRY_MS,
    DeadLetterMove,
)
from headrace.engine.queues.state import QueueState
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.engine.reading.read import Reader
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.block import Record
from headrace.storage.snapshot.queue_record import MoveState
from headrace.storage.wal.frame import EVENT_BURY, EVENT_REVIVE

log = logging.getLogger("headrace.queues")

MOVE_JOBS_MAX = 1_000
REFUSED_MS = 100  # after a first refusal; twice as long after each further one, up to RETRY_MS


class Redrive(msgspec.Struct, frozen=True):
    """Which dead letters go back, and how much is looked at in one step."""

    match: TagMatch | None = None
    meta: Mapping[str, object] = {}  # top-level keys of meta that have to have these values
    source: str | None = None  # only what came from there
    from_seq: int = 0
    limit: int = MOVE_JOBS_MAX
    allowed: Callable[[str], bool] = lambda _name: True  # whether the caller may write there


class Redriven(msgspec.Struct, frozen=True):
    """What one step did; `done`: there is nothing beyond `next_from_seq`."""

    topic: str
    moved: int
    skipped: int  # not asked for, or nowhere to go
    next_from_seq: int
    done: bool


class _Refused(NamedTuple):
    """A dead letter topic took nothing: it is asked again when it has changed, or at a time."""

    until: int
    wait_ms: int
    by: object


class DeadLetters:
    """The dead letters of one engine."""

    def __init__(
        self,
        state: EngineState,
        appender: Appender,
        reader: Reader,
        claimable: Callable[[Topic], None],
    ) -> None:
        self._state = state
        self._appender = appender
        self._reader = reader
        self._claimable = claimable  # to be called when jobs can be claimed again
        self._lines: dict[int, Line] = {}  # by topic that jobs are being moved from
        self._moves: dict[int, list[DeadLetterMove]] = {}  # the same: under way and waiting
        self._burying: dict[int, Ticket[None]] = {}
        self._refused: dict[int, _Refused] = {}  # by topic

    def forget(self, topic: Topic) -> None:
        """Forget what is known of a topic that was deleted."""
        self._refused.pop(topic.id, None)

    def resume(self, topic: Topic, queue: QueueState) -> None:
        """Finish what a crash interrupted."""
        for _number, move in sorted(queue.moving.items()):
            self._move(topic, queue, move)

    def _move(self, topic: Topic, queue: QueueState, asked: MoveState) -> Ticket[int]:
        """Move jobs after those that are being moved; return the ticket of how many have moved.

        A move that the log refuses to end is tried again until it ends, after the next start
        perhaps.  Those that wait behind it are refused as it was.
        """
        line = self._lines.setdefault(topic.id, Line(self._state.runtime, follow_at_once))
        moves = self._moves.setdefault(topic.id, [])

        def refuse_waiting(error: HeadraceError) -> None:
            for waiting in moves[1:]:
                waiting.refuse(error)

        def ended(done: Ticket[int]) -> None:
            moves.remove(move)
            if not line.busy and self._lines.get(topic.id) is line:
                del self._lines[topic.id], self._moves[topic.id]
            move.end(done)

        move = DeadLetterMove(
            self._state, self._appender, self._claimable, topic, queue, asked, refuse_waiting
        )
        moves.append(move)
        if moves[0].failure is not None:
            move.refuse(moves[0].failure)
        line.run(move.steps()).when_done(ended)
        return move.answer

    # To the dead letter topic

    def bury(self, topic: Topic, queue: QueueState) -> Ticket[None] | None:
        """Move jobs that were delivered too often to the dead letter topic, some at a time.

        The ticket never fails: jobs that could not be moved are where they were.  None: something
        else is being moved, and may take long.
        """
        under_way = self._burying.get(topic.id)
        if under_way is not None or topic.id in self._lines:
            return under_way
        dead_letter = topic.config.dead_letter
        assert dead_letter is not None
        refused = self._refused.get(topic.id)
        now = self._state.clock.now_ms()
        if refused is not None and now < refused.until and refused.by == self._room(dead_letter):
            return None
        done = self._burying[topic.id] = Ticket[None](self._state.runtime)
        return follow_at_once(
            self._state.runtime, self._bury(topic, queue, dead_letter, refused), done
        )

    def _bury(
        self, topic: Topic, queue: QueueState, dead_letter: str, refused: _Refused | None
    ) -> Steps[None]:
        state = self._state
        failure: Exception | None = None
        try:
            spent = queue.take_spent(MOVE_JOBS_MAX)
            yield self._move(topic, queue, MoveState(NEW_MOVE, EVENT_BURY, dead_letter, spent))
        except Exception as error:  # noqa: BLE001 - the next claim tries again
            failure = error
        del self._burying[topic.id]
        self._refused.pop(topic.id, None)
        if failure is not None and topic.live:
            log.warning("dead letters of %r stay: %s", topic.name, failure)
            wait_ms = min(2 * refused.wait_ms, RETRY_MS) if refused else REFUSED_MS
            until = state.clock.now_ms() + wait_ms
            self._refused[topic.id] = _Refused(until, wait_ms, self._room(dead_letter))
        elif queue.spent:
            state.runtime.soon(lambda: self._bury_more(topic, queue))

    def _bury_more(self, topic: Topic, queue: QueueState) -> None:
        """Move the next of many, unless they are not to go any more."""
        config = topic.config
        same = config.dead_letter is not None and config.max_deliveries == queue.max_deliveries
        if same and topic.live and queue.spent and not self._state.closing:
            self.bury(topic, queue)

    def _room(self, dead_letter: str) -> object:
        """Return another value when a dead letter topic may have room that it did not have."""
        dest = self._state.find(dead_letter)
        return None if dest is None else (dest.id, dest.count, dest.bytes, dest.config)

    # Back from it

    def redrive(self, topic: Topic, asked: Redrive) -> Ticket[Redriven]:
        """Move back what of the next `limit` dead letters is asked for."""
        return follow_at_once(self._state.runtime, self._redrive(topic, asked))

    def _redrive(self, topic: Topic, asked: Redrive) -> Steps[Redriven]:
        limit = min(max(asked.limit, 1), MOVE_JOBS_MAX)
        # Beyond the head there is nothing: to read from there would be to start over.
        request = ReadRequest(min(asked.from_seq, topic.head), limit, MOVE_BYTES_MAX)
        page: Page = yield self._reader.read(topic.name, request)
        queue = topic.make_queue()
        by_source: dict[str, BitMap64] = {}
        for record in page.records:
            source = self._goes_to(record, asked)
            if source is not None:
                by_source.setdefault(source, BitMap64()).add(record.seq)
        chosen: dict[str, list[int]] = {}
        for source, seqs in by_source.items():
            span = topic.span if topic.config.type == "queue" else None
            chosen[source] = list(queue.reserve(seqs & topic.span.between(0, topic.head), span))
        moves = [
            self._move(topic, queue, MoveState(NEW_MOVE, EVENT_REVIVE, source, free))
            for source, free in chosen.items()
            if free
        ]
        moved = 0
        for move in moves:
            moved += yield move
        skipped = page.count - moved
        return Redriven(topic.name, moved, skipped, page.next_from_seq, page.caught_up)

    def _goes_to(self, record: Record, asked: Redrive) -> str | None:
        """Return the queue a dead letter came from, if it is asked for and the queue is there."""
        source = source_of(record, asked.match, asked.meta)
        if source is None or (asked.source or source) != source:
            return None
        dest = self._state.find(source)
        there = dest is not None and dest.live and dest.config.type == "queue"
        return source if there and asked.allowed(source) else None
