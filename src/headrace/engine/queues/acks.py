"""Acks: which jobs are done, deleted in one entry of the log for all acks that came together.

Only this file deletes jobs for those who hold them.  An ack is as durable as the topic's class says
when it is answered; each is told what it deleted and what it could not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyroaring import BitMap64

from headrace.core.errors import HeadraceError, typed
from headrace.engine.queues.answers import Acked, counts_of
from headrace.engine.queues.calls import Ack, fail_all, resolve_all
from headrace.engine.queues.grants import find_held, whole_grant
from headrace.engine.queues.job_records import fetch_sizes
from headrace.engine.queues.requests import check_jobs
from headrace.engine.queues.state import QueueState
from headrace.engine.queues.workers import Workers
from headrace.engine.removal.deleting import apply_delete
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.frame import ENTRY_RECORDS_DELETE, RecordsDelete


class _Finished:
    """Jobs of one topic that are done, and the acks that said so."""

    __slots__ = ("acks", "connections", "logged", "queue", "seqs", "topic")

    def __init__(self, topic: Topic, queue: QueueState) -> None:
        self.topic = topic
        self.queue = queue
        self.logged = topic.is_logged
        self.acks: list[Ack] = []  # those that have any
        self.seqs: list[int] = []
        self.connections: set[int] = set()  # that held some of them


class Acks:
    """The acks of one engine."""

    def __init__(
        self,
        state: EngineState,
        workers: Workers,
        topic_of: Callable[[str], Topic],
        look: Callable[[Topic], QueueState],
    ) -> None:
        self._state = state
        self._workers = workers
        self._topic_of = topic_of  # the queue of a name, or an error
        self._look = look  # the queue, with everything overdue taken back

    def ack_all(self, asked: Sequence[Ack]) -> None:
        """Delete the jobs of acks, in their order; those of one topic in one entry of the log.

        One that is refused changes nothing, and the others go on.
        """
        by_name: dict[str, _Finished] = {}
        idle: list[Ack] = []
        answers: list[Acked] = []
        for ack in asked:
            try:
                finished = by_name.get(ack.name)
                if finished is None:
                    finished = by_name[ack.name] = self._open(ack)
                self._find(finished, ack)
            except Exception as error:  # noqa: BLE001 - one caller's mistake is not the others'
                fail_all([ack], error)
                continue
            if not ack.jobs:
                ready, in_flight = counts_of(finished.topic)
                # Jobs of the acks before it are neither leased nor busy at this moment.
                ready -= len(finished.seqs)
                answers.append(Acked(ack.name, 0, ack.skipped, ready, in_flight))
                idle.append(ack)
        for finished in by_name.values():
            if finished.seqs:
                self._delete(finished)
        resolve_all(idle, answers)

    # Which jobs

    def _open(self, ack: Ack) -> _Finished:
        """Look at the queue of an ack, or raise why nothing of it can be deleted."""
        state = self._state
        try:
            topic = self._topic_of(ack.name)
            if topic.is_logged:
                state.refuse_writes(state.shard_of(topic.id))
        except HeadraceError:
            self._check(ack)  # what is wrong with the ack itself is said first
            raise
        return _Finished(topic, self._look(topic))

    def _check(self, ack: Ack) -> Sequence[int | None] | None:
        return check_jobs(ack.node, self._state.settings.node_bytes_max, ack.seqs, ack.lease_ids)

    def _find(self, finished: _Finished, ack: Ack) -> None:
        """Find the jobs of an ack, and end their leases."""
        leases = finished.queue.leases
        grant = whole_grant(leases, ack.node, ack.seqs, ack.lease_ids)
        if grant is not None:
            # Nothing is wrong with an ack that repeats what a claim was told.
            seqs = grant.seqs
            if grant.connection is not None:
                finished.connections.add(grant.connection)
        else:
            found = find_held(leases, ack.node, ack.seqs, self._check(ack))
            seqs, ack.skipped = found.seqs, found.skipped
            finished.connections |= found.connections
        if seqs:
            ack.jobs = len(seqs)
            finished.acks.append(ack)
            finished.seqs += seqs
            finished.queue.let_go(seqs)
            ack.in_flight = len(leases)

    # Their deletion

    def _delete(self, finished: _Finished) -> None:
        """Delete jobs whose leases have ended; answer their acks when that is logged."""
        state, topic, queue = self._state, finished.topic, finished.queue
        mine = BitMap64(finished.seqs)
        logged = finished.logged
        queue.finish(mine)

        def done(error: HeadraceError | None) -> None:
            if error is None:
                self._deleted(finished, mine)
                return
            queue.give_back(queue.busy & mine)
            self._workers.wake_soon(topic)
            fail_all(finished.acks, typed(error))

        def stage() -> None:
            try:
                # Files may have been asked meanwhile.
                if logged:
                    state.refuse_writes(state.shard_of(topic.id))
            except HeadraceError as refusal:
                done(refusal)
                return
            if logged and topic.live:
                entry = RecordsDelete(0, mine.serialize())
                needs_sync = topic.needs_sync or topic.unsettled_syncs > 0
                state.log(topic, ENTRY_RECORDS_DELETE, entry, needs_sync=needs_sync, done=done)
            else:
                done(None)

        fetch_sizes(state, topic, mine, stage)
        if finished.connections:
            self._workers.note_room(topic, finished.connections)

    def _deleted(self, finished: _Finished, mine: BitMap64) -> None:
        """Make a logged deletion true, and answer its acks."""
        state, topic = self._state, finished.topic
        shard = state.shard_of(topic.id)
        if topic.live:
            try:
                apply_delete(state, topic, 0, mine)
            except MemoryError:
                # It may be applied in part: only the log knows, and a restart reads it.
                fail_all(finished.acks, shard.halt())
                raise
        sync_ns = shard.sync_ns if topic.needs_sync else 0
        ready, now_held = counts_of(topic)
        answers = []
        for ack in finished.acks:
            # One that waits for nothing is answered before those behind it.
            held = now_held if finished.logged else ack.in_flight
            answers.append(Acked(ack.name, ack.jobs, ack.skipped, ready, held, sync_ns))
        resolve_all(finished.acks, answers)
