"""One move of jobs to another topic: a dead letter away from its queue, or back to it.

Only this file moves.  A move has a number, and three entries of the log: it begins (which jobs,
where to), the copies are appended under the producer `moved-from:<topic id>` with the number as its
epoch, and it has moved, which deletes the jobs here.  A crash in between loses nothing, since the
jobs are deleted last; and the start that follows finishes the move under the same number, so that
what was copied before is not copied again.  `DeadLetterMove.steps` reads from top to bottom;
`dead_letters.py` decides what is moved when.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from pyroaring import BitMap64

from headrace.core.error_frames import without_frames
from headrace.core.errors import (
    HeadraceError,
    ProducerFenced,
    RecordTooLarge,
    TopicFull,
    TopicNotFound,
)
from headrace.core.runtime import Ticket
from headrace.core.steps import Steps, pass_on, pause
from headrace.engine.appending.admission import Append
from headrace.engine.appending.append import Appender
from headrace.engine.appending.pending_append import Appended
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.log_steps import durable, logged
from headrace.engine.queues.dead_letter_meta import batch_of, dead_meta, live_meta
from headrace.engine.queues.job_records import read_jobs, records_of
from headrace.engine.queues.state import QueueState
from headrace.engine.removal.deleting import apply_delete
from headrace.engine.state import EngineState
from headrace.engine.streams import rules
from headrace.engine.topics.topic import Topic
from headrace.storage.block import Record
from headrace.storage.snapshot.queue_record import MoveState
from headrace.storage.wal.frame import (
    ENTRY_QUEUE,
    EVENT_BURY,
    EVENT_MOVED,
    EVENT_STAYED,
    QueueEvent,
)

PRODUCER_PREFIX = "moved-from:"
MOVE_BYTES_MAX = 4 << 20
RETRY_MS = 5_000
NEW_MOVE = 0  # the number of a move that the log does not know yet


class DeadLetterMove:
    """One move of busy jobs; `answer` is the ticket of how many have moved."""

    def __init__(
        self,
        state: EngineState,
        appender: Appender,
        claimable: Callable[[Topic], None],
        topic: Topic,
        queue: QueueState,
        move: MoveState,
        held_up: Callable[[HeadraceError], None],
    ) -> None:
        self._state = state
        self._appender = appender
        self._claimable = claimable  # to be called when jobs can be claimed again
        self.topic = topic
        self._queue = queue
        self._what = move.what
        self._dest = move.topic
        self._seqs = list(move.seqs)
        self._number = move.number
        self._held_up = held_up  # to be called when the log refuses to end the move
        self.failure: HeadraceError | None = None  # with which the log refuses to end the move
        self.answer: Ticket[int] = Ticket(state.runtime)

    def end(self, done: Ticket[int]) -> None:
        """Answer as the steps have ended, unless a failure that was tried again was told before."""
        if not self.answer.done:
            pass_on(done, self.answer)

    def refuse(self, error: HeadraceError) -> None:
        """Fail before the first step, because the move before this one cannot end."""
        if self._number != NEW_MOVE or self.answer.done:
            return  # a move that the log knows has to be finished
        self._give_back()
        self._seqs = []
        self.answer.fail(error)

    def steps(self) -> Steps[int]:
        """Copy jobs to the other topic, then delete them here; return how many have moved.

        If this raises, the jobs are where they were and can be claimed again, unless it is unknown
        whether the copies are stored: then they stay busy, and the next start finds out.
        """
        while True:
            span = self.topic.span
            self._seqs = [s for s in self._seqs if span.alive(s)] if self.topic.live else []
            if not self._seqs:
                self._stay()
                return 0
            if self._number and self._has_copies():
                break  # copied by an earlier run, so there is nothing to read
            records = yield from self._read()
            if not records:
                self._stay()
                return 0
            if not self._number:
                yield from self._begin(records)
            try:
                copied = self._copy(records)
            except HeadraceError as refusal:
                if isinstance(refusal, TopicFull | RecordTooLarge) and len(self._seqs) > 1:
                    self._halve()
                    continue
                self._stay()
                raise
            yield from self._await_copies(copied)
            break
        yield from self._delete()
        return len(self._seqs)

    # The jobs

    def _read(self) -> Steps[list[Record]]:
        """Read the jobs: of a new move as many as fit, of an old one all that are left of it."""
        bytes_max = MOVE_BYTES_MAX if not self._number else sys.maxsize
        try:
            found = yield from read_jobs(self._state, self.topic, self._seqs, bytes_max)
        except Exception:
            self._stay()
            raise
        if not self.topic.live:
            return []
        if found.damaged:
            self._leave(found.damaged)
        return records_of(found.rows)

    def _leave(self, damaged: list[int]) -> None:
        """Leave jobs that cannot be read where they are; the others go."""
        queue = self._queue
        bad = queue.busy & BitMap64(damaged)
        if self._what == EVENT_BURY:
            queue.set_aside(bad, self._state.clock.now_ms())
        else:
            queue.give_back(bad)
        self._seqs = [seq for seq in self._seqs if seq not in bad]

    def _begin(self, records: list[Record]) -> Steps[None]:
        """Give the move a number, and have the log know it before anything is copied."""
        queue, state, topic = self._queue, self._state, self.topic
        rest = BitMap64(self._seqs)
        self._seqs = [record.seq for record in records]
        rest -= BitMap64(self._seqs)
        queue.give_back(queue.busy & rest)
        queue.moves = self._number = queue.moves + 1
        queue.moving[self._number] = MoveState(
            self._number, self._what, self._dest, list(self._seqs)
        )
        topic.mark_changed()
        if not topic.is_logged:
            return
        # In another log the copies could be on disk before the entry that numbers them.
        dest = state.find(self._dest)
        apart = dest is None or state.shard_of(dest.id) is not state.shard_of(topic.id)
        event = QueueEvent(self._what, self._seqs, number=self._number, topic=self._dest)
        try:
            yield self._logged(event, needs_sync=apart and len(state.shards) > 1)
        except HeadraceError:
            self._give_back()
            raise

    def _logged(self, event: QueueEvent, *, needs_sync: bool = False) -> Ticket[None]:
        topic = self.topic
        sync = needs_sync or topic.needs_sync or topic.unsettled_syncs > 0
        return logged(self._state, topic, ENTRY_QUEUE, event, needs_sync=sync)

    # The copies

    @property
    def _producer(self) -> str:
        return f"{PRODUCER_PREFIX}{self.topic.id}"

    def _has_copies(self) -> bool:
        dest = self._state.find(self._dest)
        known = dest.producers if dest is not None else None
        newest = known.newest(self._producer) if known is not None else None
        return newest is not None and newest.epoch == self._number

    def _copy(self, records: list[Record]) -> Ticket[Appended]:
        bury = self._what == EVENT_BURY
        config, name = self.topic.config, self.topic.name
        metas = [
            dead_meta(record, name, config.max_deliveries) if bury else live_meta(record.meta)
            for record in records
        ]
        producer = ProducerClaim(self._producer, self._number, 0)
        # Under pressure nobody could try a burial again: it is no client who asks for it.
        how = Append(None, bury, None, producer, disable_backpressure=bury, trusted=True)
        self._forget_deleted_topics()
        dest = self._state.find(self._dest)
        if dest is not None:
            rules.refuse_change(dest, "dead letter")
        try:
            return self._appender.append(self._dest, batch_of(records, metas), how)
        except ProducerFenced as fenced:
            # Numbers start over after a repair, say: go on beyond those that were used.
            epoch = fenced.detail["epoch"]
            assert isinstance(epoch, int)
            self._queue.moves = max(self._queue.moves, epoch)
            raise

    def _forget_deleted_topics(self) -> None:
        """Topics that come and go must not use up what the other topic remembers of producers."""
        state = self._state
        dest = state.find(self._dest)
        known = dest.producers if dest is not None else None
        if dest is None or not known or len(known) < state.settings.producers_per_topic_max:
            return
        gone = []
        for id in known:
            number = id.removeprefix(PRODUCER_PREFIX)
            if number != id and number.isdecimal() and int(number) not in state.by_id:
                gone.append(id)
        state.producer_memory.forget(dest, gone)
        dest.mark_changed()

    def _halve(self) -> None:
        """Half of the jobs may still fit: try them, as a move with a number of its own."""
        half = len(self._seqs) // 2
        self._log_stayed()
        self._queue.give_back(self._queue.busy & BitMap64(self._seqs[half:]))
        self._seqs, self._number = self._seqs[:half], NEW_MOVE
        if self._queue.free:
            self._claimable(self.topic)

    def _await_copies(self, copied: Ticket[Appended]) -> Steps[None]:
        """Wait until a crash can no longer take the copies and leave the entry that deletes."""
        try:
            appended: Appended = yield copied
            if appended.deduped:
                # Another writer has used the name and the number: nothing of ours was copied.
                raise ProducerFenced(
                    f"{self._dest!r} has number {self._number} of {self._producer!r} already",
                    fix="use another producer id; the jobs are moved under the next number",
                    detail={"epoch": self._number},
                )
        except Exception as error:
            if not isinstance(error, HeadraceError) or error.detail.get("outcome") != "unknown":
                self._stay()
            raise
        state = self._state
        dest = state.find(self._dest)
        if dest is None or dest.needs_sync or dest.ephemeral:
            return
        shard = state.shard_of(dest.id)
        # In the same log the copies come before the entry that deletes the jobs.
        if shard is not state.shard_of(self.topic.id):
            yield durable(state, shard)

    # The end

    def _delete(self) -> Steps[None]:
        """Delete the jobs, which are copied, and count those that became dead letters."""
        queue, state, topic = self._queue, self._state, self.topic
        count = len(self._seqs) if self._what == EVENT_BURY else 0
        while True:
            total = queue.dead_lettered + count
            if not topic.live:
                self._give_back()
                raise TopicNotFound.named(topic.name)
            if not topic.is_logged:
                break
            event = QueueEvent(EVENT_MOVED, self._seqs, total, number=self._number)
            try:
                yield self._logged(event)
                self.failure = None
                break
            except HeadraceError as error:
                self.failure = without_frames(error)
                if not self.answer.done:
                    self.answer.fail(error)
                self._held_up(error)
            # The copies are there, so the jobs must not be handed out, and no other move may take
            # the next number: try until it works.  What is closing leaves it to the next start.
            yield Ticket(state.runtime) if state.closing else pause(state.runtime, RETRY_MS)
        queue.dead_lettered = total
        queue.moving.pop(self._number, None)
        seqs = BitMap64(self._seqs)
        if topic.live:
            apply_delete(state, topic, 0, seqs)
        queue.busy -= seqs

    def _stay(self) -> None:
        """Let the jobs be where they were, and have the log know it: nothing was copied."""
        self._log_stayed()
        self._give_back()

    def _log_stayed(self) -> None:
        self._queue.moving.pop(self._number, None)
        if self._number and self.topic.live and self.topic.is_logged:
            self._logged(QueueEvent(EVENT_STAYED, [], number=self._number))

    def _give_back(self) -> None:
        queue = self._queue
        queue.moving.pop(self._number, None)
        queue.give_back(queue.busy & BitMap64(self._seqs))
        self.topic.mark_changed()
        if queue.free:
            self._claimable(self.topic)
