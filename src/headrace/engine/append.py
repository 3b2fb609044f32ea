"""Appending: admit, number, stage, and publish when the topic's class is met.

Only this file gives out seqs.  Everything that can refuse an append does so before anything
changes (`admission.py` has the checks).  A batch gets consecutive seqs and one timestamp that never
goes backwards; it is visible to readers exactly when it is acknowledged.
"""

from __future__ import annotations

import msgspec

from headrace.core.errors import HeadMismatch, HeadraceError
from headrace.core.limits import seq_max
from headrace.core.runtime import Ticket
from headrace.engine import retention
from headrace.engine.admission import (
    PLAIN,
    Append,
    check_batch,
    check_quota,
    check_room,
    refuse_oversized,
)
from headrace.engine.core_state import Core
from headrace.engine.idempotency import (
    Producer,
    Sidecar,
    admit_producer,
    digest,
    refuse_new_producer,
)
from headrace.engine.lifecycle import Lifecycle
from headrace.engine.topic import Topic
from headrace.engine.topic_config import EPHEMERAL, TopicConfig
from headrace.storage.block import AnyBatch, Block, ColumnBatch, encode_block, encode_columns
from headrace.storage.frame import ENTRY_RESERVE, Reserve
from headrace.storage.keys import KeyRow
from headrace.storage.wal import WalShard

# How far ahead of the head seqs are reserved, and over which time the rate is taken.
RESERVE_MIN = 256
RESERVE_RATE_NS = 100_000_000
# Beyond this an append looks whether the seqs suffice; no batch has 2^32 records.
FEW_SEQS_LEFT = seq_max - (1 << 32)


class Appended(msgspec.Struct, frozen=True, gc=False):
    """What an append was given.  `deduped`: it had been stored before, by this key or producer."""

    topic: str
    epoch: int
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool = False
    deduped: bool = False
    ts: int = 0
    sync_ns: int = 0  # of the sync it waited for
    write_ns: int = 0  # of the log write that held it
    throttle_ns: int = 0  # how long its sync was put off for others to join it


