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
from headrace.core.limits import own_topic_prefix, seq_max
from headrace.engine.appending.admission import (
    PLAIN,
    Append,
    Records,
    check_batch,
    check_conditions,
    check_quota,
    check_room,
    refuse_closed,
    refuse_oversized,
    rows_of,
)
from headrace.engine.appending.append_block import SINGLE_KINDS, encode_append, sidecar_of
from headrace.engine.appending.gathered_appends import GatheredAppends
from headrace.engine.appending.pending_append import Answered, PendingAppend
from headrace.engine.appending.producers import admit_producer
from headrace.engine.appending.repeats import Repeats
from headrace.engine.removal import retention
from headrace.engine.state import EngineState
from headrace.engine.streams import rules
from headrace.engine.streams.writes import StreamWrites, refuse_other_head
from headrace.engine.topics.config import EPHEMERAL, TopicConfig
from headrace.engine.topics.lifecycle import Lifecycle
from headrace.engine.topics.topic import Topic
from headrace.storage.block import KIND_JSON, Block
from headrace.storage.block_encoding import BlockPlace, encode_single
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
        self.repeats = Repeats(state)
        self.stream_writes = StreamWrites(state, self.repeats)

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
        gathered = GatheredAppends(state, self.repeats, answered, flushes=ends_turn or full)
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
                # Of the only record, if that has nothing but data, as most have.
                kind = SINGLE_KINDS.get(type(batch))
                size = bytes_max + 1 if kind is None else len(batch)
                if size > bytes_max:
                    size = check_batch(state.settings, batch, how)
                elif how is not PLAIN:
                    check_conditions(state.settings, how)
                topic = find(name) if type(name) is str else state.find(name)
                if topic is None:
                    topic = self._create(name, how, rows_of(batch), size)
                    pending.created = True
                if how is not PLAIN and not self._meets_conditions(topic, pending, gathered):
                    over.append(pending)
                    continue
                shard = only or state.shard_of(topic.id)
                if (gathered.room <= 0 or gathered.shard is not shard) and not pending.created:
                    gathered.open(shard)
                before, ts = topic.staged, max(now, topic.last_ts)
                odd = kind != KIND_JSON and topic.stream is not None
                if busy or odd or not topic.ordinary or before > FEW_SEQS_LEFT:
                    self._check_topic(topic, pending, gathered, shard, size)
                last = before + (1 if kind is not None else rows_of(batch))
                reserve, needs_sync = topic.reserve(last, shard, clock)
                sidecar = b"" if how is PLAIN else sidecar_of(pending.how)
                if kind is not None:
                    record: bytes = batch  # type: ignore[assignment]
                    block = encode_single(record, kind, topic.id, last, ts, now, reserve, sidecar)
                else:
                    place = BlockPlace(topic.id, before + 1, ts, now, reserve)
                    block = encode_append(batch, sidecar, place, topic.last_ts)
                try:
                    if pending.created:
                        self._begin_topic(topic, block, gathered, shard)
                    pending.batch, pending.topic, pending.block = _TAKEN, topic, block
                    if needs_sync:
                        pending.needs_sync = True
                        gathered.syncs = gathered.syncs or topic.syncs_itself(last)
                    pending.reserve = reserve
                    topic.stage(block, needs_sync, reserve)
                    if sidecar:
                        self.repeats.track(topic, pending, last)
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

    def _meets_conditions(
        self, topic: Topic, pending: PendingAppend, gathered: GatheredAppends
    ) -> bool:
        """Raise if a condition is not met; False: it is answered, or will be."""
        how = pending.how
        try:
            if how.stream is not None:
                return self.stream_writes.admit(topic, pending)
            if self.repeats.answer(topic, how, pending):
                return False
            refuse_other_head(topic, how)
        except HeadMismatch as mismatch:
            gathered.stage()  # the log is to have what moved the head
            self.repeats.refuse_head(topic, mismatch, pending)
            return False
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
        if topic.stream is not None and pending.how.stream is None:
            rules.refuse_append(self._state, topic, pending.batch)
        if not pending.created:  # as `_create` has made sure of
            if topic.closed:
                refuse_closed(topic)
            if self._throttle.shedding:
                # Those that are gathered wait for the same shard, each with one entry.
                self._throttle.refuse_if_full(
                    shard, pending.how.disable_backpressure, len(gathered.appends)
                )
            if topic.ephemeral:
                self._state.refuse_ephemeral(size)
        if topic.bounded or self._has_quota or topic.staged > FEW_SEQS_LEFT:
            check_room(self._state, topic, pending.batch, size)

    def _create(self, name: str, how: Append, rows: int, size: int) -> Topic:
        """Make the topic on the way, once nothing can refuse the append any more."""
        config = how.config if how.config is not None else _DEFAULT_CONFIG
        create = how.create if how.create is not None else config.auto_create
        self._lifecycle.check_creatable(name, config, create)
        shard = self._state.shard_of(self._state.topics.next_id)
        self._throttle.refuse_if_full(shard, how.disable_backpressure)
        if config.discard == "reject":
            refuse_oversized(name, config, rows, size)
        if not name.startswith(own_topic_prefix):
            check_quota(self._state, size)
        if config.durability == EPHEMERAL:
            self._state.refuse_ephemeral(size)
        if how.idempotency_key is not None:
            self.repeats.refuse_key_if_full()
        if how.producer is not None:
            admit_producer(None, how.producer)
        if how.expected_head_seq:
            raise HeadMismatch(
                f"the head of {name!r} is 0, not {how.expected_head_seq}",
                fix="expect 0 of a topic that does not exist",
                detail={"topic": name, "head_seq": 0},
            )
        return self._lifecycle.new_for_append(name, config)


_DEFAULT_CONFIG = TopicConfig()
_TAKEN = msgspec.Raw(b"")  # in place of records that are in a block


def _tell_of(over: list[PendingAppend], answered: Answered) -> None:
    """Tell of appends that are not logged: now, or once the same one in flight is done."""
    for pending in over:
        if not pending.done:
            pending.when_done(lambda _, one=pending: answered([one]))  # type: ignore[misc]
    done = [pending for pending in over if pending.done]
    if done:
        answered(done)
