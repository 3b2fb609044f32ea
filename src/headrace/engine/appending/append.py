"""Appending: admit batches, give each its seqs, and stage them.

Only this file gives out seqs, to one append or to all that a turn brings (`append_all` is the only
way in).  Everything that can refuse an append does so before anything changes (`admission.py` has
the checks).  A batch gets consecutive seqs and one timestamp that never goes backwards;
`pending_append.py` makes it visible when it is acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.core.errors import HeadMismatch, OutOfResources
from headrace.core.limits import seq_max
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import (
    PLAIN,
    Append,
    Records,
    check_batch,
    check_quota,
    check_room,
    refuse_closed,
    refuse_oversized,
    rows_of,
)
from headrace.engine.appending.append_block import NOTHING_BESIDE, beside_of, encode_append
from headrace.engine.appending.gathered_appends import GatheredAppends
from headrace.engine.appending.idempotency import digest
from headrace.engine.appending.pending_append import (
    Answered,
    Appended,
    Beside,
    PendingAppend,
)
from headrace.engine.appending.producers import (
    ProducerClaim,
    admit_producer,
    refuse_new_producer,
)
from headrace.engine.removal import retention
from headrace.engine.state import EngineState
from headrace.engine.topics.config import EPHEMERAL, TopicConfig
from headrace.engine.topics.lifecycle import Lifecycle
from headrace.engine.topics.topic import Topic
from headrace.storage.block import KIND_JSON, Block
from headrace.storage.block_encoding import BlockPlace, encode_single
from headrace.storage.snapshot.state import ProducerState
from headrace.storage.wal.shard import WalShard

# Beyond this an append looks whether the seqs suffice; no batch has 2^32 records.
FEW_SEQS_LEFT = seq_max - (1 << 32)


class Appender:
    """Appends to topics, creating them on the way."""

    def __init__(self, state: EngineState, lifecycle: Lifecycle) -> None:
        self._state = state
        self._throttle = state.throttle
        self._has_quota = state.settings.max_total_bytes > 0
        self._lifecycle = lifecycle
        # Appends in flight that a second one with the same key, or number, has to wait for.
        self._keys_in_flight: dict[tuple[int, bytes], Ticket[Appended]] = {}
        self._claims_in_flight: dict[tuple[int, ProducerClaim], Ticket[Appended]] = {}
        # What producers will have had accepted once everything in flight has landed.
        self._claims: dict[tuple[int, str], ProducerState] = {}

    def append(self, name: str, batch: Records, how: Append = PLAIN) -> PendingAppend:
        """Stage one append, or raise; its ticket is done when it is acknowledged."""
        pending = PendingAppend(self._state.runtime, name, batch, how)
        self.append_all([pending])
        if pending.error is not None:
            raise pending.error
        return pending

    def append_all(
        self,
        asked: Sequence[PendingAppend],
        answered: Answered | None = None,
        *,
        ends_turn: bool = False,
    ) -> None:
        """Stage appends in their order; each is done when it is acknowledged or refused.

        One that is refused changes nothing, and the others go on.  `answered` hears of all of
        them, of those together that are done together.  `ends_turn`: nothing else comes in this
        turn, so that the log is written now.
        """
        state, throttle = self._state, self._throttle
        if state.totals.bounded:
            self._enforce_retention(asked)
        full = state.totals.unsealed_bytes > throttle.wait_above_bytes
        gathered = GatheredAppends(state, self, answered, flushes=ends_turn or full)
        # None of it changes before this returns.
        busy = not state.ready or bool(state.loading) or throttle.shedding or self._has_quota
        over = self._append_each(asked, gathered, state.clock.now_ms(), busy)
        try:
            gathered.stage()
        finally:
            if full:
                for shard in state.shards:
                    shard.delayed_flush.within(throttle.write_wait_ms(shard.pending_bytes))
            elif ends_turn:
                for shard in state.shards:
                    shard.flush()
        if answered is not None and over:
            _tell_of(over, answered)

    def _enforce_retention(self, asked: Sequence[PendingAppend]) -> None:
        """Apply caps and TTLs before any seq is given out: that may write to the log."""
        state = self._state
        find = state.by_name.get
        bounded = {
            topic.id: topic
            for pending in asked
            if type(pending.name) is str
            and (topic := find(pending.name)) is not None
            and topic.bounded
        }
        for topic in bounded.values():
            retention.enforce(state, topic)

    def _append_each(
        self, asked: Sequence[PendingAppend], gathered: GatheredAppends, now: int, busy: bool
    ) -> list[PendingAppend]:
        """Check appends, give them their seqs, and gather them.

        Return those that are answered otherwise: refused, or stored before.  `busy`: there is
        something in the engine's state that may refuse appends.
        """
        state, over = self._state, list[PendingAppend]()
        find, clock, bytes_max = state.by_name.get, state.clock, state.settings.record_bytes_max
        only = state.shards[0] if len(state.shards) == 1 else None
        for pending in asked:
            try:
                name, batch, how = pending.name, pending.batch, pending.how
                if busy:
                    self._refuse_unready(name)
                # The only record of an append without conditions, as most are.
                single = batch if type(batch) is msgspec.Raw and how is PLAIN else None
                size = bytes_max + 1 if single is None else len(single)
                if size > bytes_max:
                    size = check_batch(state.settings, batch, how)
                topic = find(name) if type(name) is str else state.find(name)
                if topic is None:
                    topic = self._create(name, how, rows_of(batch), size)
                    pending.created = True
                if how is not PLAIN and not self._meets_conditions(topic, how, pending):
                    over.append(pending)
                    continue
                shard = only or state.shard_of(topic.id)
                if (gathered.room <= 0 or gathered.shard is not shard) and not pending.created:
                    gathered.open(shard)
                before, ts = topic.staged, topic.last_ts
                if busy or not topic.ordinary or before > FEW_SEQS_LEFT:
                    self._check_topic(topic, pending, gathered, shard, size)
                if now > ts:
                    ts = now
                last = before + (1 if single is not None else rows_of(batch))
                reserve, needs_sync = topic.reserve(last, shard, clock)
                if single is not None:
                    block = encode_single(single, KIND_JSON, topic.id, last, ts, now, reserve)
                else:
                    place = BlockPlace(topic.id, before + 1, ts, now, reserve)
                    block = encode_append(batch, how, place, topic.last_ts)
                try:
                    if pending.created:
                        self._begin_topic(topic, block, gathered, shard)
                    pending.batch, pending.topic, pending.block = _TAKEN, topic, block
                    if needs_sync:
                        pending.needs_sync = True
                        gathered.syncs = gathered.syncs or topic.syncs_itself(last)
                    if reserve:
                        pending.reserve = reserve
                    topic.stage(block, needs_sync, reserve)
                    if single is None and beside_of(how) != NOTHING_BESIDE:
                        self._track(topic, how, pending)
                    if topic.ephemeral and not topic.changing:
                        gathered.add_unlogged(pending, shard)
                    else:
                        gathered.appends.append(pending)
                        gathered.room -= len(block.raw)
                except MemoryError:
                    raise shard.halt() from None
            except Exception as error:  # noqa: BLE001 - one caller's mistake is not the others'
                # Where memory ran out nothing has changed: after that the log is halted.
                short = isinstance(error, MemoryError)
                pending.fail(OutOfResources.told("nothing") if short else error)
                over.append(pending)
        return over

    def _begin_topic(
        self, topic: Topic, block: Block, gathered: GatheredAppends, shard: WalShard
    ) -> None:
        """Log the creation of a topic for its first append, behind what was gathered before."""
        gathered.stage()
        self._lifecycle.begin_for_append(topic, block.count)
        gathered.begin(shard)

    def _refuse_unready(self, name: str) -> None:
        """Raise while a topic of this name cannot be written to, because recovery is running."""
        state = self._state
        if not state.ready:
            state.refuse_unready()
        if state.loading:
            state.loading.refuse(name)

    def _meets_conditions(self, topic: Topic, how: Append, pending: PendingAppend) -> bool:
        """Raise if a condition is not met; False: it was answered before."""
        if self._answered_before(topic, how, pending):
            return False
        if how.expected_head_seq is not None and how.expected_head_seq != topic.staged:
            raise HeadMismatch(
                f"the head of {topic.name!r} is {topic.staged}, not {how.expected_head_seq}",
                fix="read on from that head and decide again",
                detail={"topic": topic.name, "head_seq": topic.staged},
            )
        return True

    def _check_topic(
        self,
        topic: Topic,
        pending: PendingAppend,
        gathered: GatheredAppends,
        shard: WalShard,
        size: int,
    ) -> None:
        """Raise if the topic, or the engine, takes no more for now."""
        if not pending.created:  # as `_create` has made sure of
            if topic.closed:
                refuse_closed(topic)
            if self._throttle.shedding:
                gathered.stage()  # so that all who wait are counted
                self._throttle.refuse_if_full(shard, pending.how.disable_backpressure)
                gathered.begin(shard)
            if topic.ephemeral:
                self._state.refuse_ephemeral(size)
        if topic.bounded or self._has_quota or topic.staged > FEW_SEQS_LEFT:
            check_room(self._state, topic, rows_of(pending.batch), size)

    def _create(self, name: str, how: Append, rows: int, size: int) -> Topic:
        """Make the topic on the way, once nothing can refuse the append any more."""
        config = how.config if how.config is not None else _DEFAULT_CONFIG
        create = how.create if how.create is not None else config.auto_create
        self._lifecycle.check_creatable(name, config, create)
        shard = self._state.shard_of(self._state.topics.next_id)
        self._throttle.refuse_if_full(shard, how.disable_backpressure)
        if config.discard == "reject":
            refuse_oversized(name, config, rows, size)
        check_quota(self._state, size)
        if config.durability == EPHEMERAL:
            self._state.refuse_ephemeral(size)
        if how.idempotency_key is not None:
            self._state.keys.refuse_if_full(self._state.clock.now_ms(), len(self._keys_in_flight))
        if how.producer is not None:
            admit_producer(None, how.producer)
        if how.expected_head_seq:
            raise HeadMismatch(
                f"the head of {name!r} is 0, not {how.expected_head_seq}",
                fix="expect 0 of a topic that does not exist",
                detail={"topic": name, "head_seq": 0},
            )
        return self._lifecycle.new_for_append(name, config)

    def _answered_before(self, topic: Topic, how: Append, ticket: Ticket[Appended]) -> bool:
        """Settle the ticket from what is known of this key or producer; False: append it."""
        state = self._state
        if how.idempotency_key is not None:
            now, key = state.clock.now_ms(), digest(how.idempotency_key)
            first = self._keys_in_flight.get((topic.id, key))
            if first is not None:
                _join(first, topic, None, ticket)
                return True
            row = state.keys.find(topic.id, key, topic.config.idempotency_window_ms, now)
            if row is not None:
                last = row.first_seq + row.records - 1
                ticket.resolve(
                    Appended(
                        topic.name, topic.epoch, row.first_seq, last, row.head, row.records,
                        deduped=True,
                    )
                )  # fmt: skip
                return True
            state.keys.refuse_if_full(now, len(self._keys_in_flight))
        claim = how.producer
        return claim is not None and self._produced_before(topic, claim, ticket)

    def _produced_before(
        self, topic: Topic, claim: ProducerClaim, ticket: Ticket[Appended]
    ) -> bool:
        """Settle the ticket if the producer's number is a repeat; False: append it."""
        known = self._claims.get((topic.id, claim.id))
        if known is None and topic.producers is not None:
            known = topic.producers.newest(claim.id)
        if admit_producer(known, claim):
            if known is None:
                self._refuse_if_full(topic)
            return False
        first = self._claims_in_flight.get((topic.id, claim))
        if first is not None:
            _join(first, topic, claim, ticket)
        else:
            ticket.resolve(_stored_before(topic, claim))
        return True

    def _refuse_if_full(self, topic: Topic) -> None:
        """Refuse a new producer where the topic remembers, or will, as many as it may."""
        most = self._state.settings.producers_per_topic_max
        known = topic.producers or ()
        if len(known) + len(self._claims) < most:
            return
        coming = sum(owner == topic.id and id not in known for owner, id in self._claims)
        refuse_new_producer(topic.name, len(known) + coming, most)

    # Staging

    def _track(self, topic: Topic, how: Append, pending: PendingAppend) -> None:
        block, claim = pending.block, how.producer
        assert block is not None
        pending.beside = beside = Beside(state=how.state)
        if how.idempotency_key is not None:
            beside.key = digest(how.idempotency_key)
            self._keys_in_flight[topic.id, beside.key] = pending
        if claim is not None:
            beside.claim = claim
            beside.producer = self._claims[topic.id, claim.id] = ProducerState(
                claim.epoch, claim.sequence, block.first_seq, block.count, block.last_seq
            )
            self._claims_in_flight[topic.id, claim] = pending

    def landed(self, pending: PendingAppend, beside: Beside) -> None:
        """Forget that an append was in flight."""
        assert pending.topic is not None
        topic_id = pending.topic.id
        if beside.key:
            self._keys_in_flight.pop((topic_id, beside.key), None)
        claim = beside.claim
        if claim is not None:
            del self._claims_in_flight[topic_id, claim]
            if self._claims[topic_id, claim.id] is beside.producer:
                del self._claims[topic_id, claim.id]