class Appender:
    """Appends to topics, creating them on the way."""

    def __init__(self, core: Core, lifecycle: Lifecycle) -> None:
        self._core = core
        self._throttle = core.throttle
        self._lifecycle = lifecycle
        # Appends in flight that a second one with the same key or producer has to wait for.
        self._in_flight: dict[tuple[int, bytes | str], Ticket[Appended]] = {}
        # What producers will have had accepted once everything in flight has landed.
        self._claims: dict[tuple[int, str], Producer] = {}

    def append(self, name: str, batch: AnyBatch, how: Append = PLAIN) -> Ticket[Appended]:
        """Stage a batch; the ticket is done when it is acknowledged."""
        core, settings = self._core, self._core.settings
        if not core.ready:
            core.refuse_unready()
        size = check_batch(settings, batch, how)
        topic = core.find(name)
        created = topic is None
        if topic is None:
            topic = self._create(name, batch, how, size)
        if how is not PLAIN:
            ticket: Ticket[Appended] = Ticket(core.runtime)
            if self._answered_before(topic, batch, how, ticket):
                return ticket
            if how.expected_head_seq is not None and how.expected_head_seq != topic.staged:
                raise HeadMismatch(
                    f"the head of {name!r} is {topic.staged}, not {how.expected_head_seq}",
                    fix="read on from that head and decide again",
                    detail={"topic": name, "head_seq": topic.staged},
                )
        shard = core.shard_of(topic.id)
        if not created:
            core.refuse_writes(shard)
            if self._throttle.shedding:
                self._throttle.refuse_if_full(shard, how.disable_backpressure)
            if topic.ephemeral:
                core.refuse_ephemeral(size)
        if topic.bounded or settings.max_total_bytes or topic.staged > FEW_SEQS_LEFT:
            check_room(core, topic, batch, size)
        pending = self._stage(topic, batch, how, created, shard)
        if topic.ephemeral and not topic.changing:
            self._stage_ephemeral(pending, shard)
        else:
            shard.stage(pending)
        return pending

    def _stage_ephemeral(self, pending: PendingAppend, shard: WalShard) -> None:
        """Records of this class never reach the log; the seqs they use are reserved there."""
        topic, reserve = pending.topic, pending.reserve
        pending.raw = b""
        pending.reserve = 0
        if reserve:

            def reserved(error: HeadraceError | None) -> None:
                topic.reserve_staged = reserve if error is None else 0
                if error is None:
                    topic.reserve_asked, topic.reserve_mark = reserve, shard.written

            self._core.log(topic, ENTRY_RESERVE, Reserve(reserve), needs_sync=False, done=reserved)
        if pending.needs_sync:
            shard.stage(pending)
        else:
            pending.settle(None)

    def _create(self, name: str, batch: AnyBatch, how: Append, size: int) -> Topic:
        """Create the topic on the way, once nothing can refuse the append any more."""
        config = how.config if how.config is not None else _DEFAULT_CONFIG
        create = how.create if how.create is not None else config.auto_create
        self._lifecycle.check_creatable(name, config, create)
        shard = self._core.shard_of(self._core.next_topic_id)
        self._throttle.refuse_if_full(shard, how.disable_backpressure)
        if config.discard == "reject":
            refuse_oversized(name, config, batch, size)
        check_quota(self._core, size)
        if config.durability == EPHEMERAL:
            self._core.refuse_ephemeral(size)
        if how.idempotency_key is not None:
            self._core.keys.refuse_if_full(self._core.clock.now_ms(), len(self._in_flight))
        if how.producer is not None:
            admit_producer(None, how.producer)
        if how.expected_head_seq:
            raise HeadMismatch(
                f"the head of {name!r} is 0, not {how.expected_head_seq}",
                fix="expect 0 of a topic that does not exist",
                detail={"topic": name, "head_seq": 0},
            )
        return self._lifecycle.create_for_append(name, config, batch.rows)

    def _answered_before(
        self, topic: Topic, batch: AnyBatch, how: Append, ticket: Ticket[Appended]
    ) -> bool:
        """Settle the ticket from what is known of this key or producer; False: append it."""
        core = self._core
        now = core.clock.now_ms()
        if how.idempotency_key is not None:
            key = digest(how.idempotency_key)
            if self._joined((topic.id, key), ticket):
                return True
            row = core.keys.find(topic.id, key, topic.config.idempotency_window_ms, now)
            if row is not None:
                ticket.resolve(_given_before(topic, row.first_seq, row.records, row.head))
                return True
            core.keys.refuse_if_full(now, len(self._in_flight))
        claim = how.producer
        if claim is None:
            return False
        known = self._claims.get((topic.id, claim.id)) or (topic.producers or {}).get(claim.id)
        if admit_producer(known, claim):
            if known is None:
                self._refuse_if_full(topic)
            return False
        if not self._joined((topic.id, claim.id), ticket):
            assert known is not None
            ticket.resolve(_given_before(topic, known.first_seq, known.count, known.head))
        return True

    def _refuse_if_full(self, topic: Topic) -> None:
        """Refuse a new producer where the topic remembers, or will, as many as it may."""
        most = self._core.settings.producers_per_topic_max
        known = topic.producers or {}
        if len(known) + len(self._claims) < most:
            return
        coming = sum(owner == topic.id and id not in known for owner, id in self._claims)
        refuse_new_producer(topic.name, len(known) + coming, most)

    def _joined(self, key: tuple[int, bytes | str], ticket: Ticket[Appended]) -> bool:
        """Wait with the append in flight under the same key, if there is one."""
        first = self._in_flight.get(key)
        if first is None:
            return False

        def copy_answer(done: Ticket[Appended]) -> None:
            if done.error is not None:
                ticket.fail(done.error)
            else:
                ticket.resolve(msgspec.structs.replace(done.result(), created=False, deduped=True))

        first.when_done(copy_answer)
        return True

    # Staging

    def _stage(
        self,
        topic: Topic,
        batch: AnyBatch,
        how: Append,
        created: bool,
        shard: WalShard,
    ) -> PendingAppend:
        core = self._core
        now = core.clock.now_ms()
        ts = now if now > topic.last_ts else topic.last_ts
        count = batch.rows
        last = topic.staged + count
        reserve = 0
        needs_sync = topic.needs_sync
        if not needs_sync and last + RESERVE_MIN // 2 > topic.reserved:
            reserve, needs_sync = self._reserve_up_to(topic, last, shard)
        if topic.unsettled_syncs:
            needs_sync = True
        sidecar = b"" if how is PLAIN else _sidecar(how)
        first = topic.staged + 1
        if isinstance(batch, ColumnBatch):
            block = encode_columns(batch, topic.id, first, ts, now, reserve, sidecar)
        else:
            if batch.timestamps is not None and batch.timestamps[0] < topic.last_ts:
                stamps = [max(stamp, topic.last_ts) for stamp in batch.timestamps]
                batch = batch._replace(timestamps=stamps)
            block = encode_block(batch, topic.id, first, ts, now, reserve, sidecar)
        # From here on nothing can fail, so the topic may change.
        size = block.bytes
        pending = PendingAppend(
            core.runtime, self, core, shard, topic, block, block.raw, needs_sync, created, reserve
        )
        topic.staged = last
        topic.last_ts = block.ts
        topic.staged_count += count
        topic.staged_bytes += size
        core.staged_bytes += size
        if reserve:
            topic.reserve_staged = reserve
        if needs_sync:
            topic.unsettled_syncs += 1
        if sidecar:
            self._note_in_flight(topic, how, pending)
        return pending

    def number_copies(self, topic: Topic, last: int, shard: WalShard) -> tuple[int, bool]:
        """Seqs up to `last` are about to be given to copies: what to reserve, whether to sync."""
        reserve, needs_sync = 0, topic.needs_sync
        if not needs_sync and last + RESERVE_MIN // 2 > topic.reserved:
            reserve, needs_sync = self._reserve_up_to(topic, last, shard)
        if reserve:
            topic.reserve_staged = reserve
        return reserve, needs_sync or topic.unsettled_syncs > 0

    def _reserve_up_to(self, topic: Topic, last: int, shard: WalShard) -> tuple[int, bool]:
        """What an entry that gives out `last` has to reserve, and whether it has to be synced."""
        if topic.reserve_mark and shard.durable >= topic.reserve_mark:
            topic.reserved, topic.reserve_mark = topic.reserve_asked, 0
        reserve = 0
        asked = topic.reserve_staged > topic.reserved and last <= topic.reserve_staged
        if not asked and last + RESERVE_MIN // 2 > topic.reserved:
            reserve = self._reserve(topic, last)
        return reserve, last > topic.reserved

    def _reserve(self, topic: Topic, last: int) -> int:
        """Seqs up to this one may be acknowledged once the log is synced beyond this entry."""
        now_ns = self._core.clock.monotonic_ns()
        elapsed_ns = max(RESERVE_RATE_NS, now_ns - topic.reserve_time_ns)
        rate = (last - topic.reserve_from) * RESERVE_RATE_NS // elapsed_ns
        topic.reserve_time_ns, topic.reserve_from = now_ns, last
        return min(last + max(RESERVE_MIN, 2 * rate), seq_max)

    def _note_in_flight(self, topic: Topic, how: Append, pending: PendingAppend) -> None:
        block, claim = pending.block, how.producer
        pending.beside = beside = Beside(state=how.state)
        if how.idempotency_key is not None:
            beside.key = digest(how.idempotency_key)
            self._in_flight[topic.id, beside.key] = pending
        if claim is not None:
            beside.producer_id = claim.id
            beside.producer = self._claims[topic.id, claim.id] = Producer(
                claim.epoch, claim.sequence, block.first_seq, block.count, block.last_seq
            )
            self._in_flight[topic.id, claim.id] = pending

    def landed(self, pending: PendingAppend, beside: Beside) -> None:
        """Forget that an append was in flight."""
        topic_id = pending.topic.id
        if beside.key:
            self._in_flight.pop((topic_id, beside.key), None)
        producer_key = (topic_id, beside.producer_id)
        if self._in_flight.get(producer_key) is pending:
            del self._in_flight[producer_key]
            del self._claims[producer_key]


