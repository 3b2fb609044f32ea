"""An append on its way through the log, and what its caller is told when it has arrived.

Only this file publishes what was appended: when the class of its topic is met, records, idempotency
key and producer become visible together, and exactly then the append is acknowledged.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.removal import retention
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.block import Block
from headrace.storage.snapshot.key_files import KeyRow
from headrace.storage.snapshot.state import ProducerState
from headrace.storage.wal.shard import WalShard


class Appended(msgspec.Struct, frozen=True, gc=False):
    """What an append was given.  `deduped`: it had been stored before, by this key or producer.

    Of a producer's repeat whose seqs are forgotten `first_seq`, `last_seq` and `count` are None,
    and `head_seq` is the head as it is now.
    """

    topic: str
    epoch: int
    first_seq: int | None
    last_seq: int | None
    head_seq: int
    count: int | None
    created: bool = False
    deduped: bool = False
    ts: int = 0
    sync_ns: int = 0  # of the sync it waited for
    write_ns: int = 0  # of the log write that held it
    throttle_ns: int = 0  # how long its sync was put off for others to join it
    producer_sequence: int | None = None  # of a producer's repeat: the highest that is stored


class Beside(msgspec.Struct):
    """What is committed beside the records of an append."""

    key: bytes = b""
    claim: ProducerClaim | None = None
    producer: ProducerState | None = None
    state: bytes | None = None


class InFlight(Protocol):
    """Who knows which appends are in flight."""

    def landed(self, pending: PendingAppend, beside: Beside) -> None: ...


class PendingAppend(Ticket[Appended], eq=False):
    """An append on its way through the log, which is also the ticket of its caller."""

    _appender: InFlight
    _state: EngineState
    _shard: WalShard
    topic: Topic
    block: Block
    raw: bytes
    needs_sync: bool
    _created: bool
    reserve: int
    beside: Beside | None = None

    def settle(self, error: HeadraceError | None) -> None:
        topic, block, shard, needs_sync = self.topic, self.block, self._shard, self.needs_sync
        if error is not None:
            self._fail(error)
            return
        try:
            topic.publish(block, self.raw != b"", needs_sync, self.reserve, shard)
            if self.beside is not None:
                self._remember(self.beside)
            if topic.bounded and (topic.config.cap_records or topic.config.cap_bytes):
                retention.enforce(self._state, topic)
        except MemoryError:
            self.fail(shard.halt())
            raise
        waiters = topic.waiters
        first, last = block.first_seq, topic.head
        answer = Appended(
            topic.name, topic.epoch, first, last, last, block.count, self._created, False, block.ts,
            shard.sync_ns if needs_sync else 0, shard.write_ns if self.raw else 0,
            shard.window_wait_ns if needs_sync else 0,
        )  # fmt: skip
        try:
            self.resolve(answer)
        finally:
            if waiters is not None:
                topic.wake_waiters()

    def _remember(self, beside: Beside) -> None:
        topic, block = self.topic, self.block
        if beside.key:
            row = KeyRow(
                topic.id, beside.key, block.first_seq, block.count, block.last_seq, block.arrived_ms
            )
            # A key is as durable as the records: no file may hold it longer than them.
            window_ms = topic.config.idempotency_window_ms
            self._state.keys.add(row, window_ms, saved=not self.raw)
        if beside.claim is not None and beside.producer is not None:
            self._state.producer_memory.accept(topic, beside.claim.id, beside.producer)
        if beside.state is not None:
            topic.set_state(beside.state)
        self._appender.landed(self, beside)

    def _fail(self, error: HeadraceError) -> None:
        block = self.block
        self.topic.unstage(block.first_seq, block, self.needs_sync, self.reserve)
        if self.beside is not None:
            self._appender.landed(self, self.beside)
        # Later, so that every seq of the failed batch is back before a caller tries again.
        self._state.runtime.soon(lambda: self.fail(error))
