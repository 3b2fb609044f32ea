"""Moving jobs to another topic: dead letters away from a queue, and back to it on request.

Only this file moves.  A move has a number, and three entries of the log: it begins (which jobs,
where to), the copies are appended under the producer `moved-from:<topic id>` with the number as its
epoch, and it has moved, which deletes the jobs here.  A crash in between loses nothing, since the
jobs are deleted last; and the start that follows finishes the move under the same number, so that
what was copied before is not copied again.  One move of a topic at a time.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping

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
from headrace.engine.queue_rows import read_jobs, records_of
from headrace.engine.queue_state import QueueState
from headrace.engine.reading import Page, Reader
from headrace.engine.topic import Topic
from headrace.storage.block import KIND_MIXED, Batch, Record, Rows
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
DEAD_FROM = "$dead_letter_from"
DEAD_DELIVERIES = "$dead_letter_deliveries"
DEAD_SEQ = "$dead_letter_src_seq"
DEAD_META = "$dead_letter_meta"  # what was there and is no object
MOVE_JOBS_MAX = 1_000
MOVE_BYTES_MAX = 4 << 20
RETRY_MS = 5_000


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

    def bury(self, topic: Topic, queue: QueueState) -> Ticket[None] | None:
        """Move jobs that were delivered too often to the dead letter topic, some at a time.

        The ticket never fails: jobs that could not be moved are where they were.  None: something
        else is being moved, and may take long.
        """
        under_way = self._burying.get(topic.id)
        if under_way is not None or topic.id in self._waiting:
            return under_way
        assert topic.config.dead_letter is not None
        done: Ticket[None] = Ticket(self.core.runtime)
        self._burying[topic.id] = done

        def buried(ticket: Ticket[int]) -> None:
            del self._burying[topic.id]
            if ticket.error is not None:
                log.warning("dead letters of %r stay: %s", topic.name, ticket.error)
            done.resolve(None)

        seqs = queue.take_spent(MOVE_JOBS_MAX)
        move = _Move(self, topic, queue, EVENT_BURY, topic.config.dead_letter, seqs)
        self._enqueue(move).when_done(buried)
        return done

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
        request = ReadRequest(asked.from_seq, limit, MOVE_BYTES_MAX)

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
        match, meta = asked.match, _object(record.meta)
        if meta is None or (match is not None and not _tagged(record.tag, match)):
            return None
        for key, value in asked.meta.items():
            if key not in meta or msgspec.json.decode(meta[key]) != value:
                return None
        source = msgspec.json.decode(meta.get(DEAD_FROM, b"null"))
        if not isinstance(source, str) or (asked.source or source) != source:
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
        """Read the jobs: of a new move as many as fit, of an old one all that are left of it."""
        topic = self.topic
        span = topic.span
        self._seqs = [seq for seq in self._seqs if span.alive(seq)] if topic.live else []
        if not self._seqs:
            self._stay(None)
            return
        bytes_max = MOVE_BYTES_MAX if not self._number else sys.maxsize
        read_jobs(self._core, topic, self._seqs, bytes_max, self._read)

    def _read(self, rows: list[Rows], error: BaseException | None) -> None:
        if error is not None or not self.topic.live:
            self._stay(error)
            return
        records = records_of(rows)
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
        producer = ProducerClaim(f"{PRODUCER_PREFIX}{self.topic.id}", self._number, 0)
        how = Append(create=bury, producer=producer, trusted=True)
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

    def _halve(self) -> None:
        """Half of them may still fit: another move, with a number of its own."""
        half = len(self._seqs) // 2
        self._log_stayed()
        self._queue.give_back(self._queue.busy & BitMap64(self._seqs[half:]))
        self._seqs, self._number = self._seqs[:half], 0
        self.begin()

    def _copied(self, done: Ticket[Appended]) -> None:
        error = done.error
        if isinstance(error, HeadraceError) and error.detail.get("outcome") == "unknown":
            self._end(error, stays=False)  # the next start finds out
            return
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
        self._mover.ended(self)
        if error is not None:
            self.ticket.fail(error)
        else:
            self.ticket.resolve(0)


def batch_of(records: list[Record], metas: list[bytes | None]) -> Batch:
    """Records as they are, with other metas."""
    kinds = bytes(record.kind for record in records)
    one = kinds.count(kinds[0]) == len(kinds)
    tags = [record.tag for record in records]
    nodes = [record.node for record in records]
    headers = [record.headers for record in records]
    return Batch(
        [record.data for record in records],
        kinds[0] if one else KIND_MIXED,
        tags if any(tag is not None for tag in tags) else None,
        nodes if any(node is not None for node in nodes) else None,
        metas if any(meta is not None for meta in metas) else None,
        headers if any(header is not None for header in headers) else None,
        None if one else kinds,
    )


def _object(meta: bytes | None) -> dict[str, msgspec.Raw] | None:
    if meta is None:
        return {}
    try:
        return msgspec.json.decode(meta, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def dead_meta(record: Record, source: str, deliveries: int) -> bytes:
    """The meta of a dead letter: what it had, and where it comes from.

    >>> dead_meta(Record(7, 0, b"{}", meta=b'{"a":1}'), "jobs", 2)[:36]
    b'{"a":1,"$dead_letter_from":"jobs","$'
    """
    fields: dict[str, object] = {}
    had = _object(record.meta)
    if had is not None:
        fields.update(had)
    elif record.meta is not None:
        fields[DEAD_META] = record.meta.decode(errors="replace")
    trace = {DEAD_FROM: source, DEAD_DELIVERIES: str(deliveries), DEAD_SEQ: str(record.seq)}
    return msgspec.json.encode(fields | trace)


def live_meta(meta: bytes | None) -> bytes | None:
    """What a dead letter had as its meta before it was one."""
    fields = _object(meta)
    if not fields:
        return meta
    had = fields.pop(DEAD_META, None)
    if had is not None:
        return str(msgspec.json.decode(had)).encode()
    kept = {k: v for k, v in fields.items() if k not in (DEAD_FROM, DEAD_DELIVERIES, DEAD_SEQ)}
    return msgspec.json.encode(kept) if kept else None


def _tagged(tag: str | None, match: TagMatch) -> bool:
    if tag is None:
        return False
    return tag.startswith(match.tag) if match.prefix else tag == match.tag
