"""Moving jobs to another topic: dead letters away from a queue, and back to it on request.

Only this file moves.  A move has a number, and three entries of the log: it begins (which jobs,
where to), the copies are appended under the producer `moved-from:<topic id>` with the number as its
epoch, and it has moved, which deletes the jobs here.  A crash in between loses nothing, since the
jobs are deleted last; and the start that follows finishes the move under the same number, so that
what was copied before is not copied again.  One move of a topic at a time, and after a refusal of
the dead letter topic none for a while, unless it has changed.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from headrace.core.errors import (
    HeadraceError,
    ProducerFenced,
    RecordTooLarge,
    TopicFull,
    TopicNotFound,
    typed,
)
from headrace.core.runtime import Ticket
from headrace.engine.admission import Append
from headrace.engine.append import Appended, Appender
from headrace.engine.collect import ReadRequest
from headrace.engine.core_state import ControlCommit, Core
from headrace.engine.deleting import TagMatch, apply_delete
from headrace.engine.idempotency import ProducerClaim
from headrace.engine.queues.letters import batch_of, dead_meta, live_meta, source_of
from headrace.engine.queues.rows import read_jobs, records_of
from headrace.engine.queues.state import QueueState
from headrace.engine.reading import Page, Reader
from headrace.engine.topic import Topic
from headrace.storage.block import Record, Rows
from headrace.storage.frame import (
    ENTRY_QUEUE,
    EVENT_BURY,
    EVENT_MOVED,
    EVENT_REVIVE,
    EVENT_STAYED,
    QueueEvent,
)
from headrace.storage.queue_record import MoveState

log = logging.getLogger("headrace.queues")

PRODUCER_PREFIX = "moved-from:"
MOVE_JOBS_MAX = 1_000
MOVE_BYTES_MAX = 4 << 20
RETRY_MS = 5_000
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


class Mover:
    """Moves jobs of every topic."""

    def __init__(
        self, core: Core, appender: Appender, reader: Reader, stir: Callable[[Topic], None]
    ) -> None:
        self.core = core
        self.appender = appender
        self.stir = stir  # jobs may have become claimable
        self._reader = reader
        self._waiting: dict[int, deque[_Move]] = {}
        self._burying: dict[int, Ticket[None]] = {}
        self._refused: dict[int, _Refused] = {}  # by topic

    def forget(self, topic: Topic) -> None:
        """A topic was deleted."""
        self._refused.pop(topic.id, None)

    def bury(self, topic: Topic, queue: QueueState) -> Ticket[None] | None:
        """Move jobs that were delivered too often to the dead letter topic, some at a time.

        The ticket never fails: jobs that could not be moved are where they were.  None: something
        else is being moved, and may take long.
        """
        under_way = self._burying.get(topic.id)
        if under_way is not None or topic.id in self._waiting:
            return under_way
        dead_letter = topic.config.dead_letter
        assert dead_letter is not None
        refused = self._refused.get(topic.id)
        now = self.core.clock.now_ms()
        if refused is not None and now < refused.until and refused.by == self._room(dead_letter):
            return None
        done: Ticket[None] = Ticket(self.core.runtime)
        self._burying[topic.id] = done

        def buried(ticket: Ticket[int]) -> None:
            del self._burying[topic.id]
            self._refused.pop(topic.id, None)
            if ticket.error is not None and topic.live:
                log.warning("dead letters of %r stay: %s", topic.name, ticket.error)
                wait_ms = min(2 * refused.wait_ms, RETRY_MS) if refused else REFUSED_MS
                until = self.core.clock.now_ms() + wait_ms
                self._refused[topic.id] = _Refused(until, wait_ms, self._room(dead_letter))
            elif queue.spent:
                self.core.runtime.soon(lambda: self._bury_more(topic, queue))
            done.resolve(None)

        seqs = queue.take_spent(MOVE_JOBS_MAX)
        move = _Move(self, topic, queue, EVENT_BURY, dead_letter, seqs)
        self._enqueue(move).when_done(buried)
        return done

    def _bury_more(self, topic: Topic, queue: QueueState) -> None:
        """The next of many, unless they are not to go any more."""
        config = topic.config
        same = config.dead_letter is not None and config.max_deliveries == queue.max_deliveries
        if same and topic.live and queue.spent and not self.core.closing:
            self.bury(topic, queue)

    def _room(self, dead_letter: str) -> object:
        """Another value when a dead letter topic may have room that it did not have."""
        dest = self.core.find(dead_letter)
        return None if dest is None else (dest.id, dest.count, dest.bytes, dest.config)

    def resume(self, topic: Topic, queue: QueueState) -> None:
        """Finish what a crash interrupted."""
        for number, state in sorted(queue.moving.items()):
            move = _Move(self, topic, queue, state.what, state.topic, list(state.seqs), number)
            self._enqueue(move)

    def _enqueue(self, move: _Move) -> Ticket[int]:
        waiting = self._waiting.setdefault(move.topic.id, deque())
        waiting.append(move)
        if len(waiting) == 1:
            move.begin()
        return move.ticket

    def ended(self, move: _Move) -> None:
        """The next move of the topic, if there is one."""
        waiting = self._waiting[move.topic.id]
        assert waiting[0] is move
        waiting.popleft()
        if waiting:
            waiting[0].begin()
        else:
            del self._waiting[move.topic.id]

    # Redrive

    def redrive(self, topic: Topic, asked: Redrive) -> Ticket[Redriven]:
        """Move back what of the next `limit` dead letters is asked for."""
        ticket: Ticket[Redriven] = Ticket(self.core.runtime)
        limit = min(max(asked.limit, 1), MOVE_JOBS_MAX)
        # Beyond the head there is nothing: to read from there would be to begin anew.
        request = ReadRequest(min(asked.from_seq, topic.head), limit, MOVE_BYTES_MAX)

        def read(done: Ticket[Page]) -> None:
            if done.error is not None:
                ticket.fail(done.error)
            else:
                self._revive(topic, asked, done.result(), ticket)

        self._reader.read(topic.name, request).when_done(read)
        return ticket

    def _revive(self, topic: Topic, asked: Redrive, page: Page, ticket: Ticket[Redriven]) -> None:
        queue = topic.queue
        if queue is None:
            queue = topic.queue = QueueState()
        by_source: dict[str, BitMap64] = {}
        for record in page.records:
            source = self._goes_to(record, asked)
            if source is not None:
                by_source.setdefault(source, BitMap64()).add(record.seq)
        moves = []
        for source, seqs in by_source.items():
            span = topic.span if topic.config.type == "queue" else None
            free = list(queue.reserve(seqs & topic.span.between(0, topic.head), span))
            if free:
                moves.append(_Move(self, topic, queue, EVENT_REVIVE, source, free))
        left, moved = len(moves), 0

        def answer() -> None:
            skipped = page.count - moved
            ticket.resolve(Redriven(topic.name, moved, skipped, page.next_from_seq, page.caught_up))

        def one_done(done: Ticket[int]) -> None:
            nonlocal left, moved
            left -= 1
            if done.error is None:
                moved += done.result()
            elif not ticket.done:
                ticket.fail(done.error)
            if not left and not ticket.done:
                answer()

        if not moves:
            answer()
        for move in moves:
            self._enqueue(move).when_done(one_done)

    def _goes_to(self, record: Record, asked: Redrive) -> str | None:
        """The queue a dead letter came from, if it is asked for and the queue is there."""
        source = source_of(record, asked.match, asked.meta)
        if source is None or (asked.source or source) != source:
            return None
        dest = self.core.find(source)
        there = dest is not None and dest.live and dest.config.type == "queue"
        return source if there and asked.allowed(source) else None


class _Move:
    """One move of busy jobs under way; `ticket` tells how many have moved."""

    def __init__(
        self,
        mover: Mover,
        topic: Topic,
        queue: QueueState,
        what: int,
        dest: str,
        seqs: list[int],
        number: int = 0,
    ) -> None:
        self._mover = mover
        self._core = mover.core
        self.topic = topic
        self._queue = queue
        self._what = what
        self._dest = dest
        self._seqs = seqs
        self._number = number  # 0: the log does not know of it yet
        self.ticket: Ticket[int] = Ticket(mover.core.runtime)

    def begin(self) -> None:
        """Read the jobs: of a new move as many as fit, of an old one all that are left of it.

        What the other topic has before this run has copied anything needs no reading.
        """
        topic = self.topic
        span = topic.span
        self._seqs = [seq for seq in self._seqs if span.alive(seq)] if topic.live else []
        if not self._seqs:
            self._stay(None)
            return
        if self._number and self._has_copies():
            self._delete()
            return
        bytes_max = MOVE_BYTES_MAX if not self._number else sys.maxsize
        read_jobs(self._core, topic, self._seqs, bytes_max, self._read)

    @property
    def _producer(self) -> str:
        return f"{PRODUCER_PREFIX}{self.topic.id}"

    def _has_copies(self) -> bool:
        dest = self._core.find(self._dest)
        known = (dest.producers or {}).get(self._producer) if dest is not None else None
        return known is not None and known.epoch == self._number

    def _read(self, rows: list[Rows], damaged: list[int], error: BaseException | None) -> None:
        if error is not None or not self.topic.live:
            self._stay(error)
            return
        if damaged:
            self._leave(damaged)
        records = records_of(rows)
        if not records:
            self._stay(None)
            return
        if self._number:
            self._copy(records)
            return
        rest = BitMap64(self._seqs)
        self._seqs = [record.seq for record in records]
        rest -= BitMap64(self._seqs)
        queue, core, topic = self._queue, self._core, self.topic
        queue.give_back(queue.busy & rest)
        queue.moves = self._number = queue.moves + 1
        queue.moving[self._number] = MoveState(
            self._number, self._what, self._dest, list(self._seqs)
        )
        core.mark(topic)
        if not core.is_logged(topic):
            self._copy(records)
            return
        # In another log the copies could be on disk before the entry that numbers them.
        dest = core.find(self._dest)
        apart = dest is None or core.shard_of(dest.id) is not core.shard_of(topic.id)
        event = QueueEvent(self._what, self._seqs, number=self._number, topic=self._dest)

        def logged(error: HeadraceError | None) -> None:
            if error is not None:
                self._end(error, stays=True)
            else:
                self._copy(records)

        self._log(event, logged, needs_sync=apart and len(core.shards) > 1)

    def _leave(self, damaged: list[int]) -> None:
        """These cannot be read, and stay; the others go."""
        queue = self._queue
        bad = queue.busy & BitMap64(damaged)
        if self._what == EVENT_BURY:
            queue.set_aside(bad, self._core.clock.now_ms())
        else:
            queue.give_back(bad)
        self._seqs = [seq for seq in self._seqs if seq not in bad]

    def _log(
        self,
        event: QueueEvent,
        done: Callable[[HeadraceError | None], None],
        *,
        needs_sync: bool = False,
    ) -> None:
        topic = self.topic
        sync = needs_sync or topic.needs_sync or topic.unsettled_syncs > 0
        self._core.log(topic, ENTRY_QUEUE, event, needs_sync=sync, done=done)

    # The copies

    def _copy(self, records: list[Record]) -> None:
        bury = self._what == EVENT_BURY
        config, name = self.topic.config, self.topic.name
        metas = [
            dead_meta(record, name, config.max_deliveries) if bury else live_meta(record.meta)
            for record in records
        ]
        producer = ProducerClaim(self._producer, self._number, 0)
        # Under pressure nobody could try a burial again: it is no client who asks for it.
        how = Append(None, bury, None, producer, disable_backpressure=bury, trusted=True)
        self._forget_gone()
        try:
            copied = self._mover.appender.append(self._dest, batch_of(records, metas), how)
        except ProducerFenced as fenced:
            # Numbers are counted anew after a repair, say: go on beyond those that were used.
            epoch = fenced.detail["epoch"]
            assert isinstance(epoch, int)
            self._queue.moves = max(self._queue.moves, epoch)
            self._stay(fenced)
            return
        except (TopicFull, RecordTooLarge) as full:
            if len(self._seqs) > 1:
                self._halve()
            else:
                self._stay(full)
            return
        except HeadraceError as refusal:
            self._stay(refusal)
            return
        copied.when_done(self._copied)

    def _forget_gone(self) -> None:
        """Topics that come and go must not use up what the other topic remembers of producers."""
        core = self._core
        dest = core.find(self._dest)
        known = dest.producers if dest is not None else None
        if dest is None or not known or len(known) < core.settings.producers_per_topic_max:
            return
        for id in [id for id in known if id.startswith(PRODUCER_PREFIX)]:
            number = id[len(PRODUCER_PREFIX) :]
            if number.isdecimal() and int(number) not in core.by_id:
                del known[id]
        core.mark(dest)

    def _halve(self) -> None:
        """Half of them may still fit: another move, with a number of its own."""
        half = len(self._seqs) // 2
        self._log_stayed()
        self._queue.give_back(self._queue.busy & BitMap64(self._seqs[half:]))
        self._seqs, self._number = self._seqs[:half], 0
        if self._queue.free:
            self._mover.stir(self.topic)
        self.begin()

    def _copied(self, done: Ticket[Appended]) -> None:
        error = done.error
        if isinstance(error, HeadraceError) and error.detail.get("outcome") == "unknown":
            self._end(error, stays=False)  # the next start finds out
            return
        if error is None and done.result().deduped:
            # Somebody else has used the name and the number: nothing of ours was copied.
            error = ProducerFenced(
                f"{self._dest!r} has number {self._number} of {self._producer!r} already",
                fix="use another producer id; the jobs are moved under the next number",
                detail={"epoch": self._number},
            )
        if error is not None:
            self._stay(error)
            return
        core = self._core
        dest = core.find(self._dest)
        if dest is None or dest.needs_sync or core.is_ephemeral(dest):
            self._delete()
            return
        shard = core.shard_of(dest.id)
        if shard is core.shard_of(self.topic.id):
            self._delete()  # the log has the copies before what deletes the jobs
        else:
            shard.when_durable(ControlCommit(b"", True, self._synced))

    def _synced(self, error: HeadraceError | None) -> None:
        if error is not None:
            self._end(error, stays=False)
        else:
            self._delete()

    # The end

    def _delete(self) -> None:
        queue = self._queue
        count = len(self._seqs) if self._what == EVENT_BURY else 0
        total = queue.dead_lettered + count
        if not self.topic.live:
            self._end(TopicNotFound.named(self.topic.name), stays=True)
        elif self._core.is_logged(self.topic):
            event = QueueEvent(EVENT_MOVED, self._seqs, total, number=self._number)
            self._log(event, lambda error: self._deleted(error, total))
        else:
            self._deleted(None, total)

    def _deleted(self, error: HeadraceError | None, total: int) -> None:
        queue, core = self._queue, self._core
        if error is not None:
            # The copies are there, so the jobs must not be handed out: try until it works.
            if not self.ticket.done:
                self.ticket.fail(typed(error))
            if not core.closing:
                core.runtime.later(RETRY_MS, self._delete)
            return
        queue.dead_lettered = total
        queue.moving.pop(self._number, None)
        seqs = BitMap64(self._seqs)
        if self.topic.live:
            apply_delete(core, self.topic, 0, seqs)
        queue.busy -= seqs
        self._mover.ended(self)
        if not self.ticket.done:
            self.ticket.resolve(len(seqs))

    def _stay(self, error: BaseException | None) -> None:
        """Nothing was copied: the jobs are where they were."""
        self._log_stayed()
        self._end(error, stays=True)

    def _log_stayed(self) -> None:
        self._queue.moving.pop(self._number, None)
        if self._number and self.topic.live and self._core.is_logged(self.topic):
            event = QueueEvent(EVENT_STAYED, [], number=self._number)
            self._log(event, lambda _error: None)

    def _end(self, error: BaseException | None, *, stays: bool) -> None:
        if stays:
            self._queue.moving.pop(self._number, None)
            self._queue.give_back(self._queue.busy & BitMap64(self._seqs))
            self._core.mark(self.topic)
            if self._queue.free:
                self._mover.stir(self.topic)
        self._mover.ended(self)
        if self.ticket.done:
            return  # it has failed before, and was tried again since
        if error is not None:
            self.ticket.fail(error)
        else:
            self.ticket.resolve(0)
