"""A queue after a start: what a snapshot kept, then what the log says, gives what was promised.

Only this file turns queue state into what is stored and back.  Applying an event to a state that is
later already is right once the rest of the log follows, because every event says what holds after
it and nothing of what held before.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap64

from headrace.engine.queues.claim_order import Span
from headrace.engine.queues.grants import Grant
from headrace.engine.queues.state import QueueState
from headrace.engine.removal.deleting import apply_delete
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.snapshot.queue_record import (
    DelayState,
    HeldState,
    MoveState,
    QueueRecord,
    decode_queue,
    encode_queue,
)
from headrace.storage.wal.frame import (
    EVENT_BURY,
    EVENT_CLAIM,
    EVENT_EXTEND,
    EVENT_MOVED,
    EVENT_RELEASE,
    EVENT_REVIVE,
    EVENT_STAYED,
    Held,
    QueueEvent,
)

EVENT_JOBS = 1_000  # in one entry that tells the log of leases that are there


def replay_event(state: EngineState, topic: Topic, event: QueueEvent) -> None:
    """Apply what the log says of a topic's jobs."""
    queue = topic.make_queue()
    if event.what in (EVENT_CLAIM, EVENT_RELEASE, EVENT_EXTEND):
        _replay_lease(queue, event)
    elif event.what in (EVENT_BURY, EVENT_REVIVE):
        queue.moves = max(queue.moves, event.number)
        queue.moving[event.number] = MoveState(
            event.number, event.what, event.topic, list(event.seqs)
        )
    else:
        assert event.what in (EVENT_MOVED, EVENT_STAYED), event.what
        queue.moving.pop(event.number, None)
        if event.what == EVENT_MOVED:
            assert isinstance(event.counts, int)
            queue.dead_lettered = max(queue.dead_lettered, event.counts)
            apply_delete(state, topic, 0, BitMap64(event.seqs))


def _replay_lease(queue: QueueState, event: QueueEvent) -> None:
    seqs = BitMap64(event.seqs)
    queue.free -= seqs
    queue.spent -= seqs
    if event.what == EVENT_RELEASE:
        queue.release(seqs, event.until_ms, event.held_ms)
    elif event.what == EVENT_EXTEND:
        known = [seq for seq in event.seqs if seq in queue.leases]
        queue.extend(known, event.until_ms, event.held_ms)
    else:
        queue.unlease(seqs)
        queue.cursor = max(queue.cursor, seqs.max() if seqs else 0)
        counts = event.counts
        for index, seq in enumerate(event.seqs):
            count = counts if isinstance(counts, int) else counts[index]
            queue.deliveries[seq] = max(count, queue.deliveries.get(seq, 0))
        start = 0
        for held in event.held:
            queue.adopt(_grant(held, event.seqs[start : start + held.jobs]))
            start += held.jobs
        # So that a delete that follows finds what is known of them.
        queue.free |= seqs - queue.held


def _grant(held: Held | HeldState, seqs: list[int]) -> Grant:
    return Grant(
        held.token, held.node, None, held.deadline_ms, held.held_ms, seqs, bound=held.bound
    )


def replay_config(topic: Topic) -> None:
    """The config says from here on whether leases are durable; those that are not have ended."""
    if topic.queue is not None and not topic.config.leases_durable:
        topic.queue.forget_leases()


def lease_events(queue: QueueState) -> Iterator[QueueEvent]:
    """What says of every lease and delay that it is there: for a log that knew of none."""
    seqs: list[int] = []
    leases: list[Held] = []
    for grant in dict.fromkeys(queue.leases.values()):
        mine = [seq for seq in grant.seqs if queue.leases.get(seq) is grant]
        seqs += mine
        leases.append(
            Held(grant.token, grant.node, grant.deadline, grant.held_ms, grant.bound, len(mine))
        )
        if len(seqs) >= EVENT_JOBS:
            yield QueueEvent(EVENT_CLAIM, seqs, [queue.deliveries[seq] for seq in seqs], leases)
            seqs, leases = [], []
    if seqs:
        yield QueueEvent(EVENT_CLAIM, seqs, [queue.deliveries[seq] for seq in seqs], leases)
    for delay in dict.fromkeys(queue.delays.values()):
        mine = [seq for seq in delay.seqs if queue.delays.get(seq) is delay]
        yield QueueEvent(EVENT_RELEASE, mine, until_ms=delay.until, held_ms=delay.held_ms)