class Beside(msgspec.Struct):
    """What is committed beside the records of an append."""

    key: bytes = b""
    producer_id: str = ""
    producer: Producer | None = None
    state: bytes | None = None


class PendingAppend(Ticket[Appended], eq=False):
    """An append on its way through the log, which is also the ticket of whoever asked for it."""

    _appender: Appender
    _core: Core
    _shard: WalShard
    topic: Topic
    block: Block
    raw: bytes
    needs_sync: bool
    _created: bool
    reserve: int
    beside: Beside | None = None

    def settle(self, error: HeadraceError | None) -> None:
        topic, core, block, shard = self.topic, self._core, self.block, self._shard
        count, size, needs_sync = block.count, block.bytes, self.needs_sync
        topic.staged_count -= count
        topic.staged_bytes -= size
        core.staged_bytes -= size
        if needs_sync:
            topic.unsettled_syncs -= 1
        if error is not None:
            self._fail(error)
            return
        if self.reserve:
            # Valid once the shard is durable beyond this entry; `written` is at or past its end.
            topic.reserve_asked, topic.reserve_mark = self.reserve, shard.written
        first = block.first_seq
        assert first == topic.head + 1, (topic.name, first, topic.head)
        topic.head = last = first + count - 1
        topic.bytes += size
        topic.last_write_ms = block.arrived_ms
        topic.counted += count
        core.totals.records += count
        core.total_bytes += size
        core.keep(topic, block, self.raw != b"")
        if self.beside is not None:
            self._remember(self.beside)
        if topic.bounded and (topic.config.cap_records or topic.config.cap_bytes):
            retention.enforce(core, topic)
        waiters = topic.waiters
        answer = Appended(
            topic.name, topic.epoch, first, last, last, count, self._created, False, block.ts,
            shard.sync_ns if needs_sync else 0, shard.write_ns if self.raw else 0,
            shard.window_wait_ns if needs_sync else 0,
        )  # fmt: skip
        try:
            self.resolve(answer)
        finally:
            if waiters is not None:
                topic.waiters = None
                for wake in waiters:
                    wake()

    def _remember(self, beside: Beside) -> None:
        topic, block = self.topic, self.block
        if beside.key:
            row = KeyRow(
                topic.id, beside.key, block.first_seq, block.count, block.last_seq, block.arrived_ms
            )
            # A key is as durable as the records: no file may hold it longer than them.
            window_ms = topic.config.idempotency_window_ms
            self._core.keys.add(row, window_ms, saved=not self.raw)
        if beside.producer is not None:
            if topic.producers is None:
                topic.producers = {}
            topic.producers[beside.producer_id] = beside.producer
        if beside.state is not None:
            topic.state = beside.state
        self._appender.landed(self, beside)

    def _fail(self, error: HeadraceError) -> None:
        """Everything staged behind this failed with it, so the seqs can be given out again."""
        topic = self.topic
        topic.staged = min(topic.staged, self.block.first_seq - 1)
        if self.reserve:
            topic.reserve_staged = 0
        if self.beside is not None:
            self._appender.landed(self, self.beside)
        # Later, so that every seq of the failed batch is back before anybody tries again.
        self._core.runtime.soon(lambda: self.fail(error))


_DEFAULT_CONFIG = TopicConfig()


def _sidecar(how: Append) -> bytes:
    """What is committed beside the records; empty when there is nothing."""
    claim = how.producer
    if how.idempotency_key is None and claim is None and how.state is None:
        return b""
    return Sidecar(
        b"" if how.idempotency_key is None else digest(how.idempotency_key),
        claim.id if claim else "",
        claim.epoch if claim else 0,
        claim.sequence if claim else 0,
        how.state,
    ).encode()


def _given_before(topic: Topic, first_seq: int, count: int, head: int) -> Appended:
    """The answer that the first append of a repeated one was given."""
    last_seq = first_seq + count - 1
    return Appended(topic.name, topic.epoch, first_seq, last_seq, head, count, deduped=True)
