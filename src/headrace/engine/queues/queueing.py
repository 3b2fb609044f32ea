"""Queues: claim, acknowledge, give back, hold longer; each call is at most one entry of the log.

Only this file answers for queues.  The rules of who may have which job are in `state.py`;
here is what makes them true on disk:

* an ack is a delete of records, and as durable as the topic's class says when it is answered;
* with `leases_durable` a claim, a nack and an extend are answered once their entry is as durable;
* without it, claims are logged for the delivery counts alone, and nobody waits for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pyroaring import BitMap64

from headrace.core import limits
from headrace.core.errors import (
    BatchTooLarge,
    HeadraceError,
    InvalidRequest,
    NotAQueue,
    TopicNotFound,
    typed,
)
from headrace.core.runtime import Ticket
from headrace.engine import retention
from headrace.engine.append import Appender
from headrace.engine.core_state import Core, failed
from headrace.engine.deleting import apply_delete
from headrace.engine.queues.answers import (
    Acked,
    Claimed,
    Extended,
    Holder,
    Nacked,
    QueueCounts,
    check_ms,
    clamped_lease,
    counts_of,
    parse_lease_id,
)
from headrace.engine.queues.claims import Claim, Claims
from headrace.engine.queues.moves import Mover, Redrive, Redriven
from headrace.engine.queues.replay import lease_events
from headrace.engine.queues.rows import fetch_sizes
from headrace.engine.queues.state import Found, QueueState
from headrace.engine.queues.workers import Wake, Workers
from headrace.engine.reading import Reader
from headrace.engine.topic import Topic
from headrace.storage.frame import (
    ENTRY_QUEUE,
    ENTRY_RECORDS_DELETE,
    EVENT_EXTEND,
    EVENT_RELEASE,
    QueueEvent,
    RecordsDelete,
)

T = TypeVar("T")


class Queues:
    """The queues of one engine.  What a call refuses is the error of its ticket."""

    def __init__(self, core: Core, appender: Appender, reader: Reader) -> None:
        self._core = core
        self._workers = Workers(core, self._tick)
        self._mover = Mover(core, appender, reader, self._workers.stir)
        self._claims = Claims(core, self._mover, self._workers, self._look)
        self._known: dict[int, Topic] = {}  # topics whose jobs something is known of
        core.on_topic_deleted.append(self._forget)

    def resume(self) -> None:
        """After a recovery: finish what was being moved."""
        for topic in list(self._core.by_id.values()):
            if topic.queue is not None:
                self._known[topic.id] = topic
                self._mover.resume(topic, topic.queue)

    def _forget(self, topic: Topic) -> None:
        """A topic was deleted."""
        self._known.pop(topic.id, None)
        self._claims.forget(topic)
        self._mover.forget(topic)
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
        """Lease up to `count` jobs to a node, of so many bytes; none is an answer too."""
        core = self._core
        ticket: Ticket[Claimed] = Ticket(core.runtime)
        try:
            topic = self._topic(name)
            self._check_node(node)
            lease_ms = topic.config.lease_ms if lease_ms is None else clamped_lease(lease_ms)
            if not limits.is_seq(count):
                raise InvalidRequest(f"max is {count!r}", fix="send a number from 1 on")
            want = min(max(count, 1), limits.claims_per_request_max)
            most = core.settings.claim_bytes_max
            most = most if bytes_max is None else min(bytes_max, most)
            claim = Claim(ticket, node, want, lease_ms, connection, most)
            # What routers are about to bring can be claimed.
            drained = core.drain(name) if name in core.routed else None
            if drained is None:
                self._claim(topic, claim)
            else:
                drained.when_done(lambda _: self._claim(topic, claim))
        except HeadraceError as error:
            ticket.fail(error)
        return ticket

    def _claim(self, topic: Topic, claim: Claim) -> None:
        try:
            if not topic.live:
                raise TopicNotFound.named(topic.name)
            self._refuse_undurable(topic)
            self._refuse_unlogged(topic)
            self._claims.claim(topic, claim)
        except HeadraceError as error:
            claim.ticket.fail(error)

    def ack(
        self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None = None
    ) -> Ticket[Acked]:
        """These jobs are done: they are deleted, all in one entry of the log."""
        core = self._core
        try:
            ids = self._check(node, seqs, lease_ids)
            topic = self._topic(name)
            logged = core.is_logged(topic)
            if logged:
                core.refuse_writes(core.shard_of(topic.id))
        except HeadraceError as refusal:
            return failed(core.runtime, refusal)
        ticket: Ticket[Acked] = Ticket(core.runtime)
        queue, found = self._find(topic, node, seqs, ids)
        if not found.seqs:
            ticket.resolve(Acked(name, 0, found.skipped, *counts_of(topic)))
            return ticket
        mine = BitMap64(found.seqs)
        queue.finish(mine)

        def done(error: HeadraceError | None) -> None:
            if error is not None:
                queue.give_back(queue.busy & mine)
                self._workers.stir(topic)
                ticket.fail(typed(error))
                return
            if topic.live:
                apply_delete(core, topic, 0, mine)
            sync_ns = core.shard_of(topic.id).sync_ns if topic.needs_sync else 0
            ticket.resolve(Acked(name, len(mine), found.skipped, *counts_of(topic), sync_ns))

        def stage() -> None:
            try:
                # Files may have been asked meanwhile.
                if logged:
                    core.refuse_writes(core.shard_of(topic.id))
            except HeadraceError as refusal:
                done(refusal)
                return
            entry = RecordsDelete(0, mine.serialize())
            needs_sync = topic.needs_sync or topic.unsettled_syncs > 0
            if logged and topic.live:
                core.log(topic, ENTRY_RECORDS_DELETE, entry, needs_sync=needs_sync, done=done)
            else:
                done(None)

        fetch_sizes(core, topic, mine, stage)
        if found.connections:
            self._workers.hungry(topic, found.connections)
        return ticket

    def nack(
        self,
        name: str,
        node: str,
        seqs: Sequence[int],
        delay_ms: int = 0,
        lease_ids: Sequence[str] | None = None,
    ) -> Ticket[Nacked]:
        """Give jobs back, to be claimed at once or after a delay."""
        core = self._core
        try:
            ids = self._check(node, seqs, lease_ids)
            delay_ms = min(check_ms("delay_ms", delay_ms), limits.nack_delay_ms_max)
            topic = self._topic(name)
            self._refuse_undurable(topic)
        except HeadraceError as refusal:
            return failed(core.runtime, refusal)
        queue, found = self._find(topic, node, seqs, ids)
        until = core.clock.now_ms() + delay_ms if delay_ms else 0
        if found.seqs:
            queue.release(found.seqs, until, delay_ms)
            self._workers.hungry(topic, found.connections)
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
        """Hold jobs until so long from now, under the leases they have."""
        core = self._core
        try:
            ids = self._check(node, seqs, lease_ids)
            lease_ms = clamped_lease(lease_ms)
            topic = self._topic(name)
            self._refuse_undurable(topic)
        except HeadraceError as refusal:
            return failed(core.runtime, refusal)
        queue, found = self._find(topic, node, seqs, ids)
        deadline = core.clock.now_ms() + lease_ms
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
        """What a queue holds, now."""
        topic = self._topic(name)
        retention.enforce(self._core, topic)
        return self.counts_of(topic)

    def counts_of(self, topic: Topic) -> QueueCounts:
        """The same of a queue as it is: nothing is evicted for somebody who only looks."""
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
        """Who holds a job, now; None: nobody."""
        topic = self._topic(name)
        self._tick(topic)
        grant = None if topic.queue is None else topic.queue.leases.get(seq)
        return None if grant is None else Holder(grant.node, grant.lease_id(seq), grant.deadline)

    @property
    def leases(self) -> int:
        """Jobs of all queues that are held, or were and are overdue: for metrics."""
        known = self._known.values()
        return sum([topic.queue.in_flight for topic in known if topic.queue is not None])

    def redrive(self, name: str, asked: Redrive | None = None) -> Ticket[Redriven]:
        """Move jobs of a dead letter topic back to where they came from, a step at a time.

        What a step has moved stays moved; go on with `from_seq=next_from_seq` until it is `done`.
        """
        try:
            return self._mover.redrive(self._core.topic(name), asked or Redrive())
        except HeadraceError as refusal:
            return failed(self._core.runtime, refusal)

    # Workers that are pushed jobs

    def topic(self, name: str) -> Topic:
        """The queue of a name, or why there is none."""
        return self._topic(name)

    def connect(self, name: str, wake: Wake) -> int:
        """A worker is there until `disconnect`; what it claims by this number ends with it.

        `wake` is called when there may be something to claim; it claims what there is room for,
        and says whether there is room for more.  It is also called when the topic is gone.
        """
        return self._workers.connect(self._topic(name), wake)

    def disconnect(self, connection: int) -> None:
        """A worker is gone: its jobs can be claimed at once."""
        topic = self._workers.disconnect(connection)
        if topic is None or topic.queue is None or not topic.live:
            return
        seqs = topic.queue.disconnect(connection)
        if seqs and self._durable(topic) and not self._core.shard_of(topic.id).troubled:
            # A start without this entry ends the leases of connections all the same.
            event = QueueEvent(EVENT_RELEASE, seqs)
            self._core.mark(topic)
            self._core.log(topic, ENTRY_QUEUE, event, needs_sync=topic.needs_sync)
        self._workers.stir(topic)

    def held_by(self, connection: int) -> int:
        """Jobs that a worker holds."""
        topic = self._workers.topic_of(connection)
        if topic is None or topic.queue is None:
            return 0
        self._tick(topic)
        return topic.queue.held_by(connection)

    # Checks

    def _topic(self, name: str) -> Topic:
        topic = self._core.topic(name)
        if topic.config.type != "queue":
            raise NotAQueue(
                f"{name!r} is a log",
                fix='read it, or create a topic with type "queue"',
                detail={"topic": name},
            )
        return topic

    def _check_node(self, node: str) -> None:
        length = len(node.encode(errors="replace")) if isinstance(node, str) else 0
        bytes_max = self._core.settings.node_bytes_max
        if not 1 <= length <= bytes_max:
            raise InvalidRequest(f"node has {length} bytes", fix=f"use 1 to {bytes_max}")

    def _check(
        self, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None
    ) -> list[int | None] | None:
        ids = None if lease_ids is None else [parse_lease_id(text) for text in lease_ids]
        self._check_node(node)
        if len(seqs) > limits.claims_per_request_max:
            raise BatchTooLarge(
                f"{len(seqs)} seqs in one call",
                fix=f"send at most {limits.claims_per_request_max} at a time",
                detail={"seqs": len(seqs), "max": limits.claims_per_request_max},
            )
        if ids is not None and len(ids) != len(seqs):
            raise InvalidRequest(
                f"{len(ids)} lease_ids for {len(seqs)} seqs", fix="send one for each seq, or none"
            )
        return ids

    def _durable(self, topic: Topic) -> bool:
        return topic.config.leases_durable and self._core.is_logged(topic)

    def _refuse_undurable(self, topic: Topic) -> None:
        if self._durable(topic):
            self._core.refuse_writes(self._core.shard_of(topic.id))

    def _refuse_unlogged(self, topic: Topic) -> None:
        """Claims are logged too, so there must be room; that the log is broken is no hindrance."""
        core = self._core
        shard = core.shard_of(topic.id)
        full = shard.pending_bytes >= shard.pending_bytes_max and core.is_logged(topic)
        if core.closing or (full and not shard.troubled):
            core.refuse_writes(shard)

    # Shared

    def _look(self, topic: Topic) -> QueueState:
        """Before anything is decided: what has expired is gone, what is overdue is free."""
        retention.enforce(self._core, topic)
        queue = topic.queue
        if queue is None:
            queue = topic.queue = QueueState()
            self._known[topic.id] = topic
        config = topic.config
        queue.limit_deliveries(config.max_deliveries if config.dead_letter else 0)
        self._tick(topic)
        if queue.durable != self._durable(topic):
            self._durable_from_now(topic, queue)
        return queue

    def _durable_from_now(self, topic: Topic, queue: QueueState) -> None:
        """The config has changed: tell the log what it has to know from here on."""
        core, durable = self._core, self._durable(topic)
        if durable and (core.shard_of(topic.id).troubled or core.closing):
            return
        queue.durable = durable
        if durable:
            core.mark(topic)
            for event in lease_events(queue):
                core.log(topic, ENTRY_QUEUE, event, needs_sync=topic.needs_sync)

    def _tick(self, topic: Topic) -> None:
        queue = topic.queue
        if queue is not None:
            lost = queue.advance(self._core.clock.now_ms())
            if lost is not None:
                self._workers.hungry(topic, lost)

    def _find(
        self, topic: Topic, node: str, seqs: Sequence[int], ids: Sequence[int | None] | None
    ) -> tuple[QueueState, Found]:
        queue = self._look(topic)
        return queue, queue.find(node, seqs, ids)

    def _logged(self, topic: Topic, event: QueueEvent, answer: T) -> Ticket[T]:
        """Give the answer once the event is as durable as it has to be."""
        ticket: Ticket[T] = Ticket(self._core.runtime)

        def done(error: HeadraceError | None) -> None:
            if error is not None:
                ticket.fail(error)
            else:
                ticket.resolve(answer)

        if event.seqs and self._durable(topic):
            self._core.mark(topic)
            self._core.log(topic, ENTRY_QUEUE, event, needs_sync=topic.needs_sync, done=done)
        else:
            done(None)
        return ticket