def settle(queue: QueueState, now: int, span: Span, *, durable: bool) -> None:
    """After a replay: what is dead is forgotten, and nothing alive is forgotten.

    Leases of connections end, since these have, and so do all that are not `durable`; no lease or
    delay is longer than it was given.
    """
    queue.durable = durable
    if not durable:
        queue.forget_leases()
    queue.cursor = min(queue.cursor, span.head)
    live = span.between(0, span.head)
    queue.dropped(queue.held - live)
    for seq in BitMap64(queue.deliveries) - live:
        del queue.deliveries[seq]
    for grant in dict.fromkeys(queue.leases.values()):
        if grant.bound:
            queue.drop_grant(grant)
        elif grant.deadline > now + grant.held_ms:
            jobs = [seq for seq in grant.seqs if queue.leases.get(seq) is grant]
            queue.extend(jobs, now + grant.held_ms, grant.held_ms)
    for delay in dict.fromkeys(queue.delays.values()):
        if delay.until > now + delay.held_ms:
            jobs = [seq for seq in delay.seqs if queue.delays.get(seq) is delay]
            queue.release(jobs, now + delay.held_ms, delay.held_ms)
    queue.busy = BitMap64(seq for move in queue.moving.values() for seq in move.seqs) & live
    queue.unlease(queue.busy)
    # Also what was handed out by a claim whose entry the log did not take.
    queue.free, queue.spent = BitMap64(), BitMap64()
    queue.set_free(span.between(0, queue.cursor) - queue.held - queue.busy)


def stored_queue(topic: Topic) -> bytes:
    """What a snapshot keeps of a topic's jobs; leases and delays only where they are durable."""
    queue = topic.queue
    if queue is None or not (queue.cursor or queue.moves):
        return b""
    by_count: dict[int, BitMap64] = {}
    for seq, count in queue.deliveries.items():
        by_count.setdefault(count, BitMap64()).add(seq)
    durable = topic.config.leases_durable
    grants = dict.fromkeys(queue.leases.values()) if durable else {}
    delays = dict.fromkeys(queue.delays.values()) if durable else {}
    record = QueueRecord(
        queue.cursor,
        queue.dead_lettered,
        queue.moves,
        [(count, seqs.serialize()) for count, seqs in sorted(by_count.items())],
        [
            HeldState(
                grant.token, grant.node, grant.deadline, grant.held_ms, grant.bound,
                [seq for seq in grant.seqs if queue.leases.get(seq) is grant],
            )
            for grant in grants
        ],
        [
            DelayState(
                delay.until, delay.held_ms,
                [seq for seq in delay.seqs if queue.delays.get(seq) is delay],
            )
            for delay in delays
        ],
        list(queue.moving.values()),
    )  # fmt: skip
    return encode_queue(record)


def restored_queue(data: bytes) -> QueueState | None:
    """The state a snapshot kept; `settle` it once the log was replayed on it."""
    if not data:
        return None
    record = decode_queue(data)
    queue = QueueState()
    queue.cursor = record.cursor
    queue.dead_lettered = record.dead_lettered
    queue.moves = record.moves
    for count, seqs in record.deliveries:
        queue.deliveries.update(dict.fromkeys(BitMap64.deserialize(seqs), count))
    for held in record.held:
        queue.adopt(_grant(held, held.seqs))
    for delay in record.delays:
        queue.release(delay.seqs, delay.until_ms, delay.held_ms)
    queue.moving = {move.number: move for move in record.moving}
    return queue