_DEFAULT_CONFIG = TopicConfig()
_TAKEN = msgspec.Raw(b"")  # in place of records that are in a block


def _stored_before(topic: Topic, claim: ProducerClaim) -> Appended:
    """The answer to a number that the topic has of this producer: its own seqs, or none."""
    known = topic.producers
    assert known is not None
    newest, place = known.newest(claim.id), known.place_of(claim)
    assert newest is not None
    if place is None:
        first = last = count = None
        head = topic.head
    else:
        first, count = place
        head = last = first + count - 1
    return Appended(
        topic.name, topic.epoch, first, last, head, count, deduped=True,
        producer_sequence=newest.sequence,
    )  # fmt: skip


def _join(
    first: Ticket[Appended], topic: Topic, claim: ProducerClaim | None, ticket: Ticket[Appended]
) -> None:
    """Answer an append as the same one that is in flight, when that has landed."""

    def copy_answer(done: Ticket[Appended]) -> None:
        if done.error is not None:
            ticket.fail(done.error)
            return
        newest = topic.producers.newest(claim.id) if claim and topic.producers else None
        ticket.resolve(
            msgspec.structs.replace(
                done.result(), created=False, deduped=True,
                producer_sequence=newest.sequence if newest is not None else None,
            )
        )  # fmt: skip

    first.when_done(copy_answer)


def _tell_of(over: list[PendingAppend], answered: Answered) -> None:
    """Tell of appends that are not logged: now, or once the same one in flight is done."""
    for pending in over:
        if not pending.done:
            pending.when_done(lambda _, one=pending: answered([one]))  # type: ignore[misc]
    done = [pending for pending in over if pending.done]
    if done:
        answered(done)
