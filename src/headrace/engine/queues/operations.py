"""The calls of queues: claim, ack, nack, extend; each is at most one entry of the log.

Claims and acks that come together share one.  `claims.py` hands jobs out, `acks.py` deletes them;
the rules of who may have which job are in `state.py`.  What makes them true on disk:

* an ack is a delete of records, and as durable as the topic's class says when it is answered;
* with `leases_durable` a claim, a nack and an extend are answered once their entry is as durable;
* without it, claims are logged for the delivery counts alone, and nobody waits for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from headrace.core import limits
from headrace.core.errors import HeadraceError, InvalidRequest, NotAQueue, TopicNotFound
from headrace.core.runtime import Ticket
from headrace.engine.appending.append import Appender
from headrace.engine.queues.acks import Acks
from headrace.engine.queues.answers import (
    Acked,
    Claimed,
    Extended,
    Holder,
    Nacked,
    QueueCounts,
    counts_of,
)
from headrace.engine.queues.calls import Ack, Claim, fail_all
from headrace.engine.queues.claims import Claims
from headrace.engine.queues.dead_letters import DeadLetters, Redrive, Redriven
from headrace.engine.queues.grants import Found, find_held
from headrace.engine.queues.lease_log import (
    leases_are_logged,
    log_from_now,
    refuse_unless_logged,
    refuse_without_room,
)
from headrace.engine.queues.requests import check_jobs, check_ms, check_node, clamped_lease
from headrace.engine.queues.state import QueueState
from headrace.engine.queues.workers import Wake, Workers
from headrace.engine.reading.read import Reader
from headrace.engine.removal import retention
from headrace.engine.state import EngineState, failed
from headrace.engine.streams import rules
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.frame import (
    ENTRY_QUEUE,
    EVENT_EXTEND,
    EVENT_RELEASE,
    QueueEvent,
)

T = TypeVar("T")


class Queues:
    """The queues of one engine.  What a call refuses is the error of its ticket."""

    def __init__(self, state: EngineState, appender: Appender, reader: Reader) -> None:
        self._state = state
        self._workers = Workers(state, self._tick)
        self._dead_letters = DeadLetters(state, appender, reader, self._workers.wake_soon)
        self._claims = Claims(
            state, self._dead_letters, self._workers, self._look, lambda: self.jobs_out
        )
        self._acks = Acks(state, self._workers, self.topic, self._look)
        self._known: dict[int, Topic] = {}  # topics whose jobs something is known of
        state.on_topic_deleted(self._forget)

    def resume(self) -> None:
        """After a recovery: finish what was being moved."""
        for topic in list(self._state.by_id.values()):
            if topic.queue is not None:
                self._known[topic.id] = topic
                self._dead_letters.resume(topic, topic.queue)

    def _forget(self, topic: Topic) -> None:
        """Forget a topic that was deleted."""
        self._known.pop(topic.id, None)
        self._claims.forget(topic)
        self._dead_letters.forget(topic)
        self._workers.forget(topic)

    # Calls

    def claim(
        self,
        name: str,
        node: str,
        count: int = 1,
        lease_ms: int | None = None,
        *,
        connection: int | None = None,
        bytes_max: int | None = None,
    ) -> Ticket[Claimed]:
        """Lease up to `count` jobs, of at most `bytes_max`, to a node; the answer may be no job."""
        claim = Claim(self._state.runtime, name, node, count, lease_ms, connection, bytes_max)
        self.claim_all([claim])
        return claim

    def claim_all(self, asked: Sequence[Claim]) -> None:
        """Lease jobs to claims, in their order; each is done when it is answered or refused.

        One that is refused changes nothing, and the others go on.
        """
        state = self._state
        by_topic: dict[str, tuple[Topic, list[Claim]]] = {}
        for claim in asked:
            try:
                known = by_topic.get(claim.name)
                topic = self.topic(claim.name) if known is None else known[0]
                self._admit(topic, claim)
                by_topic.setdefault(claim.name, (topic, []))[1].append(claim)
            except Exception as error:  # noqa: BLE001 - one caller's mistake is not the others'
                fail_all([claim], error)
        for name, (topic, claims) in by_topic.items():
            # What routers are about to bring can be claimed.
            drained = state.drain(name) if name in state.routed else None
            if drained is None:
                self._claim(topic, claims)
            else:
                drained.when_done(partial(self._claim_drained, topic, claims))

    def _admit(self, topic: Topic, claim: Claim) -> None:
        """Raise what is wrong with a claim, or note what it may have."""
        settings = self._state.settings
        check_node(claim.node, settings.node_bytes_max)
        lease_ms = claim.lease_ms
        claim.held_ms = topic.config.lease_ms if lease_ms is None else clamped_lease(lease_ms)
        if not limits.is_seq(claim.count):
            raise InvalidRequest(f"max is {claim.count!r}", fix="send a number from 1 on")
        claim.want = min(max(claim.count, 1), limits.claims_per_request_max)
        most = settings.claim_bytes_max
        claim.most = most if claim.bytes_max is None else min(claim.bytes_max, most)

    def _claim(self, topic: Topic, claims: Sequence[Claim]) -> None:
        try:
            if not topic.live:
                raise TopicNotFound.named(topic.name)
            refuse_unless_logged(self._state, topic)
            refuse_without_room(self._state, topic)
        except HeadraceError as refusal:
            fail_all(claims, refusal)
            return
        self._claims.claim_all(topic, claims)

    def _claim_drained(self, topic: Topic, claims: Sequence[Claim], _drained: Ticket[None]) -> None:
        self._claim(topic, claims)

    def ack(
        self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None = None
    ) -> Ticket[Acked]:
        """Delete jobs, which are done, all in one entry of the log."""
        ack = Ack(self._state.runtime, name, node, seqs, lease_ids)
        self.ack_all([ack])
        return ack

    def ack_all(self, asked: Sequence[Ack]) -> None:
        """Delete the jobs of acks, in their order; those of one topic in one entry of the log.

        One that is refused changes nothing, and the others go on.
        """
        self._acks.ack_all(asked)

    def nack(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        delay_ms: int = 0,
        lease_ids: Sequence[str] | None = None,
    ) -> Ticket[Nacked]:
        """Give jobs back, to be claimed at once or after a delay."""
        state = self._state
        try:
            ids = check_jobs(node, state.settings.node_bytes_max, seqs, lease_ids)
            delay_ms = min(check_ms("delay_ms", delay_ms), limits.nack_delay_ms_max)
            topic = self.topic(name)
            refuse_unless_logged(state, topic)
        except HeadraceError as refusal:
            return failed(state.runtime, refusal)
        queue, found = self._find(topic, node, seqs, ids)
        until = state.clock.now_ms() + delay_ms if delay_ms else 0
        if found.seqs:
            queue.release(found.seqs, until, delay_ms)
            self._workers.note_room(topic, found.connections)
        event = QueueEvent(EVENT_RELEASE, found.seqs, until_ms=until, held_ms=delay_ms)
        answer = Nacked(name, len(found.seqs), found.skipped, *counts_of(topic))
        return self._logged(topic, event, answer)

    def extend(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        lease_ms: int,
        lease_ids: Sequence[str] | None = None,
    ) -> Ticket[Extended]:
        """Hold jobs for `lease_ms` from now, under the leases they have."""
        state = self._state
        try:
            ids = check_jobs(node, state.settings.node_bytes_max, seqs, lease_ids)
            lease_ms = clamped_lease(lease_ms)
            topic = self.topic(name)
            refuse_unless_logged(state, topic)
        except HeadraceError as refusal:
            return failed(state.runtime, refusal)
        queue, found = self._find(topic, node, seqs, ids)
        deadline = state.clock.now_ms() + lease_ms
        if found.seqs:
            queue.extend(found.seqs, deadline, lease_ms)
            self._workers.arm(topic)
        event = QueueEvent(EVENT_EXTEND, found.seqs, until_ms=deadline, held_ms=lease_ms)
        deadlines = dict.fromkeys(found.seqs, deadline)
        # A seq that was named twice is held all the same: who hears of it as skipped would drop it.
        skipped = [seq for seq in found.skipped if seq not in deadlines]
        answer = Extended(name, len(found.seqs), skipped, deadlines)
        return self._logged(topic, event, answer)

    def counts(self, name: str) -> QueueCounts:
        """Return what a queue holds, after what is due has been evicted."""
        topic = self.topic(name)
        retention.enforce(self._state, topic)
        return self.counts_of(topic)

    def counts_of(self, topic: Topic) -> QueueCounts:
        """Return what a queue holds as it is: nothing is evicted for a caller who only looks."""
        queue = topic.queue
        if queue is None:
            return QueueCounts(topic.count, 0, 0, 0)
        self._tick(topic)
        return QueueCounts(
            queue.ready(topic.count),
            queue.in_flight,
            queue.delayed,
            queue.dead_lettered,
            len(queue.unreadable),
        )

    def holder(self, name: str, seq: int) -> Holder | None:
        """Return who holds a job now; None: nobody."""
        topic = self.topic(name)
        self._tick(topic)
        grant = None if topic.queue is None else topic.queue.leases.get(seq)
        return None if grant is None else Holder(grant.node, grant.lease_id(seq), grant.deadline)

    @property
    def leases(self) -> int:
        """Jobs of all queues that are held, or were and are overdue: for metrics."""
        known = self._known.values()
        return sum([topic.queue.in_flight for topic in known if topic.queue is not None])

    @property
    def jobs_out(self) -> int:
        """Jobs of all queues that were delivered and are not done."""
        known = self._known.values()
        return sum([len(topic.queue.deliveries) for topic in known if topic.queue is not None])

    def redrive(self, name: str, asked: Redrive | None = None) -> Ticket[Redriven]:
        """Move jobs of a dead letter topic back to where they came from, a step at a time.

        What a step has moved stays moved; go on with `from_seq=next_from_seq` until it is `done`.
        """
        try:
            topic = self._state.topic(name)
            rules.refuse_change(topic, "redrive")
            return self._dead_letters.redrive(topic, asked or Redrive())
        except HeadraceError as refusal:
            return failed(self._state.runtime, refusal)

    # Workers that are pushed jobs

    def connect(self, name: str, wake: Wake) -> int:
        """Register a worker until `disconnect`; return the number under which it claims.

        Leases of claims under that number end with it.  `wake` is called when there may be
        something to claim; it claims what there is room for, and says whether there is room for
        more.  It is also called when the topic is gone.
        """
        return self._workers.connect(self.topic(name), wake)

    def disconnect(self, connection: int) -> None:
        """Forget a worker that is gone: its jobs can be claimed at once."""
        topic = self._workers.disconnect(connection)
        if topic is None or topic.queue is None or not topic.live:
            return
        seqs = topic.queue.disconnect(connection)
        if seqs and leases_are_logged(topic) and not self._state.shard_of(topic.id).troubled:
            # A start without this entry ends the leases of connections all the same.
            event = QueueEvent(EVENT_RELEASE, seqs)
            topic.mark_changed()
            self._state.log(topic, ENTRY_QUEUE, event, needs_sync=topic.needs_sync)
        self._workers.wake_soon(topic)

    def held_by(self, connection: int) -> int:
        """Return how many jobs a worker holds."""
        topic = self._workers.topic_of(connection)
        if topic is None or topic.queue is None:
            return 0
        self._tick(topic)
        return topic.queue.held_by(connection)

    # Checks

    def topic(self, name: str) -> Topic:
        """Return the queue of a name, or raise why there is none."""
        topic = self._state.topic(name)
        rules.refuse_change(topic, "job")
        if topic.config.type != "queue":
            raise NotAQueue(
                f"{name!r} is a log",
                fix='read it, or create a topic with type "queue"',
                detail={"topic": name},
            )
        return topic

    # Shared

    def _look(self, topic: Topic) -> QueueState:
        """Return the queue of a topic once what has expired is gone and what is overdue is free."""
        retention.enforce(self._state, topic)
        queue = topic.queue
        if queue is None:
            queue = topic.make_queue()
            self._known[topic.id] = topic
        config = topic.config
        queue.limit_deliveries(config.max_deliveries if config.dead_letter else 0)
        self._tick(topic)
        if queue.durable != leases_are_logged(topic):
            log_from_now(self._state, topic, queue)
        return queue

    def _tick(self, topic: Topic) -> None:
        queue = topic.queue
        if queue is not None:
            lost = queue.advance(self._state.clock.now_ms())
            if lost is not None:
                self._workers.note_room(topic, lost)

    def _find(
        self, topic: Topic, node: str, seqs: Sequence[int], ids: Sequence[int | None] | None
    ) -> tuple[QueueState, Found]:
        queue = self._look(topic)
        return queue, find_held(queue.leases, node, seqs, ids)

    def _logged(self, topic: Topic, event: QueueEvent, answer: T) -> Ticket[T]:
        """Return a ticket of the answer, resolved once the event is as durable as it has to be."""
        ticket: Ticket[T] = Ticket(self._state.runtime)

        def done(error: HeadraceError | None) -> None:
            if error is not None:
                ticket.fail(error)
            else:
                ticket.resolve(answer)

        if event.seqs and leases_are_logged(topic):
            topic.mark_changed()
            self._state.log(topic, ENTRY_QUEUE, event, needs_sync=topic.needs_sync, done=done)
        else:
            done(None)
        return ticket
