"""Appends on their way through the log, and what their callers are told when they have arrived.

Only this file publishes what was appended: when the class of its topic is met, records, idempotency
key and producer become visible together, and exactly then the append is acknowledged.  Appends that
came together are logged, published and acknowledged together (`AppendCommit`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import PLAIN, Append, Records
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.removal import retention
from headrace.engine.state import EngineState
from headrace.engine.streams.state import StreamState
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

    claim: ProducerClaim | None
    producer: ProducerState | None  # what that makes of it
    key: bytes
    state: bytes | None
    is_stream: bool  # the state is a stream's, and staged as such


class Times(NamedTuple):
    """How long the log took for a commit."""

    sync_ns: int  # the sync that it waited for
    write_ns: int
    window_ns: int  # how long its sync was put off for others to join it


NO_TIMES = Times(0, 0, 0)


class PendingAppend(Ticket[Appended], eq=False):
    """An append that is asked for, which is also the ticket of its caller."""

    name: str
    batch: Records
    how: Append = PLAIN
    caller: Any = None  # what whoever asks wants to have beside the answer
    # Once it is staged:
    topic: Topic | None = None
    block: Block | None = None
    needs_sync: bool = False
    reserve: int = 0
    created: bool = False
    logged: bool = True  # not if its topic is never stored
    beside: Beside | None = None
    stream: StreamState | None = None  # what it makes of the stream
    # Once it is stored:
    head: int = 0  # of the topic, with it
    times: Times = NO_TIMES

    def tell(self) -> Exception | None:
        """Tell those who wait for it what it was given; return what went wrong with one of them."""
        try:
            self.resolve(self._given())
        except Exception as error:  # noqa: BLE001 - all must hear; the caller raises it again
            if not self.done:
                self.fail(error)
            return without_frames(error)
        return None

    def result(self) -> Appended:
        super().result()
        if self._value is None:
            self._value = self._given()
        return self._value

    def _given(self) -> Appended:
        topic, block, times = self.topic, self.block, self.times
        assert topic is not None and block is not None
        return Appended(
            topic.name, topic.epoch, block.first_seq, self.head, self.head, block.count,
            self.created, False, block.ts, times.sync_ns, times.write_ns, times.window_ns,
        )  # fmt: skip


# Hears of appends that are done, those together that are done together.
Answered = Callable[[Sequence[PendingAppend]], None]


class InFlight(Protocol):
    """Who knows which appends are in flight."""

    def landed(self, topic: Topic, pending: PendingAppend, beside: Beside) -> None: ...


class AppendCommit:
    """Appends that are settled together, and the entries that the log takes for them."""

    __slots__ = (
        "_answered", "_appends", "_in_flight", "_logged", "_shard", "_state", "entries",
        "needs_sync",
    )  # fmt: skip

    def __init__(
        self,
        state: EngineState,
        shard: WalShard,
        in_flight: InFlight,
        appends: Sequence[PendingAppend],
        entries: Sequence[bytes],
        needs_sync: bool,
        answered: Answered | None,
    ) -> None:
        self._state = state
        self._shard = shard
        self._in_flight = in_flight
        self._appends = appends
        self._logged = appends[0].logged  # all of them, or none
        self.entries = entries
        self.needs_sync = needs_sync
        self._answered = answered

    def settle(self, error: HeadraceError | None) -> None:
        """Publish and acknowledge every append, or take all of them back."""
        if error is not None:
            self._take_back(self._appends, error)
            return
        shard, woken = self._shard, dict[int, Topic]()
        write_ns = shard.write_ns if self._logged else 0
        if self.needs_sync:
            times = Times(shard.sync_ns, write_ns, shard.window_wait_ns)
        else:
            times = Times(0, write_ns, 0)
        failure: Exception | None = None
        logged, totals, appends = self._logged, self._state.totals, self._appends
        records = data_bytes = block_bytes = 0  # that are not in the totals yet
        for number, pending in enumerate(appends):
            topic, block = pending.topic, pending.block
            assert topic is not None and block is not None
            try:
                block_bytes += topic.publish_one_of_many(
                    block, logged, pending.needs_sync, pending.reserve, shard
                )
                records += block.count
                data_bytes += block.bytes
                beside = pending.beside
                if beside is not None:
                    self._remember(topic, block, pending, beside)
                if topic.bounded and (topic.config.cap_records or topic.config.cap_bytes):
                    totals.published(records, data_bytes, block_bytes, logged)
                    records = data_bytes = block_bytes = 0
                    retention.enforce(self._state, topic)
            except MemoryError as error:
                # It is applied in part, so those behind it must not be.
                failure = error
                unknown = shard.halt()
                pending.fail(unknown)
                self._take_back(appends[number + 1 :], unknown)
                self._appends = appends[: number + 1]
                break
            pending.head, pending.times = topic.head, times
            if pending._callbacks is None:
                pending.done = True  # what it was given is put together when it is asked for
            else:
                failure = failure or pending.tell()
            if topic.waiters is not None:
                woken[topic.id] = topic
        totals.published(records, data_bytes, block_bytes, logged)
        try:
            if self._answered is not None:
                self._answered(self._appends)
        finally:
            for topic in woken.values():
                topic.wake_waiters()
        if failure is not None:
            raise failure

    def _remember(self, topic: Topic, block: Block, pending: PendingAppend, beside: Beside) -> None:
        claim, producer = beside.claim, beside.producer
        if claim is not None and producer is not None:
            self._state.producer_memory.accept(topic, claim[0], producer)
        if beside.key:
            row = KeyRow(
                topic.id, beside.key, block.first_seq, block.count, block.last_seq, block.arrived_ms
            )
            # A key is as durable as the records: no file may hold it longer than them.
            window_ms = topic.config.idempotency_window_ms
            self._state.keys.add(row, window_ms, saved=not pending.logged)
        if beside.state is not None:
            topic.set_state(beside.state)
        self._in_flight.landed(topic, pending, beside)

    def _take_back(self, appends: Sequence[PendingAppend], error: HeadraceError) -> None:
        """Give back the seqs of appends that the log does not have, then refuse them."""
        for pending in appends:
            topic, block = pending.topic, pending.block
            assert topic is not None and block is not None
            topic.unstage(block.first_seq, block, pending.needs_sync, pending.reserve)
            if pending.beside is not None:
                self._in_flight.landed(topic, pending, pending.beside)
        answered = self._answered

        def refuse() -> None:
            for pending in appends:
                pending.fail(error)
            if answered is not None:
                answered(appends)

        # Later, so that every seq of the failed batch is back before a caller tries again.
        if appends:
            self._state.runtime.soon(refuse)
