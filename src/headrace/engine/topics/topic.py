"""One topic: its identity and config, what is on its way to its log, and who waits for it.

Only this file stages and publishes blocks, whether an append, a router or recovery brings them.
Which seqs are alive is in `live_seqs.py`, where their records are in `stored_blocks.py`, what an
archive has of them in `archived_seqs.py`, what a dialect keeps in `streamed_topic.py`: a topic is
all of that.  Any part may read its attributes; every change is a method here or there, and keeps
the sums over all topics in step (`totals.py`).

Nothing here waits, writes or knows time.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.clock import EngineClock
from headrace.core.runtime import Thunk
from headrace.engine.appending.producers import TopicProducers
from headrace.engine.queues.state import QueueState
from headrace.engine.topics.config import EPHEMERAL, FSYNC, TopicConfig, decode_config
from headrace.engine.topics.reservation import Log, Reservation
from headrace.engine.topics.streamed_topic import StreamedTopic
from headrace.engine.topics.totals import Totals
from headrace.storage.block import BLOCK_OBJECTS_BYTES, Block
from headrace.storage.snapshot.state import TopicState
from headrace.storage.wal.frame import Inherited, TopicCreate


class Topic(StreamedTopic):
    """State of one topic.  Owned by the loop thread."""

    __slots__ = (
        "archiving_to",
        "changing",
        "created_ms",
        "epoch",
        "id",
        "last_read_ms",
        "last_ts",
        "last_write_ms",
        "live",
        "needs_sync",
        "producers",
        "reservation",
        "staged_bytes",
        "staged_count",
        "unsettled_syncs",
        "waiters",
    )

    def __init__(
        self,
        id: int,
        name: str,
        epoch: int,
        config: TopicConfig,
        totals: Totals | None = None,
        created_ms: int = 0,
    ) -> None:
        super().__init__(name, config, Totals() if totals is None else totals)
        self.id = id
        self.epoch = epoch
        self.created_ms = created_ms
        self.live = False  # its creation is durable
        self.changing = 0  # configs on their way to the log
        self.set_config(config)
        self.staged_count = 0  # records and bytes staged but not yet visible
        self.staged_bytes = 0
        self.archiving_to = 0  # the highest watermark since the start that went to the log
        self.last_ts = 0
        self.last_write_ms = 0
        self.last_read_ms = 0  # when it was last consumed; 0: never since the start
        self.producers: TopicProducers | None = None
        self.unsettled_syncs = 0  # commits in flight that wait for a sync
        self.reservation = Reservation()
        self.waiters: list[Thunk] | None = None  # called, once, at the next change

    @classmethod
    def restored(cls, saved: TopicState, totals: Totals, queue: QueueState | None) -> Topic:
        """Make the topic that a snapshot describes, with the state of its jobs."""
        config = decode_config(saved.config)
        topic = cls(saved.id, saved.name, saved.epoch, config, totals, saved.created_ms)
        topic.live = True
        topic._restore_seqs(saved)
        topic._restore_bounds(saved)
        topic.last_ts = saved.last_ts
        topic.blocks.begin_behind(saved.last_ts)
        topic.last_write_ms = saved.last_write_ms
        topic.reservation.raise_to(saved.reserved_to)
        topic.set_state(saved.state)
        topic.queue = queue
        topic._restore_archived(saved)
        topic.parent_id, topic.parent_to = saved.parent_id, saved.parent_to
        topic.unlogged_to = saved.parent_to
        if saved.producers:
            topic.producers = TopicProducers(saved.producers, saved.older_appends)
        return topic

    @classmethod
    def replayed(cls, topic_id: int, create: TopicCreate, totals: Totals) -> Topic:
        """Make the topic whose creation the log tells."""
        config = decode_config(create.config)
        topic = cls(topic_id, create.name, create.epoch, config, totals, create.created_ms)
        topic.live = True
        topic.reservation.raise_to(create.reserved_to)
        topic.set_state(create.state)
        if create.parent_id:
            topic.inherit(create.parent_id, create.parent_to, create.inherited or Inherited())
        return topic

    def inherit(self, parent_id: int, to: int, bequest: Inherited) -> None:
        """Begin as a fork with the records of its parent up to `to`."""
        self._take_bequest(parent_id, to, bequest)
        # Nothing of it is this topic's to seal, and nothing of it is in the log under its id.
        self.sealed_to = self.logged_to = self.unlogged_to = to
        self.last_ts = bequest.last_ts
        self.blocks.begin_behind(bequest.last_ts)
        self.reservation.begin(to, synced=False)
        if self.deleted is not None:
            self.deleted = self._deletes_held()

    # Life and config

    def set_config(self, config: TopicConfig) -> None:
        """Live by this config from now on."""
        self.config = config
        # What every append asks of its config.
        self.needs_sync = config.durability == FSYNC
        self.ephemeral = config.durability == EPHEMERAL
        self.bounded = config.is_bounded
        self._look_whether_ordinary()
        self.hold_back(None, None)
        if self.queue is not None and not config.leases_durable:
            self.queue.durable = False
        self.serve_archive(bool(config.cold_reads))

    def go_live(self, reserved_to: int) -> None:
        """Exist: the creation, which reserves these seqs, is on disk."""
        assert not self.live, self.name
        self.live = True
        self.reservation.raise_to(reserved_to)
        self.totals.changed[self.id] = self
        if self.parent_to and self.totals.journal is not None:
            self.totals.journal.note(self.id, 0)  # to its readers all that it inherits is new

    def begin_serving(self) -> None:
        """Give out seqs again, after a recovery, from the head on."""
        self.staged = self.head
        self.reservation.begin(self.head, synced=self.needs_sync)

    def end(self) -> None:
        """Leave the totals and memory: the topic is deleted."""
        self.live = False
        self.totals.forget(self.id)
        self.totals.bytes -= self.bytes
        self.totals.records -= self.counted
        self.counted = 0
        self.drop_blocks()

    def mark_changed(self) -> None:
        """Have the next checkpoint look at this topic."""
        self.totals.changed[self.id] = self

    def begin_sync(self) -> None:
        """An entry that is synced goes to the log: what comes behind it waits for the sync, too."""
        self.unsettled_syncs += 1

    def end_sync(self) -> None:
        """That entry is on disk, or failed."""
        assert self.unsettled_syncs > 0, self.name
        self.unsettled_syncs -= 1

    def begin_config_change(self) -> None:
        """A new config goes to the log; records behind it are logged, too, whatever it says."""
        self.begin_sync()
        self.changing += 1

    def end_config_change(self) -> None:
        """That config is on disk, or failed."""
        self.end_sync()
        self.changing -= 1

    @property
    def is_logged(self) -> bool:
        """Whether anything of the topic is stored, so that what removes records must be, too."""
        return self.logged_to > 0 or not self.ephemeral

    def touch(self, now_ms: int) -> None:
        """Note that the topic is consumed, which counts for its priority."""
        self.last_read_ms = now_ms

    # Publishing

    def reserve(self, last: int, log: Log, clock: EngineClock) -> tuple[int, bool]:
        """What the entry that gives out `last` has to reserve, and whether it has to be synced."""
        reserve, needs_sync = 0, self.needs_sync
        if not needs_sync and last > self.reservation.quiet_to:
            reserve, needs_sync = self.reservation.up_to(last, log, clock)
        # What is acknowledged before an earlier entry of the topic would be seen before it.
        return reserve, needs_sync or self.unsettled_syncs > 0

    def syncs_itself(self, last: int) -> bool:
        """Whether the entry that gives out `last` has to be synced, not only those before it.

        While the config changes, it is: the topic may be of class fsync when it is acknowledged.
        """
        return self.needs_sync or self.changing > 0 or last > self.reservation.valid_to

    def stage(self, block: Block, needs_sync: bool, reserve: int) -> None:
        """Give out the seqs of a block that goes to the log; it may ask for more in `reserve`."""
        count, size = block.count, block.bytes
        self.staged += count
        self.last_ts = block.ts
        self.staged_count += count
        self.staged_bytes += size
        self.totals.staged_bytes += size
        if reserve:
            self.reservation.stage(reserve)
        if needs_sync:
            self.unsettled_syncs += 1

    def stage_trim(self, count: int, needs_sync: bool, reserve: int) -> None:
        """Give out seqs for records that a router's source has lost."""
        self.staged += count
        if reserve:
            self.reservation.stage(reserve)
        if needs_sync:
            self.unsettled_syncs += 1

    def unstage(self, first_seq: int, block: Block | None, needs_sync: bool, reserve: int) -> None:
        """Take back the seqs from `first_seq` on, of a block or of a trim, that the log refused.

        Everything staged behind them failed, too, so they can be given out again.
        """
        if block is not None:
            self.staged_count -= block.count
            self.staged_bytes -= block.bytes
            self.totals.staged_bytes -= block.bytes
        if needs_sync:
            self.unsettled_syncs -= 1
        self.staged = min(self.staged, first_seq - 1)
        if self.stream is not None and self.staged == self.head:
            self.last_ts = self.blocks.last_ts  # a client may have named any time
        if reserve:
            self.reservation.failed()
        assert self.staged_count >= 0 and self.unsettled_syncs >= 0, self.name

    def publish(
        self, block: Block, logged: bool, needs_sync: bool, reserve: int, log: Log | None
    ) -> None:
        """Make a staged block part of the topic: readers see it, at the head, from now on.

        `logged`: the log has it, so that a checkpoint can seal it.
        """
        size = self.publish_one_of_many(block, logged, needs_sync, reserve, log)
        self.totals.published(block.count, block.bytes, size, logged)

    def publish_one_of_many(
        self, block: Block, logged: bool, needs_sync: bool, reserve: int, log: Log | None
    ) -> int:
        """Do the same, while the caller counts all of its blocks at once (`Totals.published`).

        Return what the block takes in memory.
        """
        count, size = block.count, block.bytes
        head = self.head
        assert block.first_seq == head + 1, (self.name, block.first_seq, head)
        self.staged_count -= count
        self.staged_bytes -= size
        if needs_sync:
            self.unsettled_syncs -= 1
        if reserve:
            assert log is not None
            self.reservation.written(reserve, log)
        self.head = head = head + count
        self.bytes += size
        self.counted += count
        self.last_write_ms = block.arrived_ms
        self.blocks.stored.append(block)
        totals = self.totals
        totals.changed[self.id] = self
        memory = len(block.raw) + BLOCK_OBJECTS_BYTES
        if logged:
            if self.ephemeral_bytes:
                self.count_as_logged(head)
            self.logged_to = head
            self.unsealed_bytes += memory
        else:
            self.unlogged_to = head
            self.ephemeral_bytes += memory
        if totals.journal is not None:
            totals.journal.note(self.id, head - count)
        return memory

    def publish_trim(
        self, first: int, count: int, needs_sync: bool, reserve: int, log: Log
    ) -> None:
        """Make staged seqs whose records a router's source has lost part of the topic."""
        if needs_sync:
            self.unsettled_syncs -= 1
        if reserve:
            self.reservation.written(reserve, log)
        self.add_trim(first, first + count - 1)
        self.mark_changed()
        if self.totals.journal is not None:
            self.totals.journal.note(self.id, first - 1)

    def replay(self, block: Block) -> None:
        """Make a block of the log part of the topic, as it was before the stop."""
        self.staged_count += block.count
        self.staged_bytes += block.bytes
        self.totals.staged_bytes += block.bytes
        self.replay_ts(block.ts)
        self.publish(block, True, False, 0, None)

    def replay_ts(self, ts: int) -> None:
        """Note that records that are not stored had timestamps up to this one."""
        self.last_ts = max(self.last_ts, ts)

    # What is committed beside records

    def make_producers(self) -> TopicProducers:
        """What the topic remembers of its producers, made on first use."""
        if self.producers is None:
            self.producers = TopicProducers()
        return self.producers

    def make_queue(self) -> QueueState:
        """The state of the topic's jobs, made on first use."""
        if self.queue is None:
            self.queue = QueueState()
        return self.queue

    # Waiting

    def wait(self, wake: Thunk) -> None:
        """Call `wake` at the next change: records have come, or the topic is gone."""
        if self.waiters is None:
            self.waiters = [wake]
        else:
            self.waiters.append(wake)

    def stop_waiting(self, wake: Thunk) -> None:
        """Do not call `wake`, if it waits."""
        if self.waiters is not None and wake in self.waiters:
            self.waiters.remove(wake)
            self.waiters = self.waiters or None

    def drop_waiters(self, gave_up: Callable[[Thunk], bool]) -> None:
        """Drop the waiters that gave up."""
        if self.waiters is not None:
            self.waiters[:] = [wake for wake in self.waiters if not gave_up(wake)]

    def wake_waiters(self) -> None:
        """Call all waiters; one that wants to hear of the next change waits again."""
        waiters, self.waiters = self.waiters, None
        for wake in waiters or ():
            wake()

    # Watermarks on their way to the log

    def begin_archiving(self, to_seq: int) -> None:
        """A watermark goes to the log."""
        # What comes behind it in the log counts after it, as it will when the log is replayed.
        self.begin_sync()
        self.archiving_to = max(self.archiving_to, to_seq)

    def end_archiving(self, failed: bool) -> None:
        """That watermark is on disk, or failed with everything that was staged behind it."""
        self.end_sync()
        if failed:
            self.archiving_to = 0
